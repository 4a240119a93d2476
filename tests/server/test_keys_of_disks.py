"""`forkyard key` and the pairs of disks: shown once, good for one disk, gone when revoked, and used by boto3."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from forkyard.cli.app import run_command_line
from tests.server.s3parts import Serving, serving

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def s3(home: Path) -> Iterator[Serving]:
    """A server that runs while commands of other processes change its keys."""
    with serving(home) as found:
        yield found


@pytest.fixture
def key(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`forkyard key ...`: its exit code, and what it prints."""
    monkeypatch.setenv("FORKYARD_HOME", str(home))

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command_line(["key", *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def made(key: Command, *arguments: str) -> dict[str, str]:
    """The variables that a key is printed as."""
    code, out, err = key("create", *arguments)
    assert (code, err) == (0, "forkyard: the key is shown this once\n")
    return dict(re.findall(r"export (\w+)=(\S+)", out))


def client(s3: Serving, variables: dict[str, str]) -> Any:
    return s3.boto_with(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])


def refusal(call: Callable[..., object], **arguments: object) -> str:
    with pytest.raises(ClientError) as told:
        call(**arguments)
    return str(told.value.response["Error"]["Code"])


def test_a_pair_opens_its_disk_and_no_other_until_it_is_revoked(s3: Serving, key: Command) -> None:
    one, other = s3.disk("one"), s3.disk("other")
    s3.run(other.put("secret", b"of the other"))
    variables = made(key, "of-one", "--disk", "one")
    assert set(variables) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    boto = client(s3, variables)
    boto.put_object(Bucket="one", Key="a/b", Body=b"hello")
    assert boto.get_object(Bucket=one.info.id, Key="a/b")["Body"].read() == b"hello"
    assert [each["Name"] for each in boto.list_buckets()["Buckets"]] == ["one"]

    for bucket in ("other", other.info.id):
        assert refusal(boto.get_object, Bucket=bucket, Key="secret") == "AccessDenied"
        assert refusal(boto.put_object, Bucket=bucket, Key="new", Body=b"") == "AccessDenied"
        assert refusal(boto.list_objects_v2, Bucket=bucket) == "AccessDenied"
    source = {"Bucket": "other", "Key": "secret"}
    assert refusal(boto.copy_object, Bucket="one", Key="stolen", CopySource=source) == "AccessDenied"
    assert refusal(boto.create_bucket, Bucket="other") == "AccessDenied"
    secret = variables["AWS_SECRET_ACCESS_KEY"]
    for text in (f"key-{secret}", secret, f"Bearer {secret}"):
        assert s3.ask("GET", "/one/a/b", headers={"Authorization": text}).status == 403

    assert key("revoke", "of-one") == (0, "revoked of-one\n", "")
    assert refusal(boto.get_object, Bucket="one", Key="a/b") == "InvalidAccessKeyId"
    assert s3.run(one.head("a/b")).size == 5


def test_a_pair_of_a_disk_opens_its_branches_and_ends_with_it(s3: Serving, key: Command) -> None:
    disk = s3.disk("branched")
    s3.run(disk.put("a", b"before"))
    s3.run(s3.server.disks.create_branch(disk.info.id, "side"))
    boto = client(s3, made(key, "of-branched", "--disk", disk.info.id))
    assert boto.get_object(Bucket="branched.side", Key="a")["Body"].read() == b"before"
    s3.run(s3.server.disks.delete(disk.info.id))
    assert refusal(boto.get_object, Bucket="branched", Key="a") == "InvalidAccessKeyId"
    assert "of-branched" not in key("list")[1]


def test_keys_and_pairs_are_listed_together_without_their_secrets(s3: Serving, key: Command) -> None:
    s3.disk("listed")
    whole, pair = made(key, "whole"), made(key, "of-listed", "--disk", "listed")
    out = key("list")[1]
    assert re.search(rf"^{pair['AWS_ACCESS_KEY_ID']} +of-listed +\S+ \S+Z +listed$", out, re.MULTILINE), out
    assert re.search(rf"^{whole['AWS_ACCESS_KEY_ID']} +whole ", out, re.MULTILINE), out
    assert pair["AWS_SECRET_ACCESS_KEY"] not in out and whole["ARCHIL_API_KEY"] not in out
    assert key("revoke", pair["AWS_ACCESS_KEY_ID"]) == (0, "revoked of-listed\n", "")
    assert key("revoke", "whole")[0] == 0


def test_what_cannot_be_made_or_revoked_is_told(s3: Serving, key: Command) -> None:
    disk = s3.disk("told")
    made(key, "taken", "--disk", "told")
    for arguments in (("taken",), ("taken", "--disk", "told")):
        code, out, err = key("create", *arguments)
        assert (code, out) == (1, "") and "there is a key 'taken'" in err
    code, _, err = key("create", "x", "--disk", "nothing")
    assert code == 1 and "there is no disk 'nothing'" in err
    code, _, err = key("create", "x", "--disk", "told.side")
    assert code == 1 and "there is no disk" in err
    code, _, err = key("create", "x", "--disk", "told", "--description", "y")
    assert code == 1 and "--description" in err
    s3.call(lambda: s3.server.disks.access.add_pair(disk.info.id, "taken"))
    code, _, err = key("revoke", "taken")
    assert code == 1 and "by its id" in err
    assert key("revoke", "unheard-of")[0] == 1
