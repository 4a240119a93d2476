"""POST grep: ripgrep over a disk in a sandbox, or what stands for it where the image has none."""

from __future__ import annotations

import json
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from forkyard.disk import Disk
from forkyard.sandbox import ProgramResult, Sandbox
from forkyard.server.disks.access import check_address, disk_of
from forkyard.server.disks.execs import Execs
from forkyard.server.disks.findings import EnoughError, Findings
from forkyard.server.disks.mounting import TARGET, Placed
from forkyard.server.disks.work import Grep, GrepResult, Reason
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError

if TYPE_CHECKING:
    from forkyard.server.serving import Server

LONGEST = 30.0
_LEAST = 0.1
_MISSING = 127
_ERRORS_KEPT = 16 << 10


def endpoints(server: Server) -> list[Endpoint]:
    """The row of searches."""
    execs = server.the(Execs)

    async def grep(call: Call) -> Answer:
        disk = disk_of(server, call)
        check_address(server, call.request, disk)
        return Answer(await searched(execs, disk, call.body))

    return [
        Endpoint(
            "POST",
            "/api/disks/{id}/grep",
            grep,
            "Search the files of a disk by ripgrep's rules",
            body=Grep,
            data=GrepResult,
            errors=(403, 404, 501, 503),
        )
    ]


async def searched(execs: Execs, disk: Disk, asked: Grep) -> GrepResult:
    """The answer to a search. Raises ApiError when the image has neither `rg` nor `python3`."""
    begun = time.monotonic()
    directory = asked.directory.strip("/")
    context = asked.context_before is not None or asked.context_after is not None
    found = Findings(directory, asked.max_results, multiline=asked.multiline, after=asked.context_after or 0)
    async with execs.sandbox([Placed(disk, TARGET, read_only=True)], TARGET) as box:
        ready = time.monotonic()
        left = max(_LEAST, min(asked.max_duration_seconds, LONGEST) - (ready - begun))
        reason = await _search(box, asked, f"{TARGET}/{directory}".rstrip("/"), found, left)
        done = time.monotonic()
    return GrepResult(
        matches=found.matches,
        stopped_reason=reason,
        files_scanned=found.searched,
        containers_dispatched=1,
        compute_seconds_used=round(done - ready, 3),
        duration_ms=round((time.monotonic() - begun) * 1000),
        listing_ms=round((done - begun) * 1000),
        grep_ms=round((done - ready) * 1000),
        groups=found.groups if context else None,
    )


async def _search(box: Sandbox, asked: Grep, directory: str, found: Findings, seconds: float) -> Reason:
    """Why it stopped. A program that is not there says so by 127, and the next is tried."""
    for program in (ripgrep(asked), python(asked)):
        try:
            result = await box.run(
                program, cwd=directory, timeout=seconds, output_limit=_ERRORS_KEPT, on_output=found.hear
            )
        except EnoughError:
            return "max_results" if found.over_results else "incomplete"
        except (FileNotFoundError, NotADirectoryError):
            return "list_failed"
        if result.exit_code != _MISSING:
            return _reason(result, found)
    raise ApiError(501, "a search needs ripgrep or Python in the server's image for commands, which has neither")


def _reason(result: ProgramResult, found: Findings) -> Reason:
    if result.timed_out:
        return "deadline"
    if found.over_results:
        return "max_results"
    return "completed" if result.exit_code in (0, 1) else "incomplete"


def ripgrep(asked: Grep) -> list[str]:
    """The command line of ripgrep for a search."""
    words = ["rg", "--json", "--no-config", "--hidden", "--no-ignore", "--no-messages"]
    words += ["--ignore-case"] if asked.ignore_case else ["--case-sensitive"]
    words += ["--multiline"] if asked.multiline else []
    words += [] if asked.recursive else ["--max-depth=1"]
    words += [f"--before-context={asked.context_before or 0}", f"--after-context={asked.context_after or 0}"]
    words += [f"--glob={each}" for each in asked.globs]
    words += [f"--type={each}" for each in asked.types] + [f"--type-not={each}" for each in asked.types_not]
    return [*words, *(f"--regexp={each}" for each in _patterns(asked)), "--", "./"]


def python(asked: Grep) -> list[str]:
    """The same for the sandbox's Python."""
    described = {
        "patterns": _patterns(asked),
        "recursive": asked.recursive,
        "ignore_case": asked.ignore_case,
        "multiline": asked.multiline,
        "globs": asked.globs,
        "types": asked.types,
        "types_not": asked.types_not,
        "before": asked.context_before or 0,
        "after": asked.context_after or 0,
    }
    return ["python3", "-I", "-S", "-c", _program(), json.dumps(described)]


def _patterns(asked: Grep) -> list[str]:
    return [asked.pattern] if asked.multiline else asked.pattern.split("\n")


@lru_cache
def _program() -> str:
    return Path(__file__).with_name("searcher.py").read_text()
