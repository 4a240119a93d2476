"""Where things stand by their paths."""

from __future__ import annotations

import pytest

from forkyard.server.paths import Paths

PATHS: Paths[str] = Paths(
    (path, path)
    for path in ("/", "/things", "/things/{id}", "/things/new", "/things/{id}/parts/{part}", "/things/new/parts")
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", ("/", {})),
        ("/things", ("/things", {})),
        ("/things/7", ("/things/{id}", {"id": "7"})),
        ("/things/new", ("/things/new", {})),
        ("/things/new/parts", ("/things/new/parts", {})),
        ("/things/new/parts/a b", ("/things/{id}/parts/{part}", {"id": "new", "part": "a b"})),
        ("/things/{id}", ("/things/{id}", {"id": "{id}"})),
    ],
)
def test_a_path_finds_what_stands_there(path: str, found: tuple[str, dict[str, str]]) -> None:
    assert PATHS.find(path) == found


@pytest.mark.parametrize(
    "path", ["", "things", "/things/", "/thing", "/things/7/", "/things//parts/1", "/things/7/x", "//"]
)
def test_nothing_stands_elsewhere(path: str) -> None:
    assert PATHS.find(path) is None
