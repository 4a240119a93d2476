"""What `import forkyard as vf` offers to code written for the `verifiers.v1` object model."""

from __future__ import annotations

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


def test_the_names_of_the_object_model_are_offered() -> None:
    assert [name for name in NAMES if name not in vf.__all__ or not hasattr(vf, name)] == []
    assert [name for name in vf.__all__ if not hasattr(vf, name)] == []
