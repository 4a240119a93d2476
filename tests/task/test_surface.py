"""What `import forkyard as vf` offers to code written for the `verifiers.v1` object model."""

from __future__ import annotations

import pytest

import forkyard as vf

NAMES = """
Task TaskData WireTaskData TaskResources TaskTimeout TaskConfig Taskset TasksetConfig SelectConfig TaskMatchConfig
DecoratedFunctionConfig RewardFunctionConfig Env EnvConfig SingleAgentEnv SingleAgentEnvConfig AgentConfig Agent Agents
make_agent Interaction Segment Harness ModelContext Runtime ProgramResult State Trace WireTrace Reward Episode ModelCall
MessageNode Branch Timing Usage Sampling SamplingConfig SystemMessage UserMessage AssistantMessage ToolMessage
TextContentPart ImageUrlContentPart ImageUrlSource Tool ToolCall Request Response reward metric stop intercept tool
RolloutError ProviderError HarnessError ToolsetError EnvError SandboxError TaskError InterceptionError Judge JudgeConfig
JudgeResponse JudgeView ReferenceJudge ReferenceJudgeConfig RubricJudge RubricJudgeConfig DecisionJudge
DecisionJudgeConfig Criterion Artifact ARTIFACTS_DIR collect restore Toolset ToolsetConfig SharedToolsetConfig
RetryConfig RetryRule BaseConfig compare_stdout_results extract_boxed_answer parse_judge_choice parse_pytest_outcomes
read_answer_file_or_last_reply verify_boxed_math_answer
""".split()
ELSEWHERE = """
HarnessConfig HarnessSession ACPHarness ACPConfig ACPTurn RuntimeProcess RuntimeConfig RuntimeInfo SubprocessConfig
DockerConfig PodmanConfig ApptainerConfig PrimeConfig TraceTask WireEpisode EnvInfo GroupInfo AgentInfo EvalRunInfo
TrainRunInfo TrainWorkInfo EvalWorkInfo PolicySpan PolicyEvent TimeSpan Error InterceptRecord capture_patch resolve_head
ServeConfig StaticPoolConfig ElasticPoolConfig merge_defaults
Environment SingleTurnEnv MultiTurnEnv ToolEnv StatefulToolEnv PythonEnv EnvGroup Rubric RubricGroup JudgeRubric Parser
ThinkParser MaybeThinkParser XMLParser load_environment
""".split()


def test_the_names_of_the_object_model_are_offered() -> None:
    assert [name for name in NAMES if name not in vf.__all__ or not hasattr(vf, name)] == []
    assert [name for name in vf.__all__ if not hasattr(vf, name)] == []


@pytest.mark.parametrize("name", [name for name in ELSEWHERE if name not in vf.__all__])
def test_a_name_that_is_not_offered_says_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; instead: "):
        getattr(vf, name)


def test_an_unknown_name_is_plainly_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Typo'$"):
        getattr(vf, "Typo")  # noqa: B009 - a type checker knows it


def test_a_harness_written_for_another_call_is_refused_at_its_definition() -> None:
    with pytest.raises(TypeError, match=r"asks for data, endpoint, mcp_urls, secret; write launch\(self, ctx, task"):

        class Foreign(vf.Harness):
            async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # type: ignore[no-untyped-def, override]
                ...


def test_a_trace_gives_nodes_and_spans() -> None:
    trace = vf.Trace(started=100.0)
    trace.graph.commit([{"role": "user", "content": "hi"}], {"role": "assistant", "content": "ho"})
    assert [(node.message.content, node.parent, node.sampled) for node in trace.nodes] == [
        ("hi", None, False), ("ho", 0, True),
    ]  # fmt: skip
    trace.timing.fork_ms, trace.timing.agent_ms, trace.timing.model_ms = 500.0, 2000.0, 1500.0
    timing = trace.timing
    assert (timing.start, timing.boot.end, timing.setup.duration) == (100.0, 100.5, 0.0)
    assert (timing.agent.start, timing.agent.end, timing.agent.duration) == (100.5, 102.5, 2.0)
    assert (timing.agent.model.duration, timing.agent.harness.duration) == (1.5, 0.5)
    assert timing.scoring.start == 102.5
