"""A taskset in the style of the `verifiers.v1` object model: only its import line says whose it is."""

import itertools

import forkyard as vf

ROWS = [("What is 2 + 3?", "5"), ("What is 6 * 7?", "42"), ("What is 9 - 4?", "5")]


class SumData(vf.TaskData):
    answer: str


class SumState(vf.State):
    rewrites: int = 0


class SumTaskConfig(vf.TaskConfig):
    partial_credit: float = 0.0
    judge: vf.JudgeConfig = vf.JudgeConfig()


class SumConfig(vf.TasksetConfig):
    task: SumTaskConfig = SumTaskConfig()
    repeat: bool = False


class StyleJudge(vf.Judge[float, vf.JudgeConfig]):
    prompt = "Is this polite? yes/no\n{response}"

    def parse(self, response: vf.JudgeResponse[float]) -> float:
        if response.text.strip().lower() not in ("yes", "no"):
            raise ValueError("no verdict")
        return float(response.text.strip().lower() == "yes")


class CalculatorConfig(vf.ToolsetConfig):
    digits: int = 10


class Calculator(vf.Toolset[CalculatorConfig, SumState]):
    @vf.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class SumTask(vf.Task[SumData, SumState, SumTaskConfig]):
    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("/app/question", self.data.prompt_text.encode())

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.info["files"] = (await runtime.run(["ls", "/app"])).stdout

    @vf.stop
    async def too_long(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 3

    @vf.intercept
    async def no_spoilers(self, request: vf.Request, trace: vf.Trace) -> vf.Request | None:
        last = request.messages[-1]
        if not isinstance(last, vf.ToolMessage) or self.data.answer not in last.content:
            return None
        trace.state.rewrites += 1
        hidden = last.model_copy(update={"content": last.content.replace(self.data.answer, "?")})
        return request.model_copy(update={"messages": [*request.messages[:-1], hidden]})

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)

    @vf.metric
    async def tool_calls(self, trace: vf.Trace) -> dict[str, float]:
        calls = [call.name for message in trace.assistant_messages for call in message.tool_calls or []]
        return {"calls": float(len(calls)), "results": float(len(trace.tool_messages))}

    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        if trace.last_reply.strip() == self.data.answer:
            return 1.0
        return self.config.partial_credit

    @vf.reward(weight=0.5)
    async def polite(self, task: SumData, trace: vf.Trace) -> float:
        judge = StyleJudge(self.config.judge)
        verdict = await judge.evaluate(trace=trace, response=trace.last_reply)
        return float(verdict.parsed)  # type: ignore[arg-type]

    async def validate(self, runtime: vf.Runtime) -> bool | None:
        return self.data.answer.isdigit()

    @classmethod
    def toolsets(cls, config: SumTaskConfig) -> list[vf.Toolset]:
        return [Calculator(CalculatorConfig())]


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> list[SumTask]:
        rows = itertools.chain(ROWS, ROWS) if self.config.repeat else ROWS
        return [
            SumTask(SumData(idx=idx, name=f"sum-{idx}", prompt=prompt, answer=answer), self.config.task)
            for idx, (prompt, answer) in enumerate(rows)
        ]


__all__ = ["SumTaskset"]
