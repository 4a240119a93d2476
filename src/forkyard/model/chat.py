"""A model behind an OpenAI-compatible chat completions endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx2

from forkyard.errors import ContentFilterError, ModelError
from forkyard.model.completion import Completion, ReportedError, read_completion
from forkyard.model.failures import by_proxy, malformed, refusal, reported
from forkyard.model.place import Place, check_place
from forkyard.model.protocol import PLAIN, OnFailure, Reply, Sampling, ToolSpec
from forkyard.model.retry import Failure, Hope, Patience
from forkyard.secrets import Secrets, redact
from forkyard.trace import Message
from forkyard.values import strict_json

CONNECT_SECONDS = 30.0


class ChatModel:
    """Asks one model of one endpoint; safe for any number of calls at once in one event loop.

    `timeout` bounds one request in seconds; `retry_seconds` is how long a call goes on asking after its first
    failure (at most two minutes of 5xx in a row that name no `Retry-After`). The key is sent to the endpoint and
    appears nowhere else. A `Place` also names the settings it is from. With a `transport` requests go there;
    `recorded` says that it puts them on the record.
    """

    def __init__(
        self,
        name: str,
        base_url: str | Place,
        api_key: str | None = None,
        *,
        timeout: float = 600.0,
        retry_seconds: float = 600.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        transport: httpx2.AsyncBaseTransport | None = None,
        recorded: bool = False,
    ) -> None:
        base = base_url if isinstance(base_url, Place) else Place(base_url)
        check_place(base, api_key)
        self._name = name
        self._place = replace(base, url=base.url.rstrip("/") + "/chat/completions")
        self._recorded = recorded
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._sleep = sleep
        self._reached = False
        self.secrets = Secrets(api_key)
        headers = {"Content-Type": "application/json", "User-Agent": "forkyard"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._client = httpx2.AsyncClient(
            headers=headers,
            # The whole request has one deadline, `timeout`, also against a provider that trickles.
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"ChatModel({self._name!r}, {self._place.url!r})"

    @property
    def name(self) -> str:
        """The model's name as it goes on the record."""
        return self._name

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling = PLAIN,
        on_failure: OnFailure | None = None,
    ) -> Reply:
        """The model's next message. Raises a ModelError once retrying cannot help or its time is spent."""
        content = strict_json(_body(self._name, messages, tools, sampling)).encode("ascii")
        patience = Patience(self._retry_seconds)
        while True:
            outcome = await self._ask(content, bool(tools))
            if isinstance(outcome, Completion):
                break
            if on_failure:
                on_failure(str(outcome.error), outcome.asked or 0.0)
            # Raised from here and not from the cause: a cause's text may quote the key.
            await self._sleep(patience.pause(outcome))
        return Reply(
            message=outcome.message,
            usage=outcome.usage,
            finish_reason=outcome.finish_reason,
            retries=patience.tries,
            waited_ms=patience.paused * 1000,
            recorded=self._recorded,
        )

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.aclose()

    async def _ask(self, content: bytes, with_tools: bool) -> Completion | Failure:
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.post(self._place.url, content=content)
        except (TimeoutError, httpx2.TimeoutException) as err:
            return self._unreached(err, 504, f"{self._place} did not answer within {self._timeout:.0f} s")
        except (httpx2.RemoteProtocolError, httpx2.DecodingError) as err:
            return Failure(ModelError(self._told(f"{self._place} broke off its reply", err), 502), Hope.MALFORMED)
        except httpx2.ProxyError as err:
            return by_proxy(self._place, str(err))
        except httpx2.TransportError as err:
            return self._unreached(err, 503, self._told(f"{self._place} cannot be reached", err))
        self._reached = True
        body = str(redact(response.text, self.secrets))
        if response.status_code != 200:
            return refusal(response.status_code, response.headers, body, self._place, with_tools)
        return self._read(response, with_tools)

    def _read(self, response: httpx2.Response, with_tools: bool) -> Completion | Failure:
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        try:
            completion = read_completion(response.text, streamed)
        except ReportedError as err:
            return reported(redact(err.error, self.secrets), self._place, with_tools)
        except ValueError as err:
            return malformed(self._place, str(redact(str(err), self.secrets)))
        said_nothing = not completion.message.get("content") and not completion.message.get("tool_calls")
        if completion.finish_reason == "content_filter" and said_nothing:
            return Failure(ContentFilterError(f"{self._place} filtered its reply to this conversation", 200))
        return completion

    def _unreached(self, err: Exception, status: int, said: str) -> Failure:
        """A failure below HTTP. An address that never answered is likely wrong, one that did is likely restarting."""
        connecting = isinstance(err, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.UnsupportedProtocol)
        if connecting and not self._reached:
            return Failure(ModelError(f"{said}. Check {self._place.url_from}.", status), Hope.UNREACHABLE)
        return Failure(ModelError(said, status), Hope.BUSY)

    def _told(self, said: str, err: Exception) -> str:
        return f"{said}: {redact(str(err), self.secrets) or type(err).__name__}"


def _body(name: str, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Mapping[str, Any]:
    chosen = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
    }
    body: dict[str, Any] = {"model": name, "messages": list(messages)}
    if tools:
        body["tools"] = list(tools)
    return body | {key: value for key, value in chosen.items() if value is not None} | dict(sampling.extra)
