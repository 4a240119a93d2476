"""Task directories beside Harbor 0.26: the same tasks, the same root file system, the oracle agent, in turns.

    python -m benchmarks.tasks [--at 4] [--rounds 1] [--samples 3] [--cases ../shared/cases/tasks]

Played are the example tasks and, where the folder exists, the given cases. Harbor is installed from PyPI, once, into a
folder of Debian 13's packages (it needs Python 3.12 or newer), and started there by chroot with its Docker environment;
dockerd is started here, from Debian's `docker.io`. The base images are one Debian with Python and git, made by
debootstrap and given to both; the images of the tasks are built before. Both get copies of the tasks without
`no-network`: Harbor would start a second container for it, of an image that only Docker Hub has. Both run in a network
namespace of their own, out of the way of any other dockerd here.

Trials per minute are counted from the first start to the last end. Memory is the largest sum of proportional set sizes:
of the command and all its sandboxes, and apart from that of Docker's daemons. A trial is right when it ends with the
reward that the task is there to show: 1, or what the case's `expected.json` says.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.dockerd import Daemon, started_docker
from benchmarks.envs import CACHE

HARBOR = "0.26.0"
ROOT = Path(__file__).parents[1]
PACKAGES = "python3-venv,ca-certificates,git,docker-cli,docker-compose,docker-buildx"
IMAGES = ("debian:bookworm-slim", "python:3.13-slim", "python:3.13")
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h; Python has it from 3.12 on
# What a chroot into the folder needs of this machine, in a mount namespace that ends with the command.
ENTER = r"""
set -e
root=$1 shared=$2; shift 2
for place in /proc /dev; do mount --rbind $place $root$place; done
for file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
    [ -e $root$file ] || touch $root$file
    mount --bind $file $root$file
done
mount -t tmpfs tmpfs $root/tmp
mkdir -p $root$shared
mount --bind $shared $root$shared
exec chroot $root "$@"
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """How one ended."""

    task: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class Turn:
    """What one command did."""

    trials: Sequence[Trial]
    per_minute: float
    mib: float
    daemons_mib: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The processes of this machine at one moment."""

    parents: Mapping[int, int]

    @classmethod
    def taken(cls) -> Sample:
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        return cls(parents)

    def under(self, roots: Iterable[int]) -> set[int]:
        """These processes with all their descendants."""
        found, more = set[int](), set(roots)
        while more:
            found |= more
            more = {pid for pid, parent in self.parents.items() if parent in more} - found
        return found


def mib_of(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024


def memory(command: int, daemon: Daemon) -> tuple[float, float]:
    """MiB of a command with all its sandboxes, and of Docker's daemons: what they run in containers is not theirs."""
    sample = Sample.taken()
    shims = {pid for pid in sample.parents if _is_shim(pid, daemon.socket.parent)}
    daemons = sample.under([daemon.process.pid]) | shims
    contained = {pid for pid in sample.under(shims) - daemons if not _named(pid, "runc")}
    return mib_of(sample.under([command]) | contained), mib_of(daemons)


def _is_shim(pid: int, directory: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"containerd-shim" in words[0] and any(str(directory).encode() in word for word in words)


def _named(pid: int, name: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith(name)
    except OSError:
        return True


def watched(command: Sequence[str], env: Mapping[str, str], daemon: Daemon) -> tuple[float, float]:
    """Run a command to its end: the most memory it and the daemons took."""
    ours = daemons = 0.0
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while process.poll() is None:
            now = memory(process.pid, daemon)
            ours, daemons = max(ours, now[0]), max(daemons, now[1])
            time.sleep(0.5)
        log.seek(0)
        said = log.read().decode(errors="replace")
    if process.returncode not in (0, 2):  # Forkyard's 2: a rollout has no score, as in some of the cases
        sys.exit(f"{' '.join(command)} failed:\n{said[-3000:]}")
    return ours, daemons


class Bench:
    """Both commands over one folder of tasks."""

    def __init__(self, directory: Path, tasks: Path, harbor: Path, daemon: Daemon) -> None:
        self._directory, self._tasks, self._harbor, self._daemon = directory, tasks, harbor, daemon
        self._turns = 0

    def forkyard(self, at_once: int, samples: int) -> Turn:
        out = self._place("ours")
        command = [sys.executable, "-m", "forkyard.cli", "run", str(self._tasks), "-a", "oracle", "-q", "-r", "0"]
        command += ["-n", str(at_once), "-k", str(samples), "-o", str(out), "--run", "bench"]
        most = watched(command, {"FORKYARD_HOME": str(self._directory / "home")}, self._daemon)
        traces = out / "bench" / "traces.jsonl"
        lines = [json.loads(line) for line in traces.read_text().splitlines()]
        trials = [Trial(line["task"], line["reward"]) for line in lines]
        return turn(trials, traces.stat().st_mtime - min(line["started"] for line in lines), most)

    def harbor(self, at_once: int, samples: int) -> Turn:
        out = self._place("theirs")
        command = ["/opt/harbor/bin/harbor", "run", "-p", str(self._tasks), "-a", "oracle", "-e", "docker", "-q", "-y"]
        command += ["-n", str(at_once), "-k", str(samples), "-o", str(out), "--job-name", "bench"]
        env = {"DOCKER_HOST": f"unix://{self._daemon.socket}", "HARBOR_TELEMETRY": "0"}
        most = watched(inside(self._harbor, self._directory, command), env, self._daemon)
        results = [json.loads(path.read_text()) for path in out.glob("bench/*/result.json")]
        seconds = max(when(each["finished_at"]) for each in results) - min(when(each["started_at"]) for each in results)
        return turn([_harbors_trial(each) for each in results], seconds, most)

    def build(self) -> None:
        """Build what the tasks run in, once, for each of the two."""
        self.forkyard(1, 1)
        env = {**os.environ, "DOCKER_HOST": f"unix://{self._daemon.socket}"}
        for dockerfile in self._tasks.rglob("Dockerfile"):
            command = inside(self._harbor, self._directory, ["docker", "build", "-q", str(dockerfile.parent)])
            subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)

    def _place(self, name: str) -> Path:
        self._turns += 1
        return self._directory / f"{name}-{self._turns}"


def turn(trials: Sequence[Trial], seconds: float, most: tuple[float, float]) -> Turn:
    return Turn(trials, len(trials) * 60 / seconds, *most)


def when(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _harbors_trial(result: dict[str, object]) -> Trial:
    verified = result["verifier_result"]
    rewards = verified.get("rewards") if isinstance(verified, dict) else None
    return Trial(str(result["task_name"]), (rewards or {}).get("reward"))


def harbor_root() -> Path:
    """A Debian 13 with Harbor in it."""
    root = CACHE / f"harbor-{HARBOR}"
    if not root.exists():
        print(f"making a Debian 13 with harbor {HARBOR} from PyPI ...")
        CACHE.mkdir(parents=True, exist_ok=True)
        new = Path(f"{root}.new")
        shutil.rmtree(new, ignore_errors=True)
        debootstrap("trixie", PACKAGES, new)
        with tempfile.TemporaryDirectory() as shared:
            venv = ["python3", "-m", "venv", "/opt/harbor"]
            install = ["/opt/harbor/bin/pip", "install", "-q", f"harbor=={HARBOR}"]
            for command in (venv, install):
                subprocess.run(inside(new, Path(shared), command), check=True, stderr=subprocess.DEVNULL)
        new.rename(root)
    return root


def inside(root: Path, shared: Path, command: Sequence[str]) -> list[str]:
    """The command in that root directory, `shared` at its own path."""
    return ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(root), str(shared), *command]


def base_archive() -> Path:
    """A Debian 12 with what the tasks need of their base images."""
    archive = CACHE / "bookworm-tasks.tar"
    if not archive.exists():
        print("making a Debian 12 for the tasks ...")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="forkyard-bench-root-") as root:
            debootstrap("bookworm", "python3,git", Path(root))
            subprocess.run(["tar", "-C", root, "--exclude=./dev/*", "-cf", f"{archive}.new", "."], check=True)
        Path(f"{archive}.new").rename(archive)
    return archive


def debootstrap(suite: str, packages: str, root: Path) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", suite, str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def leave_network() -> None:
    """Go on in a network namespace with nothing but a loopback."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def give_images(archive: Path, directory: Path, daemon: Daemon) -> None:
    """One root file system by each of the names, to both."""
    docker = ["docker", "-H", f"unix://{daemon.socket}"]
    ours = [sys.executable, "-m", "forkyard.cli", "image", "import", str(archive)]
    subprocess.run([*docker, "import", str(archive), IMAGES[0]], check=True, stdout=subprocess.DEVNULL)
    for name in IMAGES:
        subprocess.run([*docker, "tag", IMAGES[0], name], check=True)
        env = {**os.environ, "FORKYARD_HOME": str(directory / "home")}
        subprocess.run([*ours, name], env=env, check=True, stdout=subprocess.DEVNULL)


def gather(folders: Iterable[Path], into: Path) -> dict[str, float | None]:
    """Copy the tasks that both can play; the reward each is there to show, by its name."""
    rewards: dict[str, float | None] = {}
    for task in sorted(path.parent for folder in folders for path in folder.glob("*/task.toml")):
        reason = why_not(task)
        if reason is not None:
            print(f"left out: {task.name} ({reason})")
            continue
        copy = into / task.name
        shutil.copytree(task, copy, symlinks=True)
        settings = (copy / "task.toml").read_bytes()
        (copy / "task.toml").write_bytes(settings.replace(b'network_mode = "no-network"', b""))
        expected = copy / "expected.json"
        prefix = "cases" if expected.exists() else "forkyard"
        reward = json.loads(expected.read_text())["oracle"]["reward"] if expected.exists() else 1.0
        rewards[f"{prefix}/{task.name}"] = reward
    return rewards


def why_not(task: Path) -> str | None:
    if (task / "environment" / "docker-compose.yaml").exists():
        return "of several containers: Forkyard too would play it on Docker"
    for dockerfile in task.rglob("Dockerfile"):
        for line in dockerfile.read_text().splitlines():
            if line.startswith("FROM ") and line.split()[1] not in IMAGES:
                return f"{line.split()[1]} is not among the images made here"
    return None


def show(who: str, done: Turn, rewards: Mapping[str, float | None]) -> None:
    wrong = sorted({trial.task for trial in done.trials if trial.reward != rewards[trial.task]})
    right = sum(trial.reward == rewards[trial.task] for trial in done.trials)
    earned = sum(trial.reward == 1.0 for trial in done.trials)
    wrong += [f"{name} (not played)" for name in sorted(rewards.keys() - {trial.task for trial in done.trials})]
    print(
        f"{who:10} {len(done.trials):6} {done.per_minute:12.1f} {earned:10} {right:7} {done.mib:10.0f} "
        f"{done.daemons_mib:12.0f}",
        flush=True,
    )
    if wrong:
        print(f"           not right: {', '.join(wrong)}", flush=True)


def compare(bench: Bench, rewards: Mapping[str, float | None], at_once: int, samples: int, rounds: int) -> None:
    bench.build()
    print("who        trials   per minute   earned 1   right        MiB   daemons MiB")
    for _ in range(rounds):
        ours, theirs = bench.forkyard(at_once, samples), bench.harbor(at_once, 1)
        show("Forkyard", ours, rewards)
        show("Harbor", theirs, rewards)
        print(f"{'ratio':10} {ours.per_minute / theirs.per_minute:18.1f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--samples", type=int, default=3, help="of each task, Forkyard's; Harbor plays each once")
    parser.add_argument("--cases", type=Path, default=ROOT.parent / "shared" / "cases" / "tasks")
    options = parser.parse_args()
    harbor, archive = harbor_root(), base_archive()
    leave_network()
    with tempfile.TemporaryDirectory(prefix="forkyard-bench-") as name:
        directory = Path(name)
        for part in ("tasks", "docker"):
            (directory / part).mkdir()
        rewards = gather((ROOT / "examples" / "tasks", options.cases), directory / "tasks")
        print(f"{len(rewards)} tasks, {options.at} at once; the load of the last minute was {os.getloadavg()[0]:.1f}")
        with started_docker(directory / "docker", bridge=True) as daemon:
            if daemon is None:
                return
            give_images(archive, directory, daemon)
            bench = Bench(directory, directory / "tasks", harbor, daemon)
            compare(bench, rewards, options.at, options.samples, options.rounds)


if __name__ == "__main__":
    main()
