"""What is stated of tools, tasksets, scoring, judges, graphs, artifacts, verification, hooks, limits, resuming.

By number, for each statement the tests that hold us to it. Where ours differs on purpose, the test says so.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SETS, CONFIG, REPLIES, JUDGES = "task/test_taskset", "task/test_config", "task/test_replies", "task/test_judges"
GRAPH, ARTIFACTS, EVAL, STORE = "trace/test_graph", "grade/test_artifacts", "cli/test_eval", "trace/test_store"
COLOCATED = "tools/test_colocated"
ENV, VERIFIER, HOOKS = "env/test_env", "env/test_isolated_verifier", "env/test_hooks_live"

STATED: dict[str, dict[str, tuple[str, ...]]] = {
    "3.6": {
        "a tool's state is the rollout's, also of a server that many share": (
            "tools/test_inside::test_rollouts_at_once_see_their_own_state_alone",
            "tools/test_inside::test_a_shared_toolset_is_called_with_the_state_of_the_sandbox_it_is_called_from",
        ),
        "a request's interceptors answer in a tool's place": (
            "tools/test_inside::test_the_tasks_interceptors_and_stops_are_asked",
        ),
        "a colocated server runs where the agent does": (
            f"{COLOCATED}::test_its_methods_run_in_the_sandbox_and_the_state_goes_there_and_back",
            f"{COLOCATED}::test_an_image_needs_no_python",
        ),
        "it is called as every server is": (
            f"{COLOCATED}::test_the_real_client_calls_it_as_any_other",
            f"{COLOCATED}::test_a_model_calls_it_by_the_harness_outside_and_the_gate_stands_before_it",
        ),
        "the state is pulled before a call and pushed after it, and the last write wins": (
            f"{COLOCATED}::test_calls_at_once_leave_what_each_has_changed",
            f"{COLOCATED}::test_only_what_it_says_it_uses_goes_into_the_sandbox",
        ),
        "servers end before the task finalizes": (
            f"{COLOCATED}::test_it_has_ended_before_the_task_finalizes_and_is_graded",
        ),
    },
    "6.1": {
        "taking from an endless set builds no more than it takes": (f"{SETS}::test_take_builds_no_more_than_it_takes",),
        "each key is the hash, positions count up": (
            f"{SETS}::test_iterating_numbers_the_tasks_and_each_key_is_its_hash",
        ),
        "a view keeps its class and leaves the base endless": (
            f"{SETS}::test_a_view_is_a_set_of_the_same_class_and_leaves_the_base_endless",
        ),
        "shuffling draws from the whole set, by its seed": (
            f"{SETS}::test_shuffling_draws_from_the_whole_set_by_its_seed",
        ),
        "shuffling an endless set is refused": (f"{SETS}::test_what_could_never_end_is_refused",),
    },
    "6.2": {
        "plugged functions, weights and entries without one": (
            f"{CONFIG}::test_a_plugged_function_replaces_the_method_of_its_name_and_others_join",
            f"{CONFIG}::test_what_cannot_be_plugged_is_refused_when_the_task_is_made",
        ),
        "a plugged stop replaces the decorated one": (f"{CONFIG}::test_a_plugged_stop_replaces_the_decorated_one",),
        "outputs compared": (f"{REPLIES}::test_outputs_are_compared_word_by_word",),
        "outcomes of pytest": (f"{REPLIES}::test_outcomes_of_pytest_are_known_by_test_id_without_their_reasons",),
        "a judge's choice": (f"{REPLIES}::test_a_choice_is_what_the_judge_ends_with",),
    },
    "6.3": {
        "an id, and keys of their own": (f"{JUDGES}::test_a_judge_needs_an_id_and_a_reward_key_of_its_own",),
        "the reward's name": (f"{JUDGES}::test_a_reward_is_called_by_name_then_id_then_class",),
        "no score of its own": (f"{JUDGES}::test_a_judge_without_score_cannot_be_plugged",),
        "yes and no": (
            f"{JUDGES}::test_a_reference_judge_reads_yes_and_no",
            f"{JUDGES}::test_what_holds_no_verdict_is_asked_for_once_more_and_then_a_scoring_error",
        ),
        "fields of the task": (
            f"{JUDGES}::test_what_a_judge_lacks_is_told_when_the_task_is_made",
            f"{JUDGES}::test_a_reference_judge_asks_about_fields_of_the_task",
        ),
        "the whole conversation": (f"{JUDGES}::test_the_whole_conversation_holds_tool_results_and_no_reasoning",),
        "an empty reply": (f"{JUDGES}::test_an_empty_reply_is_worth_nothing_and_costs_nothing",),
        "two choices": (f"{JUDGES}::test_choices_are_told_apart",),
        "a rubric": (
            f"{JUDGES}::test_a_rubric_is_a_weighted_mean_from_one_call",
            f"{JUDGES}::test_answers_of_several_steps_are_worth_their_place",
            f"{JUDGES}::test_verdicts_that_are_not_those_asked_for_are_no_score",
            f"{JUDGES}::test_a_rubric_that_is_none_is_refused",
            f"{JUDGES}::test_a_rubric_is_json_or_toml_with_or_without_a_title",
        ),
        "weights are finite": (f"{JUDGES}::test_a_weight_is_a_finite_number",),
        "two judges of one task": (f"{JUDGES}::test_a_task_with_two_judges_asks_each_once",),
    },
    "6.3b": {
        "a line and back": (f"{GRAPH}::test_a_seeded_reward_and_every_other_field_survive_the_line",),
        "two branches": (f"{GRAPH}::test_two_branches_survive_the_line_and_no_message_is_written_twice",),
        "other token ids fork": (f"{GRAPH}::test_a_retokenised_history_forks",),
        "reasoning counts, spelling of arguments does not": (
            f"{GRAPH}::test_any_difference_that_a_model_can_see_forks",
            f"{GRAPH}::test_a_difference_of_spelling_does_not_fork",
        ),
        "one sampled node for each call": (
            "trace/test_graph_laws::test_each_call_stands_in_a_history_of_its_very_messages_and_tokens",
        ),
        "judges with a shell": (
            "env/test_agentic_judge::test_a_shared_judge_works_in_the_solvers_sandbox_after_its_processes",
            "env/test_agentic_judge::test_a_judge_of_its_own_sees_the_artifacts_and_no_other_file",
        ),
        "replaying": ("cli/test_tasksets::test_twice_gives_the_same",),
    },
    "6.4": {
        "collecting": (
            f"{ARTIFACTS}::test_6_4_a_directory_keeps_links_and_hard_links_and_loses_fifos",
            f"{ARTIFACTS}::test_6_4_one_path_declared_twice",
            f"{ARTIFACTS}::test_6_4_required_and_optional_ones_that_are_missing",
            f"{ARTIFACTS}::test_6_4_excluded_members_are_absent",
            f"{ARTIFACTS}::test_6_4_all_archives_together_are_bounded",
            f"{ARTIFACTS}::test_6_4_artifacts_may_nest",
        ),
        "links": (
            f"{ARTIFACTS}::test_6_4_a_root_that_is_a_link_is_collected_and_not_restored",
            f"{ARTIFACTS}::test_6_4_a_link_to_outside_is_collected_and_not_restored",
        ),
        "restoring": (
            f"{ARTIFACTS}::test_6_4_a_stale_tree_is_replaced_and_its_siblings_stay",
            f"{ARTIFACTS}::test_6_4_hostile_archives_are_refused_before_anything_changes",
            f"{ARTIFACTS}::test_6_4_roots_that_are_none",
        ),
    },
    "6.5": {
        "what reaches the verifier": (f"{VERIFIER}::test_6_5_only_what_is_declared_reaches_the_verifier",),
        "a wrong answer": (f"{VERIFIER}::test_6_5_a_wrong_answer_is_a_zero",),
        "staging or scoring that raises": (
            f"{VERIFIER}::test_6_5_a_verification_that_raises_is_tried_three_times_and_is_no_zero",
        ),
        "a missing artifact": (f"{VERIFIER}::test_6_5_a_missing_artifact_is_the_agents_account",),
        "an unknown image": (f"{VERIFIER}::test_6_5_an_image_nobody_has_fails_the_verification_and_scores_nothing",),
    },
    "6.6": {
        "setup": (f"{HOOKS}::test_6_6_a_setup_that_raises_is_a_task_error_before_any_call",),
        "finalize": (f"{HOOKS}::test_6_6_a_finalize_that_raises_keeps_how_the_agent_ended_and_scores_nothing",),
        "rewards": (
            f"{HOOKS}::test_6_6_a_reward_that_is_none_leaves_every_reward_null_and_the_metrics",
            f"{HOOKS}::test_6_6_a_number_that_is_none_is_null_on_the_line",
            f"{HOOKS}::test_6_6_a_mapping_is_a_reward_for_each_of_its_keys",
        ),
        "stops": (
            f"{HOOKS}::test_6_6_a_stop_at_two_turns_ends_the_agent_after_two",
            f"{HOOKS}::test_6_6_a_stop_that_raises_is_a_task_error_and_no_call",
        ),
        "deadlines": (f"{HOOKS}::test_6_6_a_deadline_is_a_stop_and_no_error",),
    },
    "6.7": {
        "limits": (f"{ENV}::test_6_7_a_limit_ends_the_agent_after_one_call_and_is_no_error",),
        "retries": (f"{ENV}::test_6_7_retries_of_an_agent_leave_one_trace_with_every_error",),
        "the episode's deadline": (f"{ENV}::test_6_7_an_episode_past_its_deadline_says_so_and_its_siblings_go_on",),
    },
    "6.8": {
        "failed and torn rows": (
            f"{EVAL}::test_what_failed_or_is_torn_is_played_again_and_nothing_else",
            f"{STORE}::test_a_torn_last_line_is_kept_beside_and_said",
        ),
        "nothing to do": ("run/test_run::test_resuming_a_complete_run_plays_nothing_and_needs_nothing",),
    },
}


@cache
def names_in(module: str) -> frozenset[str]:
    tree = ast.parse((TESTS / f"{module}.py").read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("number", list(STATED))
def test_each_statement_has_tests(number: str) -> None:
    named = [test.split("::") for tests in STATED[number].values() for test in tests]
    assert [f"{module}::{name}" for module, name in named if name not in names_in(module)] == []
