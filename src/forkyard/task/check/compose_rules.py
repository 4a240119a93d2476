"""Rules on the compose file of a task of several containers: what in it reaches out of them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from forkyard.task.check.finding import Spot
from forkyard.task.check.image_rules import is_unpinned
from forkyard.task.check.registry import rule
from forkyard.task.check.subject import Subject

FILES = ("environment/docker-compose.yaml", "environment/docker-compose.yml", "tests/docker-compose.yaml")


@dataclass(frozen=True, slots=True)
class _Service:
    path: str
    name: str
    keys: dict[str, Any]  # nodes of YAML, which know their lines


@dataclass(frozen=True, slots=True)
class _Mount:
    source: str
    read_only: bool
    line: int


def _services(subject: Subject) -> Iterator[_Service]:
    for path in FILES:
        if path in subject.files:
            for name, node in _mapping(_mapping(_document(subject, path)).get("services")).items():
                yield _Service(path, name, _mapping(node))


def _document(subject: Subject, path: str) -> Any:
    import yaml  # read for these tasks only

    try:
        return yaml.compose(subject.text(path) or "", Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None


def _mapping(node: Any) -> dict[str, Any]:
    pairs = node.value if getattr(node, "id", "") == "mapping" else []
    return {str(key.value): value for key, value in pairs if key.id == "scalar"}


def _items(node: Any) -> list[Any]:
    return list(node.value) if getattr(node, "id", "") == "sequence" else []


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _scalar(node: Any) -> str:
    return str(node.value) if getattr(node, "id", "") == "scalar" else ""


@rule("error")
def invalid_compose_file(subject: Subject) -> Iterable[Spot]:
    """The compose file is no YAML, or names no service."""
    for path in FILES:
        if path in subject.files and not _mapping(_mapping(_document(subject, path)).get("services")):
            yield Spot(path, "is no YAML file with a table `services`")


@rule("error")
def compose_privileged(subject: Subject) -> Iterable[Spot]:
    """A service is privileged, or shares namespaces of the host: its agent is root on the host."""
    for service in _services(subject):
        for key in ("privileged", "pid", "ipc", "network_mode", "userns_mode"):
            node = service.keys.get(key)
            if node is not None and _scalar(node).lower() in ("true", "yes", "on", "host"):
                yield Spot(service.path, f"{service.name} asks for {key}: {_scalar(node)}; leave it out", _line(node))


@rule("warning")
def compose_additional_capabilities(subject: Subject) -> Iterable[Spot]:
    """A service is given capabilities beyond the usual ones, devices, or none of the usual confinement."""
    for service in _services(subject):
        for key in ("cap_add", "devices", "security_opt"):
            node = service.keys.get(key)
            named = [_scalar(item) for item in _items(node)]
            told = [text for text in named if key != "security_opt" or "unconfined" in text]
            if told:
                yield Spot(service.path, f"{service.name} asks for {key}: {', '.join(told)}; leave it out", _line(node))


def _mounts(service: _Service) -> Iterator[_Mount]:
    """Its bind mounts; named volumes are none."""
    node = service.keys.get("volumes")
    for item in _items(node):
        keys = _mapping(item)
        if keys:
            if _scalar(keys.get("type")) == "bind":
                yield _Mount(
                    _scalar(keys.get("source")), _scalar(keys.get("read_only")).lower() in ("true", "yes"), _line(item)
                )
            continue
        source, _, rest = _scalar(item).partition(":")
        if rest and source.startswith((".", "/", "~", "$")):
            yield _Mount(source, "ro" in rest.rpartition(":")[2].split(","), _line(item))


def _binds(subject: Subject) -> Iterator[tuple[_Service, _Mount]]:
    for service in _services(subject):
        for mount in _mounts(service):
            if not mount.source.startswith(("${HOST_", "$HOST_")):  # the format's own
                yield service, mount


@rule("warning")
def compose_writable_bind_mount(subject: Subject) -> Iterable[Spot]:
    """A service can write a directory of the host, and what it writes is there for the next rollout."""
    for service, mount in _binds(subject):
        if not mount.read_only:
            yield Spot(
                service.path,
                f"{service.name} can write {mount.source} of the host; add :ro, or copy it into the image",
                mount.line,
            )


def _is_external(mount: _Mount) -> bool:
    path = posixpath.normpath(mount.source)
    return path.startswith(("/", "~", "..", "$"))


@rule("error")
def compose_external_bind_mount(subject: Subject) -> Iterable[Spot]:
    """A service is given a path of the host outside the task's environment."""
    for service, mount in _binds(subject):
        if _is_external(mount):
            yield Spot(
                service.path, f"{service.name} is given {mount.source}, which is not in environment/", mount.line
            )


@rule("error")
def compose_symlink_bind_mount(subject: Subject) -> Iterable[Spot]:
    """A service is given a path that is a link, which may lead anywhere on the host."""
    for service, mount in _binds(subject):
        path = subject.root / posixpath.dirname(service.path) / mount.source
        if not _is_external(mount) and path.is_symlink():
            yield Spot(
                service.path,
                f"{service.name} is given {mount.source}, which is a link; name what it leads to",
                mount.line,
            )


@rule("warning")
def compose_unpinned_image(subject: Subject) -> Iterable[Spot]:
    """A service's image has no tag, or `latest`."""
    for service in _services(subject):
        node = service.keys.get("image")
        if node is not None and is_unpinned(_scalar(node)):
            yield Spot(service.path, f"{_scalar(node)} names no fixed version; add a tag or a digest", _line(node))


@rule("error")
def compose_external_build_context(subject: Subject) -> Iterable[Spot]:
    """A service is built from a directory outside the task's environment, as one that holds tests and solution."""
    for service in _services(subject):
        node = service.keys.get("build")
        context = _scalar(node) or _scalar(_mapping(node).get("context"))
        path = posixpath.normpath(context) if context else "."
        if path.startswith(("..", "/", "~")):
            yield Spot(
                service.path, f"{service.name} is built from {context}, which is not in environment/", _line(node)
            )
