"""The OpenAPI document, made from the table of endpoints that also makes the routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Literal

from pydantic import TypeAdapter

from forkyard.server.endpoints import Endpoint

Schemas = dict[tuple[str, Literal["validation", "serialization"]], dict[str, Any]]

_REFERENCE = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ERROR = {
    "type": "object",
    "required": ["success", "error"],
    "properties": {
        "success": {"const": False},
        "error": {"type": "string", "description": "What happened, and what to do."},
        "code": {"type": "string", "description": "A word for programs."},
    },
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1 of these endpoints."""
    schemas, definitions = _schemas(endpoints)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Forkyard", "version": version("forkyard")},
        "paths": paths,
        "components": {
            "schemas": {**definitions, "Error": _ERROR},
            "securitySchemes": {
                "key": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`key-...` as `forkyard key create` prints it, with or without `Bearer` before it",
                }
            },
        },
        "security": [{"key": []}],
    }


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[Schemas, dict[str, Any]]:
    inputs: list[tuple[str, Literal["validation", "serialization"], TypeAdapter[Any]]] = []
    for endpoint in endpoints:
        name = _name(endpoint)
        if endpoint.body is not None:
            inputs.append((f"{name} body", "validation", TypeAdapter(endpoint.body)))
        if endpoint.data is not None:
            inputs.append((f"{name} data", "serialization", TypeAdapter(endpoint.data)))
    found, whole = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)
    return {key: dict(schema) for key, schema in found.items()}, whole.get("$defs", {})


def _operation(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    name = _name(endpoint)
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint),
        "responses": {
            **{str(status): _success(status, endpoint, schemas.get((f"{name} data", "serialization")))
               for status in endpoint.success},
            **{str(status): _failure(status) for status in sorted(statuses(endpoint))},
        },
    }  # fmt: skip
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": not endpoint.body_optional,
            "content": {"application/json": {"schema": schemas[(f"{name} body", "validation")]}},
        }
    if endpoint.public:
        operation["security"] = []
    return operation


def statuses(endpoint: Endpoint) -> set[int]:
    """Every status other than success that an endpoint may answer."""
    found = {*endpoint.errors, 500, 507}
    if not endpoint.public:
        found.add(401)
    if endpoint.query is not None:
        found.add(400)
    if endpoint.body is not None:
        found |= {400, 408, 413}
    return found


def _success(status: int, endpoint: Endpoint, data: dict[str, Any] | None) -> dict[str, Any]:
    about: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if status != 204:
        properties: dict[str, Any] = {"success": {"const": True}}
        if data is not None:
            properties["data"] = data
        schema = {"type": "object", "required": [*properties], "properties": properties}
        about["content"] = {"application/json": {"schema": schema}}
    return about


def _failure(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": HTTPStatus(status).phrase, "content": {"application/json": {"schema": schema}}}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    if endpoint.query is not None:
        schema = endpoint.query.model_json_schema(ref_template=_REFERENCE)
        required = schema.get("required", ())
        found += [
            {"name": name, "in": "query", "required": name in required, "schema": about}
            for name, about in schema.get("properties", {}).items()
        ]
    found += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in endpoint.headers
    ]
    return found


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"\w+", endpoint.path.removeprefix("/api"))
    return "_".join([endpoint.method.lower(), *words]).replace("-", "_")
