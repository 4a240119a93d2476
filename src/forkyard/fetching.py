"""Fetching a file of the web: one that is as large as it is allowed to be at most, for whoever words the failure."""

from __future__ import annotations

from collections.abc import Callable

import httpx2

_SECONDS = 60.0  # without a byte


async def fetch(
    url: str, write: Callable[[bytes], object], largest: int, failed: Callable[[str | Exception], Exception]
) -> None:
    """Give `write` the bytes at a URL as they come, at most `largest`, redirects followed.

    Raises what `failed` makes of a reason, or of the error of the connection, whose text may hold all of the URL.
    """
    size = 0
    try:
        async with (
            httpx2.AsyncClient(timeout=_SECONDS, follow_redirects=True) as client,
            client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response,
        ):
            if response.status_code != 200:
                raise failed(f"the server says {response.status_code}")
            async for piece in response.aiter_raw():
                size += len(piece)
                if size > largest:
                    raise failed(f"it is larger than {largest} bytes")
                write(piece)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise failed(error) from error
