"""Fenced blocks: which one is run, and replies made to keep the reader busy."""

from __future__ import annotations

import pytest

from forkyard.harness.calls import last_block

MB = 1 << 20


def opened(*lengths: int) -> str:
    """Lines that each open a block."""
    return "".join(f"{'`' * length}bash\n" for length in lengths)


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("none", None),
        ("```bash\nls\n```", "ls\n"),
        ("```bash\n```", ""),
        ("a\n```sh\none\n```\nb\n```SHELL \ntwo\n```\n", "two\n"),
        ("   ```bash\t\r\nls\r\n   ``` \r\n", "ls\r\n"),
        ("    ```bash\nls\n```", None),
        ("```python\nls\n```", None),
        ("```bashful\nls\n```", None),
        ("```bash ls\n```", None),
        ("```bash\nls\n``", None),
        ("````bash\ncat <<'```'\n```\n````", "cat <<'```'\n```\n"),
        ("```bash\nls\n`````", "ls\n"),
        ("```bash\n```bash\nls\n```", "```bash\nls\n"),
        ("```bash\nls\n```\n```bash\nnever closed", "ls\n"),
        ("````bash\nnever closed\n```bash\nls\n```", "ls\n"),
        ("```bash\nls\n``` x\n```", "ls\n``` x\n"),
    ],
)
def test_the_last_complete_block_is_the_command(text: str, block: str | None) -> None:
    assert last_block(text) == block


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("```bash\n" * (MB // 8), None),
        ("```bash\n" * (MB // 8) + "```", "```bash\n" * (MB // 8 - 1)),
        (opened(*range(1450, 2, -1)), None),
        (opened(*range(3, 1450)) + "```\n", opened(*range(4, 1450))),
        ("```" + " " * MB + "x", None),
        ("```bash" + "\t" * MB + "x\n```", None),
        ("`" * MB, None),
        ("`" * MB + "x\n" + "```bash\nls\n```", "ls\n"),
        (" " * MB + "```bash\nls\n```", None),
        ("```bash\n" + "x\n" * (MB // 2), None),
        ("```bash\nls\n" * 2 + "```bash x\n" * (MB // 10), None),
        ("```bash\nls\n```\n" * (MB // 15), "ls\n"),
    ],
)  # fmt: skip
def test_a_reply_of_a_megabyte_is_read_once(text: str, block: str | None) -> None:
    assert last_block(text) == block
