"""Whole rollouts beside `verifiers` 0.4.0: the same tiny tasks, the same scripted model, in turns on one machine.

    python -m benchmarks.envs [--at 1 16 64] [--rounds 1]

What is compared, per number of rollouts at once:

    null       one model turn and no tools: Forkyard in a `local` sandbox, verifiers with its subprocess runtime
    program    a small program in the sandbox asks the model and writes a file: `local` beside Docker
    isolated   the same, graded in a second sandbox that gets the file: `local` beside Docker
    python     as `program`, but in Python, whose own start takes longer than all else we do: `local` beside Docker

The small program is of a few lines for bash, so that what is measured is not the program.

verifiers and uv are installed from PyPI into a folder of their own, once. For Docker, Debian's `docker.io` is started
and both get the same root file system, made by debootstrap; without them the last two are left out, saying so.
Rollouts per second are counted from the first start to the last line, those that earned their reward alone; memory is
the largest sum of proportional set sizes of all processes of the command (those of Docker's daemon are not counted).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dockerd import running_docker

VERIFIERS = ("verifiers==0.4.0", "uv")
CACHE = Path.home() / ".cache" / "forkyard-bench"
IMAGE = "bench:latest"

SERVER = r"""
import asyncio, json, sys

async def handle(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n") if b":" in line)
            size = int(fields.get(b"content-length", 0))
            body = json.loads(await reader.readexactly(size)) if size else {}
            said = {"role": "assistant", "content": "done"}
            usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
            base = {"id": "x", "created": 0, "model": "m"}
            kind = b"application/json"
            if body.get("stream"):
                kind = b"text/event-stream"
                chunk = {**base, "object": "chat.completion.chunk"}
                first = {**chunk, "choices": [{"index": 0, "delta": said, "finish_reason": None}]}
                last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
                events = [*(json.dumps(each).encode() for each in (first, last)), b"[DONE]"]
                out = b"".join(b"data: %s\n\n" % event for event in events)
            else:
                choice = {"index": 0, "message": said, "finish_reason": "stop"}
                out = json.dumps({**base, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind, len(out)) + out)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()

async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""

BASH = r"""
url=$1 key=$2 model=$3 prompt=$4
rest=${url#http://} host=${rest%%/*}
name=${host%%:*} port=${host##*:}
[ "$port" = "$host" ] && port=80
body="{\"model\": \"$model\", \"messages\": [{\"role\": \"user\", \"content\": \"$prompt\"}]}"
exec 3<>"/dev/tcp/$name/$port"
printf 'POST /%s/chat/completions HTTP/1.1\r\nhost: %s\r\nauthorization: Bearer %s\r\nconnection: close\r\n' \
    "${rest#*/}" "$host" "$key" >&3
printf 'content-type: application/json\r\ncontent-length: %d\r\n\r\n%s' "${#body}" "$body" >&3
while IFS= read -r -u 3 line || [ -n "$line" ]; do reply=$line; done
[[ $reply =~ \"content\":\ *\"([^\"]*)\" ]] || exit 1
[ -d /app ] || mkdir /app
printf %s "${BASH_REMATCH[1]}" >/app/answer.txt
"""

PYTHON = r"""
import json, os, socket, sys
url, key, model, prompt = sys.argv[1:]
host, _, path = url.removeprefix("http://").partition("/")
name, _, port = host.partition(":")
body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
with socket.create_connection((name, int(port or 80))) as connection, connection.makefile("rb") as answer:
    connection.sendall(
        f"POST /{path}/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )
    fields = dict(line.lower().split(b":", 1) for line in iter(answer.readline, b"\r\n") if b":" in line)
    reply = json.loads(answer.read(int(fields[b"content-length"])))
os.makedirs("/app", exist_ok=True)
open("/app/answer.txt", "w").write(reply["choices"][0]["message"]["content"])
"""

PROGRAMS = {"program": ["bash", "-c", BASH, "-"], "python": ["python3", "-I", "-S", "-c", PYTHON]}

TASKS = {
    "null": """
class TinyTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply.strip() == "done")

class TinyTaskset(vf.Taskset[TinyTask, vf.TasksetConfig]):
    def load(self):
        return [TinyTask(vf.TaskData(name=f"t{i}", prompt=f"Say done. {i}")) for i in range(2000)]

__all__ = ["TinyTaskset"]
""",
    "program": """
class TinyTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, runtime) -> float:
        return float((await runtime.read("/app/answer.txt")).strip() == b"done")

class TinyTaskset(vf.Taskset[TinyTask, vf.TasksetConfig]):
    def load(self):
        kept = [vf.Artifact(source="/app/answer.txt")]
        return [
            TinyTask(vf.TaskData(name=f"t{i}", prompt=f"Say done. {i}", image="bench:latest", artifacts=kept))
            for i in range(2000)
        ]

__all__ = ["TinyTaskset", "TinyHarness"]
""",
}
HARNESSES = {
    "verifiers.v1": """
class TinyConfig(vf.HarnessConfig):
    pass

class TinyHarness(vf.Harness[TinyConfig]):
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        return await runtime.run([*PROGRAM, endpoint, secret, ctx.model, data.prompt], {})
""",
    "forkyard": """
class TinyHarness(vf.Harness):
    needs_endpoint = True

    async def launch(self, ctx, task, trace, runtime):
        to = ctx.endpoint
        asked = (f"{to.base_url}/v1", to.key, to.model, task.data.prompt)
        await runtime.run([*PROGRAM, *asked])
        trace.stop("agent_completed")
""",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """What one command did."""

    rollouts: int
    failed: int
    per_second: float
    mib: float


def module(directory: Path, api: str, kind: str) -> str:
    """A taskset for one of the two, in a file of its own: all but the import and the harness is the same text."""
    played = "program" if kind == "isolated" else kind
    name = f"tiny_{played}_{api.split('.')[0]}"
    harness = f"PROGRAM = {PROGRAMS[played]!r}\n{HARNESSES[api]}" if played in PROGRAMS else ""
    tasks = TASKS["program" if harness else "null"]
    (directory / f"{name}.py").write_text(f"import {api} as vf\n{harness}{tasks}")
    return name


def measured(command: Sequence[str], out: Path, expected: int, env: dict[str, str]) -> Rate:
    """Run a command to its end; its lines are in `out`/*/traces.jsonl."""
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log, cwd=out.parent)
        most = 0.0
        while process.poll() is None:
            most = max(most, tree_mib(process.pid))
            time.sleep(0.3)
        log.seek(0)
        said = log.read().decode(errors="replace")
    traces = next(out.glob("*/traces.jsonl"), None)
    if process.returncode != 0 or traces is None:
        sys.exit(f"{' '.join(command)} failed:\n{said[-3000:]}")
    starts, good = [], 0
    for line in traces.read_text().splitlines():
        record = json.loads(line)
        rollout = record["traces"][0] if "traces" in record else record
        starts.append(rollout["timing"]["start"] if "timing" in rollout else rollout["started"])
        good += reward_of(rollout) == 1.0
    if not good:
        sys.exit(f"{' '.join(command)}: none of {expected} rollouts earned 1:\n{said[-3000:]}")
    return Rate(expected, expected - good, good / (traces.stat().st_mtime - min(starts)), most)


def reward_of(rollout: dict[str, object]) -> float | None:
    rewards = rollout.get("rewards")
    right = rewards.get("right") if isinstance(rewards, dict) else None
    return right["score"] if isinstance(right, dict) else None


def tree_mib(root: int) -> float:
    """Proportional set size of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024


def installed() -> Path:
    """The folder of verifiers' own Python environment."""
    place = CACHE / "verifiers-0.4.0"
    if not (place / "bin" / "vf-eval").exists():
        print("installing verifiers 0.4.0 from PyPI ...")
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([place / "bin" / "pip", "install", "-q", *VERIFIERS], check=True, stderr=subprocess.DEVNULL)
    return place


def root_archive() -> Path | None:
    """A Debian with Python, as an archive; None, with the reason said, where it cannot be made."""
    archive = CACHE / "bookworm-python.tar"
    if archive.exists():
        return archive
    if shutil.which("debootstrap") is None:
        print("debootstrap is not installed: going on without the parts that need Docker")
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="forkyard-bench-root-") as root:
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["debootstrap", "--variant=minbase", "--include=python3", "bookworm", root], **quiet)  # type: ignore[call-overload]
        subprocess.run(["tar", "-C", root, "-cf", f"{archive}.new", "."], check=True)
    Path(f"{archive}.new").rename(archive)
    return archive


@contextmanager
def scripted_model() -> Iterator[str]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
    finally:
        server.kill()
        server.wait()


class Bench:
    """Both commands, with everything they share."""

    def __init__(self, directory: Path, url: str, docker: str | None) -> None:
        self.directory = directory
        self.url = url
        self.rivals = installed() / "bin"
        self.env = {"PYTHONPATH": str(directory), "FORKYARD_HOME": str(directory / "home")}
        self.env |= {"OPENAI_API_KEY": "none", "PRIME_API_KEY": "none"}
        if docker is not None:
            self.env["DOCKER_HOST"] = docker
        self.env["PATH"] = f"{self.rivals}:{os.environ['PATH']}"

    def forkyard(self, kind: str, at_once: int) -> Rate:
        """Enough rollouts for a second or more."""
        rollouts = max(200, 6 * at_once)
        command = [sys.executable, "-m", "forkyard.cli", "eval", module(self.directory, "forkyard", kind)]
        command += ["-m", "m", "--client.base-url", self.url, "-q", "-o", str(self.directory / "ours")]
        if kind == "null":
            command += ["--env.agent.harness.id", "null"]
        if kind == "isolated":
            command += ["--env.id", "isolated-verifier"]
        return measured([*command, *self._size(rollouts, at_once)], self.directory / "ours", rollouts, self.env)

    def verifiers(self, kind: str, at_once: int) -> Rate:
        """Two rounds of what runs at once: it takes long enough."""
        rollouts = max(6, 2 * at_once)
        command = [str(self.rivals / "vf-eval"), module(self.directory, "verifiers.v1", kind)]
        command += ["-m", "m", "--client.base-url", self.url, "--no-rich", "--no-push"]
        command += ["-o", str(self.directory / "theirs")]
        command += ["--env.agent.runtime.type", "subprocess" if kind == "null" else "docker"]
        if kind == "null":
            command += ["--env.agent.harness.id", "null"]
        if kind == "isolated":
            command += ["--env.id", "isolated-verifier"]
        return measured([*command, *self._size(rollouts, at_once)], self.directory / "theirs", rollouts, self.env)

    def _size(self, rollouts: int, at_once: int) -> list[str]:
        return ["-n", str(rollouts), "-c", str(at_once)]

    def import_root(self, archive: Path) -> None:
        """Give Forkyard the image that Docker has."""
        command = [sys.executable, "-m", "forkyard.cli", "image", "import", str(archive), IMAGE]
        subprocess.run(command, env={**os.environ, **self.env}, check=True, stdout=subprocess.DEVNULL)


def compare(bench: Bench, kind: str, at: Sequence[int], rounds: int) -> None:
    bench.forkyard(kind, 1)  # images and environments are made once, here
    bench.verifiers(kind, 1)
    for at_once in at:
        for _ in range(rounds):
            ours, theirs = bench.forkyard(kind, at_once), bench.verifiers(kind, at_once)
            print(
                f"{kind:9} {at_once:4}   {ours.per_second:8.1f}/s {ours.mib:6.0f} MiB   "
                f"{theirs.per_second:8.2f}/s {theirs.mib:6.0f} MiB   {ours.per_second / theirs.per_second:5.0f}x"
                f"{lost(ours, theirs)}",
                flush=True,
            )


def lost(ours: Rate, theirs: Rate) -> str:
    """How many rollouts did not come to their reward; only those that did count as done."""
    said = [f"{who} lost {rate.failed} of {rate.rollouts}" for who, rate in (("Forkyard", ours), ("verifiers", theirs))]
    return "   " + ", ".join(text for text, rate in zip(said, (ours, theirs), strict=True) if rate.failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", default=["null", "program", "isolated", "python"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forkyard-bench-") as name, scripted_model() as url:
        print("what        at   forkyard               verifiers 0.4.0          ratio")
        if "null" in options.kinds:
            compare(Bench(Path(name), url, None), "null", options.at, options.rounds)
        archive = root_archive() if set(options.kinds) - {"null"} else None
        if archive is None:
            return
        with running_docker(archive, IMAGE, bridge=True) as docker:
            if docker is None:
                return
            bench = Bench(Path(name), url, docker.address)
            bench.import_root(archive)
            for kind in [kind for kind in options.kinds if kind != "null"]:
                compare(bench, kind, options.at, options.rounds)


if __name__ == "__main__":
    main()
