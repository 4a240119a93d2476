"""A client of one registry for one repository: manifests and blobs, asked again where asking again helps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import httpx2

from forkyard.image.oci.access import Access, read_bounded
from forkyard.image.oci.documents import ACCEPT, DOCUMENT_LIMIT, Descriptor, digest_of
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.reference import Reference
from forkyard.image.oci.settings import MIRRORS, Credentials, Endpoint, credentials, endpoint
from forkyard.values import backoff, one_line

T = TypeVar("T")
Body = Callable[[], AsyncIterator[bytes]]

_MOST_FAILURES = 5  # in a row, without a byte of progress
_MOST_ATTEMPTS = 100
_CONNECT_SECONDS, _IDLE_SECONDS = 15.0, 60.0
_LONGEST_WAIT = 60.0
_PASSING = (429, 500, 502, 503, 504)
_CUT = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError, httpx2.ReadTimeout, httpx2.WriteTimeout)
_SAID = 300


class Again(Exception):
    """An attempt failed in a way that may pass; `progress` says that it got something done all the same."""

    def __init__(self, why: str, *, progress: bool = False, wait: float = 0.0) -> None:
        super().__init__(why)
        self.progress, self.wait = progress, wait


async def open_registry(reference: Reference, known: Credentials | None = None) -> Registry:
    """A client, with what settings and, unless credentials are given, docker's configuration say.

    Raises ConfigError when one of them is wrong.
    """
    at = endpoint(reference.registry)
    return Registry(reference, at, known or await credentials(at))


class Registry:
    """Asks a registry for the repository of a reference. Use it as an async context manager."""

    def __init__(self, reference: Reference, at: Endpoint, known: Credentials | None) -> None:
        self._reference, self._at = reference, at
        self._client = httpx2.AsyncClient(
            headers={"User-Agent": "forkyard", "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(_IDLE_SECONDS, connect=_CONNECT_SECONDS, pool=None),
        )
        self._access = Access(self._client, at, known)
        self._base = f"{at.url}/v2/{reference.repository}/"

    async def __aenter__(self) -> Registry:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._client.aclose()

    @property
    def where(self) -> str:
        """The registry as a user knows it, with the mirror that stands in its place."""
        itself = self._at.host == self._at.name or self._at.host.endswith(f".{self._at.name}")
        return self._at.name if itself else f"{self._at.name} (by {self._at.host})"

    async def manifest(self, wanted: str) -> bytes:
        """The manifest or index of a tag or digest, which is verified."""

        async def attempt() -> bytes:
            async with self._asked("GET", f"manifests/{wanted}", headers={"Accept": ACCEPT}) as response:
                return await read_bounded(response, DOCUMENT_LIMIT)

        data = await self.patiently(f"the manifest {wanted}", attempt)
        if ":" in wanted and digest_of(data, wanted) != wanted:
            raise ImageSourceError(f"{self.where} gave a manifest that is not {wanted}: refused")
        return data

    async def document(self, blob: Descriptor) -> bytes:
        """A small blob as a whole, verified."""

        async def attempt() -> bytes:
            async with self.blob(blob, 0) as response:
                return await read_bounded(response, DOCUMENT_LIMIT)

        data = await self.patiently(f"the blob {blob.digest}", attempt)
        if digest_of(data, blob.digest) != blob.digest:
            raise ImageSourceError(f"{self.where} gave other bytes than those of {blob.digest}: refused")
        return data

    @asynccontextmanager
    async def blob(self, blob: Descriptor, start: int) -> AsyncIterator[httpx2.Response]:
        """One answer with a blob's bytes from `start` on (status 206), or all of them where that is not supported."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        async with self._asked("GET", f"blobs/{blob.digest}", headers=headers, allowed=(416,)) as response:
            yield response

    async def upload(self, blob: Descriptor, body: Body) -> None:
        """Put a blob there, unless it is."""

        async def attempt() -> None:
            async with self._asked("HEAD", f"blobs/{blob.digest}", push=True, allowed=(404,)) as response:
                if response.status_code != 404:
                    return
            async with self._asked("POST", "blobs/uploads/", push=True) as response:
                place = urljoin(str(response.url), response.headers.get("location", ""))
            url = httpx2.URL(place).copy_merge_params({"digest": blob.digest})
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
            async with self._asked("PUT", str(url), headers=headers, body=body, push=True):
                pass

        await self.patiently(f"the upload of {blob.digest}", attempt)

    async def put_manifest(self, wanted: str, data: bytes, media_type: str) -> None:
        """Put a manifest there under a tag."""

        async def attempt() -> None:
            async def body() -> AsyncIterator[bytes]:
                yield data

            headers = {"Content-Type": media_type, "Content-Length": str(len(data))}
            async with self._asked("PUT", f"manifests/{wanted}", headers=headers, body=body, push=True):
                pass

        await self.patiently(f"the upload of the manifest {wanted}", attempt)

    async def patiently(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Do something with the registry, again after what may pass. ImageSourceError when it does not."""
        failures = 0
        for _ in range(_MOST_ATTEMPTS):
            try:
                return await attempt()
            except Again as error:
                again = error
            except _CUT as error:
                again = Again(f"the connection was cut ({type(error).__name__})")
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                said = self._access.hide(one_line(str(error) or type(error).__name__)[:_SAID])
                mend = f"a mirror is asked in its place with {MIRRORS}={self._at.name}=URL"
                raise ImageSourceError(f"{self.where} cannot be reached: {said}; {mend}") from error
            failures = 1 if again.progress else failures + 1
            if failures >= _MOST_FAILURES:
                break
            await asyncio.sleep(min(max(backoff(failures), again.wait), _LONGEST_WAIT))
        raise ImageSourceError(f"{self.where} did not give {what} in {failures} attempts: {again}")

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        push: bool = False,
        allowed: Sequence[int] = (),
    ) -> AsyncIterator[httpx2.Response]:
        """One request, with a login when the registry wants one; what it answers is a success or `allowed`."""
        scope = f"repository:{self._reference.repository}:{'pull,push' if push else 'pull'}"
        url = urljoin(self._base, path)
        ours = urlsplit(url)[:2] == urlsplit(self._base)[:2]  # a login is for the registry, not for where it points
        for last in (False, True):
            login = self._access.headers(scope) if ours else {}
            request = self._client.build_request(
                method, url, headers={**(headers or {}), **login}, content=body() if body else None
            )
            response = await self._client.send(request, stream=True, follow_redirects=method in ("GET", "HEAD"))
            try:
                if response.status_code == 401 and ours and not last and await self._access.answer(response, scope):
                    continue
                await self._check(response, allowed)
                yield response
                return
            finally:
                await response.aclose()

    async def _check(self, response: httpx2.Response, allowed: Sequence[int]) -> None:
        status = response.status_code
        if status < 300 or status in allowed:
            return
        if status in _PASSING:
            wait = response.headers.get("retry-after", "")
            raise Again(f"it answered with status {status}", wait=float(wait) if wait.isdecimal() else 0.0)
        if status == 404:
            raise ImageSourceError(f"{self.where} has no {self._reference.name}: {self._access.hint}")
        if status in (401, 403):
            raise ImageSourceError(
                f"{self.where} refused {self._reference.name} (status {status}): {self._access.hint}"
            )
        body = (await read_bounded(response, DOCUMENT_LIMIT)).decode("utf-8", "replace")
        said = self._access.hide(one_line(body)[:_SAID])
        raise ImageSourceError(f"{self.where} answered {self._reference.name} with status {status}: {said}")
