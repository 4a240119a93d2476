"""The catalogue of named disks, safe for several processes at once: `FORKYARD_HOME/named-disks`.

catalogue.db     names, branches, who may do what (SQLite). Readable by the owner alone: the secrets of S3 key pairs
                 stand in it as they are, since signatures are checked with them; of tokens there are only hashes
owners/<id>      a file locked by each living process, so that leftovers of dead ones can be told
dsk-<id>/        one disk: objects/ (what sandboxes see), state/ (uploads, hashes, files in the making), branches/
trash/           what is being deleted
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from pathlib import Path

from forkyard.disk.directory import DirectoryDisk, remove_tree
from forkyard.disk.errors import ConflictError, DiskError
from forkyard.disk.home import Home
from forkyard.disk.protocol import Disk
from forkyard.disk.records import Records
from forkyard.disk.values import Branch, Bucket, DiskInfo, RootAttributes
from forkyard.disk.workers import Workers

RESERVED = frozenset({"api"})  # the first part of a server's paths, which an S3 client takes for a bucket
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,100}")
_ID = re.compile(r"dsk-[0-9a-f]{16}")


class Disks:
    """The disks of a FORKYARD_HOME, and their live objects. `close` ends its threads.

    Opening removes what killed processes left of files in the making. ConfigError: the directory cannot be used.
    """

    def __init__(self, home: Path) -> None:
        self._home = Home(home / "named-disks")
        self._records = Records(self._home.path / "catalogue.db")
        self._workers = Workers()
        self._open: dict[tuple[str, str | None], Disk] = {}
        self._home.sweep(self._known_directories())
        self.access = self._records.access
        """Tokens, S3 key pairs and allowed addresses."""

    async def create(
        self, name: str, *, backend: Bucket | None = None, root: RootAttributes | None = None
    ) -> tuple[Disk, bool]:
        """The disk of this name, made if there is none; and whether it was made.

        ConflictError: it exists with another backend or another root. InvalidBucketName: letters, digits, _ and -.
        """
        if not _NAME.fullmatch(name) or _ID.fullmatch(name):
            raise DiskError("InvalidBucketName", "a disk's name has 1 to 100 letters, digits, '_' and '-'")
        if name in RESERVED:
            raise DiskError("InvalidBucketName", f"{name!r} cannot be a disk's name: a server has other things there")
        wanted = root or RootAttributes()
        new = DiskInfo(f"dsk-{secrets.token_hex(8)}", name, self._records.now(), backend, wanted)
        info = await self._workers.run(self._records.add_disk, new)
        if (info.backend, info.root) != (backend, wanted):
            raise ConflictError(f"there is a disk {name!r} with another configuration: give another name, or delete it")
        return self._live(info), info is new

    def get(self, disk_id: str, branch: str | None = None) -> Disk:
        """The disk of an id, or a branch of it. NoSuchBucket."""
        info = self._records.disk(disk_id)
        if branch is not None:
            self._records.branch(disk_id, branch)
            info = DiskInfo(info.id, info.name, info.created, info.backend, info.root, branch)
        return self._live(info)

    def find(self, name: str) -> Disk | None:
        """The disk of a name."""
        info = self._records.named(name)
        return None if info is None else self._live(info)

    def resolve(self, bucket: str) -> Disk:
        """The disk that a bucket's name means: an id, a name, or either with ".<branch>" behind it. NoSuchBucket."""
        first, _, branch = bucket.partition(".")
        disk = self.get(first) if _ID.fullmatch(first) else self.find(first)
        if disk is None:
            raise DiskError("NoSuchBucket", f"there is no disk {first!r}")
        return self.get(disk.info.id, branch) if branch else disk

    def list(self, after: str = "", limit: int = 100) -> tuple[DiskInfo, ...]:
        """Disks in the order of their ids, beyond the id `after`."""
        return self._records.disks(after, limit)

    async def delete(self, disk_id: str) -> None:
        """Remove a disk with its objects and branches; of one in a bucket, the bucket's objects stay. NoSuchBucket."""
        await self._workers.run(self._records.remove_disk, disk_id)
        for key in [key for key in self._open if key[0] == disk_id]:
            await self._open.pop(key).close()
        await self._workers.run(self._trash, self._home.path / disk_id)

    async def create_branch(self, disk_id: str, name: str, source: str | None = None) -> Branch:
        """A branch with a copy of each object of the disk, or of its branch `source`; blocks are shared where possible.

        Each object is copied at one moment of its own. ConflictError: the name is taken. NotImplemented: in a bucket.
        """
        if not _NAME.fullmatch(name):
            raise DiskError("InvalidArgument", "a branch's name has 1 to 100 letters, digits, '_' and '-'")
        origin = self.get(disk_id, source)
        if not isinstance(origin, DirectoryDisk):
            raise DiskError("NotImplemented", "a disk that is kept in a bucket has no branches: copy its objects")
        self._records.check_new_branch(disk_id, name)
        branch = Branch(disk_id, name, self._records.now(), source)
        draft = self._home.path / disk_id / "drafts" / self._home.new_name()
        try:
            await self._workers.run(origin.copy_to, draft)
            await self._workers.run(self._publish, branch, draft)
        finally:
            await self._workers.run(remove_tree, draft)
        return branch

    def branches(self, disk_id: str) -> tuple[Branch, ...]:
        """The branches of a disk, oldest first. NoSuchBucket."""
        self._records.disk(disk_id)
        return self._records.branches(disk_id)

    def branch(self, disk_id: str, name: str) -> Branch:
        """One branch. NoSuchBucket."""
        return self._records.branch(disk_id, name)

    async def close(self) -> None:
        """Finish what is under way and end the threads."""
        while self._open:
            _, disk = self._open.popitem()
            await disk.close()
        await self._workers.close()
        self._records.close()
        self._home.close()

    def _live(self, info: DiskInfo) -> Disk:
        key = (info.id, info.branch)
        if key not in self._open:
            if info.backend is not None:
                from forkyard.disk.bucket import BucketDisk  # its client is an optional package, and heavy

                self._open[key] = BucketDisk(info, info.backend, self._workers)
            else:
                self._open[key] = DirectoryDisk(info, self._directory(info), self._home.new_name, self._workers)
        return self._open[key]

    def _directory(self, info: DiskInfo) -> Path:
        top = self._home.path / info.id
        return top if info.branch is None else top / "branches" / info.branch

    def _publish(self, branch: Branch, draft: Path) -> None:
        """The directory first, the row after it: a directory without a row is a leftover, and is replaced."""
        target = self._home.path / branch.disk_id / "branches" / branch.name
        with self._records.new_branch(branch):
            self._trash(target)
            target.parent.mkdir(exist_ok=True)
            draft.rename(target)

    def _trash(self, path: Path) -> None:
        doomed = self._home.path / "trash" / secrets.token_hex(8)
        with suppress(FileNotFoundError):
            path.rename(doomed)
            remove_tree(doomed)

    def _known_directories(self) -> tuple[Path, ...]:
        return tuple(path for path in self._home.path.glob("dsk-*") if path.is_dir())
