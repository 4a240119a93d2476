"""Which commands install packages or download something, and what of it is not pinned."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from forkyard.task.check.shell import Command, Word

_PINNED_PYTHON = re.compile(r"===?\s*[^*=]+$|\s@\s|@.*#|\.whl$|\.tar\.gz$|\.zip$")
_LOCAL = re.compile(r"[./~$]|file:")
_PINNED_NPM = re.compile(r".@\d+\.\d+\.\d+[\w.+-]*$|.@(?:file|git\+|https?):|^[./$]|\.tgz$")
_PINNED_GIT = re.compile(r"(?:git\+|\.git|github:).*[@#][0-9a-f]{7,40}(?:$|#)")
_VALUED = re.compile(
    r"-[rctifp]|--(?:requirement|constraint|target|index-url|extra-index-url|find-links|prefix|root|python|platform"
    r"|cache-dir|registry|trusted-host|index|default-timeout|timeout)"
)
_URL = re.compile(r"\b(?:https?|ftp|git|ssh)://[^\s'\"|;)>]+")
_DOWNLOADERS = frozenset({"curl", "wget", "aria2c", "git", "svn", "rsync", "scp", "aws", "gsutil", "huggingface-cli"})


@dataclass(frozen=True, slots=True)
class Install:
    """One command that installs: by which manager, what, and the files that list more."""

    manager: str  # python, npm, system, or the name of another
    packages: tuple[str, ...]
    lists: tuple[str, ...] = ()
    frozen: bool = False  # a lock file says everything


def install_of(command: Command) -> Install | None:
    """What a command installs, None when it does not."""
    words = command.argv
    texts = [word.text for word in words]
    name = command.name
    if re.fullmatch(r"python[\d.]*", name) and texts[1:3] == ["-m", "pip"]:
        name, words = "pip", words[2:]
    elif name == "uv" and texts[1:2] == ["pip"]:
        name, words = "pip", words[1:]
    texts = [word.text for word in words]
    verb = next((text for text in texts[1:] if not text.startswith("-")), "")
    if re.fullmatch(r"pip[\d.]*|pipx", name) and verb == "install":
        return _python(words)
    if name in ("uvx", "uv") and (name == "uvx" or verb in ("tool", "sync", "add")):
        return _uv(name, verb, texts)
    if name in ("npm", "pnpm", "yarn", "npx", "bun"):
        return _npm(name, verb, words)
    if name in ("apt-get", "apt", "apk", "dnf", "yum", "microdnf", "zypper") and verb in ("install", "add"):
        return Install("system", _packages(words, verb))
    if (name, verb) in (("gem", "install"), ("cargo", "install"), ("go", "install"), ("conda", "install")):
        return Install(name, _packages(words, verb))
    return None


def _packages(words: Sequence[Word], verb: str) -> tuple[str, ...]:
    texts = [word.text for word in words]
    return tuple(_plain(texts[texts.index(verb) + 1 :]))


def _python(words: Sequence[Word]) -> Install:
    texts = [word.text for word in words]
    lists = tuple(texts[n + 1] for n, text in enumerate(texts[:-1]) if text in ("-r", "--requirement"))
    constrained = any(text in ("-c", "--constraint", "--require-hashes") for text in texts)
    editable = {texts[n + 1] for n, text in enumerate(texts[:-1]) if text in ("-e", "--editable")}
    packages = tuple(text for text in _packages(words, "install") if text not in editable)
    return Install("python", packages, lists, constrained)


def _uv(name: str, verb: str, texts: Sequence[str]) -> Install | None:
    if verb == "sync":
        return Install("python", (), frozen=True)
    named = [texts[n + 1] for n, text in enumerate(texts[:-1]) if text in ("--from", "--with", "-w")]
    if not named and name == "uvx":
        named = _plain(texts[1:])[:1]
    if not named and name == "uv":
        named = _plain(texts[texts.index(verb) + 1 :])[1 if verb == "tool" else 0 :]
    packages = tuple(package for text in named for package in text.split(","))
    return Install("python", packages) if packages else None


def _plain(texts: Sequence[str]) -> list[str]:
    """Those of the words that are no options, nor values of options."""
    return [
        text
        for before, text in zip(("", *texts), texts, strict=False)
        if not text.startswith("-") and not _VALUED.fullmatch(before)
    ]


def _npm(name: str, verb: str, words: Sequence[Word]) -> Install | None:
    if name == "npx":
        return Install("npm", (verb,) if verb else ())
    if verb == "ci" or (verb == "install" and any("frozen" in word.text for word in words)):
        return Install("npm", (), frozen=True)
    if verb in ("install", "i", "add"):
        packages = _packages(words, verb)
        return Install("npm", packages, frozen=not packages)
    return None


def unpinned(install: Install) -> list[str]:
    """Those of its packages whose version is left to chance."""
    if install.frozen:
        return []
    pinned = {"python": _python_is_pinned, "npm": _npm_is_pinned, "system": _system_is_pinned}.get(install.manager)
    return [package for package in install.packages if pinned and package and not pinned(package)]


def _python_is_pinned(package: str) -> bool:
    if _LOCAL.match(package) or package in ("pip", "setuptools", "wheel", "uv"):
        return True
    return bool(_PINNED_PYTHON.search(package) or _PINNED_GIT.search(package))


def _npm_is_pinned(package: str) -> bool:
    return bool(_PINNED_NPM.search(package) or _PINNED_GIT.search(package))


def _system_is_pinned(package: str) -> bool:
    return "=" in package or bool(_LOCAL.match(package))


def unpinned_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a requirements file that leave a version to chance, with their numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        package = re.sub(r"(?:^|\s)#.*", "", line).partition(";")[0].strip().rstrip("\\").strip()
        package = re.sub(r"\s+--hash=\S+", "", package)
        if package and not package.startswith("-") and not _python_is_pinned(package):
            yield number, package


def download_of(command: Command) -> str | None:
    """What a command fetches from elsewhere, None when it does not."""
    if command.name not in _DOWNLOADERS:
        return None
    for word in command.argv[1:]:
        if (match := _URL.search(word.text)) and not is_local(match[0]):
            return match[0]
        if re.match(r"(?:git@|s3://|gs://)", word.text):
            return word.text
    return None


def is_local(url: str) -> bool:
    """Whether a URL leads to the machine itself, or to nobody who could be told from its text."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return True
    if not host or "$" in host or "{" in host or "." not in host or host.endswith((".local", ".test", ".invalid")):
        return True
    if host.endswith((".example", "example.com", "example.org", "example.net")):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or address.is_private
