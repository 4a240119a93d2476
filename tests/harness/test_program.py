from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from forkyard.errors import HarnessError
from forkyard.harness import ModelContext
from forkyard.harness.narration import Narration
from forkyard.harness.program import GRACE, MOST_EVENTS, MOST_KEPT, Program, endpoint_of, instruction, run_program
from forkyard.model import Endpoint
from forkyard.sandbox import Sandbox
from forkyard.task import Task
from forkyard.trace import Trace
from tests.harness.parts import PROMPT, make_task, roles


class Told:
    """Understands {"say": text} and {"end": null or why it failed}."""

    def __init__(self, trace: Trace) -> None:
        self.finished = False
        self.failed: str | None = None
        self._narration = Narration(trace)

    def hear(self, event: Mapping[str, Any]) -> None:
        if "end" in event:
            self.finished, self.failed = True, event["end"]
        else:
            self._narration.close()
            self._narration.say(event["say"])


def script(text: str, stdin: str = "", grace: float = GRACE) -> Program:
    return Program("cli", ["sh", "-c", text], stdin, grace=grace)


async def run(program: Program, sandbox: Sandbox, trace: Trace | None = None, task: Task[Any] | None = None) -> Trace:
    trace = trace or Trace(task="t")
    await run_program(program, Told(trace), task or make_task(), trace, sandbox)
    return trace


def texts(trace: Trace) -> list[Any]:
    return [message["content"] for message in trace.messages]


async def test_each_line_is_told_as_it_comes_and_the_output_is_kept(sandbox: Sandbox) -> None:
    trace = await run(
        script("""printf '{"say": "a"}\\n{"say":'; printf '"b"}\\n{"end": null}\\n'; echo why >&2"""), sandbox
    )
    assert texts(trace) == ["a", "b"]
    assert trace.stop_condition == "agent_completed"
    assert trace.info["program"] == {"exit_code": 0}
    assert await sandbox.read("/logs/agent/cli.jsonl") == b'{"say": "a"}\n{"say":"b"}\n{"end": null}\n'


async def test_it_runs_in_the_working_directory_with_the_task_s_variables(sandbox: Sandbox) -> None:
    told = script("""echo "{\\"say\\": \\"$PWD $EVERYWHERE $MINE $(cat)\\"}" """, "by stdin")
    told = Program(told.name, told.argv, told.stdin, {"MINE": "too"})
    assert texts(await run(told, sandbox, task=make_task(workdir="/usr"))) == ["/usr yes too by stdin"]


async def test_an_instruction_may_be_longer_than_an_argument(sandbox: Sandbox) -> None:
    told = script("""echo "{\\"say\\": \\"$(wc -c)\\"}" """, "x" * 1_000_000)
    assert texts(await run(told, sandbox)) == ["1000000"]


@pytest.mark.parametrize("line", ["no JSON", "[1]", "null", '{"say"', '{"other": 1}', "[" * 100_000, "\udcff{"])
async def test_lines_that_are_no_events_are_counted_and_left_out(sandbox: Sandbox, line: str) -> None:
    await sandbox.write("/lines", line.encode("utf-8", "surrogateescape") + b'\n{"say": "on"}\n\n')
    trace = await run(script("cat /lines"), sandbox)
    assert texts(trace) == ["on"]
    assert trace.info["program"] == {"exit_code": 0, "skipped_lines": 1}


@pytest.mark.slow
async def test_of_a_flood_the_end_is_kept_and_the_record_stays_small(sandbox: Sandbox) -> None:
    flood = (
        'yes \'{"say": "0123456789012345678901234567890123456789"}\' | head -c 50000000; echo; echo \'{"end": null}\''
    )
    trace = await run(script(flood), sandbox)
    kept = await sandbox.read("/logs/agent/cli.jsonl")
    assert len(kept) <= MOST_KEPT
    assert kept.startswith(b'{"say"') and kept.endswith(b'{"end": null}\n')
    assert len(trace.messages) == MOST_EVENTS
    assert trace.info["program"]["skipped_lines"] > 0


async def test_a_line_without_an_end_is_no_event(sandbox: Sandbox) -> None:
    trace = await run(script("head -c 40000000 /dev/zero | tr '\\0' x; echo; echo '{\"say\": \"on\"}'"), sandbox)
    assert trace.info["program"]["skipped_lines"] >= 1


async def test_a_crash_is_told_with_the_end_of_its_errors(sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match=r"cli ended with exit code 3; the end of what it said:\nbroken \\x1b"):
        await run(script("printf 'broken \\033' >&2; exit 3"), sandbox)
    assert await sandbox.read("/logs/agent/cli.jsonl") == b""


async def test_a_crash_is_told_with_its_own_words_first(sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match=r"exit code 1; the end of what it said:\nno more money"):
        await run(script("""echo '{"end": "no more money"}'; echo noise >&2; exit 1"""), sandbox)


async def test_it_may_say_that_it_failed_and_exit_with_0(sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match=r"cli said that it failed; .*\nno more money"):
        await run(script("""echo '{"end": "no more money"}'"""), sandbox)


async def test_a_program_ended_by_a_signal_is_told(sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match="cli was ended by signal 9"):
        await run(script("kill -9 $$"), sandbox)


async def test_a_program_that_is_not_there_is_told(sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match="cli could not be started: it is not in this sandbox"):
        await run(Program("cli", ["/opt/forkyard/none"], ""), sandbox)


async def test_whoever_was_refused_its_model_may_fail(sandbox: Sandbox) -> None:
    trace = Trace(task="t")
    trace.stop("max_turns")
    await run(script("""echo '{"end": "refused"}'; exit 1"""), sandbox, trace)
    assert trace.stop_condition == "max_turns"
    assert trace.info["program"] == {"exit_code": 1, "stderr": ""}


async def test_one_that_stays_although_all_is_said_is_ended(sandbox: Sandbox) -> None:
    done, refused = Trace(task="t"), Trace(task="t")
    refused.stop("budget")
    await asyncio.gather(  # each is given the same time to leave
        run(script("""echo '{"end": null}'; exec sleep 1000""", grace=1.0), sandbox, done),
        run(script("""echo '{"say": null}'; exec sleep 1000""", grace=1.0), sandbox, refused),
    )
    assert (done.stop_condition, refused.stop_condition) == ("agent_completed", "budget")
    assert "sleep" not in (await sandbox.run("cat /proc/[0-9]*/comm")).stdout
    assert "exit_code" not in done.info["program"] and "exit_code" not in refused.info["program"]


async def test_what_was_said_before_the_deadline_is_on_the_record(sandbox: Sandbox) -> None:
    trace = Trace(task="t")
    task = asyncio.create_task(run(script("""echo '{"say": "begun"}'; sleep 1000"""), sandbox, trace))
    while not trace.messages:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert texts(trace) == ["begun"]
    assert trace.stop_condition is None
    assert json.loads(await sandbox.read("/logs/agent/cli.jsonl")) == {"say": "begun"}
    assert "sleep" not in (await sandbox.run("cat /proc/[0-9]*/comm")).stdout


async def test_logs_that_cannot_be_written_change_nothing(sandbox: Sandbox) -> None:
    trace = await run(script("""rm -rf /logs; echo no > /logs; echo '{"say": "done"}'"""), sandbox)
    assert trace.stop_condition == "agent_completed"


def test_the_instruction_is_the_prompt_behind_the_system_prompt() -> None:
    trace = Trace(task="t")
    assert instruction("cli", make_task(system_prompt="Be brief."), trace) == f"Be brief.\n\n{PROMPT}"
    assert roles(trace.messages) == ["system", "user"]


def test_a_conversation_opened_by_the_env_is_the_instruction() -> None:
    trace = Trace(task="t")
    parts = [{"type": "text", "text": "Look "}, {"type": "image_url", "image_url": {"url": "x"}}]
    trace.messages.append({"role": "user", "content": [*parts, {"type": "text", "text": "here"}]})
    assert instruction("cli", make_task(prompt=None), trace) == "Look here"


def test_a_conversation_with_a_reply_cannot_be_gone_on_with() -> None:
    trace = Trace(task="t")
    trace.messages += [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "go on"}]
    with pytest.raises(HarnessError, match="'cli' takes one instruction: it cannot go on with a conversation"):
        instruction("cli", make_task(), trace)


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_there_must_be_something_to_say(prompt: str) -> None:
    with pytest.raises(HarnessError, match="task write says nothing that cli could be told"):
        instruction("cli", make_task(prompt=prompt), Trace(task="t"))


def test_without_an_endpoint_nothing_is_started() -> None:
    with pytest.raises(HarnessError, match="needs a model behind an address inside the sandbox"):
        endpoint_of("cli", ModelContext())
    assert endpoint_of("cli", ModelContext(endpoint=Endpoint("http://127.0.0.1:1", "m"))).model == "m"
