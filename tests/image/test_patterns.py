import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.errors import ConfigError
from forkyard.image.patterns import has_wildcard, parse_ignore, pattern_regex, unescaped
from forkyard.image.problem import Problem

# patterns of a .dockerignore, names left out, names kept
IGNORES = [
    ("", [], ["a", "a/b"]),
    ("# a comment\n\n  \n", [], ["# a comment", "a"]),
    ("a", ["a", "a/b", "a/b/c"], ["b", "b/a", "ab"]),
    ("/a", ["a", "a/b"], ["b/a"]),
    ("a/", ["a", "a/b"], ["b/a"]),
    ("./a/../b", ["b", "b/c"], ["a"]),
    ("  a  ", ["a"], []),
    ("a/b", ["a/b", "a/b/c"], ["a", "b", "a/c"]),
    ("*", ["a", ".hidden", "a/b"], []),
    (".", [], ["a", "a/b"]),
    ("*.md", ["a.md", ".md"], ["a/b.md", "a.mdx"]),
    ("*/*.md", ["a/b.md"], ["b.md", "a/b/c.md"]),
    ("*/*/temp*", ["a/b/temp", "a/b/temp1/c"], ["a/temp", "a/b/c/temp"]),
    ("temp?", ["tempa", "temp1/x"], ["temp", "tempab"]),
    ("**", ["a", "a/b", "a/b/c"], []),
    ("**/*.go", ["a.go", "a/b.go", "a/b/c.go"], ["a.goo"]),
    ("**/a", ["a", "b/a", "b/c/a", "b/a/c"], ["ba", "b/ca"]),
    ("a/**", ["a/b", "a/b/c"], ["a", "ba"]),
    ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a", "a/bz", "z"]),
    ("**/a/*.txt", ["a/b.txt", "x/a/b.txt"], ["a/b/c.txt"]),
    ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
    ("[^a-c]x", ["dx"], ["ax", "/x"]),
    (r"[\]a]x", ["]x", "ax"], ["bx"]),
    (r"\*", ["*"], ["a"]),
    (r"a\?b", ["a?b"], ["axb"]),
    ("a.b+c(d)|{e}$^", ["a.b+c(d)|{e}$^"], ["axb+c(d)|{e}$^"]),
    # the last pattern that matches decides
    ("*.md\n!README.md", ["a.md"], ["README.md"]),
    ("*.md\n!README*.md\nREADME-secret.md", ["a.md", "README-secret.md"], ["README.md", "README-1.md"]),
    ("*.md\nREADME-secret.md\n!README*.md", ["a.md"], ["README.md", "README-secret.md"]),
    ("a\n!a/b", ["a", "a/c"], ["a/b", "a/b/c"]),
    ("!a\na", ["a"], []),
    ("*\n!/src/\nsrc/gen", ["x", "src/gen", "src/gen/y"], ["src", "src/a/b"]),
    ("*\n! keep", ["x"], ["keep"]),
    ("\ufeffa\r\nb\r\n", ["a", "b"], ["c"]),
]


@pytest.mark.parametrize(("text", "excluded", "kept"), IGNORES)
def test_a_dockerignore_leaves_out_what_docker_does(text: str, excluded: list[str], kept: list[str]) -> None:
    ignore = parse_ignore(text.encode(), ".dockerignore")
    assert [name for name in excluded if not ignore.excludes(name)] == []
    assert [name for name in kept if ignore.excludes(name)] == []


def test_all_bad_patterns_are_refused_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ignore(b"ok\n[a\n!\n[]\n[z-a]\n[^]x\n[a-]x", "x/.dockerignore")
    assert [problem.split(" ")[0] for problem in caught.value.problems] == [
        f"x/.dockerignore:{line}:" for line in (2, 3, 4, 5, 6, 7)
    ]


def test_without_exceptions_an_excluded_directory_need_not_be_looked_into() -> None:
    assert parse_ignore(b"a\nb", "").prunes
    assert not parse_ignore(b"a\n!a/b", "").prunes


def test_names_that_are_not_text_can_be_matched() -> None:
    ignore = parse_ignore(b"*.\xff", ".dockerignore")
    assert ignore.excludes("a.\udcff")
    assert not ignore.excludes("a.\udcfe")


# in a COPY two stars mean what one means
@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "a", True),
        ("*", ".a", True),
        ("a*", "a/b", False),
        ("**", "a/b", False),
        ("**", "a", True),
        ("[!a]", "!", True),
    ],
)
def test_a_source_of_copy_is_matched_within_one_directory(pattern: str, name: str, matches: bool) -> None:
    assert (pattern_regex(pattern, deep=False).fullmatch(name) is not None) is matches


@pytest.mark.parametrize(
    ("pattern", "wild", "spelled"),
    [
        ("a", False, "a"),
        ("a*", True, "a*"),
        (r"a\*", False, "a*"),
        (r"a\\*", True, r"a\*"),
        ("[", True, "["),
        ("a?", True, "a?"),
    ],
)
def test_only_unescaped_signs_are_wildcards(pattern: str, wild: bool, spelled: str) -> None:
    assert has_wildcard(pattern) is wild
    assert unescaped(pattern) == spelled


@given(st.text(st.sampled_from("ab/*?[]^-\\.!"), max_size=12), st.text(st.sampled_from("ab/*["), max_size=6))
def test_any_pattern_compiles_or_is_refused(pattern: str, name: str) -> None:
    for deep in (False, True):
        try:
            pattern_regex(pattern, deep=deep).fullmatch(name)
        except Problem:
            assert "[" in pattern


@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*a*a*b", "**/a/**/a/**/a/**/a/**/b", "**/*a*a/**/*a*a/**/b", "a**a**b"])
def test_no_pattern_makes_a_long_name_slow(pattern: str) -> None:
    regex = pattern_regex(pattern, deep=True)
    for name in ("a" * 255, "a/" * 1000, "aaaaaaa/" * 250):
        assert not regex.fullmatch(name)


def test_too_many_double_stars_within_names_are_refused() -> None:
    with pytest.raises(Problem, match="begin within a name"):
        pattern_regex("a**a**a**b", deep=True)


@pytest.mark.parametrize("pattern", ["**", "a/**", "**/", "a**", "**/**", "x/**/a*b*c", "*b*/**/c"])
@pytest.mark.parametrize("name", ["a/b", "x/y/a-b-bc", "abb/x/c", "a", "x/abc", "bb/c"])
def test_a_pattern_matches_what_its_plain_reading_matches(pattern: str, name: str) -> None:
    plain = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    plain = ".*".join([plain.removesuffix("(?:.*/)?"), ""]) if pattern.endswith("**/") else plain
    assert bool(pattern_regex(pattern, deep=True).fullmatch(name)) == bool(re.fullmatch(plain, name))
