"""A task directory at work in a real sandbox: set up, staged, verified, and attacked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import Sandbox
from forkyard.task import DirectoryTask, invoke, load_task
from forkyard.task.directory.reward import SIZE_LIMIT
from forkyard.trace import Reward, Status, Trace

MakeTask = Callable[..., Path]

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = "[verifier]\ntimeout_sec = 60\n"
WRITES = "#!/bin/bash\n"


async def graded(task: DirectoryTask, sandbox: Sandbox, agent: str = ":") -> Trace:
    """The trace after setup, an agent that runs one shell command, staging and scoring."""
    trace = Trace()
    given = {"task": task.data, "trace": trace, "runtime": sandbox}
    await invoke(task.setup, **given)
    await sandbox.run(agent, cwd=task.data.workdir, timeout=20)
    await invoke(task.stage_verifier, **given)
    await task.score(trace, sandbox)
    return trace


def script(make_task: MakeTask, body: str, toml: str = LIMITS, host: dict[str, str] | None = None) -> DirectoryTask:
    return load_task(make_task({"task.toml": toml, "tests/test.sh": WRITES + body}), host or {})


async def test_the_reward_file_is_the_reward_and_the_facts_are_recorded(make_task: MakeTask, sandbox: Sandbox) -> None:
    body = 'echo out; echo err >&2; echo \'{"reward": 0.5, "tests_passed": 3}\' > /logs/verifier/reward.json; exit 3'
    trace = await graded(script(make_task, body), sandbox)
    assert (trace.status, trace.reason, trace.reward) == (Status.SCORED, None, 0.5)
    assert trace.rewards == {"reward": Reward(0.5)}
    assert trace.metrics == {"tests_passed": 3.0}
    assert trace.verifier == {
        "exit_code": 3,
        "timed_out": False,
        "ended_by": None,
        "code": "scored",
        "reason": None,
        "output_tail": "out\nerr\n",
    }


async def test_setup_makes_the_formats_directories_and_the_working_directory(
    make_task: MakeTask, sandbox: Sandbox
) -> None:
    task = load_task(make_task({"task.toml": '[environment]\nworkdir = "/srv/my work"\n'}), {})
    await invoke(task.setup, runtime=sandbox)
    told = await sandbox.run('stat -c "%a %n" /logs /logs/* "/srv/my work"', cwd="/")
    assert told.stdout.splitlines() == [
        "755 /logs", "777 /logs/agent", "777 /logs/artifacts", "777 /logs/verifier", "755 /srv/my work",
    ]  # fmt: skip


async def test_files_beside_a_named_image_go_to_the_working_directory(make_task: MakeTask, sandbox: Sandbox) -> None:
    files = {
        "task.toml": '[environment]\ndocker_image = "host"',
        "environment/Dockerfile": None,
        "environment/a/b": "1",
    }
    await invoke(load_task(make_task(files), {}).setup, runtime=sandbox)
    assert await sandbox.read("/app/a/b") == b"1"


async def test_the_script_runs_in_the_working_directory_with_the_tasks_environment(
    make_task: MakeTask, sandbox: Sandbox
) -> None:
    toml = (
        '[environment]\nworkdir = "/srv/my work"\n[environment.env]\nA = "  two  words  "\nB = "task"\n'
        '[verifier.env]\nB = "verifier"\nN = "line 1\\nline 2"\n'
    )
    body = 'pwd; echo "$A|$B|$N"; echo 1 > /logs/verifier/reward.txt'
    trace = await graded(script(make_task, body, toml), sandbox)
    assert trace.verifier["output_tail"] == "/srv/my work\n  two  words  |verifier|line 1\nline 2\n"


async def test_a_working_directory_that_the_agent_removed_does_not_save_it(
    make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, "echo 0 > /logs/verifier/reward.txt"), sandbox, "rm -rf /app")
    assert (trace.status, trace.reward) == (Status.SCORED, 0.0)


async def test_the_script_runs_as_the_verifiers_user(make_task: MakeTask, sandbox: Sandbox) -> None:
    toml = "[verifier]\nuser = 1234\n"
    trace = await graded(script(make_task, "id -u; echo 1 > /logs/verifier/reward.txt", toml), sandbox)
    assert (trace.reward, trace.verifier["output_tail"]) == (1.0, "1234\n")


async def test_an_unknown_verifier_user_leaves_the_reward_unknown_and_is_named(
    make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, ":", '[verifier]\nuser = "nobody-here"\n'), sandbox)
    assert (trace.status, trace.verifier["code"]) == (Status.INDETERMINATE, "verifier_not_run")
    assert trace.reason is not None and "nobody-here" in trace.reason


async def test_no_reward_file_is_indeterminate_and_tells_how_the_script_ended(
    make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, "echo trouble; exit 7"), sandbox)
    assert (trace.status, trace.reward) == (Status.INDETERMINATE, None)
    assert trace.rewards == {"reward": None}
    assert trace.reason is not None and "exit code 7" in trace.reason
    assert trace.verifier["output_tail"] == "trouble\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [("echo 1\n", "no #! line"), ("#!/bin/bash\r\necho 1\r\n", "CR LF"), ("#!/no/such\n", "could not be run")],
)
async def test_a_script_that_cannot_be_run_is_indeterminate_and_says_why(
    content: str, told: str, make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(load_task(make_task({"tests/test.sh": content}), {}), sandbox)
    assert (trace.status, trace.verifier["code"]) == (Status.INDETERMINATE, "verifier_not_run")
    assert trace.reason is not None and told in trace.reason and trace.verifier["exit_code"] in (126, 127)


async def test_what_is_written_before_a_timeout_is_not_read(make_task: MakeTask, sandbox: Sandbox) -> None:
    body = "echo 1 > /logs/verifier/reward.txt; trap '' TERM; echo early; while :; do sleep 1; done"
    trace = await graded(script(make_task, body, "[verifier]\ntimeout_sec = 0.5\n"), sandbox)
    assert (trace.status, trace.reward, trace.verifier["code"]) == (Status.INDETERMINATE, None, "verifier_timeout")
    assert trace.verifier["timed_out"] and trace.verifier["output_tail"] == "early\n"
    assert trace.reason is not None and "0.5 s" in trace.reason
    assert (trace.stop_condition, trace.is_timeout) == (None, False)


async def test_several_metrics_without_a_reward_are_scored_without_primary(
    make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, 'echo \'{"a": 1, "b": 7}\' > /logs/verifier/reward.json'), sandbox)
    assert (trace.status, trace.reward, trace.rewards, trace.metrics) == (Status.SCORED, None, {}, {"a": 1.0, "b": 7.0})


async def test_scripts_without_exec_bit_run_and_other_modes_are_kept(make_task: MakeTask, sandbox: Sandbox) -> None:
    root = make_task({"task.toml": LIMITS, "tests/test.sh": WRITES + "/tests/sub/more.sh", "tests/data": "x"})
    (root / "tests/sub").mkdir()
    (root / "tests/sub/more.sh").write_text(
        WRITES + "stat -c '%a %U %n' /tests/data; echo 1 > /logs/verifier/reward.txt"
    )
    for path, mode in (("tests/test.sh", 0o644), ("tests/sub/more.sh", 0o600), ("tests/data", 0o640)):
        (root / path).chmod(mode)
    trace = await graded(load_task(root, {}), sandbox)
    assert (trace.reward, trace.verifier["output_tail"]) == (1.0, "640 root /tests/data\n")


async def test_files_left_out_by_harborignore_do_not_enter_the_sandbox(make_task: MakeTask, sandbox: Sandbox) -> None:
    files = {".harborignore": "tests/notes*\n", "tests/notes.txt": "private", "tests/data": "x"}
    await invoke(load_task(make_task(files), {}).stage_verifier, trace=Trace(), runtime=sandbox)
    assert (await sandbox.run("ls", cwd="/tests")).stdout.split() == ["data", "test.sh"]


async def test_a_secret_of_the_host_shows_on_no_record(make_task: MakeTask, sandbox: Sandbox) -> None:
    toml = '[verifier.env]\nKEY = "${HOST_KEY}"\n'
    body = 'echo "key: $KEY"; echo "$KEY" > /logs/verifier/reward.txt'
    task = script(make_task, body, toml, {"HOST_KEY": "zq-9f3-value"})
    trace = await graded(task, sandbox)
    assert trace.status is Status.SCORING_ERROR
    assert trace.verifier["output_tail"] == "key: [redacted]\n"
    assert "zq-9f3" not in str(trace.to_record())


async def test_output_is_kept_at_its_end_and_made_printable(make_task: MakeTask, sandbox: Sandbox) -> None:
    body = "head -c 3000000 /dev/zero | tr '\\0' x; printf '\\033[2Jend\\xff\\n'; echo 1 > /logs/verifier/reward.txt"
    tail = (await graded(script(make_task, body), sandbox)).verifier["output_tail"]
    assert len(tail) == 4000
    assert tail.endswith("x\\x1b[2Jend\ufffd\n")


HONEST = "if grep -qx done /app/answer.txt 2>/dev/null; then r=1; else r=0; fi; echo $r > /logs/verifier/reward.txt"
ATTACKS = {
    "planted files": "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "read-only plants": "cd /logs/verifier; echo '{\"reward\": 1}' > reward.json; chmod 444 reward.json; chmod 555 .",
    "plants as directories": "mkdir -p /logs/verifier/reward.txt/x /logs/verifier/reward.json",
    "plants as links": "cd /logs/verifier; ln -s /app/one reward.txt; echo 1 > /app/one; ln -s /x reward.json",
    "plants as pipes": "mkfifo /logs/verifier/reward.txt /logs/verifier/reward.json",
    "a huge plant": "truncate -s 4T /logs/verifier/reward.json /tests",
    "logs replaced by a link": "mkdir verifier; echo 1 > verifier/reward.txt; rm -r /logs; ln -s /app /logs",
    "verifier logs replaced by a link": "rm -r /logs/verifier; mkdir /app/l; ln -s /app/l /logs/verifier",
    "verifier logs replaced by a file": "rm -r /logs/verifier; echo 1 > /logs/verifier",
    "logs without permissions": "chmod 000 /logs/verifier /logs",
    "tests as a link": "mkdir /app/t; ln -s /app/t /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /app/t/test.sh",
    "tests as a dangling link": "ln -s /nowhere/at/all /tests",
    "tests as a file": "echo x > /tests",
    "a folder called test.sh": "mkdir -p /tests/test.sh/x /tests/hooks; chmod 555 /tests /tests/test.sh",
    "commands shadowed": "for c in rm mkdir chmod sh grep; do printf '#!/bin/sh\\nexit 0' > /usr/local/bin/$c; "
    "chmod 755 /usr/local/bin/$c; done; hash -r; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_nothing_the_agent_leaves_behind_becomes_a_reward(
    attack: str, make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, HONEST.replace("grep", "/usr/bin/grep")), sandbox, attack)
    assert (trace.status, trace.reward, trace.metrics) == (Status.SCORED, 0.0, {}), trace.reason


@pytest.mark.parametrize("attack", list(ATTACKS.values())[6:13], ids=list(ATTACKS)[6:13])
async def test_an_honest_answer_is_scored_whatever_lies_in_the_way(
    attack: str, make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, HONEST), sandbox, f"echo done > answer.txt; {attack}")
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), trace.reason


async def test_the_verifier_sees_the_tasks_tests_and_nothing_else(make_task: MakeTask, sandbox: Sandbox) -> None:
    task = script(make_task, "cd /tests && find . | sort; ls -A /logs/verifier; echo 1 > /logs/verifier/reward.txt")
    agent = "mkdir -p /tests/hooks; touch /tests/hooks/early.sh /tests/.hidden /logs/verifier/ctrf.json"
    assert (await graded(task, sandbox, agent)).verifier["output_tail"] == ".\n./test.sh\n"


REPLACED = {
    "rm does nothing": "cp /bin/true /usr/bin/rm; mkdir /tests",
    "the planted reward cannot be removed": "echo 1 > /logs/verifier/reward.txt; cp /bin/true /usr/bin/rm",
    "no sh": "echo 1 > /logs/verifier/reward.txt; rm -f /bin/sh /bin/dash",
}


@pytest.mark.parametrize("attack", REPLACED.values(), ids=REPLACED.keys())
async def test_no_program_of_the_sandbox_is_needed_to_place_tests_and_remove_rewards(
    attack: str, make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, "echo 0 > /logs/verifier/reward.txt"), sandbox, attack)
    assert (trace.status, trace.reward) == (Status.SCORED, 0.0), trace.reason


SABOTAGE = {
    "rm -f /lib64/ld-linux-* /lib/*/ld-linux-* /usr/lib/*/ld-linux-* /usr/lib64/ld-linux-*": "verifier_not_run",
    "cd /; rm -rf /app; touch /app": "unusable_sandbox",
}


@pytest.mark.parametrize(("attack", "code"), SABOTAGE.items(), ids=["no loader", "the working directory is a file"])
async def test_sabotage_of_the_machine_is_never_a_reward_and_is_told_of_the_sandbox(
    attack: str, code: str, make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, "echo 1 > /logs/verifier/reward.txt"), sandbox, attack)
    assert (trace.status, trace.reward, trace.rewards) == (Status.INDETERMINATE, None, {"reward": None})
    assert trace.verifier["code"] == code
    assert trace.reason is not None and "sandbox" in trace.reason


LEFT = {
    "a link to a file of the sandbox": "echo 1 > /app/one; ln -s /app/one /logs/verifier/reward.txt",
    "a link to nowhere": "ln -s /nowhere /logs/verifier/reward.txt",
    "a directory": "mkdir /logs/verifier/reward.txt",
    "a directory with a file of its name": "cd /logs/verifier; mkdir reward.txt; echo 1 > reward.txt/reward.txt",
    "a pipe": "mkfifo /logs/verifier/reward.txt",
    "a huge file": "truncate -s 4T /logs/verifier/reward.txt",
    "a link to a window into a process": "ln -s /proc/self/environ /logs/verifier/reward.txt",
    "a link beside an empty json": "ln -s /etc/hostname /logs/verifier/reward.txt; : > /logs/verifier/reward.json",
    "a json link beside a good text": "echo 1 > /logs/verifier/reward.txt; ln -s reward.txt /logs/verifier/reward.json",
    "one byte too many": f"head -c {SIZE_LIMIT + 1} /dev/zero > /logs/verifier/reward.txt",
}


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT.keys())
async def test_a_reward_that_is_no_ordinary_file_is_a_scoring_error(
    body: str, make_task: MakeTask, sandbox: Sandbox
) -> None:
    trace = await graded(script(make_task, body), sandbox)
    assert (trace.status, trace.reward, trace.verifier["code"]) == (Status.SCORING_ERROR, None, "refused_file")


async def test_a_lost_sandbox_is_told_as_lost_and_left_to_the_caller(make_task: MakeTask, sandbox: Sandbox) -> None:
    task, trace = script(make_task, ":"), Trace()
    await sandbox.close()
    with pytest.raises(SandboxLost):
        await invoke(task.stage_verifier, trace=trace, runtime=sandbox)
    with pytest.raises(SandboxLost):
        await task.score(trace, sandbox)
    assert trace.status is None


async def test_without_a_sandbox_nothing_is_claimed(make_task: MakeTask) -> None:
    trace = Trace()
    await script(make_task, ":").score(trace)
    assert trace.status is Status.INDETERMINATE


HEALTH = "[environment.healthcheck]\ncommand = '''{}'''\ninterval_sec = 0.01\nstart_interval_sec = 0.01\n{}"
COUNTING = "echo x >> /tmp/n; [ $(wc -l < /tmp/n) -ge {} ]"


async def test_setup_waits_until_the_sandbox_is_healthy(make_task: MakeTask, sandbox: Sandbox) -> None:
    task = load_task(make_task({"task.toml": HEALTH.format(COUNTING.format(3), "")}), {})
    await invoke(task.setup, runtime=sandbox)
    assert await sandbox.read("/tmp/n") == b"x\n" * 3


async def test_failures_in_a_row_past_the_start_period_fail_the_setup(make_task: MakeTask, sandbox: Sandbox) -> None:
    task = load_task(
        make_task({"task.toml": HEALTH.format("echo x >> /tmp/n; echo why >&2; false", "retries = 2")}), {}
    )
    with pytest.raises(SandboxError, match=r"not healthy: .* exited 1 \(why\), 2 times in a row"):
        await invoke(task.setup, runtime=sandbox)
    assert await sandbox.read("/tmp/n") == b"x\n" * 2


async def test_failures_in_the_start_period_do_not_count(make_task: MakeTask, sandbox: Sandbox) -> None:
    task = load_task(
        make_task({"task.toml": HEALTH.format(COUNTING.format(4), "retries = 1\nstart_period_sec = 60")}), {}
    )
    await invoke(task.setup, runtime=sandbox)
    assert await sandbox.read("/tmp/n") == b"x\n" * 4


async def test_a_healthcheck_that_hangs_is_a_failure(make_task: MakeTask, sandbox: Sandbox) -> None:
    task = load_task(make_task({"task.toml": HEALTH.format("sleep 60", "retries = 1\ntimeout_sec = 0.2")}), {})
    with pytest.raises(SandboxError, match="took over 0.2 s"):
        await invoke(task.setup, runtime=sandbox)
