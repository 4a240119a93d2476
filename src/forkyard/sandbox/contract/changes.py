"""What `changes` and `pristine` promise."""

from __future__ import annotations

from forkyard.sandbox.contract.promise import closing, expect_equal, fresh, needs, sh
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature

FILL = """
mkdir -p /w/kept /w/gone/deep /w/replaced; echo 1 > /w/kept/same; echo 1 > /w/kept/edited; echo 1 > /w/kept/removed
echo 1 > /w/kept/mode; echo 1 > /w/gone/deep/file; echo 1 > /w/replaced/old; echo 1 > /w/replaced/both
ln -s same /w/link; ln -s same /w/relinked; echo 1 > /w/type; mkdir /w/dir
"""
CHANGE = """
echo 2 >> /w/kept/edited; rm /w/kept/removed; chmod 700 /w/kept/mode; touch -d 2001-01-01 /w/kept/same
rm -r /w/gone; rm -r /w/replaced; mkdir /w/replaced; echo 1 > /w/replaced/new; echo 1 > /w/replaced/both
ln -sfn other /w/relinked; rm /w/type; mkdir /w/type; echo > /w/type/x; chmod 711 /w/dir; mkdir -p /w/new/sub
echo > /w/new/sub/f; echo > /w/passing; rm /w/passing
"""
CHANGED = {
    "/w/dir": "modified",
    "/w/gone": "deleted",
    "/w/kept/edited": "modified",
    "/w/kept/mode": "modified",
    "/w/kept/removed": "deleted",
    "/w/new": "added",
    "/w/new/sub": "added",
    "/w/new/sub/f": "added",
    "/w/relinked": "modified",
    "/w/replaced/new": "added",
    "/w/replaced/old": "deleted",
    "/w/type": "modified",
    "/w/type/x": "added",
}


async def _changes(box: Sandbox) -> dict[str, str]:
    return {change.path: change.kind for change in await box.changes()}


@needs(Feature.CHANGES, Feature.FORK)
async def check_changes_tell_what_differs_from_the_template(provider: Provider) -> None:
    """Added, modified and deleted paths are told, against the template, running, stopped, and after a restart."""
    async with fresh(provider) as template:
        await sh(template, FILL)
        await template.stop()
        async with closing(await template.fork()) as fork:
            expect_equal(await _changes(fork), {}, "changes of a fresh fork")
            await sh(fork, CHANGE)
            expect_equal(await _changes(fork), CHANGED, "changes of a running fork")
            await fork.stop()
            expect_equal(await _changes(fork), CHANGED, "changes of a stopped fork")
            await fork.start()
            await sh(fork, "rm -r /w/new; echo 1 > /w/kept/removed")
            left = {path: kind for path, kind in CHANGED.items() if not path.startswith("/w/new")}
            del left["/w/kept/removed"]
            expect_equal(await _changes(fork), left, "changes of a fork that was started again")


@needs(Feature.CHANGES)
async def check_changes_of_a_new_sandbox_are_against_its_image(provider: Provider) -> None:
    """A sandbox made from an image starts without changes, and tells those to files of the image."""
    async with fresh(provider) as box:
        expect_equal(await _changes(box), {}, "changes of a new sandbox")
        await sh(box, "echo more >> /etc/passwd; rm /etc/group; echo new > /etc/new")
        expect_equal(
            await _changes(box), {"/etc/group": "deleted", "/etc/new": "added", "/etc/passwd": "modified"}, "changes"
        )


@needs(Feature.CHANGES, Feature.FORK_RUNNING)
async def check_a_fork_of_a_running_sandbox_starts_without_changes(provider: Provider) -> None:
    """Changes of a fork of a running sandbox are against the moment it was forked."""
    async with fresh(provider) as source:
        await sh(source, "echo 1 > /before")
        async with closing(await source.fork()) as fork:
            expect_equal(await _changes(fork), {}, "changes of a fresh fork of a running sandbox")
            await sh(fork, "echo 1 > /after")
            expect_equal(await _changes(fork), {"/after": "added"}, "changes of that fork")


@needs(Feature.CHANGES, Feature.FORK)
async def check_pristine_is_what_a_sandbox_started_from(provider: Provider) -> None:
    """`pristine` is a running sandbox with the files a sandbox started from, whatever became of them in it."""
    async with fresh(provider) as template:
        await sh(template, "echo old > /file")
        await template.stop()
        async with closing(await template.fork()) as fork:
            await sh(fork, "echo new > /file; echo > /more")
            await fork.stop()
            await fork.start()
            async with closing(await fork.pristine()) as before:
                expect_equal(await sh(before, "cat /file; ls /more 2>/dev/null || :"), "old\n", "files of the start")
                expect_equal(await _changes(before), {}, "changes of the start")
            expect_equal(await sh(fork, "cat /file"), "new\n", "the sandbox itself")
