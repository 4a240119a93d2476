"""The conformance rows T1 to T24 of task.toml: what is accepted, with which defaults, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.task.directory.notes import notes_of
from forkyard.task.directory.problems import read_as_far_as_possible
from forkyard.task.directory.schema import TaskToml

ROWS = {
    "multi_step": "T22",
    "steps": "T20",
    "artifacts": "T19",
    "mcp_servers": "T18",
    "healthcheck": "T17",
    "collect": "T16",
    "allow_internet": "T9",
    "allowed_hosts": "T12",
    "network_mode": "T10",
    "cpus = 1": "T14",
    "environment_mode": "T14",
    "user": "T15",
    "env]": "T23",
    "cpus": "T7",
    "memory": "T8",
    "storage": "T8",
    "os =": "T13",
    "version": "T6",
    "[task]\nname": "T5",
    "[task]": "T6",
}


def row_of(text: str) -> str:
    """The conformance row a text belongs to, and the text."""
    return f"{next((row for word, row in ROWS.items() if word in text), 'types')}: {text}"


def parse(text: str | bytes, tmp_path: Path) -> TaskToml:
    path = tmp_path / "task.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reading = read_as_far_as_possible(path)
    if reading.toml is None or reading.problems:
        raise ConfigError(*reading.problems)
    return reading.toml


def problems(text: str | bytes, tmp_path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, tmp_path)
    return list(caught.value.problems)


def test_t1_an_empty_file_has_the_formats_defaults(tmp_path: Path) -> None:
    toml = parse("", tmp_path)
    assert toml.schema_name == "1.4"
    assert (toml.verifier.timeout_sec, toml.agent.timeout_sec, toml.environment.build_timeout_sec) == (600, None, 600)
    assert (toml.network, toml.environment.cpus, toml.environment.megabytes_of_memory) == (None, None, None)
    assert (toml.steps, toml.artifacts, toml.verifier.mode) == ((), (), "shared")


def test_t2_t3_the_older_version_key_is_the_schema_unless_the_newer_is_there(tmp_path: Path) -> None:
    assert parse('version = "1.0"', tmp_path).schema_name == "1.0"
    assert parse('version = "1.0"\nschema_version = "1.3"', tmp_path).schema_name == "1.3"


@pytest.mark.parametrize("version", ["1", "1.0", "1.1", "1.4", "1.4.2"])
def test_versions_of_the_format_that_are_known(version: str, tmp_path: Path) -> None:
    toml = parse(f'schema_version = "{version}"', tmp_path)
    assert (toml.schema_name, toml.schema_is_known) == (version, True)
    assert parse('schema_version = "1.4"\nversion = "9.9"', tmp_path).schema_name == "1.4"


@pytest.mark.parametrize("version", ["9.9", "1.5", "1.10", "2", "2.0", "0.9", "v1.4", "1.4 ", "latest"])
@pytest.mark.parametrize("key", ["schema_version", "version"])
def test_any_other_version_is_read_as_well_and_told(key: str, version: str, tmp_path: Path) -> None:
    toml = parse(f'{key} = "{version}"', tmp_path)
    assert (toml.schema_name, toml.schema_is_known) == (version, False)
    assert notes_of(tmp_path, toml, {}) == (f"schema_version {version!r} is not known here: it is read as 1.4",)


@pytest.mark.parametrize("name", ["a/b", "A.b_c-1/D", "1/2"])
def test_t5_task_names_of_the_form_org_name(name: str, tmp_path: Path) -> None:
    toml = parse(f'[task]\nname = "{name}"', tmp_path)
    assert toml.task is not None and toml.task.name == name


ACCEPTED = [
    ("[environment]\ncpus = 2.0", "environment.cpus", 2),
    ("[environment]\ncpus = 0.5", "environment.cpus", 0.5),
    ('[environment]\ncpus = "2"', "environment.cpus", 2),
    ('[environment]\nmemory = "2G"', "environment.megabytes_of_memory", 2048),
    ('[environment]\nmemory = "512M"', "environment.megabytes_of_memory", 512),
    ('[environment]\nmemory = "1024K"', "environment.megabytes_of_memory", 1),
    ('[environment]\nmemory = "1.5G"', "environment.megabytes_of_memory", 1536),
    ('[environment]\nmemory = "2G"\nmemory_mb = 2048', "environment.megabytes_of_memory", 2048),
    ('[environment]\nstorage = "10G"', "environment.megabytes_of_storage", 10240),
    ("[environment]\nallow_internet = false", "network", "no-network"),
    ("[environment]\nallow_internet = true", "network", "public"),
    ('[environment]\nallow_internet = false\nnetwork_mode = "public"', "network", "public"),
    ('[environment]\nallow_internet = true\nnetwork_mode = "no-network"', "network", "no-network"),
    ('[environment]\nallow_internet = false\n[agent]\nnetwork_mode = "public"', "baseline", None),
    ('[agent]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "no-network"', "network", "no-network"),
    ('[environment]\nos = "LINUX"', "environment.os", "linux"),
    ('[environment]\nos = "Windows"', "environment.os", "windows"),
    ('[environment]\ndocker_image = "a:1"', "environment.docker_image", "a:1"),
    ('[environment]\nskills_dir = "/skills"', "environment.skills_dir", "/skills"),
    ("[agent]\nuser = 1000", "agent.user", "1000"),
    ('[agent]\nuser = "bob"', "agent.user", "bob"),
    ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1', "verifier.mode", "shared"),
    ("[verifier.environment]\ncpus = 1", "verifier.mode", "separate"),
    ('[verifier]\nenvironment_mode = "separate"', "verifier.mode", "separate"),
    ('multi_step_reward_mode = "max"', "multi_step_reward_strategy", None),
    ('multi_step_reward_strategy = "final"', "multi_step_reward_strategy", "final"),
    ("steps = []", "steps", ()),
    ('[metadata]\nanything = {goes = [1, "a"]}', "metadata", {"anything": {"goes": [1, "a"]}}),
    ('[task]\nname = "a/b"\nauthors = [{name = "A", email = "a@b"}, {name = "B"}]', "task.authors.1.email", None),
    ('artifacts = ["/app/x", {source = "y", destination = "", exclude = ["*.o"]}]', "artifacts.1.destination", None),
    ('artifacts = [{source = "x", destination = "manifest.json/x"}]', "artifacts.0.destination", "manifest.json/x"),
    ('artifacts = [{source = "x", service = "main"}]', "artifacts.0.source", "x"),
]


@pytest.mark.parametrize(("text", "key", "value"), ACCEPTED, ids=[row_of(text) for text, *_ in ACCEPTED])
def test_t7_to_t23_what_the_format_allows_is_read(text: str, key: str, value: Any, tmp_path: Path) -> None:
    found: Any = parse(text, tmp_path)
    for part in key.split("."):
        found = found[int(part)] if part.isdecimal() else getattr(found, part)
    assert found == value


def test_t16_t17_collect_hooks_and_healthchecks_have_their_defaults(tmp_path: Path) -> None:
    text = '[environment.healthcheck]\ncommand = "true"\n[[verifier.collect]]\ncommand = "x"'
    toml = parse(text, tmp_path)
    check, hook = toml.environment.healthcheck, toml.verifier.collect[0]
    assert (hook.service, hook.timeout_sec, hook.user) == ("main", 60, None)
    assert check is not None
    numbers = (check.interval_sec, check.timeout_sec, check.start_period_sec, check.start_interval_sec, check.retries)
    assert numbers == (5, 30, 0, 5, 3)


def test_t18_tool_servers_know_the_older_name_of_their_transport(tmp_path: Path) -> None:
    server = '[[environment.mcp_servers]]\nname = "s"\ntransport = "http"\nurl = "http://a"\n'
    toml = parse(server + 'headers = {Authorization = "Bearer ${T}"}', tmp_path)
    assert toml.environment.mcp_servers[0].transport == "streamable-http"


SERVER = '[[environment.mcp_servers]]\nname = "s"\n'
REFUSED = [
    ('[task]\nname = "a"', "task.name"),
    ('[task]\nname = "a/b/c"', "task.name"),
    ('[task]\nname = "-a/b"', "task.name"),
    ('[task]\nname = "a/..b"', "task.name"),
    ('[task]\nname = "a/b..c"', "task.name"),
    ('[task]\nname = "a/b c"', "task.name"),
    ("[task]", "task.name is missing"),
    ('[task]\nname = "a/b"\nversion = ""', "task.version"),
    ("schema_version = 1.4", "schema_version = 1.4 is not text"),
    ("[environment]\ncpus = nan", "environment.cpus = nan"),
    ('[environment]\ncpus = "nan"', "environment.cpus"),
    ('[environment]\ncpus = "two"', "environment.cpus"),
    ("[environment]\ncpus = 0", "environment.cpus = 0 must be greater than 0"),
    ("[environment]\ncpus = -1", "environment.cpus = -1"),
    ("[environment]\ncpus = true", "environment.cpus = true"),
    ("[environment]\nmemory_mb = 0", "environment.memory_mb"),
    ("[environment]\nmemory_mb = 1.5", "environment.memory_mb = 1.5 is not a whole number"),
    ("[environment]\nstorage_mb = -5", "environment.storage_mb"),
    ('[environment]\nmemory = "2T"', "environment.memory"),
    ('[environment]\nmemory = "2"', "environment.memory"),
    ('[environment]\nmemory = "1K"', "environment.memory"),
    ('[environment]\nmemory = "1G"\nmemory_mb = 2048', "contradicts memory_mb = 2048"),
    ('[environment]\nallow_internet = true\nallowed_hosts = ["a.test"]', "environment.allowed_hosts"),
    ('[environment]\nallow_internet = "no"', "environment.allow_internet"),
    ('[environment]\nnetwork_mode = "PUBLIC"', "'no-network', 'public' or 'allowlist'"),
    ('[environment]\nnetwork_mode = "none"', "environment.network_mode"),
    ('[environment]\nnetwork_mode = "no_network"', "environment.network_mode"),
    ('[environment]\nallowed_hosts = ["a.test"]', "environment.allowed_hosts"),
    ("[environment]\nallowed_hosts = []", "environment.allowed_hosts"),
    ('[environment]\nnetwork_mode = "no-network"\nallowed_hosts = []', "environment.allowed_hosts"),
    ('[agent]\nallowed_hosts = ["a.test"]', "agent.allowed_hosts"),
    ('[verifier]\nallowed_hosts = ["a.test"]', "verifier.allowed_hosts"),
    ('[environment]\nos = "mac"', "environment.os"),
    ('[environment]\nworkdir = "app"', "environment.workdir"),
    ("[environment.env]\nA = 3", "environment.env.A = 3 is not text"),
    ('[environment.env]\n"A=B" = "c"', "environment.env"),
    ('[environment.env]\nA = "x\\u0000y"', "environment.env"),
    ("[verifier.env]\nA = true", "verifier.env.A"),
    ("[solution.env]\nA = []", "solution.env.A"),
    ('[verifier]\nenvironment_mode = "both"', "verifier.environment_mode"),
    ("[agent]\nuser = -1", "agent.user"),
    ("[agent]\nuser = true", "agent.user"),
    ('[agent]\nuser = ""', "agent.user"),
    ("[agent]\ntimeout_sec = 0", "agent.timeout_sec"),
    ("[agent]\ntimeout_sec = inf", "agent.timeout_sec = inf is not a finite number"),
    ('[agent]\ntimeout_sec = "5"', "agent.timeout_sec"),
    ("[verifier]\ntimeout_sec = false", "verifier.timeout_sec"),
    ("[[verifier.collect]]", "verifier.collect[0].command is missing"),
    ('[[verifier.collect]]\ncommand = "x"\nservice = "-a"', "verifier.collect[0].service"),
    ('[[verifier.collect]]\ncommand = "x"\nservice = ""', "verifier.collect[0].service"),
    ("[environment.healthcheck]", "environment.healthcheck.command is missing"),
    ('[environment.healthcheck]\ncommand = "x"\nretries = 0', "environment.healthcheck.retries = 0 must be at least 1"),
    (SERVER, "environment.mcp_servers[0]"),
    (SERVER + 'transport = "stdio"', "environment.mcp_servers[0]"),
    (SERVER + 'transport = "stdio"\ncommand = "x"\nheaders = {A = "b"}', "environment.mcp_servers[0].headers"),
    (SERVER + 'url = "http://a"\nheaders = {Authorization = "Bearer abc"}', "environment.mcp_servers[0].headers"),
    (SERVER + 'url = "http://a"\nheaders = {X-Api-Key = "${K:-abc}"}', "environment.mcp_servers[0].headers"),
    ('artifacts = "x"', "artifacts"),
    ('artifacts = ["../x"]', "artifacts[0].source"),
    ('artifacts = [""]', "artifacts[0].source"),
    ("artifacts = [3]", "artifacts[0]"),
    ('artifacts = [{source = "x", service = "api"}]', "artifacts[0].source"),
    *(
        (f'artifacts = [{{source = "x", destination = {place}}}]', "artifacts[0].destination")
        for place in ('"/x"', '"../x"', '"manifest.json"', "'a\\b'", '"."')
    ),
    ('multi_step_reward_strategy = "max"', "multi_step_reward_strategy"),
    ("agent = 3", "agent = 3 is not a table"),
]


@pytest.mark.parametrize(("text", "named"), REFUSED, ids=[row_of(text) for text, _ in REFUSED])
def test_t5_to_t23_what_the_format_forbids_is_refused_by_key(text: str, named: str, tmp_path: Path) -> None:
    told = problems(text, tmp_path)
    assert len(told) == 1
    assert named in told[0]
    assert str(tmp_path / "task.toml") in told[0]


HOSTS = {
    "example.com": "example.com",
    "Example.COM.": "example.com",
    " a.test ": "a.test",
    "localhost": "localhost",
    "a-b.c1": "a-b.c1",
    "*.example.com": "*.example.com",
    "*.com": "*.com",
    "10.0.0.1": "10.0.0.1",
    "10.0.0.0/8": "10.0.0.0/8",
    "::1": "::1",
    "2001:db8::/32": "2001:db8::/32",
    "*": None,
    "*.*.com": None,
    "a.*.com": None,
    "10.0.0.1/8": None,
    "[::1]": None,
    "http://a.test": None,
    "a.test:443": None,
    "a.test/x": None,
    "a_b.test": None,
    "": None,
    "-a.test": None,
    "a..test": None,
    "é.test": None,
    "fe80::1%eth0": None,
}


@pytest.mark.parametrize(("host", "kept"), HOSTS.items())
def test_t11_allowed_hosts(host: str, kept: str | None, tmp_path: Path) -> None:
    text = f'[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["{host}", "{host}"]'
    if kept is None:
        assert "environment.allowed_hosts[0]" in problems(text, tmp_path)[0]
    else:
        assert parse(text, tmp_path).environment.allowed_hosts == (kept, kept)


def test_every_mistake_is_told_at_once_with_its_line_its_value_and_its_mend(tmp_path: Path) -> None:
    text = (
        'schema_version = "1.4"\n\n[agent]\ntimeout_sec = "five"\ntimout_sec = 5\n\n'
        "[verifer]\ntimeout_sec = 1\n\n[environment]\ncpus = -1\n"
    )
    path = tmp_path / "task.toml"
    assert problems(text, tmp_path) == [
        f'{path}, line 4: agent.timeout_sec = "five" is not a number; write it without quotes, for example 600.0',
        f"{path}, line 5: agent.timout_sec is not a key of the task format; did you mean timeout_sec?",
        f"{path}, line 11: environment.cpus = -1 must be greater than 0",
        f"{path}, line 7: verifer is not a key of the task format; did you mean verifier?",
    ]


def test_t4_a_key_like_no_other_is_refused_with_the_keys_there_are(tmp_path: Path) -> None:
    told = problems("[solution]\nqqq = 1", tmp_path)
    assert told == [
        f"{tmp_path / 'task.toml'}, line 2: solution.qqq is not a key of the task format; remove it, or use one of env"
    ]
    assert "command, interval_sec, " in problems('[environment.healthcheck]\ncommand = "x"\nzzzz = 1', tmp_path)[0]


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    toml = parse(b'\xef\xbb\xbf[agent]\r\ntimeout_sec = 5\r\n[environment.env]\r\nA = "b"\r\n', tmp_path)
    assert (toml.agent.timeout_sec, toml.environment.env) == (5, {"A": "b"})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b'a = 1\nb = "\\q"\n', "line 2"),
        (b"[agent\n", "line 1"),
        (b"x = [1,\n2", "line 2"),
        (b"\xff\xfea\x00", "UTF-8"),
        (b"a = " + b"[" * 5000, "nested"),
    ],
)
def test_t24_what_is_no_toml_is_named_with_file_and_place(text: bytes, named: str, tmp_path: Path) -> None:
    told = problems(text, tmp_path)
    assert len(told) == 1
    assert named in told[0] and str(tmp_path / "task.toml") in told[0]
