"""What the server knows of its own, in one SQLite file: rows are pydantic models, written before they are acknowledged.

Several processes may use the file at once, as `forkyard key create` does while the server runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from forkyard.errors import ForkyardError

Row = TypeVar("Row", bound=BaseModel)
_BUSY_SECONDS = 10.0


class TakenError(ForkyardError):
    """A row of that id or name is there already."""


class State:
    """The file. Used from one thread; every call is one short transaction, or part of a `transaction` around it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            self._db.close()
            raise

    def table(self, name: str, kind: type[Row]) -> Table[Row]:
        """The table of that name, made when it is missing."""
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no name of a table")
        return Table(self, self._db, name, kind)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what is done inside happen whole or not at all; it must not await."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite itself takes back what a full disk stopped, but not always
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class Table(Generic[Row]):
    """Rows of one kind by id, in the order they were added; some have a name, which is theirs alone."""

    def __init__(self, state: State, db: sqlite3.Connection, name: str, kind: type[Row]) -> None:
        self._state = state
        self._db = db
        self._name = name
        self._kind = kind
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {name}"
            " (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, name TEXT UNIQUE, row TEXT NOT NULL)"
        )

    def add(self, id: str, row: Row, *, name: str | None = None) -> None:
        """Add a row. Raises TakenError when its id or its name is there already."""
        with self._state.transaction():
            try:
                self._db.execute(f"INSERT INTO {self._name} (id, name, row) VALUES (?, ?, ?)", (id, name, _text(row)))
            except sqlite3.IntegrityError:
                raise TakenError(f"{name or id} is taken") from None

    def set(self, id: str, row: Row) -> bool:
        """Replace the content of a row; False when there is none of that id."""
        with self._state.transaction():
            return self._db.execute(f"UPDATE {self._name} SET row = ? WHERE id = ?", (_text(row), id)).rowcount > 0

    def delete(self, id: str) -> bool:
        """Remove a row; False when there is none of that id."""
        with self._state.transaction():
            return self._db.execute(f"DELETE FROM {self._name} WHERE id = ?", (id,)).rowcount > 0

    def get(self, id: str) -> Row | None:
        """The row of that id."""
        return next(self._read("id = ?", (id,)), None)

    def named(self, name: str) -> Row | None:
        """The row of that name."""
        return next(self._read("name = ?", (name,)), None)

    def list(self, after: str | None = None, limit: int | None = None, *, newest_first: bool = False) -> list[Row]:
        """Rows from the one with the id `after` on (without it), oldest first, at most `limit`.

        An `after` that is not there (any more) gives none.
        """
        sign, order = ("<", "DESC") if newest_first else (">", "ASC")
        where, values = "1", ()
        if after is not None:
            where, values = f"seq {sign} (SELECT seq FROM {self._name} WHERE id = ?)", (after,)  # type: ignore[assignment]
        return [*self._read(where, values, f"ORDER BY seq {order} LIMIT {-1 if limit is None else int(limit)}")]

    def keep_newest(self, count: int) -> None:
        """Remove all but the `count` rows added last."""
        with self._state.transaction():
            self._db.execute(f"DELETE FROM {self._name} WHERE seq <= (SELECT max(seq) FROM {self._name}) - ?", (count,))

    def _read(self, where: str, values: tuple[str, ...], order: str = "") -> Iterator[Row]:
        found = self._db.execute(f"SELECT row FROM {self._name} WHERE {where} {order}", values).fetchall()
        return (self._kind.model_validate_json(text) for (text,) in found)


def _text(row: BaseModel) -> str:
    return row.model_dump_json()
