"""The messages of the process socket, and the answer that leads to one."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter, ValidationError

from forkyard.sandbox import Terminal
from forkyard.sandbox.values import TERMINAL_LIMIT
from forkyard.server.envelope import ApiError
from forkyard.server.wording import Spelled, refused

_Name = Annotated[str, Spelled(r"^[^=\x00]+$", "the name of a variable, without '='")]
_Cells = Annotated[int, Field(ge=1, le=TERMINAL_LIMIT)]


class Connection(BaseModel):
    """Where a process socket is opened, once and soon."""

    url: str
    expires_at: AwareDatetime


class Size(BaseModel):
    """The size of a terminal."""

    cols: _Cells = Terminal().cols
    rows: _Cells = Terminal().rows

    @property
    def terminal(self) -> Terminal:
        """It as the sandbox takes it."""
        return Terminal(self.cols, self.rows)


class Start(BaseModel):
    """Start a command: a text for `sh -c`."""

    type: Literal["start"]
    command: str = Field(min_length=1)
    terminal: bool | Size = False
    env: dict[_Name, str] | None = None
    cwd: Annotated[str, Spelled(r"^[^\x00]+$", "a directory")] | None = None
    timeout_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)

    @property
    def size(self) -> Terminal | None:
        """The terminal it is to have, if it is to have one."""
        if isinstance(self.terminal, Size):
            return self.terminal.terminal
        return Terminal() if self.terminal else None


class Attach(BaseModel):
    """Look on at a process from an offset of its output on."""

    type: Literal["attach"]
    process_id: str
    offset: int = Field(0, ge=0)


class Kill(BaseModel):
    """Kill a process and all it started."""

    type: Literal["kill"]
    process_id: str


class Resize(Size):
    """Give the terminal of a process another size."""

    type: Literal["resize"]
    process_id: str
    cols: _Cells
    rows: _Cells


class CloseStdin(BaseModel):
    """End the input of the process that is looked on at."""

    type: Literal["close_stdin"]


First = Start | Attach | Kill | Resize
_FIRST: TypeAdapter[First] = TypeAdapter(Annotated[First, Field(discriminator="type")])
_LATER = TypeAdapter(CloseStdin)
T = TypeVar("T")


def first_message(text: str) -> First:
    """What a client wants of its socket. ApiError says what is wrong with it."""
    return _parsed(_FIRST, text)


def later_message(text: str) -> CloseStdin:
    """What it says after that. ApiError says what is wrong with it."""
    return _parsed(_LATER, text)


def _parsed(adapter: TypeAdapter[T], text: str) -> T:
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as err:
        raise ApiError(400, refused(err, "the message"), "invalid_message") from None
