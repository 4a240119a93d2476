"""`forkyard doctor`: what it says of this machine, as root, as an ordinary user, and where one thing is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from forkyard.sandbox import Feature, SandboxSpec, StandsApart
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.cgroups import Controllers
from tests.cli.forkyard import PROGRAM, Forkyard
from tests.support.ordinary_user import home_of_the_user, run_as_user

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


def findings(text: str, provider: str = "local") -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(text)["providers"][provider]["findings"]}


def run_in(home: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script that ends with `exec "$@"`, which becomes `forkyard doctor --json`."""
    env = {"HOME": str(home), "FORKYARD_HOME": str(home / "store"), "PATH": os.environ["PATH"], **environment}
    command = ["sh", "-c", script, "sh", *PROGRAM, "doctor", "--json"]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=280, check=False)


def test_what_is_promised_is_what_the_provider_promises(forkyard: Forkyard) -> None:
    done = forkyard("doctor", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr, found["ok"]) == (0, "", True)
    local = found["providers"]["local"]
    assert local["works"]
    assert {name for name, there in local["features"].items() if there} == LocalProvider().features
    assert set(local["features"]) == set(Feature)
    assert findings(done.stdout)["a sandbox"]["ok"]
    assert found["providers"]["subprocess"] == {
        "works": True,
        "features": {feature: feature in (Feature.FORK, Feature.PROCESSES) for feature in Feature},
        "findings": [],
    }


def test_a_reader_is_told_the_same_in_words(forkyard: Forkyard) -> None:
    done = forkyard("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "local: works"
    assert lines[1].startswith("  promises  isolated, ")
    assert any(line.startswith("  ok        a sandbox: started and ran a command in ") for line in lines)
    assert any(re.search(r"ok        disk space: .* may write \d+ MiB to its disk", line) for line in lines)


def test_of_other_providers_it_says_in_a_line_whether_they_work_and_more_of_those_that_are_named(
    forkyard: Forkyard,
) -> None:
    lines = forkyard("doctor").stdout.split("\n\n")[-1].splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ["docker", "gvisor", "remote", "subprocess"]
    assert lines[2] == "remote: does not work here: the provider remote needs a server, and none is named"
    assert lines[3:] == ["subprocess: works", "`forkyard doctor PROVIDER` tells more of one"]
    done = forkyard("doctor", "subprocess")
    assert (done.returncode, done.stdout.splitlines()[:2]) == (0, ["subprocess: works", "  promises  fork, processes"])
    done = forkyard("doctor", "subprocess", "remote")
    assert done.returncode == 1 and "remote: DOES NOT WORK\n  MISSING   provider: " in done.stdout
    assert "local:" not in done.stdout
    done = forkyard("doctor", "locl")
    assert (done.returncode, done.stdout) == (1, "") and "did you mean 'local'?" in done.stderr


def test_everything_that_is_missing_comes_with_a_mend(forkyard: Forkyard) -> None:
    for provider in json.loads(forkyard("doctor", "--json").stdout)["providers"].values():
        assert [one["name"] for one in provider["findings"] if one["ok"] == bool(one["mend"])] == []


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("subordinate_ids", [False, True], ids=["single", "range"])
def test_an_ordinary_user_is_told_what_is_missing_and_how_to_get_it(subordinate_ids: bool) -> None:
    if subordinate_ids and not shutil.which("newuidmap"):
        pytest.skip("newuidmap is not installed (apt-get install uidmap)")
    with home_of_the_user() as home:
        done = run_as_user(*PROGRAM, "doctor", "--json", home=home, subordinate_ids=subordinate_ids)
    assert (done.returncode, done.stderr) == (0, "")
    found = findings(done.stdout)
    assert found["users"]["ok"] is subordinate_ids
    assert subordinate_ids or "--add-subuids" in found["users"]["mend"]
    groups = found["control groups"]
    assert (groups["ok"], groups["detail"]) == (False, "none; not usable: cpu, memory, pids")
    assert "Delegate=yes" in groups["mend"] or "run as root" in groups["mend"]
    promised = json.loads(done.stdout)["providers"]["local"]["features"]
    assert (promised["limit_cpu"], promised["limit_memory"], promised["limit_disk"]) == (False, False, True)


@as_root
def test_without_user_namespaces_the_setting_is_named_and_the_exit_code_is_1(tmp_path: Path) -> None:
    script = (
        'unshare --user --map-root-user sh -c "echo 0 > /proc/sys/user/max_user_namespaces; exec \\"\\$@\\"" sh "$@"'
    )
    done = run_in(tmp_path, script)
    assert (done.returncode, done.stderr, json.loads(done.stdout)["ok"]) == (1, "", False)
    found = findings(done.stdout)
    assert not found["user namespaces"]["ok"]
    assert "sysctl -w user.max_user_namespaces=" in found["user namespaces"]["mend"]
    assert not found["a sandbox"]["ok"]


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    done = run_in(tmp_path, 'exec "$@"')
    found = findings(done.stdout)
    assert (done.returncode, found["FORKYARD_HOME"]["ok"], found["a sandbox"]["ok"]) == (1, False, False)
    assert "set FORKYARD_HOME" in found["FORKYARD_HOME"]["mend"]


@as_root
def test_a_home_on_a_file_system_that_cannot_be_forked_on_is_named(tmp_path: Path) -> None:
    script = (
        f"mkdir {tmp_path}/l {tmp_path}/u {tmp_path}/w {tmp_path}/store && mount -t overlay "
        f"-o lowerdir={tmp_path}/l,upperdir={tmp_path}/u,workdir={tmp_path}/w none {tmp_path}/store && "
    )
    done = run_in(tmp_path, f'unshare --mount sh -c \'{script} exec "$@"\' sh "$@"')
    found = findings(done.stdout)
    assert (done.returncode, found["FORKYARD_HOME"]["ok"]) == (1, False)
    assert found["FORKYARD_HOME"]["detail"] == f"{tmp_path}/store on overlay"


@as_root
def test_a_nearly_full_disk_is_named(tmp_path: Path) -> None:
    script = f"mkdir {tmp_path}/store && mount -t tmpfs -o size=20m none {tmp_path}/store &&"
    done = run_in(tmp_path, f'unshare --mount sh -c \'{script} exec "$@"\' sh "$@"')
    found = findings(done.stdout)
    assert (done.returncode, found["free space"]["ok"]) == (1, False)
    assert "sweep" in found["free space"]["mend"]


@as_root
def test_missing_programs_are_named_and_the_provider_works_all_the_same(tmp_path: Path) -> None:
    script = f'mount -t tmpfs none /usr/sbin && PATH={tmp_path} exec "$@"'
    done = run_in(tmp_path, f"exec unshare --mount sh -c '{script}' sh \"$@\"")
    assert done.returncode == 0, done.stderr
    found = findings(done.stdout)
    assert found["a sandbox"]["ok"]
    assert (found["slirp4netns"]["ok"], found["slirp4netns"]["mend"]) == (False, "apt-get install slirp4netns")
    assert not found["debootstrap or mmdebstrap"]["ok"]


async def test_whether_a_verifier_can_stand_apart_is_what_a_sandbox_says(home: Path) -> None:
    async with LocalProvider(home) as provider:
        found = {finding.name: finding for finding in await provider.findings()}["verifiers apart"]
        box = await provider.create(SandboxSpec())
        assert isinstance(box, StandsApart)
        apart = await box.apart(())
        assert found.ok == (apart is not None)
        assert found.ok or "Landlock" in found.mend


async def test_a_provider_without_controllers_says_which(home: Path) -> None:
    async with LocalProvider(home) as provider:
        provider.yard.controllers = Controllers(pids=provider.yard.controllers.pids)
        found = {finding.name: finding for finding in await provider.findings()}
        assert not found["control groups"].ok
        assert "cpu, memory" in found["control groups"].detail
        assert Feature.LIMIT_MEMORY not in provider.features


def test_the_page_of_a_broken_provider_does_not_hide_the_others(forkyard: Forkyard, tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "sick-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sick\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[forkyard.providers]\nsick = sick:Sick\n")
    (site / "sick.py").write_text("class Sick:\n    def __init__(self):\n        raise ValueError('no such machine')\n")
    done = run_in(tmp_path, 'exec "$@"', PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    (only,) = json.loads(done.stdout)["providers"]["sick"]["findings"]
    assert (only["ok"], only["detail"]) == (False, "provider 'sick': no such machine")
