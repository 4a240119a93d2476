"""What docs/disks.md shows works."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "disks.md"


async def test_the_pages_examples_run(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(examples) == 2
    for example in examples:
        names: dict[str, object] = {}
        exec(compile(example, str(PAGE), "exec"), names)
        main = names.get("main")
        if callable(main):
            await main(tmp_path)
