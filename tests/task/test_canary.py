import pytest

from forkyard.task.directory.canary import strip_canary

MARK = "canary 1f3a"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"# {MARK}\nDo it.\n", "Do it.\n"),
        (f"#{MARK.upper()}\n\n\nDo it.\n", "Do it.\n"),
        (f"  <!-- {MARK} -->\nDo it.\n", "Do it.\n"),
        (f"<!-- {MARK} -->\n\n# {MARK}\n\nDo it.\n", "Do it.\n"),
        (f"// {MARK}\nDo it.\n", f"// {MARK}\nDo it.\n"),
        (f"<!--\n{MARK}\n-->\nDo it.\n", f"<!--\n{MARK}\n-->\nDo it.\n"),
        (f"# Title\n# {MARK}\nDo it.\n", f"# Title\n# {MARK}\nDo it.\n"),
        (f"\n# {MARK}\nDo it.\n", f"\n# {MARK}\nDo it.\n"),
        ("# Title\n\nDo it.\n", "# Title\n\nDo it.\n"),
        (f"# {MARK}\n\n# Title\n\ntext", "# Title\n\ntext"),
        (f"# {MARK}", ""),
        ("", ""),
    ],
)
def test_p5_leading_canary_lines_are_dropped_and_nothing_else(text: str, expected: str) -> None:
    assert strip_canary(text) == expected
