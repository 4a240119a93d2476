from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.image.problem import Problem
from forkyard.image.words import parse_word, split_words

VALUES = {
    "PATHS": "a/b/c",
    "STAR": "*b",
    "X": "one",
    "EMPTY": "",
    "foo_1": "two",
    "1": "never set by a Dockerfile, but a name",
}

# word, what it expands to
EXPANSIONS = [
    ("plain", "plain"),
    ("", ""),
    ("$X", "one"),
    ("${X}", "one"),
    ("a${X}b", "aoneb"),
    ("$X$X", "oneone"),
    ("$X-$foo_1", "one-two"),
    ("$Xy", ""),
    ("${X}y", "oney"),
    ("$UNSET", ""),
    ("${UNSET}", ""),
    ("$", "$"),
    ("a$", "a$"),
    ("$ X", "$ X"),
    ("$/X", "$/X"),
    ("$$", ""),
    ("$10", ""),
    # defaults and alternatives, with and without the colon
    ("${X:-d}", "one"),
    ("${EMPTY:-d}", "d"),
    ("${EMPTY-d}", ""),
    ("${UNSET:-d}", "d"),
    ("${UNSET-d}", "d"),
    ("${UNSET:-}", ""),
    ("${UNSET:-a b}", "a b"),
    ("${UNSET:-$X}", "one"),
    ("${UNSET:-${EMPTY:-${X}}}", "one"),
    ('${UNSET:-"}"}', "}"),
    ("${UNSET:-'$X'}", "$X"),
    (r"${UNSET:-\}}", "}"),
    ("${X:+a}", "a"),
    ("${X+a}", "a"),
    ("${EMPTY:+a}", ""),
    ("${EMPTY+a}", "a"),
    ("${UNSET:+a}", ""),
    ("${UNSET+a}", ""),
    ("${X:+$foo_1}", "two"),
    ("${X:?must be set}", "one"),
    ("${EMPTY?must be set}", ""),
    ("${X#o}", "ne"),
    ("${X#z}", "one"),
    ("${X%e}", "on"),
    ("${PATHS#*/}", "b/c"),
    ("${PATHS##*/}", "c"),
    ("${PATHS%/*}", "a/b"),
    ("${PATHS%%/*}", "a"),
    ("${PATHS/b/x}", "a/x/c"),
    (r"${PATHS/\//-}", "a-b/c"),
    (r"${PATHS//\//-}", "a-b-c"),
    ("${PATHS//?/-}", "-----"),
    (r"${STAR#\*}", "b"),
    ("${X/n/$foo_1}", "otwoe"),
    ("${UNSET#a}", ""),
    # escapes
    (r"\$X", "$X"),
    (r"\${X}", "${X}"),
    (r"\\$X", "\\one"),
    (r"a\ b", "a b"),
    (r"a\b", "ab"),
    ("a\\", "a"),
    # quotes
    ("'$X'", "$X"),
    ('"$X"', "one"),
    ('"a $X b"', "a one b"),
    (r'"\$X"', "$X"),
    (r'"\"$X\""', '"one"'),
    (r'"a\\b"', "a\\b"),
    (r'"a\nb"', r"a\nb"),
    (r"'a\'", "a\\"),
    ('"it\'s"', "it's"),
    ("a'b'\"c\"d", "abcd"),
    ("''", ""),
    ('""', ""),
    ("é$X", "éone"),
]


@pytest.mark.parametrize(("text", "expanded"), EXPANSIONS)
def test_a_word_expands(text: str, expanded: str) -> None:
    assert parse_word(text).expand(VALUES) == expanded


@pytest.mark.parametrize(
    ("text", "expanded"), [("`$X", "$X"), ("C:\\dir\\$X", "C:\\dir\\one"), ('"`$X`""', '$X"'), ("a`", "a")]
)
def test_the_escape_can_be_a_backtick(text: str, expanded: str) -> None:
    assert parse_word(text, "`").expand(VALUES) == expanded


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("${X", "never closed"),
        ("${", "never closed"),
        ("${X:-", "never closed"),
        ("${X:-a", "never closed"),
        ("${}", "no variable name"),
        ("${:-a}", "no variable name"),
        ("${/a}", "no variable name"),
        ("${X/a}", "never closed"),
        ("${X^a}", "not supported"),
        ("${X:#a}", "not supported"),
        ("${X:a}", "not supported"),
        ("${X:", "not supported"),
        ("'a", "single quote"),
        ('"a', "double quote"),
        ('"${X', "never closed"),
        ("${X:-'a}", "single quote"),
        ("${a:-" * 30, "nested"),
    ],
)
def test_a_word_that_cannot_be_read_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(Problem, match=complaint):
        parse_word(text)


@pytest.mark.parametrize(
    ("text", "complaint"), [("${U:?say why}", "say why"), ("${EMPTY:?}", "required"), ("${U?}", "U")]
)
def test_a_required_variable_without_a_value_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(Problem, match=complaint):
        parse_word(text).expand(VALUES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  a  b ", ["a", "b"]),
        ('A="x y" B=z', ['A="x y"', "B=z"]),
        (r"A=x\ y B='\' C", [r"A=x\ y", r"B='\'", "C"]),
        ("A='x\"y' B", ["A='x\"y'", "B"]),
        (r'A="x\" y" B', [r'A="x\" y"', "B"]),
        ('A="never closed', ['A="never closed']),
        ("A= B=", ["A=", "B="]),
        ("a\\", ["a"]),
    ],
)
def test_words_are_split_outside_quotes(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@given(st.text(st.sampled_from("aX_1${}:-+?'\"\\ `"), max_size=40), st.sampled_from("\\`"))
def test_reading_a_word_raises_nothing_but_its_own_error(text: str, escape: str) -> None:
    split_words(text, escape)
    with suppress(Problem):
        parse_word(text, escape).expand({"X": "1"})


@pytest.mark.parametrize(
    "pattern", ["%%*a*a*a*a*a*a*a*b", "##*a*a*a*a*a*b", "%?*?*?*?*?*b", "//*a*a*a*a*a*b/x", "/a*a*a*b/x"]
)
def test_no_pattern_makes_a_long_value_slow(pattern: str) -> None:
    value = "a" * 100_000
    assert parse_word(f"${{v{pattern}}}").expand({"v": value}) == value


@pytest.mark.parametrize("text", ["$v$v", "${v//a/$v}", "${x:-$v$v}"])
def test_a_word_that_doubles_without_end_is_refused(text: str) -> None:
    value = "a"
    with pytest.raises(Problem, match="more than"):
        for _ in range(40):
            value = parse_word(text).expand({"v": value * 2})


def test_a_pattern_of_any_length_is_not_tried() -> None:
    with pytest.raises(Problem, match="256 characters"):
        parse_word("${v#" + "?" * 300 + "}").expand({"v": "a"})
