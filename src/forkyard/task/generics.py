"""Which class stands in the brackets of a generic base."""

from __future__ import annotations

import inspect
import typing
from typing import TypeVar

T = TypeVar("T")


def type_argument(cls: type, kind: type[T], default: type[T] | None = None) -> type[T]:
    """The subclass of `kind` in the brackets of a base of `cls`, the nearest base first; else `default` or `kind`.

    For `class Mine(Task[Data, State, Config])`, `type_argument(Mine, TaskConfig)` is `Config`.
    """
    for base in cls.__mro__:
        for parent in vars(base).get("__orig_bases__", ()):
            for argument in typing.get_args(parent):
                found = typing.get_origin(argument) or argument
                if inspect.isclass(found) and issubclass(found, kind):
                    return found
    return default or kind
