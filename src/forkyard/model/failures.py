"""What a provider's refusal means. Providers say the same thing in many wordings and codes; this file knows them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from forkyard.errors import (
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelNotFoundError,
    ProxyRefusedError,
)
from forkyard.model.place import Place
from forkyard.model.retry import Failure, Hope, asked_pause
from forkyard.values import printable

SHOWN_BODY = 500


class ToolsRefusedError(ModelError):
    """The provider or the model does not take tools; a conversation in plain text may still work."""


_CONTEXT_CODES = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",
        "request_too_large",
        "tokens_limit_reached",
    }
)
_CONTEXT = re.compile(
    r"""
      \b(maximum|max|model(['`]?s)?|available|configured|supported)\W+
        (context|prompt|input|sequence|model|token)\W+(length|window|size|limit)\b
    | \bexceed\w*\b[^.]{0,60}\b(context|tokens?)\b
    | \bexceed\w*\b[^.]{0,60}\b(input|prompt|sequence|maximum|max)\W+(allowed\W+)?(content\W+)?length\b
    | \b(context|tokens?|prompt|(input|message|sequence)\W+length)\b[^.]{0,60}\bexceed
    | \b(prompt|input|conversation|context|request|query|messages)\b[^.:]{0,30}\btoo\W+long\b
    | \b(prompt|conversation|context|request(\W+(body|entity))?)(\W+is)?\W+too\W+large\b
    | \btokens?\b[^.]{0,60}\btoo\W+(large|long)\W+for\b
    | \btoo\W+many\W+(input\W+|prompt\W+)?tokens\b
    | \btokens\W+in\W+(the\W+)?request\W+more\W+than\b
    | \b(longer|larger|greater|more)\W+than\b[^.]{0,40}\b(context|model)['`]?s?\W*(_|\W)*(len|length|window|size)\b
    | \bmax_model_len\b
    | \breduce\b[^.]{0,30}\b(length|prompt|input|messages?|number\W+of\W+tokens)\b
    | \brange\W+of\W+input\W+length\b
    | \bmax_(completion_|new_|output_)?tokens\b.{0,100}(?<![\w.])-\d          # what is left for the answer is negative
    | \btokens\W+\+\W+\W?max_new_tokens
    | \bmust\W+have\W+less\W+than\W+\d+\W+tokens
    | \bmessages\[\d+\]\.content\S*\W+string\W+too\W+long
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NOT_CONTEXT = re.compile(r"\b(rate[ _-]?limit|quota|billing|per (minute|hour|day)|TPM|RPM)\b", re.IGNORECASE)
_FILTERED = re.compile(
    r"content[ _-]?(filter|policy|management)|\bmoderation\b|\bflagged\b|\bsafety (system|policy|filter)", re.IGNORECASE
)
_NO_MODEL = re.compile(r"\bnot a valid model\b|\bmodel\b[^.]{0,80}\b(does not exist|not found|unknown)", re.IGNORECASE)
_NO_TOOLS = re.compile(
    r"""
      \b(tools?|tool[ _](use|choice|calls?|calling)|function[ _]call\w*|functions)\b.{0,60}
        (not\W+(be\W+)?(support|available|enabled|allowed)|unsupported|requires?\b)
    | (not\W+support|unsupported|unrecognized|unknown)\b.{0,60}\b(tools?|tool_choice|function[ _]call\w*|functions)\b
    | \bsupports?\W+(tool|function)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_REFUSED = re.compile(r"4(?!08|29)\d\d\b")  # statuses of a proxy that will be the same the next time
_SPENT = re.compile(r"insufficient_quota|billing_hard_limit|exceeded your current quota", re.IGNORECASE)


def refusal(status: int, headers: Mapping[str, str], body: str, place: Place, with_tools: bool) -> Failure:
    """The failure an HTTP reply other than 200 stands for. `body` must already be free of secrets."""
    codes, message = _parse(body)
    said = f"{place} answered {status}: {_shown(message or body) or 'nothing'}"
    final = _final(status, codes, " ".join([*codes, message or body]), said, place, with_tools)
    if final is not None:
        return Failure(final)
    asked = asked_pause(headers)
    if status in (408, 409, 425, 429) or (status >= 500 and asked is not None):
        return Failure(ModelError(said, status), Hope.BUSY, asked)
    if status >= 500:
        return Failure(ModelError(said, status), Hope.FAILING)
    if 300 <= status < 400:
        said += f" (a redirect: set {place.url_from} to where it leads)"
    return Failure(ModelError(said, status))


def reported(error: Any, place: Place, with_tools: bool) -> Failure:
    """The failure a 200 reply tells of in its body, as gateways do when the provider behind them failed."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 600:
        return refusal(code, {}, json.dumps({"error": error}), place, with_tools)
    text = json.dumps(error)
    said = f"{place} answered 200 with an error: {_shown(text)}"
    final = _final(400, [str(code)], text, said, place, with_tools)
    return Failure(final) if final is not None else malformed(place, f"it reports an error: {text}")


def malformed(place: Place, what: str) -> Failure:
    """A reply with status 200 that is no reply."""
    return Failure(ModelError(f"{place} answered 200, but {_shown(what)}", 502), Hope.MALFORMED)


def by_proxy(place: Place, said: str) -> Failure:
    """The failure of a proxy on the way; what it refuses, it refuses every time. `said` is its status and reason."""
    variable, proxy = _proxy_of(place.url)
    text = f"{place} cannot be reached: the proxy {proxy} that {variable} names answered {_shown(said) or 'nothing'}"
    if not _REFUSED.match(said):
        return Failure(ModelError(text, 503), Hope.BUSY)
    host = urlsplit(place.url).hostname
    return Failure(ProxyRefusedError(f"{text}. Unset {variable}, or name {host} in NO_PROXY.", 403))


def _proxy_of(url: str) -> tuple[str, str]:
    """The variable that names the proxy for a URL, and the proxy without what lets in to it."""
    scheme = urlsplit(url).scheme
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    variable = next((name for name in names if os.environ.get(name)), names[1])
    return variable, os.environ.get(variable, "").rpartition("@")[2].rpartition("//")[2].rstrip("/")


def _final(status: int, codes: list[str], text: str, said: str, place: Place, with_tools: bool) -> ModelError | None:
    """The error no retry can mend, if it is one."""
    if status == 401 or (status == 403 and not _FILTERED.search(text)):
        return AuthenticationError(f"{said}. The key was refused: check {place.key_from}.", status)
    if with_tools and status != 429 and _NO_TOOLS.search(text):
        return ToolsRefusedError(said, status)
    if status == 413 or not _CONTEXT_CODES.isdisjoint(codes) or _overflows(status, text):
        return ContextLengthError(said, status)
    if status in (400, 403, 422) and _FILTERED.search(text):
        return ContentFilterError(said, status)
    if status == 404 or (status == 400 and ("model_not_found" in codes or _NO_MODEL.search(text))):
        return ModelNotFoundError(f"{said}. Check the model's name and {place.url_from}.", status)
    if status == 429 and _SPENT.search(text):
        return ModelError(f"{said}. The account has no credit left.", status)
    return None


def _overflows(status: int, text: str) -> bool:
    return status not in (404, 429) and bool(_CONTEXT.search(text)) and not _NOT_CONTEXT.search(text)


def _parse(body: str) -> tuple[list[str], str]:
    """The error's codes and message, wherever the body keeps them; the message is "" when none is found."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return [], ""
    content = content[0] if isinstance(content, list) and content else content
    error = content.get("error", content) if isinstance(content, dict) else None
    if isinstance(error, str):
        return [], error
    if not isinstance(error, dict):
        return [], ""
    codes = [str(error[name]) for name in ("code", "type") if error.get(name) is not None]
    message = error.get("message") or error.get("detail") or ""
    return codes, message if isinstance(message, str) else json.dumps(message)


def _shown(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= SHOWN_BODY else line[:SHOWN_BODY] + " ..."
