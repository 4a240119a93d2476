"""Refusals say in words what is allowed and what was sent."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from forkyard.server.disks.values import CreateDisk
from forkyard.server.envelope import ApiError
from forkyard.server.network.values import NetworkPolicy
from forkyard.server.processes.values import first_message
from forkyard.server.sandboxes.values import CreateSandbox
from forkyard.server.wording import refused

NAME = "name must be 1 to 63 lower-case letters (a to z), digits and '-', which neither begins nor ends it, not "


def said(kind: type[BaseModel], sent: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(sent if isinstance(sent, str) else json.dumps(sent), strict=True)
    return refused(caught.value, "the body")


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"name": "a b/.."}, NAME + "'a b/..'"),
        ({"name": "a\n"}, NAME + "'a\\n'"),
        ({"name": "a" * 64}, NAME + f"'{'a' * 60}'... (64 characters)"),
        ({"name": 5}, "name must be a text, not 5"),
        ({"mem_size_mib": 5}, "mem_size_mib must be 256 or more, not 5"),
        (
            {"mem_size_mib": -1, "vcpu_count": 99},
            "vcpu_count must be 32 or less, not 99; mem_size_mib must be 256 or more",
        ),
        ({"vcpu_count": "2"}, "vcpu_count must be a whole number, not '2'"),
        ({"vcpu_count": 1.5}, "vcpu_count must be a whole number, not 1.5"),
        ({"env": {"TOKEN": 123}}, "env.TOKEN must be a text, not a number"),
        ({"ports": 80}, "ports must be a list, not 80"),
        ({"ports": [0]}, "ports.0 must be 1 or more, not 0"),
        ({"labels": {"": "x"}}, "labels.'' must be a key of 1 to 63 letters"),
        ({"network": []}, "network must be an object, not a list"),
        ({"base_image": "a b"}, "base_image must be the name of an image, as python:3.13, without blanks, not 'a b'"),
        ({"enable_service_ingress": 1}, "enable_service_ingress must be true or false, not 1"),
        ([], "the body must be an object, not a list"),
        ("{", "the body is no JSON: EOF"),
        ({"mem_size_mb": 512}, "the body: there is no 'mem_size_mb': did you mean 'mem_size_mib'?"),
    ],
)
def test_what_a_sandbox_cannot_be_made_of_is_told_with_what_it_can(sent: Any, told: str) -> None:
    assert said(CreateSandbox, sent).startswith(told)


def test_of_many_mistakes_the_first_are_told_and_how_many_more_there_are() -> None:
    wrong: dict[str, Any] = {"ports": [0] * 7}
    assert said(CreateSandbox, wrong).endswith("ports.4 must be 1 or more, not 0; and 2 more")


def test_a_secret_is_not_told_back() -> None:
    rule = {"target": "a.example", "transform": {"headers": {"Authorization": ["sk-secret"], "X": 1234567}}}
    with pytest.raises(ValidationError) as caught:
        NetworkPolicy.model_validate({"egress": {"default": "dney", "allow": [rule]}})
    told = refused(caught.value, "the policy")
    assert "egress.default must be 'allow' or 'deny', not 'dney'" in told
    assert "secret" not in told and "1234567" not in told


def test_disks_and_processes_are_told_in_the_same_words() -> None:
    assert said(CreateDisk, {"name": "a b"}) == (
        "name must be 1 to 100 letters (a to z), digits, '-' and '_', not 'a b'"
    )
    assert said(CreateDisk, {}) == "name is missing"
    for sent, told in (
        ({"type": "start", "command": ["echo"]}, "start.command must be a text, not a list"),
        ({"type": "begin"}, "the message must have a 'type' of 'start', 'attach', 'kill', 'resize', not 'begin'"),
        ({"type": "start", "command": "x", "timeout_seconds": 0}, "start.timeout_seconds must be more than 0, not 0"),
    ):
        with pytest.raises(ApiError, match=re.escape(told)):
            first_message(json.dumps(sent))


def test_the_document_has_the_patterns_all_the_same() -> None:
    schema = CreateSandbox.model_json_schema()
    name = next(each for each in schema["properties"]["name"]["anyOf"] if each.get("type") == "string")
    assert name["pattern"] == r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
    assert "patternProperties" in schema["properties"]["labels"]
