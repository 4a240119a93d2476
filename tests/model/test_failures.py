"""What refusals of a provider are taken for."""

from __future__ import annotations

from typing import Any

import pytest

from forkyard.errors import (
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelNotFoundError,
)
from forkyard.model import ToolsRefusedError
from tests.model.provider import error, message, model_playing, reply

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(401, "bad key"), AuthenticationError),
        (error(403, "no access"), AuthenticationError),
        (error(404, "The model `fake` does not exist"), ModelNotFoundError),
        (error(400, "nope", code="model_not_found"), ModelNotFoundError),
        (error(400, "fake is not a valid model ID"), ModelNotFoundError),
        (error(400, "The response was filtered", code="content_filter"), ContentFilterError),
        (error(403, "Your input was flagged by moderation"), ContentFilterError),
        (reply(message(""), "content_filter"), ContentFilterError),
        (error(400, "temperature: must be at most 2"), ModelError),
        (error(402, "pay first"), ModelError),
        (error(422, "unknown field"), ModelError),
        ({"status": 301, "headers": {"Location": "/elsewhere"}, "body": ""}, ModelError),
        ({"status": 204, "body": ""}, ModelError),
    ],
)
async def test_a_refusal_is_named_at_once(answer: dict[str, Any], kind: type[ModelError]) -> None:
    async with model_playing(answer) as (model, provider):
        with pytest.raises(ModelError) as caught:
            await model.complete(HELLO)
    assert type(caught.value) is kind
    assert caught.value.status_code == answer["status"]
    assert len(provider.asked) == 1


async def test_other_refusals_name_the_status_and_what_the_provider_said() -> None:
    async with model_playing(error(400, "temperature: must be at most 2")) as (model, _):
        with pytest.raises(ModelError, match="answered 400: temperature: must be at most 2"):
            await model.complete(HELLO)


OVERFLOWS = [
    {"status": 413, "body": "<html>Request Entity Too Large</html>"},
    error(400, "whatever", code="context_length_exceeded"),
    error(400, "the request exceeds the available context size", type="exceed_context_size_error", code=400),
    error(500, "Requested tokens (5000) exceed context window of 4096"),
    error(429, "Request too large for fake on tokens per min", code="request_too_large"),
    *(
        error(400, text)
        for text in (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
            "Input tokens exceed the configured limit. Please reduce the length of the messages.",
            "Your input exceeds the context window of this model.",
            "max_tokens must be at least 1, got -56",
            "Invalid 'max_completion_tokens': integer below minimum value, but got -5 instead",
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "Requested token count exceeds the model's maximum context length of 4096 tokens.",
            "The input token count (9) exceeds the maximum number of tokens allowed (8).",
            "Input is too long for requested model.",
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
            "too many tokens: total number of tokens in the prompt cannot exceed 4081",
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            "Range of input length should be [1, 30720]",
            "Prompt exceeds max length",
            "context window exceeds limit (2013)",
            "Invalid request: Your request exceeded model token limit: 8192",
            "Please reduce the length of the messages or completion. Current length is 8193 while limit is 8192",
            "prompt token count of 70000 exceeds the limit of 64000",
            "Request body too large for fake model. Max size: 8000 tokens.",
            "The number of input tokens is greater than the context length",
        )
    ),
]


@pytest.mark.parametrize("answer", OVERFLOWS, ids=lambda answer: str(answer["body"])[:60])
async def test_a_conversation_that_no_longer_fits_is_recognised_in_many_wordings(answer: dict[str, Any]) -> None:
    async with model_playing(answer) as (model, provider):
        with pytest.raises(ContextLengthError):
            await model.complete(HELLO, [TOOL])
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
        "Invalid input: temperature exceeds the maximum of 2",
        "Input image is too large: at most 20 MB",
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64.",
        "You exceeded the rate limit of 1000 tokens per minute",
        "'messages' must contain the word 'json'",
        "max_tokens must be at least 1, got 0",
        "unexpected",
    ],
)
async def test_other_bad_requests_are_not_taken_for_it(text: str) -> None:
    async with model_playing(error(400, text)) as (model, _):
        with pytest.raises(ModelError) as caught:
            await model.complete(HELLO, [TOOL])
    assert type(caught.value) is ModelError


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (400, "gemma:2b does not support tools"),
        (404, "No endpoints found that support tool use"),
        (500, "tools param requires --jinja flag"),
        (400, "Unsupported parameter: 'tools'"),
    ],
)
async def test_a_provider_that_takes_no_tools_says_so_in_its_own_error(status: int, text: str) -> None:
    async with model_playing(error(status, text)) as (model, _):
        with pytest.raises(ToolsRefusedError):
            await model.complete(HELLO, [TOOL])
