"""Who may reach a disk: tokens, S3 key pairs, allowed addresses. Facts only; whoever serves disks enforces them."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Protocol

from forkyard.disk.errors import DiskError
from forkyard.disk.values import KeyPair, User

ACCESS_SCHEMA = """
CREATE TABLE IF NOT EXISTS users (
    disk TEXT NOT NULL REFERENCES disks (id) ON DELETE CASCADE, kind TEXT NOT NULL, identifier TEXT NOT NULL,
    nickname TEXT NOT NULL, suffix TEXT NOT NULL, created REAL NOT NULL, hash TEXT,
    PRIMARY KEY (disk, kind, identifier)
) STRICT;
CREATE INDEX IF NOT EXISTS users_by_hash ON users (hash);
CREATE TABLE IF NOT EXISTS pairs (
    disk TEXT NOT NULL REFERENCES disks (id) ON DELETE CASCADE, access_key TEXT PRIMARY KEY, secret TEXT NOT NULL,
    nickname TEXT NOT NULL, created REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS allowed (
    disk TEXT PRIMARY KEY REFERENCES disks (id) ON DELETE CASCADE, networks TEXT NOT NULL
) STRICT;
"""
_TEXT_LIMIT = 256


class _Database(Protocol):
    def transaction(self) -> AbstractContextManager[Any]: ...

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]: ...


class Access:
    """The rows of who may reach which disk. Asking about a disk that is not there raises NoSuchBucket."""

    def __init__(self, db: _Database) -> None:
        self._db = db

    def add_token(self, disk_id: str, nickname: str = "default") -> tuple[User, str]:
        """A new token, told this once; kept is its hash."""
        token = f"adt_{secrets.token_hex(32)}"
        user = User(disk_id, "token", secrets.token_hex(8), _short(nickname), token[-4:], time.time())
        self._add(user, _hash(token))
        return user, token

    def add_user(self, disk_id: str, kind: str, identifier: str, nickname: str = "") -> User:
        """Note a user who has no token of ours, once for each identifier."""
        user = User(disk_id, _short(kind), _short(identifier), _short(nickname), "", time.time())
        self._add(user, None)
        return user

    def users(self, disk_id: str) -> tuple[User, ...]:
        """Oldest first."""
        self._check(disk_id)
        rows = self._db.rows(
            "SELECT disk, kind, identifier, nickname, suffix, created FROM users WHERE disk = ? "
            "ORDER BY created, identifier",
            disk_id,
        )
        return tuple(User(*row) for row in rows)

    def remove_user(self, disk_id: str, kind: str, identifier: str) -> bool:
        """Whether there was one; a token stops counting at once."""
        self._check(disk_id)
        with self._db.transaction() as db:
            query = "DELETE FROM users WHERE disk = ? AND kind = ? AND identifier = ?"
            return bool(db.execute(query, (disk_id, kind, identifier)).rowcount)

    def disk_of_token(self, token: str) -> str | None:
        """The id of the disk that a token opens. Found by its hash: the time it takes says nothing about tokens."""
        rows = self._db.rows("SELECT disk FROM users WHERE hash = ?", _hash(token))
        return rows[0][0] if rows else None

    def add_pair(self, disk_id: str, nickname: str = "") -> KeyPair:
        """A new S3 key pair for a disk and its branches."""
        self._check(disk_id)
        access_key = "FK" + secrets.token_hex(9).upper()
        pair = KeyPair(disk_id, access_key, secrets.token_urlsafe(30), _short(nickname), time.time())
        row = (pair.disk_id, pair.access_key, pair.secret_key, pair.nickname, pair.created)
        with self._db.transaction() as db:
            db.execute("INSERT INTO pairs VALUES (?, ?, ?, ?, ?)", row)
        return pair

    def pair(self, access_key: str) -> KeyPair | None:
        """The pair of an access key."""
        rows = self._db.rows("SELECT * FROM pairs WHERE access_key = ?", access_key)
        return _pair(rows[0]) if rows else None

    def pairs(self, disk_id: str) -> tuple[KeyPair, ...]:
        """Oldest first."""
        self._check(disk_id)
        rows = self._db.rows("SELECT * FROM pairs WHERE disk = ? ORDER BY created, access_key", disk_id)
        return tuple(_pair(row) for row in rows)

    def every_pair(self) -> tuple[tuple[KeyPair, str], ...]:
        """Those of all disks with the names of the disks, oldest first."""
        query = (
            "SELECT pairs.*, disks.name FROM pairs JOIN disks ON disks.id = pairs.disk "
            "ORDER BY pairs.created, access_key"
        )
        return tuple((_pair(row[:-1]), row[-1]) for row in self._db.rows(query))

    def remove_pair(self, disk_id: str, access_key: str) -> bool:
        """Whether there was one."""
        self._check(disk_id)
        with self._db.transaction() as db:
            query = "DELETE FROM pairs WHERE disk = ? AND access_key = ?"
            return bool(db.execute(query, (disk_id, access_key)).rowcount)

    def allowed(self, disk_id: str) -> tuple[str, ...]:
        """The addresses and networks that may reach a disk; none named: all."""
        self._check(disk_id)
        rows = self._db.rows("SELECT networks FROM allowed WHERE disk = ?", disk_id)
        return tuple(json.loads(rows[0][0])) if rows else ()

    def permits(self, disk_id: str, address: str) -> bool:
        """Whether a disk may be reached from an address; one of IPv4 in IPv6's clothes counts as what it is."""
        networks = self.allowed(disk_id)
        if not networks:
            return True
        try:
            client = ip_address(address)
        except ValueError:
            return False
        if isinstance(client, IPv6Address) and client.ipv4_mapped is not None:
            client = client.ipv4_mapped
        return any(client in ip_network(network) for network in networks)

    def allow(self, disk_id: str, networks: Sequence[str]) -> tuple[str, ...]:
        """Replace them; as they are kept, in their usual form and each once. InvalidArgument."""
        kept = tuple(dict.fromkeys(_usual_forms(networks)))
        self._check(disk_id)
        with self._db.transaction() as db:
            db.execute("INSERT OR REPLACE INTO allowed VALUES (?, ?)", (disk_id, json.dumps(kept)))
        return kept

    def _add(self, user: User, hashed: str | None) -> None:
        self._check(user.disk_id)
        row = (user.disk_id, user.kind, user.identifier, user.nickname, user.suffix, user.created, hashed)
        with self._db.transaction() as db:
            db.execute("INSERT OR REPLACE INTO users VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _check(self, disk_id: str) -> None:
        if not self._db.rows("SELECT 1 FROM disks WHERE id = ?", disk_id):
            raise DiskError("NoSuchBucket", f"there is no disk {disk_id!r}")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()  # 256 random bits need no slow hash


def _pair(row: tuple[Any, ...]) -> KeyPair:
    disk_id, access_key, secret, nickname, created = row
    return KeyPair(disk_id, access_key, secret, nickname, created)


def _short(text: str) -> str:
    if len(text) > _TEXT_LIMIT or not text.isprintable():
        raise DiskError("InvalidArgument", f"a name has at most {_TEXT_LIMIT} printable characters")
    return text


def _usual_forms(networks: Sequence[str]) -> Iterator[str]:
    for text in networks:
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            raise DiskError("InvalidArgument", f"{text!r} is no address and no network such as 10.0.0.0/8") from None
        yield str(network.network_address) if network.num_addresses == 1 else str(network)
