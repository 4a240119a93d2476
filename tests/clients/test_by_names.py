"""Clients led by names alone: a hosts file of their own, port 443, and the certificates that `forkyard env` names."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.npm import node, packages

pytestmark = pytest.mark.slow

CALLS = Path(__file__).parent / "npm_disk.mjs"
# In namespaces of its own, so that the machine's hosts file and port 443 stay as they are.
SCRIPT = """
set -eu
ip link set lo up
eval "$(python -m forkyard.cli key create names)"
mkfifo told
python -m forkyard.cli serve --port 443 --tls > told 2> log &
server=$!
trap 'kill -9 $server 2>/dev/null || true' EXIT
exec 3< told
read -r line <&3
python -m forkyard.cli env --hosts > exports
{ echo 127.0.0.1 localhost; sed -n 's/^# \\([0-9a-f.:]* [^ ]*\\)$/\\1/p' exports; } > hosts
mount --bind hosts /etc/hosts
eval "$(cat exports)"
test -z "${HTTPS_PROXY-}"
"$@"
kill -TERM $server
wait $server
trap - EXIT
"""
PYTHON = """
import archil, boto3

disk = archil.create_disk(name="by-names").disk
disk.put_object("a/b", b"one\\n")
disk.append_object("a/b", b"two\\n")
assert disk.get_object("a/b") == b"one\\ntwo\\n"
assert disk.exec("wc -l < a/b").stdout == "2\\n"
assert boto3.client("s3").get_object(Bucket="by-names", Key="a/b")["Body"].read() == b"one\\ntwo\\n"
box = archil.create_sandbox(name="by-names", base_image="host")
assert box.exec("echo $NAME", env={"NAME": "value"}).stdout == "value\\n"
box.stop()
box.delete()
disk.delete()
for place in (archil.Archil(region=name) for name in ("aws-us-west-2", "aws-eu-west-1", "gcp-us-central1")):
    assert place.disks.list() == [] and place.sandboxes.list() == []
"""


async def led_by_names(directory: Path, *client: str) -> None:
    """Run a client where the vendor's names are the server's; it must succeed, and so must the server."""
    if os.geteuid() != 0:
        pytest.skip("a hosts file of one's own takes a mount namespace, and that root")
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing (apt-get install util-linux iproute2)")
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(directory),
        "FORKYARD_HOME": str(directory / "home"),
    }
    process = await asyncio.create_subprocess_exec(
        "unshare", "--mount", "--net", "bash", "-c", SCRIPT, "script", *client, cwd=directory, env=env,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        told, _ = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    log = (directory / "log").read_text() if (directory / "log").exists() else ""
    assert process.returncode == 0, told.decode() + log
    assert "Traceback" not in log, log


async def test_archil_and_boto3_run_as_they_are(tmp_path: Path) -> None:
    for package in ("archil", "boto3"):
        pytest.importorskip(package)
    (tmp_path / "client.py").write_text(PYTHON)
    await led_by_names(tmp_path, "python", "client.py")


async def test_npms_disk_runs_as_it_is_on_a_node_that_heeds_no_proxy(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(packages("disk@0.8.13") / "node_modules")
    shutil.copy(CALLS, tmp_path)
    await led_by_names(tmp_path, shutil.which("node") or node(), CALLS.name)
