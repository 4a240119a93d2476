"""POST /api/images and GET /api/images/{image_id}."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from forkyard.image import Credentials
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer
from forkyard.server.images.registry import Image, Images

if TYPE_CHECKING:
    from forkyard.server.serving import Server


class RegistryAuth(BaseModel):
    """Who asks the registry; used for this pull and kept nowhere."""

    username: str = Field(min_length=1, max_length=1024)
    password: str = Field(min_length=1, max_length=65536, repr=False)


class ImageRequest(BaseModel):
    """An image to have."""

    source: str = Field(min_length=1, max_length=512, description="As a FROM names it, for example debian:12.")
    registry_auth: RegistryAuth | None = None


@asynccontextmanager
async def lifetime(server: Server) -> AsyncIterator[None]:
    """Pulls end with the server."""
    images = server.keep(Images(server.state, server.provider))
    try:
        yield
    finally:
        await images.close()


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of this part."""
    images = server.the(Images)

    async def create_image(call: Call) -> Answer:
        body: ImageRequest = call.body
        given = body.registry_auth
        known = Credentials(given.username, given.password) if given is not None else None
        return Answer(images.request(body.source, known), 202)

    async def get_image(call: Call) -> Answer:
        return Answer(images.get(call.path["image_id"]))

    return [
        Endpoint(
            "POST",
            "/api/images",
            create_image,
            "Pull an image, or ask a registry whether its tag has moved",
            body=ImageRequest,
            data=Image,
            success=(202,),
            errors=(501,),
        ),
        Endpoint("GET", "/api/images/{image_id}", get_image, "An image and its state", data=Image, errors=(404,)),
    ]
