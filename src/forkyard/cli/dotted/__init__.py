"""Dotted flags and files onto a pydantic model: `--env.agent.max-turns 4 @ eval.toml`."""

from forkyard.cli.dotted.arguments import Arguments, Setting, last_value, read_arguments
from forkyard.cli.dotted.fill import fill
from forkyard.cli.dotted.help import help_text, options_of

__all__ = ["Arguments", "Setting", "fill", "help_text", "last_value", "options_of", "read_arguments"]
