"""Looking at images by what runs in them."""

from __future__ import annotations

from forkyard.sandbox import Provider, SandboxSpec


async def said(provider: Provider, image: str, command: str) -> str:
    """What a command says in a sandbox made from an image."""
    sandbox = await provider.create(SandboxSpec(image=image))
    try:
        result = await sandbox.run(command)
        assert result.ok, result.stderr
        return result.stdout
    finally:
        await sandbox.close()
