from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.errors import ConfigError
from forkyard.image import parse_dockerfile, read_dockerfile
from forkyard.image.instructions import (
    Arg,
    Cmd,
    Copy,
    Dockerfile,
    Entrypoint,
    Env,
    Expose,
    Instruction,
    Label,
    Maintainer,
    Mount,
    Onbuild,
    Run,
    Shell,
    StopSignal,
    User,
    Volume,
    Watch,
    Workdir,
)
from forkyard.image.words import Word
from forkyard.sandbox import Healthcheck


def parsed(*lines: str) -> Dockerfile:
    return parse_dockerfile("\n".join(lines).encode(), "Dockerfile")


def step(*lines: str) -> Instruction:
    (instruction,) = parsed("FROM scratch", *lines).stages[0].steps
    return instruction


def problems(*lines: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parsed(*lines)
    return caught.value.problems


def shell(text: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", text)


# the lines after FROM, the command line of the RUN
RUNS = [
    (["RUN a b"], shell("a b")),
    (["run a"], shell("a")),
    (["  RUN\t a  b  "], shell("a  b")),
    (["RUN a # not a comment"], shell("a # not a comment")),
    (["RUN echo $X ${Y:-z}"], shell("echo $X ${Y:-z}")),
    (["RUN a \\", "  b"], shell("a   b")),
    (["RUN a \\  ", "b"], shell("a b")),
    (["RUN a\\", "b"], shell("ab")),
    (["RUN \\", "a"], shell("a")),
    (["RUN a \\", "# a comment", "   # another", "b"], shell("a b")),
    (["RUN a \\", "", "   ", "b"], shell("a b")),
    (["RUN a \\", "# a comment \\", "b"], shell("a b")),
    (["RUN a \\\r", "b\r"], shell("a b")),
    (["RUN a \\\\"], shell("a \\\\")),
    (["RUN a \\"], shell("a")),
    (['RUN ["a", "b c", "$X"]'], ("a", "b c", "$X")),
    (['RUN ["a",\\', '  "b"]'], ("a", "b")),
    (["RUN ['a', 'b']"], shell("['a', 'b']")),
    (["RUN [ -f x ] && y"], shell("[ -f x ] && y")),
    (['RUN ["a"] && b'], shell('["a"] && b')),
    (['RUN ["é\\u00e9\\n"]'], ("éé\n",)),
    (["RUN " + "[" * 5000], shell("[" * 5000)),
    # what only looks like a heredoc
    (['RUN echo "a <<EOF"'], shell('echo "a <<EOF"')),
    (["RUN echo $((1<<2))"], shell("echo $((1<<2))")),
    (["RUN cat <<<word"], shell("cat <<<word")),
    (["RUN a << b"], shell("a << b")),
]


@pytest.mark.parametrize(("lines", "argv"), RUNS)
def test_a_run_becomes_a_command_line(lines: list[str], argv: tuple[str, ...]) -> None:
    instruction = step(*lines)
    assert isinstance(instruction, Run)
    words = instruction.command.words
    assert (shell(*words) if instruction.command.shell else words) == argv


def expanded(instruction: Instruction) -> object:
    """An instruction with its words made text, so that a table can say what it holds."""
    match instruction:
        case Arg():
            return [(name, default and text(default)) for name, default in instruction.names]
        case Copy():
            words = [*instruction.sources, instruction.destination, instruction.chown, instruction.chmod]
            return [text(word) for word in words]
        case Entrypoint() | Cmd():
            return instruction.command.words
        case Env() | Label():
            return [(text(name), text(value)) for name, value in instruction.pairs]
        case Expose():
            return [text(port) for port in instruction.ports]
        case Volume():
            return [text(path) for path in instruction.paths]
        case _:
            return plain(instruction)


def text(word: Word) -> str:
    return word.expand({"X": "x"})


def plain(instruction: Instruction) -> object:
    """What an instruction with one thing to say says."""
    match instruction:
        case Workdir():
            return text(instruction.path)
        case User():
            return text(instruction.user)
        case StopSignal():
            return text(instruction.signal)
        case Maintainer():
            return instruction.author
        case Shell():
            return instruction.words
        case Onbuild():
            return instruction.trigger
        case Watch():
            return instruction.healthcheck
    raise AssertionError(instruction)


INSTRUCTIONS = [
    ("ENV A=1", [("A", "1")]),
    (
        "ENV A=1 B=$X C=a\\ b D='c d' E=\"e f\" F=",
        [("A", "1"), ("B", "x"), ("C", "a b"), ("D", "c d"), ("E", "e f"), ("F", "")],
    ),
    ("ENV A=b=c", [("A", "b=c")]),
    ("ENV A$X=1", [("Ax", "1")]),
    ("ENV A the rest  of it", [("A", "the rest  of it")]),
    ("ENV A B= C=d", [("A", "B= C=d")]),
    ("ENV A 'quoted'", [("A", "quoted")]),
    ("ARG A", [("A", None)]),
    ("ARG A=", [("A", "")]),
    ("ARG A=1 B C='a b'", [("A", "1"), ("B", None), ("C", "a b")]),
    ("COPY a b", ["a", "b", "", ""]),
    ("COPY a b c/ ", ["a", "b", "c/", "", ""]),
    ("COPY --chown=u:g --chmod=0$X a b", ["a", "b", "u:g", "0x"]),
    ('COPY ["a b", "c d/"]', ["a b", "c d/", "", ""]),
    ('COPY --chown=1 ["a b", "c"]', ["a b", "c", "1", ""]),
    ("COPY a\u00a0b c", ["a\u00a0b", "c", "", ""]),
    ("COPY a$X $X/", ["ax", "x/", "", ""]),
    ("COPY -- --odd a", ["--odd", "a", "", ""]),
    ("WORKDIR /a b/$X", "/a b/x"),
    ("USER $X:2", "x:2"),
    ('ENTRYPOINT ["/bin/false"]', ("/bin/false",)),
    ("ENTRYPOINT exec top", ("exec top",)),
    ("CMD []", ()),
    ('CMD ["serve"]', ("serve",)),
    ("cmd serve --port 1", ("serve --port 1",)),
    ("LABEL a=b \"c d\"='e'", [("a", "b"), ("c d", "e")]),
    ("LABEL a some text", [("a", "some text")]),
    ("EXPOSE 80/tcp 5$X", ["80/tcp", "5x"]),
    ("STOPSIGNAL SIGKILL", "SIGKILL"),
    ("MAINTAINER somebody", "somebody"),
    ("VOLUME /a /b", ["/a", "/b"]),
    ('VOLUME ["/a b"]', ["/a b"]),
    ('SHELL ["/bin/bash", "-c"]', ("/bin/bash", "-c")),
    ("ONBUILD RUN a  b", "RUN a  b"),
    ("HEALTHCHECK NONE", Healthcheck(("NONE",))),
    ("HEALTHCHECK CMD curl x", Healthcheck(("CMD-SHELL", "curl x"))),
    (
        'HEALTHCHECK --interval=1m30s --timeout=500ms --start-period=2s --start-interval=1s --retries=4 CMD ["c", "x"]',
        Healthcheck(("CMD", "c", "x"), 90.0, 0.5, 2.0, 1.0, 4),
    ),
    ("ADD a b", ["a", "b", "", ""]),
    ("COPY --link --from=x --exclude=*.py a b", ["a", "b", "", ""]),
]


@pytest.mark.parametrize(("line", "meaning"), INSTRUCTIONS)
def test_an_instruction_is_understood(line: str, meaning: object) -> None:
    assert expanded(step(line)) == meaning


def test_instructions_know_their_lines_and_text() -> None:
    found = parsed("# top", "", "ARG V", "FROM a:${V:-1} as Stage", "# c", "RUN a \\", "", "  b", "USER x")
    (stage,) = found.stages
    assert [(s.line, s.text) for s in stage.steps] == [(6, "RUN a   b"), (9, "USER x")]
    assert (stage.source.line, stage.source.alias) == (4, "Stage")
    assert stage.source.image.expand({}) == "a:1"
    assert [arg.names for arg in found.arguments] == [(("V", None),)]
    assert found.at(stage.steps[0]) == "Dockerfile:6"


def test_a_file_has_stages() -> None:
    found = parsed("FROM a AS one", "RUN x", "FROM b", "FROM one", "RUN y", "RUN z")
    assert [(s.index, s.name, len(s.steps)) for s in found.stages] == [(0, "one", 1), (1, "1", 0), (2, "2", 2)]


# the lines after FROM, the text a RUN gives to the shell
HEREDOCS = [
    (["RUN <<EOF", "a", "", "# b", "EOF"], "a\n\n# b\n"),
    (["RUN <<-EOF", "\ta", "\t\tb", "\tEOF"], "a\nb\n"),
    (["RUN <<'EOF'", "a $b", "EOF"], "a $b\n"),
    (["RUN sh <<EOF", "a", "EOF"], "sh <<EOF\na\nEOF"),
    (["RUN <<EOF sh", "a", "EOF"], "<<EOF sh\na\nEOF"),
    (["RUN cat <<a <<b", "1", "a", "2", "b"], "cat <<a <<b\n1\na\n2\nb"),
    (["RUN cat 3<<a", "1", "a"], "cat 3<<a\n1\na"),
    (["RUN --network=none <<EOF", "a", "EOF"], "a\n"),
    (["RUN \\", " <<EOF", "a \\", "b", "EOF"], "a \\\nb\n"),
    (["RUN <<EOF", "EOF"], ""),
]


@pytest.mark.parametrize(("lines", "text"), HEREDOCS)
def test_a_heredoc_becomes_the_command(lines: list[str], text: str) -> None:
    if not text:
        assert "names no program" in problems("FROM a", *lines)[0]
        return
    instruction = step(*lines)
    assert isinstance(instruction, Run)
    assert (instruction.command.words, instruction.command.shell, instruction.script) == ((text,), True, "")


def test_a_heredoc_with_an_interpreter_becomes_a_script() -> None:
    instruction = step("RUN <<EOF", "#!/usr/bin/env python3", "print(1)", "EOF")
    assert isinstance(instruction, Run)
    assert instruction.script == "#!/usr/bin/env python3\nprint(1)\n"


def test_a_copy_takes_files_from_heredocs() -> None:
    instruction = step('COPY <<a <<"b" plain /x/', "1 $X \\$X 'q'", "a", "2 $X \\n", "b")
    assert isinstance(instruction, Copy)
    assert [(file.name, file.content.expand({"X": "x"})) for file in instruction.files] == [
        ("a", "1 x $X 'q'\n"),
        ("b", "2 $X \\n\n"),
    ]
    assert [word.expand({}) for word in instruction.sources] == ["plain"]


def mount(options: str) -> Mount:
    instruction = step(f"RUN --mount={options} true")
    assert isinstance(instruction, Run)
    return instruction.mounts[0]


MOUNTS = [
    ("type=cache,target=/a", ("cache", "/a", "", "", "", 0o755)),
    ("type=cache,dst=/a,id=x,sharing=locked,mode=0700", ("cache", "/a", "", "", "x", 0o700)),
    ("target=/a", ("bind", "/a", "", "", "", 0o755)),
    ("type=bind,source=s,destination=/a,from=f,rw", ("bind", "/a", "f", "s", "", 0o755)),
    ("type=secret,id=k", ("secret", "/run/secrets/k", "", "", "k", 0o400)),
    ("type=secret,target=/x/key", ("secret", "/x/key", "", "", "key", 0o400)),
    ("type=secret,id=k,env=K", ("secret", None, "", "", "k", 0o400)),
    ("type=secret,id=k,env=K,target=/k,mode=0444", ("secret", "/k", "", "", "k", 0o444)),
    ('type=tmpfs,"target=/a,b",size=1', ("tmpfs", "/a,b", "", "", "", 0o1777)),
]


@pytest.mark.parametrize(("options", "meaning"), MOUNTS)
def test_a_mount_is_understood(options: str, meaning: tuple[object, ...]) -> None:
    found = mount(options)
    target = None if found.target is None else found.target.expand({})
    assert (
        found.kind,
        target,
        found.origin,
        found.source.expand({}),
        found.name.expand({}),
        found.mode,
    ) == meaning


def test_a_byte_order_mark_and_windows_line_ends_are_no_obstacle() -> None:
    found = parse_dockerfile(b"\xef\xbb\xbf# syntax=docker/dockerfile:1\r\nFROM a\r\nUSER b\r\n", "Dockerfile")
    assert [s.text for s in found.stages[0].steps] == ["USER b"]


@pytest.mark.parametrize(
    ("top", "escape_is_backtick"),
    [
        (["# escape=`"], True),
        (["#escape = `"], True),
        (["# ESCAPE=`"], True),
        (["# syntax=docker/dockerfile:1", "# escape=`"], True),
        (["# check=skip=all", "# escape=`"], True),
        (["# a comment", "# escape=`"], False),
        (["", "# escape=`"], False),
        (["# unknown=1", "# escape=`"], False),
        (["# escape=\\"], False),
        ([], False),
    ],
)
def test_directives_count_at_the_top_only(top: list[str], escape_is_backtick: bool) -> None:
    found = parsed(*top, "FROM a", "RUN a `", "RUN b")
    assert [s.text for s in found.stages[0].steps] == (["RUN a RUN b"] if escape_is_backtick else ["RUN a `", "RUN b"])


# the lines of a file, and for each problem its line and something it says
PROBLEMS = [
    ([""], [(1, "no FROM")]),
    (["# only a comment"], [(1, "no FROM")]),
    (["ARG A"], [(1, "no FROM")]),
    (["RUN a", "FROM b"], [(1, "RUN before FROM")]),
    (["FROM"], [(1, "FROM says nothing")]),
    (["FROM a b"], [(1, "FROM takes one image")]),
    (["FROM a AS"], [(1, "FROM takes one image")]),
    (["FROM a IN b"], [(1, "FROM takes one image")]),
    (["FROM --platform a"], [(1, "FROM --platform has no value")]),
    (["FROM a AS x", "FROM b AS X"], [(2, "a second stage is called X")]),
    (["FROM a AS 1"], [(1, "cannot be the name of a stage")]),
    (["FROM ${a"], [(1, "never closed")]),
    (["FROM a", "HEALTHCHECK curl"], [(2, "write HEALTHCHECK CMD command")]),
    (["FROM a", "HEALTHCHECK CMD"], [(2, "write HEALTHCHECK CMD command")]),
    (["FROM a", "HEALTHCHECK --interval=5 CMD x"], [(2, "is no time: write it as 30s")]),
    (["FROM a", "HEALTHCHECK --retries=x CMD x"], [(2, "write a number")]),
    (["FROM a", "ONBUILD ONBUILD RUN a"], [(2, "ONBUILD ONBUILD is not possible")]),
    (["FROM a", "ONBUILD FROM b"], [(2, "ONBUILD FROM is not possible")]),
    (["FROM a", "ONBUILD COPY x"], [(2, "COPY needs a source")]),
    (["FROM a", "SHELL /bin/bash"], [(2, 'write SHELL ["/bin/bash", "-c"]')]),
    (["FROM a", "STOPSIGNAL a b"], [(2, "one signal")]),
    (["FROM a", "ADD --from=x a b"], [(2, "ADD --from is not supported")]),
    (["FROM a", "ADD --keep-git-dir a b"], [(2, "fetch the repository before the build")]),
    (["FROM a", "COPY --parents a b"], [(2, "one COPY for each directory")]),
    (["FROM a", "COPY --from=$X a b"], [(2, "write FROM $X AS name")]),
    (["FROM a", "ADD --unpack=x a b"], [(2, "write --unpack=true")]),
    (["FROM a", "RUNN a"], [(2, "RUNN is no instruction: did you mean RUN?")]),
    (["FROM a", "VOLUM /a"], [(2, "did you mean VOLUME?")]),
    (["FROM a", "42"], [(2, "the instructions are ADD, ARG, ")]),
    (["FROM a", "RUN"], [(2, "RUN says nothing")]),
    (["FROM a", "RUN --mount a"], [(2, "RUN --mount has no value")]),
    (["FROM a", "RUN --mount=type=ssh a"], [(2, "give the key as a secret")]),
    (["FROM a", "RUN --mount=type=what a"], [(2, "the types are bind, cache, secret, tmpfs")]),
    (["FROM a", "RUN --mount=type=cache a"], [(2, "no target: write target=/path")]),
    (["FROM a", "RUN --mount=type=cache,target=/x,foo=1 a"], [(2, "no option 'foo'")]),
    (["FROM a", "RUN --mount=type=cache,target=/x,target=/y a"], [(2, "target is given twice")]),
    (["FROM a", "RUN --mount=type=cache,target=/x,sharing=no a"], [(2, "shared, private or locked")]),
    (["FROM a", "RUN --mount=type=cache,target=/x,mode=9 a"], [(2, "octal digits")]),
    (["FROM a", "RUN --mount=type=cache,target=/x,uid=me a"], [(2, "write a number")]),
    (["FROM a", "RUN --mount=type=secret a"], [(2, "write id=name")]),
    (["FROM a", 'RUN --mount=type=secret,"id a'], [(2, "cannot be read")]),
    (["FROM a", "RUN --network=host a"], [(2, "default, the build's own, or none")]),
    (["FROM a", "RUN --security=insecure a"], [(2, "RUN --security is not supported")]),
    (["FROM a", "RUN []"], [(2, "names no program")]),
    (["FROM a", 'RUN [""]'], [(2, "names no program")]),
    (["FROM a", 'RUN ["a", 1]'], [(2, "no string")]),
    (["FROM a", 'CMD ["a\\u0000"]'], [(2, "NUL")]),
    (["FROM a", 'CMD ["\\ud800"]'], [(2, "surrogate")]),
    (["FROM a", "COPY --what c d"], [(2, "COPY --what is not supported: delete it")]),
    (["FROM a", "COPY --form=b c d"], [(2, "COPY --form is not supported: did you mean --from?")]),
    (["FROM a", "RUN --mout=type=cache,target=/c d"], [(2, "RUN --mout is not supported: did you mean --mount?")]),
    (["FROM a", "COPY --chown c d"], [(2, "--chown has no value")]),
    (["FROM a", "COPY --chown=1 --chown=2 c d"], [(2, "--chown is given twice")]),
    (["FROM a", "COPY c"], [(2, "COPY needs a source and a destination")]),
    (["FROM a", 'COPY ["c"]'], [(2, "COPY needs a source and a destination")]),
    (["FROM a", 'COPY "c d" e'], [(2, "double quote")]),
    (["FROM a", "ENV A"], [(2, "ENV A has no value")]),
    (["FROM a", "ENV A=1 B"], [(2, "ENV B is no name=value")]),
    (["FROM a", "ENV =1"], [(2, "ENV =1 is no name=value")]),
    (["FROM a", 'ENV A="1'], [(2, "double quote")]),
    (["FROM a", "ARG =1"], [(2, "ARG =1 has no plain name")]),
    (["FROM a", "ARG $A=1"], [(2, "ARG $A=1 has no plain name")]),
    (["FROM a", "USER a b"], [(2, "USER takes one name")]),
    (["FROM a", "WORKDIR ${X^y}"], [(2, "not supported")]),
    (["# escape=x", "FROM a"], [(1, "a backslash or a backtick")]),
    (["# syntax=a", "# syntax=b", "FROM a"], [(2, "given twice")]),
    # nothing is said of what is in a heredoc
    (["FROM a", "RUN <<-'EOF' sh", "NO x y", "\tEOF", "NO"], [(5, "NO is no instruction")]),
    (["FROM a", "RUN cat <<EOF > /x", "never ended"], [(2, "the heredoc <<EOF is never closed")]),
    (["FROM a", "COPY <<a/b /x", "a/b"], [(2, "take the slash out")]),
    (["FROM a", "COPY <<a /x", "${b:-c", "a"], [(2, "never closed")]),
    (["FROM a", "ONBUILD RUN <<a", "b", "a"], [(2, "ONBUILD with a heredoc")]),
    # a FROM that is itself refused is not missed as well
    (["FROM --what=x a", "RUN b"], [(1, "--what")]),
]


@pytest.mark.parametrize(("lines", "expected"), PROBLEMS)
def test_what_is_wrong_is_refused_with_its_line(lines: list[str], expected: list[tuple[int, str]]) -> None:
    found = problems(*lines)
    assert len(found) == len(expected), found
    for problem, (number, text) in zip(found, expected, strict=True):
        assert problem.startswith(f"Dockerfile:{number}: "), problem
        assert text in problem


def test_all_problems_of_a_file_come_at_once_in_order() -> None:
    found = problems("# escape=q", "ARG", "FROM a", "ADD b", "RUN --mount=x d", "FROM e f", "ENV f", "RUN fine")
    assert [int(problem.split(":")[1]) for problem in found] == [1, 2, 4, 5, 6, 7]


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(ConfigError, match="Dockerfile:2: this is not UTF-8"):
        parse_dockerfile(b"FROM a\nRUN \xff\n", "Dockerfile")
    with pytest.raises(ConfigError, match="Dockerfile:3: a NUL"):
        parse_dockerfile(b"FROM a\n\nRUN \0\n", "Dockerfile")


def test_control_characters_do_not_reach_the_terminal() -> None:
    (problem,) = problems("FROM a", "\x1b[31mBAD x")
    assert "\x1b" not in problem


def test_a_missing_dockerfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere/Dockerfile: .*No such file"):
        read_dockerfile(tmp_path / "nowhere/Dockerfile")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_dockerfile(tmp_path)


WORDS = [
    "SHELL ",
    "HEALTHCHECK CMD ",
    "ONBUILD ",
    "VOLUME ",
    "EXPOSE ",
    "FROM ",
    "RUN ",
    "COPY ",
    "ENV ",
    "ARG ",
    "USER ",
    "WORKDIR ",
    "CMD ",
    "ADD ",
    "LABEL ",
    "#",
    "escape=`",
    "syntax=",
]
MARKS = [
    "\n",
    "\\\n",
    "\\",
    "`",
    " ",
    "\t",
    "=",
    "$",
    "{",
    "}",
    ":-",
    "--",
    "from",
    "chown=",
    "mount=type=cache,target=/a",
    "<<EOF",
    "\nEOF\n",
    "[",
    "]",
    '"',
    "'",
    ",",
    "<<",
    "-",
]
PLAIN = ["a", "EOF", "é", "\x00", "\x85", "\u2028", "\ufeff", "\r", "\udcff"]


@given(st.lists(st.sampled_from(WORDS + MARKS + PLAIN), max_size=60))
def test_pieces_of_dockerfiles_raise_nothing_but_config_errors(pieces: list[str]) -> None:
    read_or_refused("".join(pieces).encode("utf-8", "surrogateescape"))


@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing_but_config_errors(data: bytes) -> None:
    read_or_refused(data)
    read_or_refused(b"FROM a\n" + data)


def read_or_refused(data: bytes) -> None:
    try:
        found = parse_dockerfile(data, "Dockerfile")
    except ConfigError as error:
        assert error.problems
        assert all(problem.startswith("Dockerfile:") for problem in error.problems)
    else:
        assert all(step.line >= 1 and step.text for stage in found.stages for step in stage.steps)
