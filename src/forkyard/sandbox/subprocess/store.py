"""What is on disk: one folder per sandbox with its record, owners that show whether they live, one lock for names."""

from __future__ import annotations

import fcntl
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from forkyard.errors import ConfigError, SandboxError
from forkyard.locks import Owners
from forkyard.sandbox.values import SandboxInfo
from forkyard.values import new_id


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a sandbox between processes."""

    id: str
    name: str | None
    image: str
    created: float
    owner: str
    state: str = "running"
    parent: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"

    @property
    def info(self) -> SandboxInfo:
        """The public part."""
        return SandboxInfo(self.id, self.name, self.state, self.image, self.parent, self.created)

    def forked(self, name: str | None, owner: str) -> Record:
        """The record of a fork."""
        return replace(self, id=new_id(), name=name, parent=self.id, owner=owner, state="running", created=time.time())


class Store:
    """The sandboxes under one directory, shared by any number of processes."""

    def __init__(self, home: Path) -> None:
        self._sandboxes, self._owners = home / "sandboxes", home / "owners"
        self._lock = home / "lock"
        self._alive: Owners | None = None

    @property
    def owners(self) -> Owners:
        """Who of those that share the directory are alive, this process from now on."""
        if self._alive is None:
            self._owners.mkdir(parents=True, exist_ok=True)
            self._alive = Owners(self._owners)
        return self._alive

    def disk(self, sandbox_id: str) -> Path:
        """The directory that is a sandbox's root."""
        return self._sandboxes / sandbox_id / "disk"

    def add(self, record: Record) -> None:
        """Make the folder of a new sandbox. ConfigError when its name is in use."""
        with self._locked():
            taken = self.find(record.name) if record.name is not None else None
            if taken:
                raise ConfigError(
                    f"the name {record.name!r} is in use by sandbox {taken.id}; close it or choose another"
                )
            self.disk(record.id).mkdir(parents=True)
            self.save(record)

    def save(self, record: Record) -> None:
        """Write a record in the place of its former one."""
        folder = self._sandboxes / record.id
        new = folder / "record.new"
        new.write_text(json.dumps(asdict(record)))
        new.replace(folder / "record.json")

    def own(self, record: Record) -> Record:
        """Make this process the owner of a sandbox."""
        record = replace(record, owner=self.owners.own)
        self.save(record)
        return record

    def find(self, id_or_name: str) -> Record | None:
        """A sandbox by id or name."""
        return next((record for record in self.all() if id_or_name in (record.id, record.name)), None)

    def all(self) -> list[Record]:
        """Every sandbox, oldest first."""
        records = []
        for path in self._sandboxes.glob("*/record.json"):
            with suppress(FileNotFoundError):  # closed meanwhile
                records.append(Record(**json.loads(path.read_text())))
        return sorted(records, key=lambda record: record.created)

    def remove(self, sandbox_id: str) -> None:
        """Forget a sandbox and its disk, however deep its tree and closed its directories."""
        folder = self._sandboxes / sandbox_id
        (folder / "record.json").unlink(missing_ok=True)
        if folder.exists() and not _run("rm", "-rf", "--", folder):
            _run("chmod", "-R", "u+rwX", "--", folder)
            if not _run("rm", "-rf", "--", folder):
                raise SandboxError(f"cannot remove {folder}")

    def copy_disk(self, source: str, target: str) -> None:
        """Copy a disk with its links and modes."""
        if not _run("cp", "-a", "--reflink=auto", "--", f"{self.disk(source)}/.", self.disk(target)):
            raise SandboxError(f"cannot copy the disk of sandbox {source}")

    def orphans(self) -> list[str]:
        """The ids of sandboxes without an owner, but for stopped ones with a name, and of half-made folders."""
        with self._locked():
            records = {record.id: record for record in self.all()}
            found = [path.name for path in self._sandboxes.iterdir() if path.name not in records]
            for record in records.values():
                if not (record.state == "stopped" and record.name) and self.owners.is_dead(record.owner):
                    found.append(record.id)
            return found

    def leave(self) -> None:
        """Stop being an owner."""
        if self._alive is not None:
            self._alive.close(tidy=True)
            self._alive = None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._sandboxes.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _run(*argv: str | Path) -> bool:
    return subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0
