"""What a provider would do beyond a rollout's network: tools it runs itself, and addresses it would fetch.

A task that keeps its agent off the public network must not have it reached by way of the model's provider. What would
do so is taken out of a request, and the rest of it stays. The tables list what the client runs itself: a kind of tool
that is not known here runs at the provider, as far as anybody can tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from forkyard.gateway.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from forkyard.gateway.dialects.base import Body
from forkyard.gateway.terms import Draft, Terms
from forkyard.sandbox import NO_NETWORK
from forkyard.task import Task

CODE = "provider_capability_unavailable"
NOTICE = "[taken out: its address is beyond the network of this task]"
PATHS_LIMIT = 100
"""How many places in one request the record names."""


@dataclass(frozen=True, slots=True)
class Table:
    """One dialect: the types of tools that the client runs, and where else a request has the provider reach out.

    A tool without a type is one of the client's. `text` is the type of the part that stands where another was.
    """

    client_tools: tuple[str, ...]
    members: tuple[str, ...]
    talk: tuple[str, ...]
    text: str = "text"


TABLES = {
    CHAT.name: Table(
        client_tools=("function", "custom"),
        members=("web_search_options", "search_parameters", "plugins"),
        talk=("messages",),
    ),
    RESPONSES.name: Table(
        # `tool_search` looks among the request's own tools, and a shell in a "local" environment is the client's.
        client_tools=(
            "function",
            "custom",
            "namespace",
            "tool_search",
            "local_shell",
            "shell",
            "apply_patch",
            "computer",
            "computer_use_preview*",
            "computer-preview",
        ),
        members=(),
        talk=("input",),
        text="input_text",
    ),
    MESSAGES.name: Table(
        client_tools=(
            "custom",
            "bash_*",
            "text_editor_*",
            "computer_*",
            "browser_toolset_*",
            "memory_*",
            "tool_search_tool_*",
        ),
        members=("mcp_servers", "container"),
        talk=("system", "messages"),
    ),
}

# Parts that a provider reads as they are; addresses in them are words.
_WORDS = ("text", "*_text", "refusal", "*thinking", "*tool_use", "search_result", "*_tool_result")
_NAMES = frozenset({"type", "text", "title", "context", "name", "filename", "cache_control", "citations"})
_DATA = re.compile(r"[\x00-\x20]*data:", re.IGNORECASE)
_ADDRESS = re.compile(r"[\x00-\x20]*(?!data:)[a-z][a-z0-9+.-]+:[/\\]", re.IGNORECASE)


def confined(terms: Terms) -> bool:
    """Whether what an agent asks for must stay within its task's network."""
    if terms.task is None or terms.purpose != "agent":
        return False
    return (terms.task.network or NO_NETWORK).mode != "public"


def confine(terms: Terms, draft: Draft) -> None:
    """Take out of a draft what would reach beyond its task's network, and say in `taken` what that was."""
    if not confined(terms):
        return
    draft.anew = True
    whole, taken = within(terms, draft.dialect, draft.body | draft.changes)
    if not taken:
        return
    draft.taken = taken
    draft.changes = {name: whole[name] for name in draft.changes if name in whole}
    kept = {name: value for name, value in draft.body.items() if name in whole}
    draft.body = kept | {name: whole[name] for name in kept if name not in draft.changes}
    draft.asked = draft.dialect.read_request(whole)


def within(terms: Terms, dialect: Dialect, body: Body) -> tuple[Body, list[str]]:
    """A request without what would reach beyond its task's network, and the JSON paths of what was taken out."""
    sieve = _Sieve(TABLES[dialect.name], terms.task)
    return (sieve.body(body), sieve.taken) if confined(terms) else (body, [])


def told(taken: Sequence[str]) -> list[dict[str, Any]]:
    """What the record says of it."""
    return [{"code": CODE, "paths": list(taken[:PATHS_LIMIT])}] if taken else []


@dataclass(slots=True)
class _Sieve:
    """Goes through one request once; nothing that it is given is changed."""

    table: Table
    task: Task[Any, Any, Any] | None
    taken: list[str] = field(default_factory=list)
    _own: frozenset[str] | None = None

    def body(self, body: Body) -> Body:
        left = dict(body)
        for name in self.table.members:
            if left.get(name) is not None:
                self._drop(left, name)
        for name in self.table.talk:
            if isinstance(left.get(name), list):
                left[name] = [self._item(item, f"$.{name}[{place}]") for place, item in enumerate(left[name])]
        self._variables(left)
        if isinstance(left.get("tools"), list):
            self._offered(left)
        return left

    def _drop(self, left: Body, name: str) -> None:
        del left[name]
        self.taken.append(f"$.{name}")

    # Tools.

    def _offered(self, left: Body) -> None:
        given, before = left["tools"], len(self.taken)
        left["tools"] = self._tools(given, "$.tools")
        if len(self.taken) == before:
            return
        left["tools"] = [_called_directly(tool) for tool in left["tools"]]
        names = {tool.get("name") for tool in left["tools"] if isinstance(tool, dict)}
        if not left["tools"]:
            for name in ("tools", "tool_choice", "parallel_tool_calls"):  # they mean nothing by themselves
                left.pop(name, None)
        elif isinstance(left.get("tool_choice"), dict):
            left["tool_choice"] = self._choice(left["tool_choice"], names)

    def _tools(self, tools: list[Any], path: str) -> list[Any]:
        kept = []
        for place, tool in enumerate(tools):
            if not self._clients(tool):
                self.taken.append(f"{path}[{place}]")
            elif isinstance(tool, dict) and isinstance(tool.get("tools"), list):
                kept.append({**tool, "tools": self._tools(tool["tools"], f"{path}[{place}].tools")})
            else:
                kept.append(tool)
        return kept

    def _clients(self, tool: Any) -> bool:
        """Whether a tool, or the choice of one, is the client's to run."""
        if not isinstance(tool, dict):
            return False
        kind = tool.get("type")
        if kind is None:
            return "name" in tool or "function" in tool
        environment = tool.get("environment")
        if kind == "shell" and environment is not None:
            return isinstance(environment, dict) and environment.get("type") == "local"
        return isinstance(kind, str) and any(fnmatchcase(kind, known) for known in self.table.client_tools)

    def _choice(self, choice: Body, names: set[Any]) -> Any:
        """A choice of tools without those that are gone: the model's own where none of them is left."""
        if choice.get("type") == "allowed_tools":
            return self._allowed(choice)
        if self.table is TABLES[MESSAGES.name]:
            gone = choice.get("type") == "tool" and choice.get("name") not in names
            rest = {name: value for name, value in choice.items() if name != "name"}
            return rest | {"type": "auto"} if gone else choice
        return choice if self._clients(choice) else "auto"

    def _allowed(self, choice: Body) -> Any:
        inner = choice.get("allowed_tools")
        held = inner if isinstance(inner, dict) else choice
        given = held.get("tools")
        kept = [tool for tool in given if self._clients(tool)] if isinstance(given, list) else []
        if not kept:
            return "auto"
        return {**choice, "allowed_tools": {**inner, "tools": kept}} if held is inner else {**choice, "tools": kept}

    # What is said.

    def _item(self, item: Any, path: str) -> Any:
        """A message, an item of a conversation, or a part of a system's text."""
        if not isinstance(item, dict):
            return item
        if str(item.get("type")).startswith("input_"):
            return self._part(item, path)
        changed = {}
        for name in ("content", "output"):
            changed[name] = self._content(item.get(name), f"{path}.{name}")
        if isinstance(item.get("tools"), list):
            changed["tools"] = self._tools(item["tools"], f"{path}.tools")
        return {name: changed.get(name, value) for name, value in item.items()}

    def _content(self, content: Any, path: str) -> Any:
        if isinstance(content, list):
            return [self._part(part, f"{path}[{place}]") for place, part in enumerate(content)]
        return self._part(content, path)

    def _part(self, part: Any, path: str) -> Any:
        if not isinstance(part, dict):
            return part
        if part.get("type") == "tool_result":
            return part | {"content": self._content(part["content"], f"{path}.content")} if "content" in part else part
        if part.get("type") == "tool_addition":
            reaches = not self._adds_clients(part.get("tool"))
        else:
            reaches = any(address not in self._tasks_own() for address in _addresses(part))
        if not reaches:
            return part
        self.taken.append(path)
        kept = {"cache_control": part["cache_control"]} if "cache_control" in part else {}
        return {"type": self.table.text, "text": NOTICE} | kept

    def _adds_clients(self, tool: Any) -> bool:
        kind = tool.get("type") if isinstance(tool, dict) else None
        return kind == "tool_reference" or (kind == "tool_definition" and self._clients(tool.get("definition")))

    def _variables(self, left: Body) -> None:
        """What fills the places of a prompt that the provider keeps."""
        prompt = left.get("prompt")
        values = prompt.get("variables") if isinstance(prompt, dict) else None
        if isinstance(prompt, dict) and isinstance(values, dict):
            filled = {name: self._part(value, "$.prompt.variables") for name, value in values.items()}
            left["prompt"] = {**prompt, "variables": filled}

    def _tasks_own(self) -> frozenset[str]:
        """The addresses that the task's own prompt holds: its author gave them, and they say nothing of the agent's."""
        if self._own is None:
            prompt = None if self.task is None else self.task.data.prompt
            turns = prompt if isinstance(prompt, list) else []
            self._own = frozenset(address for turn in turns for address in _addresses(turn.get("content")))
        return self._own


def _called_directly(tool: Body) -> Body:
    """A tool that the provider's own programs would have called, too: they are gone."""
    callers = tool.get("allowed_callers")
    if not isinstance(callers, list) or all(caller == "direct" for caller in callers):
        return tool
    rest = {name: value for name, value in tool.items() if name != "allowed_callers"}
    return rest | ({"allowed_callers": ["direct"]} if "direct" in callers else {})


def _addresses(value: Any, name: str = "") -> Iterator[str]:
    """Everything in a part that a provider may take for an address to fetch; data that is given itself is none."""
    if isinstance(value, list):
        for each in value:
            yield from _addresses(each, name)
    elif isinstance(value, dict):
        kind = value.get("type")
        if not (isinstance(kind, str) and any(fnmatchcase(kind, known) for known in _WORDS)):
            for inner, each in value.items():
                if inner not in _NAMES:
                    yield from _addresses(each, inner)
    elif isinstance(value, str) and value:
        named = name.lower().endswith(("url", "uri"))
        if not _DATA.match(value) if named else _ADDRESS.match(value):
            yield value
