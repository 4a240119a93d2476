"""The Judge: a verifier that asks a model. What it is told is fenced, and a reply without a verdict is no score."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import TypeVar

from forkyard.errors import TaskError
from forkyard.task.data import TaskData
from forkyard.task.generics import type_argument
from forkyard.task.judges.config import JudgeConfig
from forkyard.task.replies import parse_judge_choice
from forkyard.task.sampling import flat
from forkyard.trace import Message, Messages, Trace, Usage, text_of

if TYPE_CHECKING:  # the clients of models are not loaded to read tasks
    from forkyard.model import Reply, Sampling

ParsedT = TypeVar("ParsedT", default=Any)
JudgeConfigT = TypeVar("JudgeConfigT", bound=JudgeConfig, default=JudgeConfig)
JudgeView = Literal["last_reply", "full_trace"]
_ASKING = 2  # times, when there is no verdict in a reply


class Ask(Protocol):
    """How a judge reaches a model: messages in, a reply out. Raises ModelError. `model` None is the run's own."""

    async def __call__(self, messages: Sequence[Message], sampling: Sampling, model: str | None = None) -> Reply:
        """The model's reply."""
        ...


_ask: ContextVar[Ask | None] = ContextVar("forkyard_judge", default=None)


@contextmanager
def judging_by(ask: Ask | None) -> Iterator[None]:
    """Let the judges inside ask a model in this way; None leaves it as it is."""
    if ask is None:
        yield
        return
    token = _ask.set(ask)
    try:
        yield
    finally:
        _ask.reset(token)


class JudgeResponse(BaseModel, Generic[ParsedT]):
    """What a judge's model said, and what was read from it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str
    parsed: ParsedT | None = None
    usage: Usage | None = None


class Judge(Generic[ParsedT, JudgeConfigT]):
    """Subclass it with a `prompt` and `parse`, and `score` when it is to be named in a config.

    Build one where it is used; it keeps nothing about a rollout.
    """

    prompt: str | None = None
    schema: ClassVar[type[BaseModel] | None] = None

    def __init__(self, config: JudgeConfigT | None = None) -> None:
        self.config = config or cast(JudgeConfigT, self.config_type()())
        if self.config.prompt is not None:
            self.prompt = self.config.prompt.read_text()

    @classmethod
    def config_type(cls) -> type[JudgeConfig]:
        """The class of its config, as its generic base names it."""
        return type_argument(cls, JudgeConfig)

    @property
    def reward_name(self) -> str:
        """The config's name or id, else the name of the class as my_quality for MyQualityJudge."""
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__.removesuffix("Judge")).lower()
        return self.config.key or words or "judge"

    def build_messages(self, **fields: Any) -> str | Messages:
        """The prompt with its {placeholders} filled in; braces that name no field stay as they are."""
        if self.prompt is None:
            raise ValueError(f"{type(self).__name__} has no `prompt`: set one, or write build_messages")
        names = "|".join(map(re.escape, fields))
        return re.sub(rf"\{{({names})\}}", lambda found: str(fields[found[1]]), self.prompt) if fields else self.prompt

    def parse(self, response: JudgeResponse[ParsedT]) -> ParsedT:
        """What the reply says. Raises ValueError when it says nothing."""
        return cast(ParsedT, response.text if self.schema is None else response.parsed)

    def check(self, task: TaskData) -> None:
        """Look, before anything starts, whether a task has what is needed. Raises ValueError."""

    async def score(self, task: TaskData, trace: Trace) -> float | Mapping[str, float]:
        """The reward; called by parameter name, like any reward."""
        raise NotImplementedError(f"{type(self).__name__} has no `score`, so it cannot be named among `judges`")

    async def evaluate(self, *, trace: Trace | None = None, **fields: Any) -> JudgeResponse[ParsedT]:
        """Ask with the prompt filled in, and read the reply."""
        messages = self.build_messages(**fields)
        return await self.complete(messages, trace=trace, schema=self.schema, parse=self.parse)

    async def complete(
        self,
        messages: str | Messages,
        *,
        trace: Trace | None = None,
        schema: type[BaseModel] | None = None,
        parse: Callable[[JudgeResponse[Any]], Any] | None = None,
        **sampling: Any,
    ) -> JudgeResponse[Any]:
        """Ask, and once more when `parse` finds no verdict. Every reply is on the trace's record, readable or not.

        Raises ValueError when there is no verdict, ModelError when there is no reply.
        """
        talk = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(m) for m in messages]
        settings = _sampling({**self.config.sampling, **sampling}, schema)
        for left in reversed(range(_ASKING)):
            reply = await _asker()(talk, settings, self.config.model)
            response = JudgeResponse[Any](text=text_of(reply.message.get("content")), usage=reply.usage)
            try:
                return _read(response, reply.finish_reason, schema, parse)
            except ValueError:
                if not left:
                    raise
            finally:
                if trace is not None:
                    trace.record_judge_call(self.reward_name, {"model": self.config.model, "messages": talk}, response)
        raise AssertionError("unreachable")


def _read(
    response: JudgeResponse[Any], finish: str | None, schema: type[BaseModel] | None, parse: Callable[..., Any] | None
) -> JudgeResponse[Any]:
    if finish == "length":
        raise ValueError(f"the judge's reply was cut off, so there is no verdict in it: {response.text[-200:]!r}")
    if schema is not None:
        try:
            response.parsed = schema.model_validate_json(response.text)
        except ValidationError as err:
            raise ValueError(f"the judge's reply is not of the form asked for: {response.text[:200]!r}") from err
    if parse is not None:
        response.parsed = parse(response)
    return response


def _sampling(given: Mapping[str, Any], schema: type[BaseModel] | None) -> Sampling:
    from forkyard.model import Sampling

    given = flat(given)
    if schema is None:
        return Sampling.of(given)
    form = {"name": schema.__name__, "schema": schema.model_json_schema(), "strict": True}
    return Sampling.of({**given, "response_format": {"type": "json_schema", "json_schema": form}})


def _asker() -> Ask:
    ask = _ask.get()
    if ask is None:
        raise TaskError("a judge is to be asked, but this run has no model for judges: name one with -m")
    return ask


def judge_question(task: TaskData, question_field: str) -> str:
    """What the agent was asked: a field of the task, or its prompt. Raises ValueError for a field it has not."""
    if not question_field:
        return task.prompt_text
    return str(field_of(task, question_field, "question_field"))


def judge_answer(task: TaskData, answer_field: str) -> str:
    """The reference answer, several of them on lines of their own. Raises ValueError for a field the task has not."""
    answer = field_of(task, answer_field, "answer_field")
    return "\n".join(map(str, answer)) if isinstance(answer, list | tuple) else str(answer)


def field_of(task: TaskData, name: str, setting: str) -> Any:
    """A field of the task's data. Raises ValueError when it is not there."""
    value = getattr(task, name, None)
    if value is None:
        raise ValueError(f"the task has no {name!r} field: let the judge's `{setting}` name one it has")
    return value


def judge_response(trace: Trace, view: JudgeView) -> str:
    """What is judged: the last reply, or the whole conversation without reasoning."""
    return trace.transcript if view == "full_trace" else trace.last_reply


def judge_verdict(text: str, choices: Sequence[str]) -> str:
    """The choice a reply makes. Raises ValueError when it makes none."""
    choice = parse_judge_choice(text, choices)
    if choice is None:
        raise ValueError(f"no {'/'.join(choices)} verdict in the judge's reply: {text[-200:]!r}")
    return choice


def fenced(text: str) -> str:
    """The text between fences it cannot close, so that what stands in it is read as data."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"
