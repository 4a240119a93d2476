"""Runs whose lines go to a named disk: as they are written, when answers are lost, and when they are gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from forkyard.disk import APPEND_LIMIT, Objects, named_disk
from forkyard.errors import ConfigError
from forkyard.run import Plan, plan_of, resume, start
from forkyard.run.derived import derived
from forkyard.run.directory import RunDirectory
from forkyard.run.ondisk import Mirror, fetched, mirrored, parted, played_in, readable
from forkyard.sandbox.local import LocalProvider
from tests.run.parts import Heard, agent_of, lines, write_task
from tests.support.serving import served


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("FORKYARD_URL", "FORKYARD_KEY", "ARCHIL_BASE_URL", "ARCHIL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORKYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def plan(tmp_path: Path, **fields: object) -> Plan:
    given = {"paths": (tmp_path / "tasks",), "out": Path("disk:lines"), "run": "r", "base": "host"}
    return plan_of(**{**given, **fields, "agent": agent_of()})


async def content(own_home: Path, key: str) -> bytes:
    async with named_disk("lines", own_home, None) as objects:
        return await objects.get(key) or b""


async def test_lines_are_on_the_disk_and_are_reported_where_they_lie(
    tmp_path: Path, home: Path, own_home: Path
) -> None:
    write_task(tmp_path / "tasks", "good")
    outcome = await start(plan(tmp_path, samples=2), Heard(), provider=LocalProvider(home))
    assert outcome.directory == own_home / "disk-runs" / "here" / "lines" / "r" and outcome.played == 2
    assert await content(own_home, "r/traces.jsonl") == (outcome.directory / "traces.jsonl").read_bytes()
    assert await content(own_home, "r/plan.json") == (outcome.directory / "plan.json").read_bytes()
    async with named_disk("lines", own_home, None) as objects:
        assert objects.directory is not None
        assert len(lines(objects.directory / "r")) == 2


async def test_a_run_goes_on_from_either_side_and_repeats_nothing(tmp_path: Path, home: Path, own_home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "b")
    await start(plan(tmp_path), Heard(), provider=LocalProvider(home))
    place = played_in("lines") / "r"
    first, second = (place / "traces.jsonl").read_bytes().splitlines(keepends=True)

    (place / "traces.jsonl").write_bytes(first)  # this machine lost a line
    outcome = await resume(place, Heard(), provider=LocalProvider(home))
    assert outcome.played == 0 and (place / "traces.jsonl").read_bytes() == first + second

    async with named_disk("lines", own_home, None) as objects:
        await objects.put("r/traces.jsonl", first)  # the disk never got it
    outcome = await resume(Path("disk:lines/r"), Heard(), provider=LocalProvider(home))
    assert outcome.played == 0 and await content(own_home, "r/traces.jsonl") == first + second

    shutil.rmtree(place)  # another machine
    async with named_disk("lines", own_home, None) as objects:
        await objects.put("r/traces.jsonl", second + first[:20])  # a tail that was never finished
    outcome = await resume(Path("disk:lines/r"), Heard(), provider=LocalProvider(home))
    assert outcome.played == 1
    found = [json.loads(line) for line in (await content(own_home, "r/traces.jsonl")).splitlines()]
    assert sorted(line["task"] for line in found) == ["t/a", "t/b"]


async def test_what_is_played_again_is_on_the_disk_once(tmp_path: Path, home: Path, own_home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    await start(plan(tmp_path), Heard(), provider=LocalProvider(home))
    place = played_in("lines") / "r"
    (line,) = lines(place)
    line["status"] = "INFRASTRUCTURE_ERROR"
    (place / "traces.jsonl").write_text(json.dumps(line) + "\n")
    outcome = await resume(place, Heard(), provider=LocalProvider(home))
    assert outcome.played == 1
    (there,) = (await content(own_home, "r/traces.jsonl")).splitlines()
    assert json.loads(there)["id"] != line["id"]


async def test_another_run_of_the_name_and_another_server_are_refused(
    tmp_path: Path, home: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "a")
    await start(plan(tmp_path), Heard(), provider=LocalProvider(home))
    place = played_in("lines") / "r"
    with pytest.raises(ConfigError, match="already contains results"):
        await start(plan(tmp_path), Heard(), provider=LocalProvider(home))
    monkeypatch.setenv("FORKYARD_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FORKYARD_KEY", "key-x")
    with pytest.raises(ConfigError, match="FORKYARD_URL"):
        await resume(place, Heard(), provider=LocalProvider(home))
    with pytest.raises(ConfigError, match="cannot be asked"):
        await resume(Path("disk:lines/r"), Heard())
    monkeypatch.delenv("FORKYARD_URL")
    shutil.rmtree(place)
    with pytest.raises(ConfigError, match="another run 'r'"):
        await start(plan(tmp_path), Heard(), provider=LocalProvider(home))


async def test_a_plan_is_fetched_whole_or_not_at_all(own_home: Path) -> None:
    async with named_disk("lines", own_home, None, create=True) as objects:
        await objects.put("r/plan.json", b'{"created": "then"}')
    place = played_in("lines") / "r"
    place.mkdir(parents=True)
    (place / "plan.json.new").write_bytes(b'{"crea')  # a kill has left it
    assert await fetched(Path("disk:lines/r")) == place == await fetched(Path("disk:lines/r"))
    assert (place / "plan.json").read_bytes() == b'{"created": "then"}' and not (place / "plan.json.new").exists()
    (place / "plan.json").write_bytes(b'{"created": "before"}')
    with pytest.raises(ConfigError, match="holds another run"):
        await fetched(Path("disk:lines/r"))
    with RunDirectory(place), pytest.raises(ConfigError, match="being played by another process"):
        await fetched(Path("disk:lines/r"))


def test_what_is_made_of_a_run_on_a_disk_goes_where_it_is_told(tmp_path: Path) -> None:
    with RunDirectory.create(plan(tmp_path)) as directory:
        pass
    for out, disk in ((tmp_path / "runs", None), (Path("disk:others"), "others")):
        before, after = derived("regrade", directory.path, "again", out)
        assert (before.disk, after.disk) == ("lines", disk)
    with pytest.raises(ConfigError, match="cannot be made"):
        derived("regrade", directory.path, "again", Path("/proc/none"))


@pytest.mark.parametrize("place", ["disk:", "disk:../x", "disk:a/b/c", "disk:a/..", "disk:a b"])
def test_what_is_no_place_on_a_disk_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="is no place on a disk"):
        parted(Path(place))


def test_a_disk_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="there is no disk 'nothing'"), readable([Path("disk:nothing/r")]):
        pass


class Losing:
    """A disk whose answers to appends are lost: some of them after the append was done, some before."""

    def __init__(self, inner: Objects, losses: str) -> None:
        self._inner = inner
        self._losses = [*losses]
        self.directory: Path | None = None

    async def append(self, key: str, data: bytes) -> None:
        loss = self._losses.pop(0) if self._losses else "-"
        if loss != "b":
            await self._inner.append(key, data)
        if loss in "ab":
            raise OSError("the answer was lost")

    async def put(self, key: str, data: bytes) -> None:
        await self._inner.put(key, data)

    async def get(self, key: str) -> bytes | None:
        return await self._inner.get(key)

    async def size(self, key: str) -> int | None:
        return await self._inner.size(key)


@pytest.mark.parametrize("losses", ["a", "b", "ba", "bb-a"])
async def test_an_append_whose_answer_is_lost_is_there_once(losses: str, own_home: Path, tmp_path: Path) -> None:
    async with named_disk("lines", own_home, None, create=True) as objects:
        mirror = Mirror(Losing(objects, losses), "r")
        await mirror.begin(tmp_path / "none")
        for number in range(3):
            await mirror.append([{"n": number}])
        assert await objects.get("r/traces.jsonl") == b'{"n": 0}\n{"n": 1}\n{"n": 2}\n'


async def test_a_line_longer_than_one_append_is_whole(own_home: Path, tmp_path: Path) -> None:
    async with named_disk("lines", own_home, None, create=True) as objects:
        mirror = Mirror(objects, "r")
        await mirror.begin(tmp_path / "none")
        await mirror.append([{"n": "x" * (2 * APPEND_LIMIT)}])
        there = await objects.get("r/traces.jsonl")
        assert there is not None and json.loads(there) == {"n": "x" * (2 * APPEND_LIMIT)}


async def test_somebody_elses_writing_is_said(own_home: Path, tmp_path: Path) -> None:
    async with named_disk("lines", own_home, None, create=True) as objects:
        mirror = Mirror(Losing(objects, "b"), "r")
        await mirror.begin(tmp_path / "none")
        await objects.put("r/traces.jsonl", b"theirs\n")
        with pytest.raises(OSError, match="somebody else"):
            await mirror.append([{"n": 1}])


@pytest.mark.slow
async def test_a_run_in_sandboxes_of_a_server_with_its_lines_on_a_disk_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "good")
    write_task(tmp_path / "tasks", "idle", solve="#!/bin/bash\ntrue\n")
    (tmp_path / "there").mkdir()
    with served(tmp_path / "there") as place:
        for name, value in place.variables.items():
            monkeypatch.setenv(name, value)
        asked = plan(tmp_path, samples=2).model_copy(update={"agent": agent_of(provider="remote")})
        outcome = await start(asked, Heard())
        assert (outcome.played, outcome.errored) == (4, 0)
        text = json.dumps(asked.model_dump(mode="json"))
        assert place.key not in text
        async with mirrored(asked.disk or "", "r", asked.place):
            pass
    async with named_disk("lines", tmp_path / "there", None) as objects:
        found = [json.loads(line) for line in (await objects.get("r/traces.jsonl") or b"").splitlines()]
    assert sorted((line["task"], line["reward"]) for line in found) == [
        ("t/good", 1.0), ("t/good", 1.0), ("t/idle", 0.0), ("t/idle", 0.0)
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["disk-runs"]  # no sandbox was here
