"""`forkyard init`: the files of a taskset of one's own."""

from __future__ import annotations

import json
import keyword
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from forkyard.cli.options import option
from forkyard.cli.output import say
from forkyard.errors import ConfigError

_PYPROJECT = Template("""[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$dashed"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["forkyard"]

[project.entry-points."forkyard.tasksets"]
$dashed = "$module:$cls"

[tool.setuptools]
packages = ["$module"]
package-dir = { $module = "." }
package-data = { $module = ["*.json"] }
""")

_README = Template("""# $dashed

```console
$$ forkyard validate $dashed
$$ forkyard eval $dashed --env.agent.harness scripted --env.agent.harness.script $module/scripts.json
$$ forkyard eval $dashed -m MODEL
```

The commands find the package beside which they are started; `pip install ./$module` makes it known everywhere.
""")

_INIT = Template('''"""The taskset $dashed."""

from $module.taskset import $cls

__all__ = ["$cls"]
''')

_TASKSET = Template('''"""Sums: a question lies in a file of the sandbox, the answer is to be written into another."""

from __future__ import annotations

from collections.abc import Iterator

import forkyard as vf

CHECK = "test \\"$$(cat /app/answer.txt)\\" = \\"$$(cat /hidden/answer)\\""


class SumData(vf.TaskData):
    """A task's own data, beside what every task has."""

    answer: int


class Sum(vf.Task[SumData]):
    """One sum."""

    async def setup(self, runtime: vf.Sandbox) -> None:
        """What the agent finds."""
        await runtime.write("/app/question.txt", self.data.prompt_text.encode())

    async def stage_verifier(self, runtime: vf.Sandbox) -> None:
        """The one door for hidden files: it opens when the agent has ended."""
        await runtime.write("/hidden/answer", str(self.data.answer).encode())

    @vf.reward
    async def right(self, runtime: vf.Sandbox) -> float:
        """1 for the right answer."""
        return float((await runtime.run(CHECK)).ok)

    async def validate(self, runtime: vf.Sandbox) -> bool:
        """Solve it as it is meant to be solved, and see whether that earns the reward."""
        await runtime.write("/app/answer.txt", str(self.data.answer).encode())
        await self.stage_verifier(runtime)
        return await self.right(runtime) == 1.0


class $cls(vf.Taskset):
    """Sums of two numbers."""

    name = "$dashed"

    def load(self) -> Iterator[vf.Task]:
        """The tasks, made as they are asked for."""
        for left, right in ((2, 3), (6, 7)):
            yield Sum(
                SumData(
                    name=f"sum-{left}-{right}",
                    prompt=f"Write the sum of {left} and {right} to /app/answer.txt, the number and nothing else.",
                    answer=left + right,
                    artifacts=(vf.Artifact(source="/app/answer.txt", required=False),),
                ),
                self.config.task,
            )
''')

_SCRIPTS = {
    f"sum-{left}-{right}": [[{"bash": f"echo {left + right} > /app/answer.txt"}, {"content": "Done."}]]
    for left, right in ((2, 3), (6, 7))
}


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The taskset's name, as my-task.")],
    path: Annotated[
        Path, option("-p", "--path", metavar="DIR", help="The directory that the package is made in.")
    ] = Path(),
) -> None:
    """Write the package of a new taskset: something that works, to be changed.

    `forkyard eval NAME` and `forkyard validate NAME` find it from the directory that it lies in.
    """
    module = name.replace("-", "_").lower()
    if keyword.iskeyword(module):
        raise ConfigError(f"{name!r} cannot be a taskset's name: its package would be called by a keyword of Python")
    if not module.isidentifier():
        raise ConfigError(f"{name!r} cannot be a taskset's name: use letters, digits and dashes, a letter first")
    package = path / module
    if package.exists():
        raise ConfigError(f"{package} already exists, and nothing is overwritten: choose another name")
    words = {
        "dashed": module.replace("_", "-"),
        "module": module,
        "cls": "".join(part.capitalize() for part in module.split("_")) + "Taskset",
    }
    package.mkdir(parents=True)
    files = {"pyproject.toml": _PYPROJECT, "README.md": _README, "__init__.py": _INIT, "taskset.py": _TASKSET}
    for file, text in files.items():
        (package / file).write_text(text.substitute(words))
    (package / "scripts.json").write_text(json.dumps(_SCRIPTS, indent=2) + "\n")
    say(f"{package} is made; try: forkyard validate {words['dashed']}")
