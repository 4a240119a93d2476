"""The images that were asked for, each pulled once however many ask for it at the same time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from forkyard.errors import ConfigError
from forkyard.image import Credentials, ImageSourceError, find_image, parse_reference, pull
from forkyard.sandbox import Feature, Provider, image_provider
from forkyard.server.envelope import ApiError, not_here
from forkyard.server.state import State

_log = logging.getLogger("forkyard.server")


class Image(BaseModel, frozen=True):
    """An image, as clients see it; `source` is also what the provider's store calls it."""

    image_id: str
    source: str
    private: bool
    status: Literal["building", "ready", "failed"]
    created_at: datetime
    updated_at: datetime
    digest: str | None = None
    canonical_source: str | None = None
    failure_reason: Literal["invalid_source", "interrupted"] | None = None
    failure_message: str | None = None

    def turned(self, status: Literal["building", "ready", "failed"], **more: str | None) -> Image:
        """The image in another state."""
        ended = {"failure_reason": None, "failure_message": None}
        return self.model_copy(update={"status": status, "updated_at": datetime.now(UTC), **ended, **more})


class Images:
    """Images by id, in the server's state. Other parts have it by `server.the(Images)`."""

    def __init__(self, state: State, provider: Provider) -> None:
        self._table = state.table("images", Image)
        self._provider = provider
        self._pulls: dict[str, asyncio.Task[None]] = {}
        for image in self._table.list():
            if image.status == "building":  # by a server that was killed
                self._table.set(image.image_id, image.turned("failed", failure_reason="interrupted"))

    def request(self, source: str, known: Credentials | None) -> Image:
        """Have an image pulled; one by digest that is ready, or one that is being pulled, is given as it is.

        Raises ApiError 400 for what is no reference, 501 where the provider keeps no images.
        """
        if Feature.IMAGES not in self._provider.features:
            raise not_here(f"images of the provider {self._provider.name}")
        try:
            reference = parse_reference(source)
        except ConfigError as err:
            raise ApiError(400, str(err), "invalid_source") from None
        image = self._row(reference.name, private=known is not None)
        if image.image_id in self._pulls or (image.status == "ready" and reference.digest):
            return image
        image = image.turned("building")
        self._table.set(image.image_id, image)
        task = asyncio.create_task(self._pull(image, f"{reference.registry}/{reference.repository}", known))
        self._pulls[image.image_id] = task
        task.add_done_callback(lambda _: self._pulls.pop(image.image_id, None))
        return image

    def get(self, image_id: str) -> Image:
        """An image. Raises ApiError 404."""
        image = self._table.get(image_id)
        if image is None:
            raise ApiError(404, "there is no image with that id: POST /api/images makes one", "not_found")
        return image

    def ready(self, image_id: str) -> Image:
        """An image that sandboxes can start from, `source` being its name there. Raises ApiError 404 and 409."""
        image = self.get(image_id)
        if image.status != "ready":
            told = f": {image.failure_message}" if image.failure_message else ""
            raise ApiError(409, f"the image {image_id} is {image.status}{told}", "image_not_ready")
        return image

    async def close(self) -> None:
        """End what is being pulled; clients are told that it was interrupted."""
        pulls = list(self._pulls.values())
        for task in pulls:
            task.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)

    def _row(self, name: str, *, private: bool) -> Image:
        image_id = "img-" + hashlib.sha256(f"{private} {name}".encode()).hexdigest()[:16]
        found = self._table.get(image_id)
        if found is not None:
            return found
        now = datetime.now(UTC)
        image = Image(
            image_id=image_id, source=name, private=private, status="building", created_at=now, updated_at=now
        )
        self._table.add(image_id, image)
        return image

    async def _pull(self, image: Image, repository: str, known: Credentials | None) -> None:
        try:
            digest = await self._pulled(image.source, known)
        except (ConfigError, ImageSourceError) as err:
            ended = image.turned("failed", failure_reason="invalid_source", failure_message=str(err))
        except asyncio.CancelledError:
            self._table.set(image.image_id, image.turned("failed", failure_reason="interrupted"))
            raise
        except Exception as err:  # noqa: BLE001 - the image's row is where its clients look for what went wrong
            _log.exception("the image %s could not be pulled", image.source)
            told = f"{type(err).__name__} while it was pulled"
            ended = image.turned("failed", failure_reason="interrupted", failure_message=told)
        else:
            canonical = f"{repository}@{digest}" if digest else None
            ended = image.turned("ready", digest=digest, canonical_source=canonical)
        self._table.set(image.image_id, ended)

    async def _pulled(self, name: str, known: Credentials | None) -> str | None:
        """The digest of what a registry gave; None for an image that was here and that no registry could give."""
        store = image_provider(self._provider)
        try:
            return (await pull(store, name, refresh=True, known=known)).digest
        except ImageSourceError:
            if known is not None or await find_image(store, name) is None:
                raise
            return None
