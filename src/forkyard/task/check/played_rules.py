"""The rules that playing a task decides, by its solution (`oracle`) and by an agent that does nothing (`nop`)."""

from __future__ import annotations

from forkyard.task.check.registry import played

played("image-build-failed", "error", "The agent's image cannot be built.")
played("oracle-below-one", "error", "The solution does not earn exactly 1.")
played("nop-earns-one", "error", "An agent that does nothing earns 1.")
played("flaky-verifier", "error", "The same work, in fresh forks, is graded differently.")
played("no-reward-left", "error", "The tests left no reward.")
played("invalid-reward-left", "error", "The tests left something that is no reward.")
played("verifier-timed-out", "error", "The tests ran into the verifier's deadline.")
played("solution-timed-out", "error", "The solution ran into the agent's deadline.")
played("hidden-files-visible", "error", "A copy of a test or of the solution lies in the agent's sandbox.")
played("hidden-files-not-searched", "note", "The image lacks what it takes to look for copies of hidden files.")
played(
    "verdict-depends-on-mode",
    "note",
    "The solution fares otherwise graded in a fork: what runs is graded, or what was in memory.",
)
