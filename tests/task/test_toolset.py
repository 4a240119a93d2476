"""Toolsets: methods as tools, whoever serves them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field

import forkyard as vf


class Counter(vf.State):
    calls: int = 0


class ShelfConfig(vf.ToolsetConfig):
    books: int = 3


class Point(BaseModel):
    x: int
    y: int = 0


class Shelf(vf.Toolset[ShelfConfig, Counter]):
    @vf.tool
    async def find(self, title: Annotated[str, Field(description="a part of it")], limit: int = 2) -> list[str]:
        """Find books by title."""
        self.state.calls += 1
        return [f"{title} {number}" for number in range(min(limit, self.config.books))]

    @vf.tool(name="place")
    def put(self, at: Point, order: Literal["asc", "desc"] = "asc") -> str:
        return f"{at.x},{at.y} {order}"

    @vf.tool
    def burn(self) -> None:
        raise RuntimeError("no fire")

    @vf.tool
    def collapse(self) -> None:
        raise vf.ToolsetError("the shelf fell")

    def helper(self) -> None: ...


async def test_tools_are_described_by_their_signatures() -> None:
    specs = {spec["function"]["name"]: spec["function"] for spec in Shelf().specs()}
    assert list(specs) == ["shelf_burn", "shelf_collapse", "shelf_find", "shelf_place"]
    assert specs["shelf_find"] == {
        "name": "shelf_find",
        "description": "Find books by title.",
        "parameters": {
            "additionalProperties": False,
            "properties": {
                "title": {"description": "a part of it", "type": "string"},
                "limit": {"default": 2, "type": "integer"},
            },
            "required": ["title"],
            "type": "object",
        },
    }


async def test_a_call_gives_text() -> None:
    shelf = Shelf(ShelfConfig(books=1))
    assert await shelf.call("shelf_find", '{"title": "Emma"}') == '["Emma 0"]'
    assert await shelf.call("find", {"title": "Emma", "limit": 0}) == "[]"
    assert await shelf.call("shelf_place", {"at": {"x": 1}}) == "1,0 asc"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("shelf_fnd", {}, "error: there is no tool 'shelf_fnd'; did you mean 'shelf_find'?"),
        ("shelf_find", "{]", "error: find was called with wrong arguments: arguments: Invalid JSON"),
        (
            "shelf_find",
            {"titel": "x"},
            "error: find was called with wrong arguments: title: Field required; titel: Extra",
        ),
        ("shelf_place", {"at": {"x": 1}, "order": "up"}, "error: place was called with wrong arguments: order: Input"),
        ("shelf_burn", "", "error: RuntimeError: no fire"),
    ],
)
async def test_what_goes_wrong_is_told_to_the_model(name: str, arguments: Any, said: str) -> None:
    assert (await Shelf().call(name, arguments)).startswith(said)


async def test_a_tool_can_end_the_rollout() -> None:
    with pytest.raises(vf.ToolsetError, match="the shelf fell"):
        await Shelf().call("collapse", {})


async def test_a_shared_toolset_has_the_state_of_the_rollout_it_is_called_for() -> None:
    shelf, first, second = Shelf(), Counter(), Counter(calls=5)
    for state in (first, second, first, None):
        await shelf.call("find", {"title": "x"}, state)
    assert (first.calls, second.calls, shelf.state.calls) == (2, 6, 1)


def test_a_prefix_can_be_another_or_none() -> None:
    class Named(vf.Toolset):
        TOOL_PREFIX: ClassVar[str | None] = "web"

        @vf.tool
        def go(self) -> None: ...

    class Bare(Named):
        TOOL_PREFIX = None

    class SearchTools(Named):
        TOOL_PREFIX = ""

    names = [toolset().specs()[0]["function"]["name"] for toolset in (Named, Bare, SearchTools)]
    assert names == ["web_go", "go", "search_tools_go"]


def test_what_a_model_cannot_call_is_no_tool() -> None:
    with pytest.raises(TypeError, match="cannot be called by name"):

        class Starred(vf.Toolset):
            @vf.tool
            def many(self, *all: int) -> None: ...

    with pytest.raises(TypeError, match="two tools called 'a'"):

        class Twice(vf.Toolset):
            @vf.tool
            def a(self) -> None: ...

            @vf.tool(name="a")
            def b(self) -> None: ...
