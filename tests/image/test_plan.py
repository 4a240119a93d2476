import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.errors import ConfigError
from forkyard.image import base_images, parse_dockerfile
from forkyard.image.context import Context
from forkyard.image.plan import CopyFiles, RunCommand, StagePlan
from forkyard.image.planner import PlanInput, make_plan
from forkyard.sandbox import DEFAULT_PATH, ImageConfig, ImageInfo

BASE = ImageInfo("base", ImageConfig({"FROM_BASE": "b"}, "/srv", "worker", ("old",), ("arg",)), 1.0)


def plan(root: Path, *lines: str, base: ImageInfo = BASE, before: tuple[str, ...] = ()) -> StagePlan:
    data = "\n".join([*before, "FROM base", *lines]).encode()
    given = PlanInput(parse_dockerfile(data, "Dockerfile"), Context(root), {"base": base})
    return make_plan(given).target


def last_env(made: StagePlan) -> Mapping[str, str]:
    """The environment of the last RUN, without what every one has."""
    action = made.steps[-1].action
    assert isinstance(action, RunCommand)
    return {name: value for name, value in action.env.items() if name not in ("PATH", "FROM_BASE")}


# lines before FROM, lines after it, environment of a RUN at the end
SCOPES: list[tuple[list[str], list[str], dict[str, str]]] = [
    ([], ["ENV A=1", "ENV B=$A"], {"A": "1", "B": "1"}),
    ([], ["ENV A=1", "ENV A=2 B=$A"], {"A": "2", "B": "1"}),
    ([], ["ENV A=$FROM_BASE"], {"A": "b"}),
    ([], ["ENV A='$FROM_BASE' B=\\$FROM_BASE"], {"A": "$FROM_BASE", "B": "$FROM_BASE"}),
    ([], ["ARG A"], {}),
    ([], ["ARG A=1"], {"A": "1"}),
    ([], ["ARG A=1", "ARG A"], {"A": "1"}),
    ([], ["ARG A=1 B=$A"], {"A": "1", "B": ""}),
    ([], ["ARG A=1", "ARG B=$A"], {"A": "1", "B": "1"}),
    ([], ["ENV B=$A", "ARG A=1"], {"A": "1", "B": ""}),
    ([], ["ARG A=1", "ENV A=2"], {"A": "2"}),
    ([], ["ENV A=2", "ARG A=1"], {"A": "2"}),
    ([], ["ARG A=1", "ENV A=${A:-none}x"], {"A": "1x"}),
    ([], ["ARG FROM_BASE=mine", "ENV A=$FROM_BASE"], {"A": "b"}),
    (["ARG A=1"], ["ENV B=${A:-unseen}"], {"B": "unseen"}),
    (["ARG A=1"], ["ARG A", "ENV B=$A"], {"A": "1", "B": "1"}),
    (["ARG A=1"], ["ARG A=2"], {"A": "2"}),
    (["ARG A=1", "ARG B=$A$A"], ["ARG B"], {"B": "11"}),
    (["ARG A"], ["ARG A"], {}),
]


@pytest.mark.parametrize(("before", "lines", "env"), SCOPES)
def test_variables_have_the_scope_they_have_in_docker(
    tmp_path: Path, before: list[str], lines: list[str], env: dict[str, str]
) -> None:
    made = plan(tmp_path, *lines, "RUN true", before=tuple(before))
    assert last_env(made) == env


def test_arguments_reach_commands_but_not_the_image(tmp_path: Path) -> None:
    made = plan(tmp_path, "ARG A=1", "ENV B=$A", "RUN true")
    assert made.config.env == {"PATH": DEFAULT_PATH, "FROM_BASE": "b", "B": "1"}


def test_path_can_be_extended_when_the_base_says_none(tmp_path: Path) -> None:
    assert plan(tmp_path, "ENV PATH=/opt/bin:$PATH").config.env["PATH"] == f"/opt/bin:{DEFAULT_PATH}"
    base = replace(BASE, config=ImageConfig({"PATH": "/own"}))
    assert plan(tmp_path, "ENV PATH=/opt/bin:$PATH", base=base).config.env["PATH"] == "/opt/bin:/own"


def test_the_platform_is_known_where_it_is_declared(tmp_path: Path) -> None:
    env = last_env(plan(tmp_path, "ARG TARGETARCH", "ARG TARGETOS", "RUN true"))
    assert env["TARGETOS"] == "linux"
    assert env["TARGETARCH"] in {"amd64", "arm64", platform.machine()}
    assert last_env(plan(tmp_path, "RUN true")) == {}


@pytest.mark.parametrize(
    ("lines", "image"),
    [
        (["FROM debian"], "debian"),
        (["ARG V", "FROM debian:${V:-12}"], "debian:12"),
        (["ARG V=12", "FROM debian:$V"], "debian:12"),
        (["ARG I=a", "ARG J=$I/b", "FROM $J"], "a/b"),
        (["FROM a-$TARGETOS"], "a-linux"),
        (['FROM "a"'], "a"),
    ],
)
def test_from_is_expanded_with_the_arguments_before_it(lines: list[str], image: str) -> None:
    assert base_images(parse_dockerfile("\n".join(lines).encode(), "Dockerfile")) == (image,)


def test_a_from_that_comes_to_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Dockerfile:2: FROM \$V names no image"):
        base_images(parse_dockerfile(b"ARG V\nFROM $V", "Dockerfile"))
    with pytest.raises(ConfigError, match="Dockerfile:2: .*required"):
        base_images(parse_dockerfile(b"ARG V\nFROM ${V:?}", "Dockerfile"))


@pytest.mark.parametrize(
    ("lines", "workdir"),
    [
        ([], "/srv"),
        (["WORKDIR /a"], "/a"),
        (["WORKDIR a"], "/srv/a"),
        (["WORKDIR a", "WORKDIR b/"], "/srv/a/b"),
        (["WORKDIR ../../.."], "/"),
        (["WORKDIR //x//y"], "/x/y"),
        (["ENV D=/d", "WORKDIR $D/e"], "/d/e"),
        (['WORKDIR "/with blank"'], "/with blank"),
    ],
)
def test_workdirs_build_on_each_other(tmp_path: Path, lines: list[str], workdir: str) -> None:
    made = plan(tmp_path, *lines, "RUN true")
    assert made.config.workdir == workdir
    action = made.steps[-1].action
    assert isinstance(action, RunCommand)
    assert action.workdir == workdir


def test_workdirs_are_made_by_the_next_step_or_at_the_end(tmp_path: Path) -> None:
    made = plan(tmp_path, "WORKDIR a", "USER u", "WORKDIR b", "RUN true", "WORKDIR /c")
    assert [(d.path, d.owner, d.where) for d in made.steps[0].directories] == [
        ("/srv/a", "worker", "Dockerfile:2"),
        ("/srv/a/b", "u", "Dockerfile:4"),
    ]
    assert [d.path for d in made.directories] == ["/c"]


@pytest.mark.parametrize(
    ("lines", "entrypoint", "cmd"),
    [
        ([], ("old",), ("arg",)),
        (['CMD ["new"]'], ("old",), ("new",)),
        (['ENTRYPOINT ["e"]'], ("e",), ()),
        (['CMD ["new"]', 'ENTRYPOINT ["e"]'], ("e",), ("new",)),
        (['ENTRYPOINT ["e"]', 'CMD ["new"]'], ("e",), ("new",)),
        (["ENTRYPOINT []", "CMD []"], (), ()),
    ],
)
def test_an_entrypoint_drops_the_command_of_the_base(
    tmp_path: Path, lines: list[str], entrypoint: tuple[str, ...], cmd: tuple[str, ...]
) -> None:
    config = plan(tmp_path, *lines).config
    assert (config.entrypoint, config.cmd) == (entrypoint, cmd)


@pytest.mark.parametrize(
    ("line", "destination", "owner", "mode"),
    [
        ("COPY f x", "/srv/x", "", None),
        ("COPY f .", "/srv/", "", None),
        ("COPY f ./", "/srv/", "", None),
        ("COPY f x/", "/srv/x/", "", None),
        ("COPY f /x", "/x", "", None),
        ("COPY f /", "/", "", None),
        ("COPY f ..", "/", "", None),
        ("COPY f x/..", "/srv/", "", None),
        ("COPY f f x/", "/srv/x/", "", None),
        ("COPY f f .", "/srv/", "", None),
        ("COPY --chown=$FROM_BASE:2 --chmod=0755 f $FROM_BASE", "/srv/b", "b:2", 0o755),
        ("COPY --chmod=4711 f x", "/srv/x", "", 0o4711),
    ],
)
def test_copy_has_a_destination_owner_and_mode(
    tmp_path: Path, line: str, destination: str, owner: str, mode: int | None
) -> None:
    (tmp_path / "f").touch()
    action = plan(tmp_path, line).steps[-1].action
    assert isinstance(action, CopyFiles)
    chmod = None if action.chmod is None else action.chmod.octal
    assert (action.destination, action.owner, chmod) == (destination, owner, mode)


def test_everything_that_cannot_be_carried_out_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    lines = [
        "COPY none x",
        "COPY f f x",
        "COPY --chmod=u!x f x",
        "COPY --chmod=99 f x",
        "COPY $NOTHING x",
        "COPY f $NOTHING",
        "WORKDIR $NOTHING",
        "USER $NOTHING",
        "ENV A=${B:?set}",
        "ENV $NOTHING=1",
        "ARG C=${D?}",
        "COPY ../x y",
    ]
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, *lines)
    found = caught.value.problems
    assert [int(problem.split(":")[1]) for problem in found] == list(range(2, 2 + len(lines)))


def keys(made: StagePlan) -> list[str]:
    return [*(step.key for step in made.steps), made.key]


STEPS = ("ARG A=1", "ENV B=2", "WORKDIR /w", "RUN one", "COPY f .", "RUN two", 'CMD ["c"]')


def test_the_same_input_has_the_same_keys(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert keys(plan(tmp_path, *STEPS)) == keys(plan(tmp_path, *STEPS))
    assert len(set(keys(plan(tmp_path, *STEPS)))) == 4


def test_what_does_not_matter_does_not_change_a_key(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    before = keys(plan(tmp_path, *STEPS))
    assert keys(plan(tmp_path, "LABEL a=b", "# a comment", *STEPS, "EXPOSE 80"))[:3] == before[:3]
    assert keys(plan(tmp_path, *(line.replace("RUN ", "run   ") for line in STEPS))) == before
    (tmp_path / "f").touch()
    (tmp_path / "not copied").touch()
    assert keys(plan(tmp_path, *STEPS)) == before


@pytest.mark.parametrize(
    ("changed", "by", "first_new"),
    [
        ("ARG A=1", "ARG A=2", 0),
        ("ENV B=2", "ENV B=3", 0),
        ("WORKDIR /w", "WORKDIR /v", 0),
        ("RUN one", 'RUN ["/bin/sh", "-c", "one"]', 4),
        ("RUN one", "RUN ONE", 0),
        ("COPY f .", "COPY --chown=1 f .", 1),
        ("COPY f .", "COPY --chmod=755 f .", 1),
        ("COPY f .", "COPY f x", 1),
        ("RUN two", "RUN TWO", 2),
        ('CMD ["c"]', 'CMD ["d"]', 3),
        ('CMD ["c"]', 'CMD ["c"]\nUSER x', 3),
        ('CMD ["c"]', 'CMD ["c"]\nLABEL a=b', 3),
        ('CMD ["c"]', 'CMD ["c"]\nHEALTHCHECK CMD x', 3),
        ('CMD ["c"]', 'CMD ["c"]\nWORKDIR /z', 3),
    ],
)
def test_a_change_makes_new_keys_from_there_on(tmp_path: Path, changed: str, by: str, first_new: int) -> None:
    (tmp_path / "f").touch()
    before = keys(plan(tmp_path, *STEPS))
    after = keys(plan(tmp_path, *(by if line == changed else line for line in STEPS)))
    assert [old == new for old, new in zip(before, after, strict=True)] == [index < first_new for index in range(4)]


def test_a_changed_byte_makes_new_keys_from_its_copy_on(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    before = keys(plan(tmp_path, *STEPS))
    (tmp_path / "f").write_text("2")
    after = keys(plan(tmp_path, *STEPS))
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, False, False]


@pytest.mark.parametrize(
    "base",
    [
        replace(BASE, name="other"),
        replace(BASE, created=2.0),
        replace(BASE, config=replace(BASE.config, user="")),
    ],
)
def test_another_base_makes_new_keys(tmp_path: Path, base: ImageInfo) -> None:
    (tmp_path / "f").touch()
    assert not set(keys(plan(tmp_path, *STEPS))) & set(keys(plan(tmp_path, *STEPS, base=base)))


PIECES = ["RUN a", "COPY ", "ENV ", "ARG ", "USER ", "WORKDIR ", "a", "f", "/", "..", "=", "$A", "${A:-", "}", "*", "["]
PIECES += ["--chown=", "--chmod=", "7", "\\", " ", "\n", "'", '"', "\x85", "n" * 300]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_whatever_can_be_read_is_planned_or_refused(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    root = tmp_path_factory.getbasetemp() / "planned"
    root.mkdir(exist_ok=True)
    (root / "f").touch()
    with suppress(ConfigError):
        assert plan(root, "".join(pieces)).key
