"""Names of sampling: a request takes any, so a misspelt one would go out and do nothing, unless it is told here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from forkyard.values import nearest

EXTRA = "extra_body"
"""The key of a table whose members go into the request whatever they are called."""
_KNOWN = (
    # what is said in the words of every dialect
    *("temperature", "top_p", "max_tokens", "seed", "reasoning_effort"),
    # what providers and servers of open models take besides
    *("n", "best_of", "top_k", "top_a", "min_p", "typical_p", "min_tokens", "max_completion_tokens"),
    *("max_output_tokens", "max_new_tokens", "stop", "stop_sequences", "stop_token_ids", "ignore_eos", "logit_bias"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "logprobs", "top_logprobs"),
    *("prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids", "include_stop_str_in_output"),
    *("skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "chat_template_kwargs"),
    *("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("reasoning", "thinking", "verbosity", "service_tier", "parallel_tool_calls", "tool_choice", "user", "metadata"),
    *("store", "prompt_cache_key", "safety_identifier", "provider", "priority", "cache_salt", EXTRA),
)
_LIKENESS = 0.85
"""`top_h` is as like `top_p` as 0.8 and may be a server's own; a letter left out of a word is 0.9 and more."""
_ABBREVIATED = 3  # letters at least: `temp`


def meant(name: str) -> str | None:
    """The known name that this one was likely meant to be; None for a known one, and for one that is like none."""
    if name in _KNOWN:
        return None
    longer = [known for known in _KNOWN if len(name) >= _ABBREVIATED and known.startswith(name)]
    return nearest(name, _KNOWN, _LIKENESS) or next(iter(longer), None)


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError for names that are nearly known ones."""
    wrong = [f"{name} is not known, did you mean {near}?" for name in names if (near := meant(name))]
    if wrong:
        raise ValueError(f"{' '.join(wrong)} (a table {EXTRA} sends any name)")


def flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling as members of a request by their names, those of the table of extra ones among them."""
    return {**{name: value for name, value in given.items() if name != EXTRA}, **(given.get(EXTRA) or {})}
