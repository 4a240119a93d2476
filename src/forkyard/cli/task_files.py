"""The files of a new task directory: something that works, to be changed."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from forkyard.errors import ConfigError

_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*")

_TOML = Template("""schema_version = "1.4"
artifacts = ["/app/total.txt"] # what the verifier gets to see of the agent's sandbox

[task]
name = "$full"
description = "Add up the amounts of a list of expenses."

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 120.0
environment_mode = "separate" # graded in a sandbox of its own, in which the agent has never been

[environment]
network_mode = "no-network"
workdir = "/app"
memory_mb = 1024
""")

_INSTRUCTION = """# The total of the expenses

`/app/expenses.csv` lists expenses as `day,what,amount`. Amounts have two decimals; those of lines whose `what` begins
with `refund` count as negative.

Write to `/app/total.txt`:

1. on the first line the number of refunds,
2. on the second line the total of all amounts with two decimals, refunds taken off.
"""

_DOCKERFILE = """FROM debian:bookworm-slim
WORKDIR /app
COPY expenses.csv ./
"""

_EXPENSES = """day,what,amount
2026-03-02,paper,18.40
2026-03-02,refund paper,3.10
2026-03-05,train,64.00
2026-03-09,stamps,9.95
2026-03-09,refund train,12.50
2026-03-11,coffee,27.35
"""

_SOLVE = """#!/bin/bash
set -eu
cd /app
grep -c '^[^,]*,refund' expenses.csv > total.txt
awk -F, 'NR > 1 { total += ($2 ~ /^refund/ ? -$3 : $3) } END { printf "%.2f\\n", total }' expenses.csv >> total.txt
"""

_TEST = """#!/bin/bash
# Each line earns its share of the reward. What the agent left is data here: it is read, never run.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
passed=0
total=2
line() { head -c 1000 /app/total.txt 2> /dev/null | sed -n "$1p"; }
want() { # number of the line, what it has to be
  if [ "$(line "$1")" = "$2" ]; then
    passed=$((passed + 1))
    echo "ok      line $1"
  else
    echo "FAILED  line $1 is not right"
  fi
}

want 1 2
want 2 104.10
reward=$(awk -v p="$passed" -v t="$total" 'BEGIN { print p / t }')
echo "{\\"reward\\": $reward, \\"tests_passed\\": $passed, \\"tests_total\\": $total}" > /logs/verifier/reward.json
"""


def write_task(name: str, place: Path) -> Path:
    """Write a task called `name` into a directory of its own in `place`. Raises ConfigError; nothing is overwritten."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise ConfigError(
            f"{name!r} cannot be a task's name: use letters, digits, '.', '_' and '-', as my-task or org/my-task"
        )
    root = place / name.rpartition("/")[2]
    if root.exists() or root.is_symlink():
        raise ConfigError(f"{root} already exists, and nothing is overwritten: choose another name, or --dir")
    files = {
        "task.toml": _TOML.substitute(full=name if "/" in name else f"tasks/{name}"),
        "instruction.md": _INSTRUCTION,
        "environment/Dockerfile": _DOCKERFILE,
        "environment/expenses.csv": _EXPENSES,
        "solution/solve.sh": _SOLVE,
        "tests/test.sh": _TEST,
    }
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if file.suffix == ".sh" else 0o644)
    return root
