"""A clerk with a stock of apples: forkyard run examples/tools.py -a scripted --ak script=examples/tools.json"""

import json

import forkyard as vf


class Stock(vf.State):
    """What is there in one rollout."""

    apples: int = 10


class Store(vf.Toolset[vf.ToolsetConfig, Stock]):
    """What the clerk can do with the stock."""

    @vf.tool
    async def count(self) -> int:
        """How many apples there are."""
        return self.state.apples

    @vf.tool
    async def sell(self, apples: int) -> str:
        """Sell apples."""
        if apples > self.state.apples:
            raise ValueError("there are not so many")
        self.state.apples -= apples
        return f"sold {apples}"


class Clerk(vf.Task[vf.TaskData, Stock]):
    """Seven apples are to be left."""

    @classmethod
    def toolsets(cls, config):
        """Made anew for each rollout."""
        return [Store()]

    @vf.intercept
    async def five_at_most(self, request: vf.Request) -> vf.Request | None:
        """Answers a larger sale in the tool's place: nothing is sold."""
        *before, last = request.messages
        if not isinstance(last, vf.ToolMessage) or last.text or last.get("name") != "store_sell":
            return None
        replies = [message for message in before if isinstance(message, vf.AssistantMessage)]
        (call,) = [call for call in replies[-1].tool_calls or () if call.id == last.tool_call_id]
        try:
            few = json.loads(call.arguments)["apples"] <= 5
        except (ValueError, KeyError, TypeError):
            return None  # the tool itself says what is wrong
        if few:
            return None
        return request.model_copy(update={"messages": [*before, last.model_copy(update={"content": "five at most"})]})

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """Whether they are."""
        return float(trace.state.apples == 7)


TASKS = [Clerk(vf.TaskData(name="clerk", prompt="Sell nine apples, or three if that is too many."))]
