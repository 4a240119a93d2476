"""Disks by name, their branches, and who may reach them."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from forkyard.disk import Bucket, ConflictError, DiskError, Disks, RootAttributes
from forkyard.errors import ConfigError


async def contents(disks: Disks, bucket: str, key: str) -> bytes:
    return await (await disks.resolve(bucket).get(key)).read()


def refused(code: str) -> pytest.RaisesExc[DiskError]:
    return pytest.RaisesExc(DiskError, check=lambda err: err.code == code)


async def test_a_disk_is_made_once_for_a_name(disks: Disks) -> None:
    made, new = await disks.create("rl-trajectories")
    again, newer = await disks.create("rl-trajectories")
    assert (new, newer, again) == (True, False, made)
    assert made.info.id.startswith("dsk-")
    assert len(made.info.id) == 20
    assert disks.find("rl-trajectories") is disks.get(made.info.id) is disks.resolve("rl-trajectories") is made
    assert disks.find("another") is None


async def test_a_name_taken_by_another_configuration_is_a_conflict(disks: Disks) -> None:
    await disks.create("a")
    await disks.create("b", root=RootAttributes(1, 2, 0o750))
    with pytest.raises(ConflictError):
        await disks.create("a", root=RootAttributes(mode=0o700))
    with pytest.raises(ConflictError):
        await disks.create("a", backend=Bucket("b"))
    same, new = await disks.create("b", root=RootAttributes(1, 2, 0o750))
    assert (new, same.directory().stat().st_mode & 0o7777) == (False, 0o750)


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "..", "ä", "x" * 101, "a\n", "dsk-0123456789abcdef", "api"])
async def test_names_that_no_disk_has_are_refused(disks: Disks, name: str) -> None:
    with refused("InvalidBucketName"):
        await disks.create(name)
    assert disks.list() == ()


async def test_of_many_that_make_one_disk_one_makes_it(tmp_path: Path) -> None:
    catalogues = [Disks(tmp_path) for _ in range(3)]
    made = await asyncio.gather(*[disks.create("d") for disks in catalogues * 3])
    assert sum(new for _, new in made) == 1
    assert len({disk.info.id for disk, _ in made}) == 1
    for disks in catalogues:
        await disks.close()


async def test_disks_are_listed_page_by_page(disks: Disks) -> None:
    made = sorted([(await disks.create(f"d{number}"))[0].info for number in range(5)], key=lambda info: info.id)
    assert list(disks.list()) == made
    assert list(disks.list(made[1].id, 2)) == made[2:4]


async def test_a_deleted_disk_is_gone_with_its_objects(disks: Disks) -> None:
    disk, _ = await disks.create("d")
    await disk.put("a/b", b"1")
    await disks.create_branch(disk.info.id, "b")
    top = disk.directory().parent
    await disks.delete(disk.info.id)
    assert not top.exists()
    for call in (lambda: disks.get(disk.info.id), lambda: disks.resolve("d"), lambda: disks.branches(disk.info.id)):
        with refused("NoSuchBucket"):
            call()
    with refused("NoSuchBucket"):
        await disks.delete(disk.info.id)
    with refused("NoSuchBucket"):
        await disk.head("a/b")
    again, new = await disks.create("d")
    assert new
    assert (await again.list()).objects == ()


@pytest.mark.parametrize(
    "bucket", ["", ".", "..", "../..", "a/b", "dsk-ffffffffffffffff", "\0", "x" * 10_000, "d.", "d.b"]
)
async def test_what_names_no_disk_is_told_as_such(disks: Disks, bucket: str) -> None:
    with refused("NoSuchBucket"):
        disks.resolve(bucket)


async def test_a_branch_is_a_copy_that_goes_its_own_way(disks: Disks, tmp_path: Path) -> None:
    disk, _ = await disks.create("d")
    (tmp_path / "secret").write_text("secret")
    await disk.put("a/b", b"old")
    upload = await disk.begin_upload("whole")
    whole = await disk.complete_upload("whole", upload.id, [await disk.put_part("whole", upload.id, 1, b"x")])
    await disk.put("empty/", b"")
    (disk.directory() / "link").symlink_to(tmp_path / "secret")
    (disk.directory() / "run.sh").write_text("true")
    (disk.directory() / "run.sh").chmod(0o751)
    branch = await disks.create_branch(disk.info.id, "b")
    inner = await disks.create_branch(disk.info.id, "c", "b")
    assert disks.branches(disk.info.id) == (branch, inner)
    assert disks.branch(disk.info.id, "c") == inner
    copy = disks.get(disk.info.id, "b")
    assert (await copy.list()).objects == (await disk.list()).objects
    assert (await copy.head("whole")).etag == whole.etag
    assert (await copy.head("run.sh")).mode == 0o751
    assert (copy.directory() / "link").readlink() == tmp_path / "secret"
    await copy.put("a/b", b"new")
    await copy.append("only", b"here")
    assert await contents(disks, "d", "a/b") == b"old" == await contents(disks, "d.c", "a/b")
    assert await contents(disks, f"{disk.info.id}.b", "a/b") == b"new"
    with refused("NoSuchKey"):
        await disk.head("only")
    with pytest.raises(ConflictError):
        await disks.create_branch(disk.info.id, "b")
    with refused("InvalidArgument"):
        await disks.create_branch(disk.info.id, "../b")
    with refused("NoSuchBucket"):
        await disks.create_branch(disk.info.id, "x", "missing")


async def test_of_concurrent_branches_of_a_name_one_is_made(disks: Disks) -> None:
    disk, _ = await disks.create("d")
    await disk.put("a", b"1")
    calls = [disks.create_branch(disk.info.id, "b") for _ in range(4)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, ConflictError) for each in done) == 3
    assert len(disks.branches(disk.info.id)) == 1


async def test_tokens_open_their_disk_and_are_kept_as_hashes(disks: Disks, tmp_path: Path) -> None:
    disk, _ = await disks.create("d")
    user, token = disks.access.add_token(disk.info.id, "laptop")
    assert token.startswith("adt_")
    assert (user.kind, user.nickname, user.suffix) == ("token", "laptop", token[-4:])
    other = disks.access.add_user(disk.info.id, "awssts", "arn:aws:iam::1:role/x")
    assert disks.access.users(disk.info.id) == (user, other)
    assert disks.access.disk_of_token(token) == disk.info.id
    assert disks.access.disk_of_token(token + "x") is None
    home = tmp_path / "home" / "named-disks"
    assert not any(token.encode() in path.read_bytes() for path in home.glob("catalogue.db*"))
    assert disks.access.remove_user(disk.info.id, "token", user.identifier)
    assert not disks.access.remove_user(disk.info.id, "token", user.identifier)
    assert disks.access.disk_of_token(token) is None


async def test_key_pairs_are_found_by_their_access_key(disks: Disks) -> None:
    disk, _ = await disks.create("d")
    pair = disks.access.add_pair(disk.info.id, "boto")
    assert disks.access.pair(pair.access_key) == pair
    assert disks.access.pairs(disk.info.id) == (pair,)
    assert disks.access.every_pair() == ((pair, "d"),)
    assert pair.secret_key not in repr(pair)
    assert disks.access.remove_pair(disk.info.id, pair.access_key)
    assert disks.access.pair(pair.access_key) is None
    other = disks.access.add_pair(disk.info.id)
    await disks.delete(disk.info.id)
    assert disks.access.pair(other.access_key) is None
    for call in (disks.access.add_pair, disks.access.add_token, disks.access.users, disks.access.allowed):
        with refused("NoSuchBucket"):
            call(disk.info.id)


async def test_a_disk_is_reached_from_allowed_addresses_alone(disks: Disks) -> None:
    disk, _ = await disks.create("a")
    asked = ("10.1.2.3", "::ffff:10.1.2.3", "11.1.2.3", "::1", "", "localhost")
    assert all(disks.access.permits(disk.info.id, address) for address in asked)
    disks.access.allow(disk.info.id, ["10.0.0.0/8"])
    assert [disks.access.permits(disk.info.id, address) for address in asked] == [True, True, *[False] * 4]


async def test_allowed_addresses_are_kept_in_their_usual_form(disks: Disks) -> None:
    disk, _ = await disks.create("d")
    assert disks.access.allowed(disk.info.id) == ()
    wanted = ["10.1.2.3/8", "127.0.0.1", "::1", "127.0.0.1/32"]
    assert disks.access.allow(disk.info.id, wanted) == ("10.0.0.0/8", "127.0.0.1", "::1")
    assert disks.access.allowed(disk.info.id) == ("10.0.0.0/8", "127.0.0.1", "::1")
    with refused("InvalidArgument"):
        disks.access.allow(disk.info.id, ["localhost"])
    with refused("InvalidArgument"):
        disks.access.add_token(disk.info.id, "a\nb")


async def test_only_the_owner_may_look_into_the_catalogue(disks: Disks, tmp_path: Path) -> None:
    disk, _ = await disks.create("d")
    disks.access.add_pair(disk.info.id)
    home = tmp_path / "home" / "named-disks"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.glob("catalogue.db*")} == {0o600}


async def test_what_cannot_hold_disks_is_bad_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="FORKYARD_HOME"):
        Disks(tmp_path / "file")
    Path(tmp_path / "broken" / "named-disks").mkdir(parents=True)
    (tmp_path / "broken" / "named-disks" / "catalogue.db").write_text("no database " * 100)
    with pytest.raises(ConfigError, match=r"catalogue\.db"):
        Disks(tmp_path / "broken")


async def test_a_disk_in_a_bucket_has_no_directory_and_no_branches(disks: Disks) -> None:
    nowhere = Bucket("b", endpoint="http://127.0.0.1:9", access_key="k", secret_key="a secret of ours")
    disk, _ = await disks.create("d", backend=nowhere)
    with refused("NotImplemented"):
        disk.directory()
    with refused("NotImplemented"):
        await disks.create_branch(disk.info.id, "b")
    assert "a secret of ours" not in repr(disk.info)


async def test_a_bucket_that_cannot_be_reached_is_told_as_such(disks: Disks) -> None:
    pytest.importorskip("boto3", reason="needs the Python package boto3")
    nowhere = Bucket("b", endpoint="http://127.0.0.1:9", access_key="k", secret_key="a secret of ours")
    disk, _ = await disks.create("d", backend=nowhere)
    for call in (disk.head("a"), disk.append("a", b"1"), disk.list()):
        with pytest.raises(DiskError) as caught:
            await call
        assert caught.value.code == "ServiceUnavailable"
        assert "a secret of ours" not in str(caught.value)
