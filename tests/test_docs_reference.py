"""The pages of reference name everything there is, and nothing that is not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from forkyard.errors import ConfigError
from forkyard.harness import HARNESSES
from forkyard.image.dockerfile import parse_dockerfile
from forkyard.task.directory.environment import Environment
from forkyard.task.directory.reward import Code
from forkyard.task.directory.schema import TaskToml
from forkyard.task.directory.unsupported import KEYS
from forkyard.trace import Status, Trace

DOCS = Path(__file__).parents[1] / "docs"
INSTRUCTIONS = set(
    "ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL MAINTAINER ONBUILD RUN SHELL STOPSIGNAL USER VOLUME"
    " WORKDIR".split()
)


def tables(page: str, *header: str) -> list[list[str]]:
    """The rows of every table of a page with that header, cut into cells."""
    found, inside = [], False
    for line in (DOCS / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        inside = line.startswith("|") and (inside or cells == list(header))
        if inside and cells != list(header) and set(line) - set("|-"):
            found.append(cells)
    assert found, f"{page} has no table {header}"
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def model_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The table type inside an annotation, and "[]" when there is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple):
        for item in get_args(annotation):
            model, mark = model_in(item)
            if model:
                return model, "[]" if get_origin(annotation) is tuple else mark
    return None, ""


def keys(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str]]:
    """Every key that is no table of keys, dotted, with its default as the page writes it."""
    for name, field in model.model_fields.items():
        table, mark = model_in(field.annotation)
        if table is None or (table is Environment and above) or above.startswith("steps"):
            yield f"{above}{name}{mark if table else ''}", default_of(field)
        else:
            yield from keys(table, f"{above}{name}{mark}.")


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    shown = {None: "none", (): "`[]`", "": '`""`'}
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "none"
    return "`{}`" if default == {} else shown.get(default, f"`{default}`")


def test_every_key_of_a_task_is_explained_with_its_default() -> None:
    rows = tables("tasks.md", "key", "type", "default", "meaning")
    assert sorted((names(key)[0], default) for key, _, default, _ in rows) == sorted(keys(TaskToml))


def test_every_feature_that_is_refused_is_listed() -> None:
    rows = tables("tasks.md", "key or file", "asks for")
    listed = {(name, feature) for place, feature in rows for name in names(place) if "." in name or name == "steps"}
    known = {(item.key, item.feature) for item in KEYS}
    assert listed == known


def test_a_key_that_asks_for_what_is_refused_is_marked() -> None:
    marked = [key for key, *_ in tables("tasks.md", "key", "type", "default", "meaning") if "†" in key]
    plain = re.sub(r"\[\]", "", " ".join(marked))
    assert [item.key for item in KEYS if f"`{item.key}" not in plain] == []


def test_every_instruction_of_a_dockerfile_is_taken_or_refused_as_the_page_says() -> None:
    taken = {name for cell, _ in tables("tasks.md", "instruction", "what becomes of it") for name in names(cell)}
    refused = {name for cell, _ in tables("tasks.md", "refused", "instead") for name in names(cell)}
    assert taken | (refused & INSTRUCTIONS) == INSTRUCTIONS
    with pytest.raises(ConfigError) as told:
        parse_dockerfile(b"FROM scratch\nQQQQQQQQ x", "Dockerfile")
    assert taken == set(str(told.value).rpartition(" are ")[2].split(", "))


@pytest.mark.parametrize(
    "name", sorted(name for cell, _ in tables("tasks.md", "refused", "instead") for name in names(cell))
)
def test_what_the_page_calls_refused_is_refused(name: str) -> None:
    flagged = f"{name}=x" if "--" in name else name
    text = {"<<": "RUN <<EOF\nls\nEOF", "FROM --platform": "", "FROM": "FROM again"}.get(name, f"{flagged} x y")
    first = "FROM --platform=x scratch" if name == "FROM --platform" else "FROM scratch"
    with pytest.raises(ConfigError, match="not supported"):
        parse_dockerfile(f"{first}\n{text}\n".encode(), "Dockerfile")


def test_every_code_of_the_reward_law_is_in_the_table() -> None:
    listed = [name for _, _, codes in tables("tasks.md", "what it left", "status", "code") for name in names(codes)]
    assert sorted(listed) == sorted(get_args(Code))


def test_every_field_of_a_line_is_explained_in_its_order() -> None:
    listed = [name for cell, _ in tables("record.md", "field", "what it holds") for name in names(cell)]
    assert listed == list(Trace(trainable=False).to_record())


def test_every_field_of_an_error_is_explained() -> None:
    trace = Trace()
    trace.record_error(ValueError("x"))
    page = (DOCS / "record.md").read_text()
    assert [name for name in trace.errors[0] if f"`{name}`" not in page] == []


def test_every_status_is_explained() -> None:
    assert [status for status, _, _ in tables("record.md", "status", "meaning", "played again")] == list(Status)


def test_every_option_of_a_harness_is_explained_with_its_default() -> None:
    rows = tables("record.md", "harness", "option", "default", "meaning")
    listed = {(names(harness)[0], names(option)[0], default) for harness, option, default, _ in rows}
    known = {
        (name, option, "required" if parameter.default is parameter.empty else f"`{parameter.default}`")
        for name, harness in HARNESSES.items()
        for option, parameter in inspect.signature(harness).parameters.items()
    }
    assert listed == known
