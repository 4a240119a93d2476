from __future__ import annotations

import signal
import tarfile
from pathlib import Path

import pytest

from tests.cli.forkyard import Forkyard
from tests.run.parts import processes_with, until


def test_a_named_sandbox_keeps_its_changes_and_its_forks_are_their_own(forkyard: Forkyard) -> None:
    assert forkyard("sandbox", "create", "box").stdout == "box\n"
    ran = forkyard.apart(
        "sandbox", "run", "box", "--", "sh", "-c", "cat > /kept; echo out; echo err >&2; exit 7", stdin="in"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "out\n", "err\n")
    assert forkyard("sandbox", "fork", "box", "copy").stdout == "copy\n"
    assert forkyard.apart("sandbox", "run", "copy", "sh", "-c", "cat /kept; echo -copy >> /kept").stdout == "in"
    assert forkyard.apart("sandbox", "run", "box", "cat", "/kept").stdout == "in"
    assert forkyard.apart("sandbox", "run", "copy", "cat", "/kept").stdout == "in-copy\n"
    listed = forkyard("sandbox", "ls").stdout.splitlines()
    assert listed[0].split() == ["NAME", "STATE", "IMAGE", "PARENT", "CREATED"]
    assert [line.split()[:2] for line in listed[1:]] == [["box", "stopped"], ["copy", "stopped"]]
    assert forkyard("sandbox", "rm", "box", "copy").returncode == 0
    assert len(forkyard("sandbox", "ls").stdout.splitlines()) == 1


def test_a_command_ended_by_a_signal_and_a_missing_one_exit_as_in_a_shell(forkyard: Forkyard) -> None:
    forkyard("sandbox", "create", "codes")
    assert forkyard.apart("sandbox", "run", "codes", "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = forkyard.apart("sandbox", "run", "codes", "no-such-program")
    assert missing.returncode == 127 and "no-such-program" in missing.stderr
    absent = forkyard.apart("sandbox", "run", "none", "true")
    assert absent.returncode == 1 and "there is no sandbox 'none'" in absent.stderr
    forkyard("sandbox", "rm", "codes")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fork", "none", "new"), "there is no sandbox 'none'"),
        (("rm", "none"), "there is no sandbox 'none'"),
        (("create", "x", "--image", "nothing"), "there is no image 'nothing'"),
        (("run", "none"), "Missing argument"),
    ],
)
def test_what_is_not_there_is_told(forkyard: Forkyard, arguments: tuple[str, ...], said: str) -> None:
    done = forkyard("sandbox", *arguments)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_a_name_is_taken_once(forkyard: Forkyard) -> None:
    forkyard("sandbox", "create", "twice")
    done = forkyard("sandbox", "create", "twice")
    assert done.returncode == 1 and "'twice' already" in done.stderr
    forkyard("sandbox", "rm", "twice")


def test_an_interrupted_command_ends_and_the_sandbox_keeps_its_changes(forkyard: Forkyard) -> None:
    forkyard("sandbox", "create", "long")
    inside = "sleep\09182.1"
    process = forkyard.started("sandbox", "run", "long", "sh", "-c", "echo x > /x; sleep 9182.1")
    assert process.stdin
    process.stdin.close()
    assert until(lambda: bool(processes_with(inside)))
    process.send_signal(signal.SIGINT)
    process.stdin = None
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (130, "", "")
    assert not processes_with(inside)
    assert forkyard.apart("sandbox", "run", "long", "cat", "/x").stdout == "x\n"
    forkyard("sandbox", "rm", "long")


def test_sweep_says_what_a_killed_process_left(forkyard: Forkyard) -> None:
    forkyard("sandbox", "create", "dead")
    inside = "sleep\09182.2"
    process = forkyard.started("sandbox", "run", "dead", "sh", "-c", "sleep 9182.2; true")
    assert process.stdin
    process.stdin.close()
    assert until(lambda: bool(processes_with(inside)))
    process.kill()
    process.stdin = None
    process.communicate(timeout=100)
    assert until(lambda: not processes_with(inside))
    assert "sandbox dead: its owner is gone" in forkyard("sandbox", "sweep").stdout
    nothing = forkyard("sandbox", "sweep")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "forkyard: nothing was left behind\n")


def test_what_a_sandbox_changed_is_told_as_a_list_and_as_a_patch(forkyard: Forkyard) -> None:
    forkyard("sandbox", "create", "before")
    forkyard.apart("sandbox", "run", "before", "sh", "-c", "mkdir /w; echo old > /w/file; echo > /w/gone")
    forkyard("sandbox", "fork", "before", "after")
    script = "echo new > /w/file; rm /w/gone; touch \"$(printf '/w/tab\\tx')\""
    forkyard.apart("sandbox", "run", "after", "sh", "-c", script)
    assert forkyard("sandbox", "diff", "after").stdout == "M /w/file\nD /w/gone\nA /w/tab\\tx\n"
    patch = forkyard("sandbox", "diff", "after", "--patch").stdout
    assert "--- a/w/file\n+++ b/w/file\n@@ -1,1 +1,1 @@\n-old\n+new\n" in patch
    shown = {line.split()[0]: line.split()[1:] for line in forkyard("sandbox", "du").stdout.splitlines()}
    assert shown["NAME"] == ["KIND", "OWN", "SHARED"]
    assert shown["before"][:2] == ["sandbox", "0"] and int(shown["after"][1].replace(",", "")) > 0
    forkyard("sandbox", "rm", "after", "before")


def test_a_sweep_by_age_needs_an_age_and_keeps_what_is_younger(forkyard: Forkyard) -> None:
    forkyard("sandbox", "create", "young")
    for age in ("7", "d", "-1d", "1.5d"):
        refused = forkyard("sandbox", "sweep", f"--older-than={age}")
        assert refused.returncode == 1 and f"--older-than {age}" in refused.stderr
    assert forkyard("sandbox", "sweep", "--older-than", "7d").stdout == ""
    assert "sandbox young: last used 0.0 days ago" in forkyard("sandbox", "sweep", "--older-than", "0s").stdout
    absent = forkyard("sandbox", "diff", "young")
    assert absent.returncode == 1 and "there is no sandbox 'young'" in absent.stderr


def test_an_image_is_imported_listed_used_and_removed(forkyard: Forkyard, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "root.tar.gz", "w:gz") as archive:
        for name in ("etc", "tmp"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
    done = forkyard("image", "import", "root.tar.gz", "tiny:1", "--env", "A=b", "--workdir", "/tmp", "--user", "7")
    assert (done.returncode, done.stdout) == (0, "tiny:1\n"), done.stderr
    row = next(line for line in forkyard("image", "ls").stdout.splitlines() if line.startswith("tiny:1"))
    assert row.split()[:3] == ["tiny:1", "7", "/tmp"]
    assert forkyard("sandbox", "create", "from-tiny", "--image", "tiny:1").returncode == 0
    assert forkyard("image", "rm", "tiny:1").returncode == 0
    assert "tiny:1" not in forkyard("image", "ls").stdout
    missing = forkyard("image", "rm", "tiny:1")
    assert missing.returncode == 1 and "there is no image 'tiny:1'" in missing.stderr
    absent = forkyard("image", "import", "nowhere.tar", "x")
    assert absent.returncode == 1 and "nowhere.tar" in absent.stderr and "Traceback" not in absent.stderr
    forkyard("sandbox", "rm", "from-tiny")


@pytest.mark.slow
def test_checking_a_provider_tells_each_promise(forkyard: Forkyard) -> None:
    done = forkyard("check", "provider", "subprocess", "--image", "no-such-image")
    *told, total = done.stdout.splitlines()
    assert done.returncode == 2, done.stdout
    assert {line.split("  ")[0] for line in told} == {"kept", "broken", "not declared"}
    assert sum("no-such-image" in line for line in told) > 80
    assert total.endswith(" not declared") and " 0 broken" not in total
    unknown = forkyard("check", "provider", "nowhere")
    assert unknown.returncode == 1 and "there is no provider 'nowhere'" in unknown.stderr


def test_another_provider_is_chosen_as_for_a_run(forkyard: Forkyard) -> None:
    elsewhere = ("-e", "subprocess")
    assert forkyard("sandbox", "create", "plain", *elsewhere).stdout == "plain\n"
    assert forkyard.apart("sandbox", "run", *elsewhere, "plain", "sh", "-c", "echo one > kept").returncode == 0
    assert forkyard("sandbox", "fork", "plain", "copy", *elsewhere).stdout == "copy\n"
    assert forkyard.apart("sandbox", "run", *elsewhere, "copy", "cat", "kept").stdout == "one\n"
    listed = forkyard("sandbox", "ls", *elsewhere).stdout.splitlines()[1:]
    assert sorted(line.split()[0] for line in listed) == ["copy", "plain"]
    assert len(forkyard("sandbox", "ls").stdout.splitlines()) == 1
    assert "'plain'" in forkyard("sandbox", "rm", "plain").stderr
    assert forkyard("sandbox", "rm", "plain", "copy", *elsewhere).returncode == 0
    assert "nothing was left behind" in forkyard("sandbox", "sweep", *elsewhere).stderr
    refused = forkyard("sandbox", "sweep", "--older-than", "1d", *elsewhere)
    assert refused.returncode == 1 and "the provider subprocess does not note" in refused.stderr
    unknown = forkyard("sandbox", "ls", "-e", "locl")
    assert unknown.returncode == 1 and "local" in unknown.stderr
