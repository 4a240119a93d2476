"""What a task's code may do between an agent and its model."""

from __future__ import annotations

from typing import Any

import pytest

import forkyard as vf
from forkyard.task.boundary import ToolGate, apply_request_hooks, apply_response_hooks, gate_tool, stopped
from forkyard.task.hooks import discover

HELLO = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "the secret is 7", "name": "look"}


def request(*messages: dict[str, Any]) -> vf.Request:
    return vf.Request(messages=list(messages))


def response(content: str, **fields: Any) -> vf.Response:
    return vf.Response(message={"role": "assistant", "content": content, **fields}, finish_reason="length")


class Guarded(vf.Task):
    @vf.stop
    def two_turns(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 2

    @vf.stop
    async def asked_to_stop(self, request: vf.Request) -> bool:
        return bool(request.messages[-1].content == "stop")

    @vf.stop
    def gave_up(self, answer: vf.Response) -> bool:
        return bool(answer.message.content == "***")

    @vf.intercept(priority=1)
    def hide(self, request: vf.Request, trace: vf.Trace) -> vf.Request | None:
        last = request.messages[-1]
        if not isinstance(last, vf.ToolMessage) or "secret" not in last.content:
            return None
        return request.model_copy(
            update={"messages": [*request.messages[:-1], last.model_copy(update={"content": "no"})]}
        )

    @vf.intercept
    async def mask(self, response: vf.Response) -> vf.Response | None:
        if "damn" not in (response.message.content or ""):
            return None
        return response.model_copy(update={"message": vf.AssistantMessage("***")})


TASK = Guarded(vf.TaskData())


async def test_a_task_without_hooks_changes_nothing() -> None:
    plain, trace, asked, answered = vf.Task(vf.TaskData()), vf.Trace(), request(HELLO), response("hi")
    assert await stopped(plain, trace) is None
    assert await apply_request_hooks(plain, trace, asked) == (asked, None)
    assert (await apply_response_hooks(plain, trace, answered))[0] is answered
    assert await gate_tool(plain, trace, asked, vf.ToolCall("c", "f", "{}")) == ToolGate()
    assert trace.info == {}


async def test_stops_look_at_the_trace_the_request_and_the_response() -> None:
    trace = vf.Trace()
    assert await stopped(TASK, trace) is None
    trace.steps = 2
    assert await stopped(TASK, trace) == "two_turns"
    assert (await apply_request_hooks(TASK, trace, request({"role": "user", "content": "stop"})))[1] == "asked_to_stop"
    assert (await apply_response_hooks(TASK, trace, response("fine")))[1] is None


async def test_a_rewritten_tool_result_stays_rewritten_for_the_rest_of_the_rollout() -> None:
    trace = vf.Trace()
    trace.graph.commit([HELLO], CALLING)
    sent, stop = await apply_request_hooks(TASK, trace, request(HELLO, CALLING, RESULT))
    assert stop is None
    assert [message.content for message in sent.messages] == ["hello", None, "no"]
    assert sent.messages[-1] == {**RESULT, "content": "no"}
    trace.graph.commit(sent.messages, {"role": "assistant", "content": "ok"})
    history = request(HELLO, CALLING, RESULT, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "go"})
    later, _ = await apply_request_hooks(TASK, trace, history)
    assert later.messages[2].content == "no"
    assert trace.graph.known(later.messages) == 4
    again, _ = await apply_request_hooks(TASK, trace, history)
    assert again == later
    assert trace.info["request_rewrites"] == [{"handler": "hide"}]


async def test_an_unchanged_request_is_the_same_object() -> None:
    asked = request(HELLO, CALLING, {**RESULT, "content": "nothing"})
    assert (await apply_request_hooks(TASK, vf.Trace(), asked))[0] is asked


async def test_a_rewritten_reply_is_plain_text_that_ends_and_stops_see_it() -> None:
    trace = vf.Trace()
    answered, stop = await apply_response_hooks(TASK, trace, response("damn", tool_calls=[CALL]))
    assert (answered.message, answered.finish_reason, stop) == (vf.AssistantMessage("***"), "stop", "gave_up")
    assert trace.info["response_rewrites"] == [{"handler": "mask"}]


async def test_a_tool_is_answered_in_its_place_denied_or_stopped() -> None:
    class Gate(vf.Task):
        @vf.intercept
        def dry(self, request: vf.Request) -> vf.Request | None:
            last = request.messages[-1]
            if last.role != "tool" or last.name != "rm":
                return None
            return request.model_copy(update={"messages": [*request.messages[:-1], {**last, "content": "not here"}]})

        @vf.stop
        def forbidden(self, request: vf.Request) -> bool:
            return bool(request.messages[-1].name == "reboot")

    gates = [
        await gate_tool(Gate(vf.TaskData()), vf.Trace(), request(HELLO, CALLING), vf.ToolCall("c1", name, "{}"))
        for name in ("ls", "rm", "reboot")
    ]
    assert gates == [ToolGate(), ToolGate("deny", "not here"), ToolGate("stop", "forbidden")]


def changing(change: Any) -> vf.Task:
    class Changing(vf.Task):
        @vf.intercept
        def meddle(self, request: vf.Request) -> Any:
            return change(request)

    return Changing(vf.TaskData())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.model_copy(update={"messages": r.messages[:-1]}), "neither their number nor the tools"),
        (lambda r: r.model_copy(update={"tools": [{}]}), "neither their number nor the tools"),
        (
            lambda r: r.model_copy(update={"messages": [vf.UserMessage("hi"), *r.messages[1:]]}),
            "message 0 .user.; only",
        ),
        (
            lambda r: r.model_copy(update={"messages": [*r.messages[:-1], vf.ToolMessage("c2", "x", name="look")]}),
            "message 2 .tool.; only",
        ),
        (lambda r: r.messages, "is to return a Request or None"),
        (lambda r: 1 / 0, "model boundary hook failed: ZeroDivisionError"),
    ],
)
async def test_an_interceptor_changes_nothing_but_what_is_new(change: Any, said: str) -> None:
    trace = vf.Trace()
    trace.graph.commit([HELLO], CALLING)
    with pytest.raises(vf.TaskError, match=said):
        await apply_request_hooks(changing(change), trace, request(HELLO, CALLING, RESULT))


async def test_an_interceptor_cannot_change_what_is_on_record_in_place() -> None:
    def rub_out(asked: vf.Request) -> None:
        asked.messages[0]["content"] = asked.messages[-1]["content"] = "gone"

    trace, asked = vf.Trace(), request(HELLO, CALLING, RESULT)
    trace.graph.commit([HELLO], CALLING)
    sent, _ = await apply_request_hooks(changing(rub_out), trace, asked)
    assert sent is asked and asked.messages[0].content == "hello" and asked.messages[-1].content == "the secret is 7"


@pytest.mark.parametrize("message", [vf.AssistantMessage("x", [CALL]), vf.AssistantMessage(None)])
async def test_a_reply_cannot_be_made_to_act(message: vf.AssistantMessage) -> None:
    class Acting(vf.Task):
        @vf.intercept
        def act(self, response: vf.Response) -> vf.Response:
            return response.model_copy(update={"message": message})

    with pytest.raises(vf.TaskError, match="may put plain text in the place of a reply"):
        await apply_response_hooks(Acting(vf.TaskData()), vf.Trace(), response("y"))


async def test_a_stop_that_raises_or_says_neither_is_the_tasks_error() -> None:
    class Wrong(vf.Task):
        @vf.stop
        def unsure(self, trace: vf.Trace) -> Any:
            return trace.info["answer"]

    trace = vf.Trace()
    with pytest.raises(vf.TaskError, match="model boundary hook failed: KeyError: 'answer'"):
        await stopped(Wrong(vf.TaskData()), trace)
    trace.info["answer"] = None
    with pytest.raises(vf.TaskError, match="the stop unsure is to say True or False, and says None"):
        await stopped(Wrong(vf.TaskData()), trace)


def test_what_a_hook_looks_at_is_found_by_its_annotations() -> None:
    at = {signal.name: signal.at for kind in ("stop", "intercept") for signal in discover(Guarded, kind)}
    assert at == {
        "two_turns": "trace",
        "asked_to_stop": "request",
        "gave_up": "response",
        "hide": "request",
        "mask": "response",
    }


def test_a_hook_that_looks_at_nothing_or_at_two_things_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Blind\.done: a parameter of @stop is to be annotated as exactly one of"):

        class Blind(vf.Task):
            @vf.stop
            def done(self) -> bool:
                return True

    with pytest.raises(TypeError, match="@intercept is to be annotated as a Request or a Response"):

        class Both(vf.Task):
            @vf.intercept
            def change(self, request: vf.Request, response: vf.Response) -> None:
                return None

    with pytest.raises(TypeError, match="has the parameter 'strict', which no hook is given"):

        class More(vf.Task):
            @vf.stop
            def done(self, trace: vf.Trace, strict: bool) -> bool:
                return True
