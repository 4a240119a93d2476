"""npm's `disk` 0.8.13, the vendor's own: its command, its calls, and the one script of the guide that it can run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.guide import TABLE
from tests.support.npm import node, packages
from tests.support.sites import Site

pytestmark = pytest.mark.slow

CALLS = Path(__file__).parent / "npm_disk.mjs"
RECORDS = [(task, reward) for task, reward in (("calc", 12 / 13), ("duration", 1), ("sales-report", 1)) for _ in "01"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in which it is installed."""
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(packages("disk@0.8.13") / "node_modules")
    return tmp_path


async def test_its_command_does_to_disks_what_it_says(site: Site, project: Path) -> None:
    command = (node(), project / "node_modules/disk/dist/cli.js")

    async def disk(*arguments: str) -> str:
        return await site.run(*command, *arguments, cwd=project)

    assert await disk("list") == "No disks found.\n"
    made = re.search(r"id: +(dsk-\w+)\n +status: available\n(?:.*\n)*  adt_", await disk("create", "by-command"))
    assert made is not None
    assert made[1] in await disk("list") and "by-command" in await disk("list", "--limit", "1")
    (listed,) = json.loads(await disk("list", "-o", "json"))
    shown = json.loads(await disk("get", "by-command", "-o", "json"))
    assert (listed["id"], shown["id"], shown["status"]) == (made[1], made[1], "available")
    assert made[1] in await disk("get", made[1])
    assert await disk("exec", made[1], "echo", "hello", ">", "greeting") == ""
    assert await disk("by-command", "exec", "cat greeting") == "hello\n"
    assert await site.ran(*command, "exec", made[1], "echo bad >&2; exit 4", cwd=project) == (4, "", "bad\n")
    assert await disk("grep", "^h", "by-command") == "greeting:1:hello\n"
    found = json.loads(await disk("grep", "-o", "json", "--max-results", "5", "hell", "by-command/"))
    assert (found["stoppedReason"], len(found["matches"])) == ("completed", 1)
    code, _, err = await site.ran(*command, "get", "no-such-disk", cwd=project)
    assert code == 1 and "no-such-disk" in err
    assert "Deleted" in await disk("delete", "by-command")
    assert await disk("--base-url", site.origin, "list") == "No disks found.\n"


async def test_its_command_makes_lists_and_deletes_keys(site: Site, project: Path) -> None:
    command = (node(), project / "node_modules/disk/dist/cli.js")
    told = await site.run(*command, "api-keys", "create", "ci", "--description", "nightly", cwd=project)
    made = re.search(r"Created API key ci \((\S+)\)\n(?:.*\n)*  (key-\S+)", told)
    assert made is not None
    assert await site.run(*command, "-k", made[2], "list", cwd=project) == "No disks found.\n"
    listed = await site.run(*command, "api-keys", "list", cwd=project)
    assert [line.split("\t")[1] for line in listed.splitlines()] == ["clients", "ci"]
    await site.run(*command, "api-keys", "delete", made[1], cwd=project)
    code, _, err = await site.ran(*command, "-k", made[2], "list", cwd=project)
    assert code == 1 and "key" in err


async def test_its_calls_answer_as_they_should(site: Site, project: Path) -> None:
    shutil.copy(CALLS, project)
    assert await site.run(node(), CALLS.name, cwd=project) == ""


async def test_the_guides_score_is_printed_by_it(site: Site, guide: Path, project: Path) -> None:
    for name in ("score.ts", "score.jq"):
        shutil.copy(guide / name, project)
    lines = "".join(json.dumps({"task": task, "reward": reward}) + "\n" for task, reward in RECORDS)
    (project / "run.jsonl").write_text(lines)
    (project / "put.mjs").write_text("""\
import { readFile } from "node:fs/promises";
import { createDisk } from "disk";
const { disk } = await createDisk({ name: "rl-trajectories" });
await disk.putObject("trajectories/run-1.jsonl", await readFile("run.jsonl"));
""")
    await site.run(node(), "put.mjs", cwd=project)
    assert await site.run(node(), "score.ts", cwd=project) == TABLE + "\n"
    await site.run(node(), project / "node_modules/disk/dist/cli.js", "delete", "rl-trajectories", cwd=project)
