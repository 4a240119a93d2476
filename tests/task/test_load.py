import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox import NO_NETWORK, PUBLIC, Feature, Network
from forkyard.task import Artifact, TaskTimeout, load_task, load_taskset
from forkyard.task.directory.unsupported import KEYS

MakeTask = Callable[..., Path]

TABLE = json.loads((Path(__file__).parents[1] / "cases/tables/task_files.json").read_text())
HEAD = '[task]\nname = "cases/x"\n'


def refused(root: Path, host: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_task(root, host or {})
    return caught.value.problems


@pytest.mark.parametrize("row", TABLE, ids=[row["name"] for row in TABLE])
def test_task_files_of_the_case_table(row: dict[str, Any], make_task: MakeTask) -> None:
    expect = row["expect"]
    told = refused(make_task(row["files"]))
    assert len(told) == 1
    for name in expect.get("refused_naming", []) + expect.get("warned_or_refused_naming", []):
        assert name in told[0]


def test_a_plain_task_has_the_data_it_says(make_task: MakeTask) -> None:
    text = """
        artifacts = ["/app/out", {source = "log", destination = "l", exclude = ["*.o"]}]
        [task]
        name = "cases/Mixed.Case"
        description = "A case."
        [agent]
        timeout_sec = 60
        user = 1000
        [verifier]
        timeout_sec = 30
        [environment]
        cpus = 2
        memory_mb = 512
        storage_mb = 10240
        workdir = "/srv/my work"
        network_mode = "no-network"
    """
    task = load_task(make_task({"task.toml": text, "solution/solve.sh": "x"}), {})
    data = task.data
    assert (task.name, data.id, data.description) == ("cases/Mixed.Case", "mytask", "A case.")
    assert data.prompt == "Write done to /app/answer.txt.\n"
    assert (data.image, data.workdir, data.agent_user, data.verifier) == (None, "/srv/my work", "1000", "shared")
    assert data.timeout == TaskTimeout(agent=60, scoring=30)
    assert (data.resources.cpu, data.resources.memory, data.resources.disk) == (2, 0.5, 10)
    assert data.artifacts == (
        Artifact(source="/app/out", required=False),
        Artifact(source="log", destination="l", exclude=("*.o",), required=False),
    )
    assert task.network == NO_NETWORK
    assert task.needs == {Feature.ISOLATED, Feature.IMAGES, Feature.NO_NETWORK, Feature.USERS}
    assert task.origin.build == task.files.root / "environment"
    assert task.solution == task.files.root / "solution"
    assert task.key == task.digest == task.files.digest
    assert task.notes == ()


def test_what_a_task_does_not_say_has_the_formats_defaults(make_task: MakeTask) -> None:
    task = load_task(make_task({"task.toml": ""}), {})
    assert task.name == "mytask"
    assert task.data.timeout == TaskTimeout(agent=3600, scoring=600)
    assert (task.network, task.solution, task.notes) == (None, None, ())
    assert task.needs == {Feature.ISOLATED, Feature.IMAGES}
    assert task.runtime_env() == task.solution_env() == {}


def test_a_public_network_is_needed_only_when_it_is_asked_for(make_task: MakeTask) -> None:
    task = load_task(make_task({"task.toml": '[environment]\nnetwork_mode = "public"'}), {})
    assert task.network == PUBLIC
    assert Feature.PUBLIC_NETWORK in task.needs
    old = load_task(make_task({"task.toml": "[environment]\nallow_internet = false"}, name="old"), {})
    assert old.network == NO_NETWORK
    assert old.notes == ("environment.allow_internet is an older spelling; write environment.network_mode",)


def test_a_named_image_is_used_instead_of_building(make_task: MakeTask) -> None:
    root = make_task({"task.toml": '[environment]\ndocker_image = "debian:12"'})
    task = load_task(root, {})
    assert (task.data.image, task.origin.build) == ("debian:12", None)
    assert task.with_data(image=None).origin.build == root / "environment"


def test_a_task_without_an_image_is_refused(make_task: MakeTask) -> None:
    (told,) = refused(make_task({"environment/Dockerfile": None}))
    assert "environment/Dockerfile" in told and "environment.docker_image" in told


def test_the_instruction_loses_byte_order_mark_windows_line_ends_and_canary(make_task: MakeTask) -> None:
    root = make_task({"instruction.md": b"\xef\xbb\xbf<!-- Canary 1f -->\r\n\r\nDo it.\r\n"})
    assert load_task(root, {}).data.prompt == "Do it.\n"


def test_every_mistake_of_a_task_is_told_at_once(make_task: MakeTask) -> None:
    text = "[agent]\ntimeout_sec = -1\ntimout_sec = 1\n[verifier.env]\nK = 3\n"
    told = refused(make_task({"task.toml": text, "instruction.md": None, "tests/test.sh": " \n"}))
    for part in ("agent.timeout_sec = -1", "did you mean timeout_sec", "verifier.env.K", "instruction.md is missing"):
        assert any(part in sentence for sentence in told)
    assert any("tests/test.sh is empty" in sentence for sentence in told)
    assert len(told) == 5


@pytest.mark.parametrize("content", [b"", b"  \n", b"\xff\xfe", b"# canary\n"])
def test_an_instruction_without_readable_text_is_refused(content: bytes, make_task: MakeTask) -> None:
    (told,) = refused(make_task({"instruction.md": content}))
    assert "instruction.md" in told


def test_a_folder_called_test_sh_is_no_script(make_task: MakeTask) -> None:
    (told,) = refused(make_task({"tests/test.sh": None, "tests/test.sh/x": "1"}))
    assert "tests/test.sh is missing" in told


def test_templates_are_filled_in_from_the_host_for_each_phase(make_task: MakeTask) -> None:
    text = """
        [environment.env]
        E = "${E_HOST:-default}"
        [verifier.env]
        V = "${V_HOST}"
        [solution.env]
        S = "x${V_HOST}"
    """
    task = load_task(make_task({"task.toml": text}), {"V_HOST": "very secret"})
    assert dict(task.runtime_env()) == {"E": "default"}
    assert dict(task.solution_env()) == {"S": "x${V_HOST}"}
    assert task.secrets.hide("it is very secret") == "it is [redacted]"
    assert "very secret" not in task.data.model_dump_json() + repr(task)


def test_every_missing_variable_is_named_with_its_line(make_task: MakeTask) -> None:
    text = '[environment.env]\nA = "${NOT_A}"\n[verifier.env]\nB = "${NOT_B}"\n[solution.env]\nC = "${NOT_C}"\n'
    told = refused(make_task({"task.toml": text}))
    for sentence, name, line in zip(told, ("NOT_A", "NOT_B", "NOT_C"), (2, 4, 6), strict=True):
        assert f"the host's variable {name}, which is not set" in sentence and f"line {line}" in sentence


def test_a_variable_longer_than_linux_takes_is_refused_with_the_limit(make_task: MakeTask) -> None:
    (told,) = refused(make_task({"task.toml": f'[environment.env]\nBIG = "{"x" * 150_000}"'}))
    assert "environment.env.BIG is longer than the 131072 bytes" in told


@pytest.mark.parametrize("item", KEYS, ids=lambda item: item.key)
def test_what_this_version_cannot_run_is_read_and_told_by_name(item: Any, make_task: MakeTask) -> None:
    asking = {
        "environment.mcp_servers": '[[environment.mcp_servers]]\nname = "s"\nurl = "http://a"\nheaders = {A = "${B}"}',
    }
    task = load_task(make_task({"task.toml": asking[item.key]}), {"B": "c"})
    (told,) = task.unplayable
    assert f"task.toml, line 1: {item.key} asks for {item.feature}, which this version cannot run yet" in told


@pytest.mark.parametrize(
    ("text", "feature", "field"),
    [
        ("[environment]\ngpus = 1\ngpu_types = ['A100']", Feature.GPUS, "resources.gpu"),
        ('[environment]\ntpu = {type = "v4", topology = "2x2"}', Feature.TPU, "tpu"),
        ('[environment]\nos = "windows"', Feature.WINDOWS, "os"),
    ],
)
def test_what_only_some_machines_are_is_a_need(text: str, feature: Feature, field: str, make_task: MakeTask) -> None:
    task = load_task(make_task({"task.toml": text, "tests/test.bat": "echo 1"}), {})
    assert feature in task.needs and task.unplayable == ()
    assert "task.toml, line 2: environment." in task.where(field)


def test_several_containers_are_a_need_of_the_file_that_says_them(make_task: MakeTask) -> None:
    compose = "services: {main: {image: x}}"
    root = make_task({"environment/docker-compose.yaml": compose, "environment/Dockerfile": None})
    task = load_task(root, {})
    assert Feature.COMPOSE in task.needs
    assert task.where("compose") == str(root / "environment/docker-compose.yaml")


def test_what_asks_for_nothing_is_not_refused(make_task: MakeTask) -> None:
    text = "steps = []\n[environment]\ngpus = 0\nmcp_servers = []"
    assert load_task(make_task({"task.toml": text}), {}).network is None


def test_one_network_that_both_phases_ask_for_is_the_sandboxs(make_task: MakeTask) -> None:
    text = "[agent]\nnetwork_mode = 'no-network'\n[verifier]\nnetwork_mode = 'no-network'"
    assert load_task(make_task({"task.toml": text}), {}).network == NO_NETWORK


def test_each_phase_has_the_network_it_asks_for(make_task: MakeTask) -> None:
    text = """
        [environment]
        network_mode = "public"
        [agent]
        network_mode = "allowlist"
        allowed_hosts = ["pypi.org", "*.example.org"]
        [verifier]
        network_mode = "no-network"
    """
    task = load_task(make_task({"task.toml": text}), {})
    assert task.network == Network("allowlist", ("pypi.org", "*.example.org"))
    assert (task.networks.setup, task.networks.verifier) == (PUBLIC, NO_NETWORK)
    assert {Feature.ALLOWLIST, Feature.PUBLIC_NETWORK, Feature.NO_NETWORK, Feature.LIVE_NETWORK} <= task.needs


def test_phases_that_ask_for_the_same_hosts_need_no_change_of_network(make_task: MakeTask) -> None:
    text = """
        [environment]
        network_mode = "allowlist"
        allowed_hosts = ["a.test"]
        [verifier]
        network_mode = "allowlist"
        allowed_hosts = ["a.test"]
    """
    task = load_task(make_task({"task.toml": text}), {})
    assert task.network == Network("allowlist", ("a.test",))
    assert (task.networks.setup, task.networks.verifier) == (None, None)
    assert Feature.LIVE_NETWORK not in task.needs


def test_a_list_without_hosts_reaches_nothing(make_task: MakeTask) -> None:
    text = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = []'
    assert load_task(make_task({"task.toml": text}), {}).network == NO_NETWORK


def test_an_explicitly_shared_verifier_stays_shared_and_its_unused_parts_are_noted(make_task: MakeTask) -> None:
    text = '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1'
    task = load_task(make_task({"task.toml": text, "tests/Dockerfile": "FROM a"}), {})
    assert task.data.verifier == "shared"
    assert [note.split()[0] for note in task.notes] == ["tests_dockerfile_not_built:", "verifier.environment"]


def test_a_sidecars_artifact_needs_a_sidecar(make_task: MakeTask) -> None:
    (told,) = refused(make_task({"task.toml": 'artifacts = [{source = "/x", service = "api"}]'}))
    assert "artifacts[0]" in told and "'api'" in told


def test_a_script_that_nothing_could_run_is_noted(make_task: MakeTask) -> None:
    no_shebang = load_task(make_task({"tests/test.sh": "echo 1\n"}), {})
    windows = load_task(make_task({"tests/test.sh": "#!/bin/bash\r\necho 1\r\n"}, name="crlf"), {})
    assert no_shebang.notes == (
        "tests/test.sh: it has no #! line, so nothing says which interpreter runs it: begin it with #!/bin/bash",
    )
    assert windows.notes == (
        "tests/test.sh: its first line ends in CR LF, so the interpreter is not found: save it with LF",
    )


def test_two_artifacts_that_go_to_one_place_are_noted(make_task: MakeTask) -> None:
    task = load_task(make_task({"task.toml": 'artifacts = ["/a", {source = "/b", destination = "a"}]'}), {})
    assert "'a'" in task.notes[-1]


@pytest.mark.parametrize("place", ["tests/link", "environment/link", "solution/link", "link"])
def test_a_link_that_leaves_the_task_is_refused(place: str, make_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    root = make_task({"solution/solve.sh": "x"})
    (root / place).symlink_to(tmp_path / "outside")
    (told,) = refused(root)
    assert place in told and "outside the task" in told


@pytest.mark.parametrize("needed", ["task.toml", "instruction.md", "tests/test.sh", "tests"])
def test_a_needed_file_that_is_a_link_to_elsewhere_is_refused(needed: str, make_task: MakeTask, tmp_path: Path) -> None:
    root = make_task()
    (root / needed).rename(tmp_path / "moved")
    (root / needed).symlink_to(tmp_path / "moved")
    assert any(f"{root / needed} links to" in sentence for sentence in refused(root))


def test_links_within_the_task_are_fine_when_a_sandbox_can_have_what_they_mean(make_task: MakeTask) -> None:
    root = make_task({"tests/data/a": "1", "environment/b": "2"})
    (root / "tests/folder").symlink_to("data")
    (root / "tests/dangling").symlink_to("nothing")
    (root / "tests/shared").symlink_to("../environment/b")
    load_task(root, {})
    (root / "tests/elsewhere").symlink_to("../environment")
    (root / "tests/self").symlink_to("self")
    told = refused(root)
    assert len(told) == 2
    assert "tests/elsewhere links to environment" in told[0]
    assert "tests/self" in told[1]


def test_a_pipe_in_a_task_is_refused_and_not_waited_for(make_task: MakeTask) -> None:
    root = make_task()
    os.mkfifo(root / "tests/pipe")
    (told,) = refused(root)
    assert "tests/pipe" in told


def test_harborignore_must_leave_the_scripts(make_task: MakeTask) -> None:
    told = refused(make_task({".harborignore": "*.sh\n", "solution/solve.sh": "x"}))
    assert [".harborignore excludes tests/test.sh" in told[0], "solution/solve.sh" in told[1]] == [True, True]


def test_no_directory_is_no_task(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "nowhere")[0]
    assert any("task.toml cannot be read" in sentence for sentence in refused(tmp_path))


def test_a_taskset_is_a_task_or_a_directory_of_tasks(make_task: MakeTask, tmp_path: Path) -> None:
    one = make_task({"task.toml": ""}, name="set/b")
    make_task({"task.toml": ""}, name="set/a")
    (tmp_path / "set/docs").mkdir()
    (tmp_path / "set/.git").mkdir()
    (tmp_path / "set/README.md").write_text("about")
    tasks = load_taskset(tmp_path / "set", {})
    assert tasks.name == "set"
    assert [(task.data.idx, task.name) for task in tasks] == [(0, "a"), (1, "b")]
    assert [task.name for task in load_taskset(one, {})] == ["b"]
    assert next(iter(tasks)).key == load_task(tmp_path / "set/a", {}).digest


def test_t24_a_broken_task_never_makes_a_set_smaller(make_task: MakeTask, tmp_path: Path) -> None:
    make_task(name="set/good")
    make_task({"task.toml": "[agent\n"}, name="set/toml")
    make_task({"task.toml": None}, name="set/without")
    make_task({"tests/test.sh": ""}, name="set/empty")
    with pytest.raises(ConfigError) as caught:
        load_taskset(tmp_path / "set", {})
    told = caught.value.problems
    assert len(told) == 3
    for name, sentence in zip(
        ("set/empty/tests/test.sh", "set/toml/task.toml", "set/without/task.toml"), told, strict=True
    ):
        assert name in sentence


def test_two_tasks_of_one_name_are_refused(make_task: MakeTask, tmp_path: Path) -> None:
    make_task(name="set/a")
    make_task(name="set/b")
    with pytest.raises(ConfigError, match="are both called cases/x"):
        load_taskset(tmp_path / "set", {})


def test_an_empty_set_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError):
            load_taskset(path, {})


def test_mistakes_of_the_file_and_of_the_directory_are_told_together(make_task: MakeTask) -> None:
    text = (
        '[agent]\ntimeout_sec = -1\ntimout_sec = 5\n[verifier.env]\nA = "${NOT_A}"\n'
        '[[verifier.collect]]\ncommand = "x"\nuser = "bob"\n'
    )
    told = refused(make_task({"task.toml": text, "environment/Dockerfile": None, "instruction.md": ""}))
    expected = [
        "line 2: agent.timeout_sec = -1 must be greater than 0",
        "line 3: agent.timout_sec is not a key of the task format; did you mean timeout_sec?",
        "instruction.md is empty",
        "has no image to start from",
        "line 8: verifier.collect[0].user = 'bob': collect_user_not_supported",
        "line 5: verifier.env.A needs the host's variable NOT_A",
    ]
    assert len(told) == len(expected)
    assert all(part in sentence for part, sentence in zip(expected, told, strict=True))


@pytest.mark.parametrize(
    "text", ["[environment]\ndocker_image = 3\n", "environment = 3\n", "[environment\n", "[environment]\ncpus = 0\n"]
)
def test_one_mistake_is_told_once(text: str, make_task: MakeTask) -> None:
    files = {"task.toml": text} if "cpus" in text else {"task.toml": text, "environment/Dockerfile": None}
    assert len(refused(make_task(files))) == 1


def test_nothing_of_a_file_outside_is_told(make_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "host.toml").write_text("secretword = 3\n")
    root = make_task({"task.toml": None})
    (root / "task.toml").symlink_to(tmp_path / "host.toml")
    (told,) = refused(root)
    assert "outside the task" in told and "secretword" not in told
