#!/bin/sh
# The main job, end to end: the example tasks, played in forked sandboxes by a reference solution, by an agent that
# does nothing, and by a scripted model that drives the real bash harness; graded, recorded, reported.
set -eu
forkyard=$1
cd "$(dirname "$0")/.."
# The tasks bound their sandboxes' memory, which root can do everywhere, and an ordinary user not on every machine.
bounds=$([ "$(id -u)" = 0 ] || echo " --unbounded")
stamp=$(date +%Y%m%d-%H%M%S)
play() {
    name=$1
    shift
    printf '\n$ forkyard run examples/tasks --base host%s %s\n' "$bounds" "$*"
    "$forkyard" run examples/tasks --base host $bounds -n 4 --out runs --run "demo-$stamp-$name" "$@"
}
play oracle -a oracle
play nop -a nop
play scripted -a scripted --ak script=examples/scripts.json -k 4
cat <<'END'

Every line of the last run is in runs/demo-*-scripted/traces.jsonl. The same command line runs a real model:

  export OPENAI_BASE_URL=... OPENAI_API_KEY=...
  .venv/bin/forkyard run examples/tasks --base host -m MODEL -k 4
END
