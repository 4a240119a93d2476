"""Rules on packages and downloads: what is another thing tomorrow, and what is fetched while a task is graded."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from forkyard.task.check.finding import Spot
from forkyard.task.check.installing import Install, download_of, install_of, is_local, unpinned, unpinned_lines
from forkyard.task.check.registry import rule
from forkyard.task.check.shell import Command
from forkyard.task.check.subject import AGENT_IMAGE, VERIFIER_IMAGE, Subject

_FETCH = re.compile(
    r"""\b(?:requests|httpx|urllib\.request|urllib|aiohttp|session)\.\w+\(\s*f?["']((?:https?|ftp)://[^"']+)"""
)

_PIP = re.compile(r"""\bpip3?["',\s]+install\b""")


def _verifying(subject: Subject) -> Iterator[tuple[str, Command]]:
    for path, script in subject.shell_scripts(subject.hidden):
        for command in script.commands:
            yield path, command


def _solving(subject: Subject) -> Iterator[tuple[str, Command]]:
    for path, script in subject.shell_scripts(subject.reference):
        for command in script.commands:
            yield path, command


def _building(subject: Subject) -> Iterator[tuple[str, Command]]:
    for path in (AGENT_IMAGE, VERIFIER_IMAGE):
        for command in subject.build_commands(path):
            yield path, command


def _installs(subject: Subject, *managers: str) -> Iterator[tuple[str, Command, Install]]:
    for path, command in (*_building(subject), *_verifying(subject), *_solving(subject)):
        install = install_of(command)
        if install is not None and install.manager in managers:
            yield path, command, install


def _unpinned(subject: Subject, manager: str, mend: str) -> Iterator[Spot]:
    for path, command, install in _installs(subject, manager):
        if names := unpinned(install):
            yield Spot(
                path, f"installs {', '.join(names)} in whatever version there is; {mend}", command.line, command.column
            )


@rule("warning")
def unpinned_python_dependency(subject: Subject) -> Iterable[Spot]:
    """A Python package is installed without a fixed version."""
    yield from _unpinned(subject, "python", "write name==version")
    listed = {
        posixpath.basename(name)
        for _, _, install in _installs(subject, "python")
        for name in install.lists
        if not install.frozen
    }
    for path in subject.files:
        if posixpath.basename(path) in listed and not path.startswith("solution/"):
            for number, name in unpinned_lines(subject.text(path) or ""):
                yield Spot(path, f"lists {name} without a version; write name==version", number)


@rule("warning")
def unpinned_npm_dependency(subject: Subject) -> Iterable[Spot]:
    """An npm package is installed without a fixed version."""
    return _unpinned(subject, "npm", "write name@1.2.3, or use `npm ci` with a lock file")


@rule("note")
def unpinned_system_package(subject: Subject) -> Iterable[Spot]:
    """A package of the system is installed in whatever version the image's release has now."""
    return _unpinned(subject, "system", "write name=version, or fix the image by its digest")


@rule("warning")
def verifier_runtime_install(subject: Subject) -> Iterable[Spot]:
    """The verifier installs packages while it grades: slow, and without a reward when it fails."""
    for path, command in _verifying(subject):
        if install := install_of(command):
            what = ", ".join(install.packages[:3]) or "packages"
            yield Spot(
                path,
                f"installs {what} while it grades; install them in the image, or in tests/Dockerfile",
                command.line,
                command.column,
            )

    for path, text in subject.python_files(subject.hidden):
        for match in _PIP.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Spot(
                path, "installs packages while it grades; install them in the image, or in tests/Dockerfile", line
            )


@rule("warning")
def verifier_network_download(subject: Subject) -> Iterable[Spot]:
    """The verifier downloads something while it grades: another thing tomorrow, and nothing without a network."""
    for path, command in _verifying(subject):
        if what := download_of(command):
            yield Spot(path, f"downloads {what} while it grades; put it into tests/", command.line, command.column)
    for path, number, url in _fetches(subject):
        yield Spot(path, f"downloads {url} while it grades; put it into tests/", number)


def _fetches(subject: Subject) -> Iterator[tuple[str, int, str]]:
    for path, text in subject.python_files(subject.hidden):
        for match in _FETCH.finditer(text):
            if not is_local(match[1]):
                yield path, text.count("\n", 0, match.start()) + 1, match[1]


@rule("error")
def network_needed(subject: Subject) -> Iterable[Spot]:
    """The verifier or the solution needs a network that task.toml does not give to it."""
    for phase, commands, reaches in (
        ("verifier", _verifying(subject), _verifier_mode(subject)),
        ("agent", _solving(subject), _mode(subject, "agent")),
    ):
        if reaches in ("public", "allowlist"):
            continue
        said = "has no network" if reaches == "no-network" else "has no network unless task.toml gives one"
        for path, command in commands:
            install = install_of(command)
            if download_of(command) or (install and _fetched(install)):
                yield Spot(
                    path, f"needs a network, and the {phase} {said}; set network_mode", command.line, command.column
                )
                break


def _fetched(install: Install) -> bool:
    return any(not re.match(r"[./~]", package) for package in install.packages) or bool(install.lists)


def _mode(subject: Subject, phase: str) -> str | None:
    said = subject.value(phase, "network_mode") or subject.value("environment", "network_mode")
    if said is None and (allowed := subject.value("environment", "allow_internet")) is not None:
        return "public" if allowed else "no-network"
    return str(said) if said is not None else None


def _verifier_mode(subject: Subject) -> str | None:
    if not subject.separate or subject.value("verifier", "network_mode"):
        return _mode(subject, "verifier")
    own = subject.value("verifier", "environment")
    if own is None:
        return _mode(subject, "verifier")
    return str(own.get("network_mode") or ("public" if own.get("allow_internet") else "no-network"))
