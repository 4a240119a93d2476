"""From a request to a checked `Call`, and from what its handler says to a response."""

from __future__ import annotations

import errno
import logging
import re
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_origin

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from forkyard.errors import ConfigError
from forkyard.server.bodies import Sent, read_body
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError, error_body, success_body
from forkyard.server.wording import refused

if TYPE_CHECKING:
    from forkyard.server.keys import Key, Keys

_log = logging.getLogger("forkyard.server")
_SHOWN = 5
IGNORED = "x-forkyard-ignored"
"""The header that names keys of a body that mean nothing here."""
_KEY = re.compile(r"[\w.-]{1,64}", re.ASCII)
_FINAL = {408, 413}  # the rest of such a body is not waited for


async def answered(endpoint: Endpoint, request: Request, keys: Keys) -> Response:
    """The response to a request, whatever happens. Raises GoneError alone."""
    try:
        key = None if endpoint.public else authorized(request.headers, keys)
        request.state.key = key.id if key is not None else "-"
        query = _query(endpoint, request)
        body = await _body(endpoint, request)
        said = await endpoint.call(Call(request, dict(request.path_params), body, query, key))
    except ApiError as err:
        return refusal(err)
    except ConfigError as err:
        return refusal(ApiError(400, str(err)))
    except (OSError, sqlite3.OperationalError) as err:
        if not _is_full(err):
            raise
        _log.error("request %s found no room left: %s", request.scope["state"]["request_id"], err)
        return refusal(ApiError(507, "there is no room left where the server keeps its data: delete some", "no_room"))
    response = said if isinstance(said, Response) else _response(said)
    if isinstance(body, Sent) and body.ignored:
        response.headers[IGNORED] = ", ".join(filter(_KEY.fullmatch, body.ignored[:_SHOWN])) or "keys that are no words"
    return response


def authorized(headers: Mapping[str, str], keys: Keys) -> Key:
    """The key of a request. Raises ApiError 401."""
    given = headers.get("authorization", "")
    scheme, _, rest = given.partition(" ")
    key = keys.find(rest.strip() if scheme.lower() == "bearer" else given.strip())
    if key is None:
        told = "is not one of this server's" if given else "is missing"
        raise ApiError(
            401,
            f"the API key {told}: send `Authorization: key-...`; `forkyard key create NAME` makes one",
            "unauthorized",
        )
    return key


def refusal(error: ApiError) -> Response:
    """An error as a response."""
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = f"{max(0, error.retry_after):g}"
    if error.status in _FINAL:
        headers["connection"] = "close"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(error_body(error), error.status, headers)


def fault(request: Request, error: BaseException) -> Response:
    """A fault of ours: told by the request's id, and logged whole."""
    request_id = request.scope["state"]["request_id"]
    _log.error("request %s failed", request_id, exc_info=error)
    return refusal(ApiError(500, f"the server failed; its log tells more of request {request_id}", "internal_error"))


def _is_full(error: OSError | sqlite3.OperationalError) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _response(answer: Answer) -> Response:
    if answer.status == 204:
        return Response(status_code=204, headers=dict(answer.headers))
    return Response(success_body(answer), answer.status, {"content-type": "application/json", **answer.headers})


async def _body(endpoint: Endpoint, request: Request) -> BaseModel | None:
    if endpoint.body is None:
        return None
    content = await read_body(request)
    if endpoint.body_optional and not content.strip():
        return None
    try:
        return endpoint.body.model_validate_json(content, strict=True)
    except ValidationError as err:
        raise ApiError(400, refused(err, "the body"), "invalid_request") from None


def _query(endpoint: Endpoint, request: Request) -> BaseModel | None:
    model = endpoint.query
    if model is None:
        return None
    given: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        values = request.query_params.getlist(key)
        if values:
            given[key] = values if get_origin(field.annotation) in (list, tuple) else values[-1]
    try:
        return model.model_validate(given)
    except ValidationError as err:
        raise ApiError(400, refused(err, "the query"), "invalid_request") from None
