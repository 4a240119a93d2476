"""Judges: verifiers that ask a model."""

from forkyard.task.judges.config import JudgeConfig, judge_class
from forkyard.task.judges.decision import DecisionJudge, DecisionJudgeConfig
from forkyard.task.judges.judge import Ask, Judge, JudgeResponse, JudgeView, judging_by
from forkyard.task.judges.reference import ReferenceJudge, ReferenceJudgeConfig
from forkyard.task.judges.rubric import (
    Criterion,
    CriterionVerdict,
    RubricJudge,
    RubricJudgeConfig,
    RubricVerdicts,
    load_criteria,
    score_verdicts,
    weighted_mean,
)
from forkyard.task.judges.score import ScoreJudge, ScoreJudgeConfig

__all__ = [
    "Ask",
    "Criterion",
    "CriterionVerdict",
    "DecisionJudge",
    "DecisionJudgeConfig",
    "Judge",
    "JudgeConfig",
    "JudgeResponse",
    "JudgeView",
    "ReferenceJudge",
    "ReferenceJudgeConfig",
    "RubricJudge",
    "RubricJudgeConfig",
    "RubricVerdicts",
    "ScoreJudge",
    "ScoreJudgeConfig",
    "judge_class",
    "judging_by",
    "load_criteria",
    "score_verdicts",
    "weighted_mean",
]
