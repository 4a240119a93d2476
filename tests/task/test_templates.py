import pytest

from forkyard.task.directory.templates import MissingVariable, resolve, variable_of

HOST = {"FOO": "value", "EMPTY": "", "A": "a", "B": "b"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${FOO}", "value"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", ""),
        ("${FOO:-d}", "value"),
        ("${MISSING:-d}", "d"),
        ("${MISSING:-}", ""),
        ("${MISSING:-a:b}", "a:b"),
        ("x${FOO}", "x${FOO}"),
        ("${A}${B}", "${A}${B}"),
        ("$FOO", "$FOO"),
        (" ${FOO}", " ${FOO}"),
        ("$${FOO}", "$${FOO}"),
        ("${}", "${}"),
        ("${FOO:?e}", "${FOO:?e}"),
        ("${FOO}\n", "${FOO}\n"),
        ("", ""),
    ],
    ids=lambda value: f"E1-E12: {value}",
)
def test_e1_to_e12_only_a_whole_value_is_a_template(value: str, expected: str) -> None:
    assert resolve(value, HOST) == expected


@pytest.mark.parametrize(("value", "name"), [("${MISSING}", "MISSING"), ("${FOO-x}", "FOO-x")])
def test_a_missing_variable_without_default_is_named(value: str, name: str) -> None:
    with pytest.raises(MissingVariable) as caught:
        resolve(value, HOST)
    assert caught.value.name == name


def test_the_variable_of_a_template_is_known() -> None:
    assert variable_of("${FOO:-d}") == "FOO"
    assert variable_of("plain") is None
