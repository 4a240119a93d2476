"""What is promised of sandboxes that outlive the process that runs them, as far as a living one can tell."""

from __future__ import annotations

from forkyard.errors import ConfigError
from forkyard.sandbox.contract.promise import closing, expect, expect_equal, expect_raises, fresh, needs, sh, spec
from forkyard.sandbox.protocol import Provider
from forkyard.sandbox.values import Feature


@needs(Feature.SURVIVES)
async def check_a_sandbox_that_survives_is_kept_without_a_name(provider: Provider) -> None:
    """One that survives is found by its id once it is stopped, with its files, after a sweep too; so is its fork."""
    async with fresh(provider, spec(survives=True)) as box:
        await sh(box, "printf kept > /file")
        await box.stop()
        async with closing(await box.fork()) as fork:
            await sh(fork, "printf more >> /file")
            await fork.stop()
            await provider.sweep()
            for one, content in ((box, "kept"), (fork, "keptmore")):
                again = await provider.open(one.id)
                await again.start()
                expect_equal(await sh(again, "cat /file"), content, "file of a sandbox that was opened by its id")
                await again.stop()


@needs(Feature.SURVIVES)
async def check_a_sandbox_that_survives_is_gone_once_it_is_closed(provider: Provider) -> None:
    """Closing one that survives forgets it, as any other."""
    async with fresh(provider, spec(survives=True)) as box:
        pass
    expect(all(info.id != box.id for info in await provider.sandboxes()), "a closed sandbox should not be listed")
    with expect_raises("opening a closed sandbox", ConfigError):
        await provider.open(box.id)
