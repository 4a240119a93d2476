"""`forkyard report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import forkyard.report as reports
from forkyard.cli.options import option
from forkyard.cli.output import say


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories, files of lines, or disk:NAME/RUN.")
    ],
    json: Annotated[bool, option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what runs came to, a row for each task; samples of several runs add up where they are alike."""
    if any(str(path).startswith("disk:") for path in paths):
        from forkyard.run.ondisk import readable

        with readable(paths) as places:
            found = reports.report(places)
    else:
        found = reports.report(paths)
    say(reports.to_json(found) if json else reports.to_text(found))
