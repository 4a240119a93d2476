from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkyard.task.check.shell import Command
from forkyard.task.check.shell_reader import read_script


def words(command: Command) -> str:
    return " ".join(word.text for word in command.words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b; c\nd & e | f && g || h", ["a b", "c", "d", "e", "f", "g", "h"]),
        ("a # b\n#c\nd #", ["a", "d"]),
        ("a \\\n  b \\\n  c", ["a b c"]),
        ("a 'b  # c' \"d  $e\" f\\ g", ["a b  # c d  $e f g"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("while a; do b; done; until c; do d; done", ["a", "b", "c", "d"]),
        ("for x in 1 2; do a; done\nfor ((i=0; i<3; i++)); do b; done", ["a", "b"]),
        ("case $x in\n a|b) c ;;\n (d) e; f ;;\n *) g\nesac\nh", ["c", "e", "f", "g", "h"]),
        ("f() { a; }\nfunction g { b; }\nfunction h() { c; }\nd", ["a", "b", "c", "d"]),
        ("(a; b)\n{ c; }\n! d", ["a", "b", "c", "d"]),
        ("cat <<X\na\nX\nb <<-'Y'\n\tc\n\tY\nd", ["cat", "b", "d"]),
        ("[[ $a == b && -n $c ]] && d", ["[[ $a == b -n $c ]]", "d"]),
        ("x=1 y=$(a b) c; z=2", ["a b", "c", ""]),
        ("a $(b `c`)", ["c", "b `c`", "a $(b `c`)"]),
        ("a >b 2>&1 <c &>d", ["a"]),
        ("bash -c 'a; b'", ["bash -c a; b", "a", "b"]),
        ("a 'never closed", ["a never closed"]),
        ("if a; then b", ["a", "b"]),
        ("fi; done; esac; }; )", []),
    ],
)
def test_simple_commands_are_found_in_order(text: str, expected: list[str]) -> None:
    assert [words(command) for command in read_script(text).commands] == expected


@pytest.mark.parametrize(
    ("text", "conditional"),
    [
        ("a", ""),
        ("if x; then a; else b; fi; c", "ab"),
        ("x && a || b; c", "ab"),
        ("x && { a; b; }; c", "ab"),
        ("while x; do a; done; c", "a"),
        ("case x in x) a;; esac; c", "a"),
        ("(a; b); c", ""),
    ],
)
def test_what_may_be_left_out_is_told(text: str, conditional: str) -> None:
    found = {words(command) for command in read_script(text).commands if command.conditional}
    assert found == set(conditional)


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        ("a; b", ""),
        ("if a; then b; fi", "a"),
        ("if x && a; then b; fi", "ax"),
        ("a || b", "a"),
        ("a && b", "a"),
        ("! a", "a"),
        ("{ a; b; } || c", "ab"),
        ("while a; do b; done", "a"),
    ],
)
def test_what_set_e_does_not_act_on_is_told(text: str, guarded: str) -> None:
    found = {words(command) for command in read_script(text).commands if command.guarded}
    assert found == set(guarded)


def test_places_are_those_of_the_file() -> None:
    script = read_script("#!/bin/bash -e\n\n  a b\n  c \\\n    $(d)\n")
    assert script.interpreter == "/bin/bash -e"
    assert [(words(each).split()[0], each.line, each.column) for each in script.commands] == [
        ("a", 3, 3),
        ("d", 5, 7),
        ("c", 4, 3),
    ]


def test_redirects_of_compounds_are_those_of_their_commands() -> None:
    script = read_script("if a; then b; else c; fi > d 2> e\nf <<X > g\ntext\nX\n")
    a, b, c, f = script.commands
    for command in (a, b, c):
        assert [(r.operator, r.target.text) for r in command.redirects] == [(">", "d"), (">", "e")]
    assert f.heredoc == "text\n" and [r.target.text for r in f.redirects if r.writes] == ["g"]


def test_wrappers_and_functions_are_seen_through() -> None:
    script = read_script("sudo -u root env A=b timeout 5 pip install x\nf() { a; }\nf\necho $(date)\n")
    pip, a, f, date, echo = script.commands
    assert (pip.name, [word.text for word in pip.argv]) == ("pip", ["pip", "install", "x"])
    assert (a.function, f.function, date.within) == ("f", "", "echo")
    assert script.main == (pip, f, echo)


@given(st.text(st.sampled_from(list("ab \n;&|()<>{}[]$`'\"\\#=-!*ifdoneslhtcaw")), max_size=60))
@settings(max_examples=400, deadline=None)
def test_no_text_is_refused_and_reading_ends(text: str) -> None:
    script = read_script(text)
    assert all(command.line >= 1 and command.column >= 1 for command in script.commands)


@pytest.mark.parametrize("piece", ['"$(', "$(", "`", "((", "{ ", "if a; then ", "a() { ", "case x in x) ", "bash -c '"])
def test_what_is_nested_without_end_is_read_all_the_same(piece: str) -> None:
    assert read_script(piece * 3000).interpreter == ""
