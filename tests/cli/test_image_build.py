from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.forkyard import Forkyard


def test_a_dockerfile_is_built_under_a_name(forkyard: Forkyard, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cr3t")
    (tmp_path / "context").mkdir()
    (tmp_path / "context/Other").write_text(
        "FROM host AS a\nARG WHO\nRUN --mount=type=secret,id=k wc -c < /run/secrets/k > /told && echo $WHO >> /told\n"
        "FROM a\nRUN false\n"
    )
    built = forkyard("image", "build", "context", "-f", "context/Other", "-t", "built:1", "--target", "a")
    assert (built.returncode, built.stdout) == (1, "")
    assert "Other:3: step 1 of 1: RUN" in built.stderr and "/run/secrets/k" in built.stderr
    options = ("--secret", "id=k,src=key", "--build-arg", "WHO=me", "--target", "a", "-f", "context/Other")
    built = forkyard("image", "build", "context", "-t", "built:1", *options)
    assert (built.returncode, built.stdout) == (0, "built:1\n"), built.stderr
    assert "step 1 of 1: RUN" in built.stderr
    assert "step" not in forkyard("image", "build", "context", "-t", "built:1", *options).stderr
    assert "step" in forkyard("image", "build", "context", "-t", "built:1", "--no-cache", *options).stderr
    forkyard("sandbox", "create", "box", "--image", "built:1")
    assert forkyard.apart("sandbox", "run", "box", "cat", "/told").stdout == "6\nme\n"
    forkyard("sandbox", "rm", "box")
    forkyard("image", "rm", "built:1")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--secret", "k"), "write id=NAME,src=FILE"),
        (("--secret", "id=k,src=nowhere"), "nowhere cannot be read"),
        (("--secret", "id=k,env=NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE is not set"),
        (("--network", "not a host"), "not a host"),
        (("--target", "x"), "there is no stage 'x'"),
        (("-t", "cache:x"), "cannot be the name of"),
        (("--base", "localhost:1/none"), "there is no image 'localhost:1/none'"),
    ],
)
def test_what_was_asked_wrongly_is_said(
    forkyard: Forkyard, tmp_path: Path, options: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM host\n")
    done = forkyard("image", "build", ".", *(() if "-t" in options else ("-t", "x")), *options)
    assert done.returncode != 0
    assert complaint in done.stderr
