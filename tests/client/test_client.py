"""The verbs of `import forkyard`, in this process and on a server by URL: one list of tests for both."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import forkyard
from forkyard.client import Client, FileTransferError, Mount, RefusedError, SandboxStartError
from forkyard.errors import ConfigError
from forkyard.sandbox import Terminal
from tests.support.serving import served

WAYS = ("embedded", "url")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    home = tmp_path_factory.mktemp("embedded")
    with (
        served(tmp_path_factory.mktemp("served")) as place,
        Client(home=home) as embedded,
        Client(place.url, place.key) as by_url,
    ):
        yield {"embedded": embedded, "url": by_url}


@pytest.fixture(params=WAYS)
def client(request: pytest.FixtureRequest, places: dict[str, Client]) -> Client:
    return places[request.param]


def test_a_sandbox_from_its_creation_to_its_end(client: Client) -> None:
    template = client.create_sandbox("template", labels={"of": "test"}, env={"MADE": "so"})
    done = template.exec("echo out $MADE $MORE; echo err >&2; exit 3", env={"MORE": "more"}, cwd="/tmp")
    assert (done.status, done.exit_code, done.stdout, done.stderr) == ("completed", 3, "out so more\n", "err\n")
    assert not done.ok and template.exec("cat").ok  # its input is at its end
    assert template.exec("sleep 100", timeout_seconds=0.2).status == "timed_out"
    assert template.pause().status == "paused" and template.resume().status == "running"
    template.exec("echo kept > /kept")
    assert template.stop().status == "stopped"
    fork = template.fork("a-fork")
    assert fork.exec("cat /kept").stdout == "kept\n"
    assert [each.name for each in client.list_sandboxes(labels={"of": "test"})] == ["template", "a-fork"]
    assert client.get_sandbox(fork.id).facts.parent_id == template.id
    with pytest.raises(RefusedError) as refused:
        template.delete()
    assert refused.value.status == 409
    template.delete(cascade=True)
    with pytest.raises(RefusedError) as refused:
        fork.refresh()
    assert refused.value.status == 404


def test_a_process_is_fed_left_found_again_and_killed(client: Client) -> None:
    box = client.create_sandbox()
    process = box.run("while read -r line; do echo got $line; done")
    process.send_input("one\n")
    process.disconnect()
    again = box.attach(process.id)
    again.send_input(b"two\n")
    again.close_stdin()
    assert again.wait().stdout == "got one\ngot two\n" and again.status == "completed"
    sleeping = box.run("sleep 100")
    sleeping.kill()
    assert sleeping.wait().status == "cancelled"
    seen = box.run("stty size; read x; stty size", terminal=Terminal(90, 30))
    seen.resize(100, 40)
    seen.send_input("\n")
    assert "40 100" in seen.wait().stdout
    with pytest.raises(RefusedError, match="no such process"):
        box.attach("00000000-0000-0000-0000-000000000000")
    with pytest.raises(RefusedError, match="cwd"):
        box.exec("true", cwd="/not/there")
    box.delete(cascade=True)


def test_files_go_in_and_come_out_whole_or_not_at_all(client: Client, tmp_path: Path) -> None:
    box = client.create_sandbox()
    data = os.urandom(3_000_000)
    (tmp_path / "up").write_bytes(data)
    box.files.upload_file(tmp_path / "up", "/deep er/down/file", mode=0o640)
    assert box.exec("stat -c %a '/deep er/down/file'; ls -A '/deep er/down'").stdout == "640\nfile\n"
    box.files.download_file("/deep er/down/file", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == data
    with pytest.raises(FileTransferError):
        box.files.download_file("/not/there", tmp_path / "none")
    with pytest.raises(FileTransferError):
        box.files.upload_file(tmp_path / "up", "/proc/none")
    with pytest.raises(ValueError, match="absolute"):
        box.files.upload_file(tmp_path / "up", "relative")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["down", "up"]
    box.delete(cascade=True)


def test_a_disk_and_its_objects(client: Client) -> None:
    disk = client.create_disk("lines")
    assert client.create_disk("lines").id == disk.id and client.get_disk(disk.id).name == "lines"
    disk.append_object("runs/1.jsonl", '{"x": 1}\n')
    etag = disk.append_object("runs/1.jsonl", b'{"x": 2}\n')
    head = disk.head_object("runs/1.jsonl")
    assert head is not None and (head.size, head.etag) == (18, etag)
    assert disk.get_object("runs/1.jsonl", start=9) == b'{"x": 2}\n'
    assert disk.get_object("runs/1.jsonl", start=1, stop=4) == b'"x"'
    odd = "odd/ä & <b> %2F ?#"
    disk.put_object(odd, "odd", content_type="text/plain")
    assert disk.get_object(odd) == b"odd" and disk.object_exists(odd)
    with pytest.raises(RefusedError) as refused:
        disk.put_object(odd, "again", if_none_match=True)
    assert refused.value.code == "PreconditionFailed"
    assert [each.key for each in disk.list_objects().objects] == [odd, "runs/1.jsonl"]
    page = disk.list_objects(limit=1)
    assert page.next and [each.key for each in disk.list_objects(continuation=page.next).objects] == ["runs/1.jsonl"]
    assert disk.list_objects(recursive=False).prefixes == ("odd/", "runs/")
    counted = disk.exec("cat runs/*.jsonl | wc -l")
    assert (counted.stdout, counted.truncated) == ("2\n", False)
    assert [match.line for match in disk.grep('"x"', "runs").matches] == [1, 2]
    assert client.exec({"a": disk}, "ls a").stdout == "odd\nruns\n"
    assert disk.create_branch("other").branch_name == "other" and len(disk.list_branches()) == 1
    disk.delete_objects([odd, "runs/1.jsonl", "none"])
    assert disk.list_objects().objects == () and disk.head_object(odd) is None
    with pytest.raises(RefusedError) as refused:
        disk.get_object(odd)
    assert (refused.value.status, refused.value.code) == (404, "NoSuchKey")
    disk.delete()
    assert client.list_disks() == []


def test_a_disk_is_mounted_into_a_sandbox(client: Client) -> None:
    if os.getuid():
        pytest.skip("needs root")
    disk = client.create_disk("mounted")
    box = client.create_sandbox(mounts=[{"disk": "mounted"}])
    box.exec("echo inside > /mnt/archil/file")
    assert disk.get_object("file") == b"inside\n"
    for named in (disk, disk.name, disk.id):
        assert [each.id for each in client.list_sandboxes(disk=named)] == [box.id]
        assert client.exec({"a": named}, "ls a").stdout == "file\n"
    box.stop()
    box.start(mounts=[Mount(disk, path="/here", read_only=True)])
    assert box.exec("cat /here/file; echo x > /here/file").exit_code != 0
    assert disk.get_object("file") == b"inside\n"
    box.delete(cascade=True)
    disk.delete()


def test_a_mount_that_is_none_is_told_before_anything_is_made(client: Client) -> None:
    with pytest.raises(TypeError, match="a mount has no 'disk_id': did you mean 'disk'"):
        client.create_sandbox("no-mount", mounts=[{"disk_id": "x"}])
    with pytest.raises(TypeError, match="needs its 'disk'"):
        client.create_sandbox("no-mount", mounts=[{"path": "/x"}])
    with pytest.raises(TypeError, match="forkyard.Mount"):
        client.create_sandbox("no-mount", mounts=["x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="is no disk"):
        client.create_sandbox("no-mount", mounts=[Mount(5)])  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="there is no disk 'nowhere'"):
        client.create_sandbox("no-mount", mounts=[Mount("nowhere")])
    with pytest.raises(RefusedError, match="there is no sandbox 'no-mount', by this name or id: list_sandboxes()"):
        client.get_sandbox("no-mount")


def test_an_option_there_is_none_of_is_told_with_the_one_that_was_likely_meant(client: Client) -> None:
    for wrong, right in (
        ("base_imag", "base_image"),
        ("mem_size_mb", "mem_size_mib"),
        ("envs", "env"),
        ("netwrok", "network"),
    ):
        with pytest.raises(TypeError, match=f"there is no option '{wrong}': did you mean '{right}'"):
            client.create_sandbox("a", **{wrong: "x"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="base_image"):
        client.create_sandbox("a", image="nosuch:1")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'network'"):
        forkyard.create_sandbox("a", netwrok="deny")  # type: ignore[call-arg]
    with pytest.raises(RefusedError, match="there is no 'egres': did you mean 'egress'"):
        client.create_sandbox("a", network={"egres": {"default": "allow"}})
    assert client.list_sandboxes() == []
    told = inspect.signature(forkyard.create_sandbox)
    assert told == inspect.signature(client.create_sandbox) and {"name", "base_image", "mounts"} <= {*told.parameters}


def test_sandboxes_and_disks_are_found_by_name_and_by_id(client: Client) -> None:
    disk, box = client.create_disk("by-name"), client.create_sandbox("by-name")
    assert client.get_disk("by-name").id == client.get_disk(disk.id).id == disk.id
    assert client.get_sandbox("by-name").id == client.get_sandbox(box.id).id == box.id
    box.delete(cascade=True)
    disk.delete()
    for unknown in ("by-name", box.id):
        with pytest.raises(RefusedError, match="by this name or id"):
            client.get_sandbox(unknown)
    for unknown in ("by-name", disk.id):
        with pytest.raises(RefusedError, match="by this name or id") as refused:
            client.get_disk(unknown)
        assert refused.value.status == 404


def test_ports_network_and_timers(client: Client) -> None:
    box = client.create_sandbox()
    port = box.expose_port(8000)
    assert port.port == 8000 and box.list_ports() == [port]
    token = box.create_port_token(8000, ttl="1h")
    assert token.token and token.hostname == port.hostname
    box.delete_port_token(token.id)
    box.unexpose_port(8000)
    assert box.list_ports() == []
    box.update_network({"egress": {"default": "deny"}})
    assert box.get_network()["egress"]["default"] == "deny"
    assert box.set_timeout(3600, idle_ttl_seconds=60).facts.idle_ttl_seconds == 60
    box.delete(cascade=True)


async def test_the_same_verbs_can_be_awaited_any_number_at_once(client: Client) -> None:
    box = await client.create_sandbox.aio()
    done = await asyncio.gather(*(box.exec.aio(f"echo {number}") for number in range(8)))
    assert [each.stdout for each in done] == [f"{number}\n" for number in range(8)]
    sleeping = asyncio.ensure_future(box.exec.aio("sleep 100"))
    await asyncio.sleep(0)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await box.delete.aio(cascade=True)


def test_what_does_not_come_up_is_said(client: Client) -> None:
    with pytest.raises((SandboxStartError, RefusedError)):
        client.create_sandbox(base_image="not/there:1")
    for box in client.list_sandboxes():
        box.delete(cascade=True)


def run(program: str, **environ: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FORKYARD_", "ARCHIL_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env={**variables, **environ}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_program_that_is_its_own_server_leaves_what_the_next_one_finds(tmp_path: Path) -> None:
    first = "import forkyard\nbox = forkyard.create_sandbox('left')\nbox.exec('echo left > /left')\n"
    run(first, FORKYARD_HOME=str(tmp_path))
    listed = "from forkyard.cli.app import run_command_line as run\nrun(['sandbox', 'ls'])"
    head, row = run(listed, FORKYARD_HOME=str(tmp_path)).splitlines()
    assert head.endswith("SERVED AS") and row.startswith("server-") and row.endswith("  left")
    then = (
        "import forkyard\n"
        "(box,) = forkyard.list_sandboxes()\n"
        "print(box.status, box.start().exec('cat /left').stdout, end='')\n"
        "box.delete(cascade=True)\n"
    )
    assert run(then, FORKYARD_HOME=str(tmp_path)) == "stopped left\n"


def test_the_environment_names_the_server_and_a_home_has_one_at_a_time(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        assert run("import forkyard\nprint(forkyard.list_sandboxes())", **place.variables) == "[]\n"
        theirs = {"ARCHIL_BASE_URL": place.url, "ARCHIL_API_KEY": place.key}
        assert run("import forkyard\nprint(forkyard.list_disks())", **theirs) == "[]\n"
        with pytest.raises(ConfigError, match="FORKYARD_URL"):
            Client(home=tmp_path).list_sandboxes()
        wrong = Client(place.url, "key-wrong")
        with pytest.raises(RefusedError) as refused:
            wrong.list_sandboxes()
        assert refused.value.status == 401 and "key-wrong" not in str(refused.value)
        wrong.close()
    with pytest.raises(RefusedError, match="cannot be asked"), Client(place.url, place.key) as gone:
        gone.list_sandboxes()


def test_importing_forkyard_takes_nothing_of_the_client_along() -> None:
    program = (
        "import sys, forkyard\n"
        "forkyard.Task\n"
        "print([name for name in sys.modules if name.startswith(('forkyard.client', 'forkyard.server', 'starlette'))])"
    )
    assert run(program) == "[]\n"


def test_the_module_has_the_verbs() -> None:
    assert forkyard.create_sandbox.__doc__ == Client.create_sandbox.call.__doc__
    assert {"Client", "create_sandbox", "create_disk", "configure"} <= {*forkyard.__all__}
