"""Our TypeScript client: built, installed under the name that the guide's scripts import, and held to what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx2
import pytest

from tests.support.guide import TABLE
from tests.support.npm import fetch, node, npm, packages
from tests.support.sites import Site

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parents[2] / "clients" / "typescript"
PAGE = Path(__file__).parents[2] / "docs" / "server.md"
SURFACE = Path(__file__).parent / "surface.ts"
TYPESCRIPT = "typescript@7.0.2"
OTHERS = ("ai@7.0.173", "zod@4", "@types/node@24")


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which our client is installed under the name `disk`, beside what the guide's scripts need."""
    place = tmp_path_factory.mktemp("typescript")
    client, project = place / "client", place / "project"
    shutil.copytree(CLIENT, client, ignore=shutil.ignore_patterns("node_modules", "dist"))
    fetch(client, "install", "--prefer-offline", "--ignore-scripts", TYPESCRIPT)
    npm(client, "run", "prepare")  # which an install does at its end
    (place / "node_modules").symlink_to(packages(*OTHERS) / "node_modules")
    project.mkdir()
    (project / "package.json").write_text('{"type": "module"}')
    npm(project, "install", "--offline", f"disk@file:{client}")
    return project


async def tsc(site: Site, project: Path, *files: str) -> None:
    """Check types as strictly as the compiler can."""
    compiler = project.parent / "client/node_modules/typescript/bin/tsc"
    options = (
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--target",
        "ES2022",
        "--module",
        "NodeNext",
        "--types",
        "node",
    )
    await site.run(node(), compiler, *options, *files, cwd=project)


async def test_the_guides_typescript_scripts_run_as_they_are_and_leave_nothing(
    site: Site, guide: Path, project: Path
) -> None:
    for script in guide.iterdir():
        shutil.copy(script, project)
    await tsc(site, project, "prepare.ts", "rollouts.ts", "score.ts", "cleanup.ts")
    assert await site.run(node(), "prepare.ts", cwd=project) == ""
    *told, last = (await site.run(node(), "rollouts.ts", cwd=project)).splitlines()
    said = {"calc": "0.92 (12/13)", "duration": "1.00 (14/14)", "sales-report": "1.00 (2/2)"}
    assert sorted(told) == [
        f"{task} #{sample}: reward {reward} in 3 steps" for task, reward in said.items() for sample in (0, 1)
    ]
    assert re.fullmatch(r"6 rollouts in \d+s -> trajectories/run-\d+\.jsonl", last)
    assert site.model.asked == [("/v4/ai/language-model", "Bearer of-the-gateway")] * 18
    assert await site.run(node(), "score.ts", cwd=project) == TABLE + "\n"
    assert await site.run(node(), "cleanup.ts", cwd=project) == ""
    async with httpx2.AsyncClient(base_url=site.origin, headers={"Authorization": site.env["ARCHIL_API_KEY"]}) as http:
        assert (await http.get("/api/sandboxes")).json()["data"] == {"sandboxes": []}
        assert (await http.get("/api/disks")).json()["data"] == []


async def test_what_the_client_offers_does_what_it_says(site: Site, project: Path) -> None:
    npm(project, "install", "--offline", f"forkyard@file:{project.parent / 'client'}")
    shutil.copy(SURFACE, project)
    await tsc(site, project, SURFACE.name)
    assert await site.run(node(), SURFACE.name, cwd=project) == ""


async def test_the_programs_of_the_documents_run_as_they_stand(site: Site, project: Path) -> None:
    npm(project, "install", "--offline", f"forkyard@file:{project.parent / 'client'}")
    pages = (CLIENT / "README.md", PAGE)
    programs = [
        block for page in pages for block in re.findall(r"```typescript\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    names = [f"program-{number}.ts" for number in range(len(programs))]
    for name, program in zip(names, programs, strict=True):
        (project / name).write_text(program)
    await tsc(site, project, *names)
    assert [await site.run(node(), name, cwd=project) for name in names] == [
        "rollout-1 completed 0 ready\nrollout-2 completed 0 ready\n3\n",
        "got one\n",
        """[ 'runs/1.jsonl 13' ]\n1\n{"reward":1}\n""",
        """{"exitCode":0,"stdout":"hello\\n"}\n""",
    ]
