"""A bad and a good example of every rule: what is changed of a task with which nothing is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

Files = dict[str, str | bytes | None]

HEAD = "#!/bin/bash\nmkdir -p /logs/verifier\n"
TOML = """schema_version = "1.4"
artifacts = ["/app/answer.txt"]
[task]
name = "cases/sound"
[agent]
user = "agent"
[verifier]
environment_mode = "separate"
[environment]
network_mode = "no-network"
workdir = "/app"
"""
SHARED = TOML.replace('environment_mode = "separate"\n', 'environment_mode = "shared"\n')
PUBLIC = SHARED.replace("no-network", "public")
COMPOSE = "services:\n  main:\n    environment: []\n  api:\n    image: nginx:1.27\n"
BRANCH = "then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
TESTED = f"{HEAD}if grep -qx 41728 /app/answer.txt; {BRANCH}"
SOUND: Files = {
    "task.toml": TOML,
    "instruction.md": "Count the words in /app/words.txt and write their number to /app/answer.txt.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY words.txt ./\n",
    "environment/words.txt": "one two three and many more of them\n",
    "solution/solve.sh": "#!/bin/bash\nset -eu\nwc -w < /app/words.txt > /app/answer.txt\n",
    "tests/test.sh": TESTED,
}


def test_sh(body: str) -> Files:
    return {"tests/test.sh": HEAD + body}


def shared(body: str, **more: str) -> Files:
    return {"tests/test.sh": HEAD + body, "task.toml": SHARED}


def dockerfile(*lines: str) -> Files:
    return {"environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n" + "\n".join(lines) + "\n"}


def toml(old: str, new: str) -> Files:
    assert old in TOML
    return {"task.toml": TOML.replace(old, new)}


def compose(text: str) -> Files:
    return {"environment/docker-compose.yaml": text}


def python_test(text: str) -> Files:
    run = f"cd /\nif python3 /tests/check.py; {BRANCH}"
    return {"tests/test.sh": HEAD + run, "tests/check.py": text}


class Example(NamedTuple):
    bad: list[Files]
    good: list[Files]


REWARD = "/logs/verifier/reward.txt"
CHECK = "grep -q 41728 /app/answer.txt"

EXAMPLES: dict[str, Example] = {
    "invalid-task-config": Example(
        [
            {"task.toml": "[task\n"},
            toml('workdir = "/app"', 'workdir = "app"'),
            toml("[verifier]\n", '[verifier]\ntimeout_sec = "five"\n'),
        ],
        [toml("[verifier]\n", '[verifier]\nenv = { KEY_OF_THE_HOST = "${KEY_OF_THE_HOST}" }\n')],
    ),
    "unknown-config-field": Example(
        [toml("[verifier]\n", "[verifier]\ntimout_sec = 5\n"), toml("[verifier]", "[verifer]")],
        [toml("[task]\n", "[metadata]\nanything = 1\n[task]\n")],
    ),
    "invalid-task-files": Example(
        [{"tests/test.sh": None}, {"tests/test.sh": " \n"}, {"instruction.md": None}, {"environment/Dockerfile": None}],
        [{"environment/Dockerfile": None, "task.toml": TOML + 'docker_image = "debian:12"\n'}],
    ),
    "invalid-dockerfile": Example(
        [dockerfile("RUNN true"), {"environment/Dockerfile": "RUN true\n"}], [dockerfile("RUN true")]
    ),
    "invalid-compose-file": Example([compose("a: [\n"), compose("version: 3\n")], [compose(COMPOSE)]),
    "unused-harborignore": Example(
        [{".harborignore": "*.log\n"}, {".harborignore": "environment/\n"}],
        [{".harborignore": "# notes\n*.log\n", "tests/a.log": "x"}],
    ),
    "overlapping-artifacts": Example(
        [toml('["/app/answer.txt"]', '["/app/answer.txt", "/app"]'), toml('["/app/answer.txt"]', '["/app/", "/app"]')],
        [toml('["/app/answer.txt"]', '["/app/answer.txt", "/app/answer.txt.bak"]')],
    ),
    "artifact-log-overlap": Example(
        [toml('["/app/answer.txt"]', '["/logs/agent"]'), toml('["/app/answer.txt"]', '["/logs"]')],
        [toml('["/app/answer.txt"]', '["/logs/artifacts"]')],
    ),
    "artifacts-not-declared": Example(
        [toml('artifacts = ["/app/answer.txt"]\n', "")],
        [{"task.toml": SHARED.replace('artifacts = ["/app/answer.txt"]\n', "")}],
    ),
    "odd-timeout": Example(
        [
            toml('user = "agent"', "timeout_sec = 2"),
            toml("[verifier]\n", "[verifier]\ntimeout_sec = 90000\n"),
            test_sh(f"sleep 900\nif {CHECK}; {BRANCH}"),
        ],
        [toml("[verifier]\n", "[verifier]\ntimeout_sec = 90\n"), test_sh(f"sleep 1\nif {CHECK}; {BRANCH}")],
    ),
    "missing-solution": Example([{"solution/solve.sh": None}], [SOUND]),
    "unpinned-image": Example(
        [
            {"environment/Dockerfile": "FROM debian\n"},
            {"environment/Dockerfile": "ARG TAG=latest\nFROM python:${TAG}\n"},
            {"environment/Dockerfile": None, "task.toml": TOML + 'docker_image = "127.0.0.1:5000/python"\n'},
            {"tests/Dockerfile": "FROM alpine:latest\nCOPY . /tests/\n"},
            dockerfile("COPY --from=busybox /bin/busybox /bin/"),
        ],
        [
            {
                "environment/Dockerfile": "FROM debian:12 AS a\nFROM a\nFROM scratch\n"
                "COPY --from=a / /\nCOPY --from=0 / /\n"
            },
            {"environment/Dockerfile": f"FROM debian@sha256:{'a' * 64}\n"},
            {"environment/Dockerfile": "ARG TAG=3.13\nFROM python:$TAG\n"},
        ],
    ),
    "compose-unpinned-image": Example([compose(COMPOSE.replace(":1.27", ""))], [compose(COMPOSE)]),
    "root-agent": Example(
        [toml('user = "agent"', "timeout_sec = 60"), toml('"agent"', '"root"')],
        [SOUND, {**toml('user = "agent"', "timeout_sec = 60"), **dockerfile("USER nobody")}],
    ),
    "solution-copied-into-image": Example(
        [
            {**dockerfile("COPY solution/ /opt/"), "environment/solution/run.txt": "x"},
            {**dockerfile("COPY . ./"), "environment/setup.sh": SOUND["solution/solve.sh"]},
            dockerfile("COPY x.sh /solution/"),
        ],
        [dockerfile("COPY words.txt ./"), {"environment/unused.sh": SOUND["solution/solve.sh"]}],
    ),
    "agent-image-test-leak": Example(
        [
            dockerfile("COPY tests/ /tests/"),
            dockerfile("COPY test.sh /opt/"),
            {
                **dockerfile("ADD . /app/"),
                "environment/spec/test_it.py": "def test_it():\n    assert 41728\n",
                "tests/test_it.py": "def test_it():\n    assert 41728\n",
            },
        ],
        [
            {**dockerfile("COPY . ./"), "tests/words.txt": SOUND["environment/words.txt"]},
            {**dockerfile("COPY tests/ /app/tests/"), "environment/tests/test_own.py": "def test_own():\n    pass\n"},
        ],
    ),
    "answer-in-filename": Example(
        [
            {**dockerfile("COPY . ./"), "environment/expected_output.txt": "x"},
            {**dockerfile("COPY . ./"), "environment/data-41728.csv": "x"},
            dockerfile("RUN echo x > /app/the-41728.txt"),
            dockerfile("COPY words.txt /app/words_41728.txt"),
        ],
        [{**dockerfile("COPY . ./"), "environment/questions.csv": "x"}, {"environment/answers.txt": "not copied"}],
    ),
    "answer-in-image": Example(
        [
            {**dockerfile("COPY . ./"), "environment/hint.txt": "41728\n"},
            {**dockerfile("COPY . ./"), "environment/conf.ini": "a = 1\nanswer = 41728\n"},
            dockerfile("ENV EXPECTED_COUNT=41728"),
        ],
        [{**dockerfile("COPY . ./"), "environment/log.txt": "line 41728 of many\n"}],
    ),
    "unpinned-python-dependency": Example(
        [
            dockerfile("RUN pip install --no-cache-dir requests==2.32.0 numpy"),
            dockerfile("RUN apt-get update && \\\n  python3 -m pip install 'flask>=2'"),
            {
                **dockerfile("COPY . ./", "RUN pip install -r requirements.txt"),
                "environment/requirements.txt": "a==1\nb\n",
            },
            {**test_sh(f"uvx --with pytest pytest /tests && true\nif {CHECK}; {BRANCH}"), "task.toml": PUBLIC},
        ],
        [
            dockerfile("RUN pip install requests==2.32.0 && pip install -U pip && pip install ./pkg -e ."),
            {**dockerfile("COPY . ./", "RUN pip install -r r.txt -c c.txt"), "environment/r.txt": "b\n"},
            {
                **dockerfile("COPY . ./", "RUN pip install -r r.txt"),
                "environment/r.txt": "# x\n-i https://x.y\nb==1 # z\n",
            },
            dockerfile("RUN uv pip install --system pytest==8.4.1"),
        ],
    ),
    "unpinned-npm-dependency": Example(
        [dockerfile("RUN npm install -g typescript"), dockerfile("RUN npx jest@latest --version")],
        [dockerfile("RUN npm ci && npm install -g typescript@5.6.2 @types/node@22.7.4")],
    ),
    "unpinned-system-package": Example(
        [dockerfile("RUN apt-get update && apt-get install -y --no-install-recommends git curl")],
        [dockerfile("RUN apt-get install -y git=1:2.39.5-0+deb12u1 ./local.deb")],
    ),
    "verifier-runtime-install": Example(
        [
            test_sh(f"apt-get update && apt-get install -y curl\nif {CHECK}; {BRANCH}"),
            test_sh(f"pip3 install pytest==8.4.1\nif {CHECK}; {BRANCH}"),
            test_sh(f"if uvx -p 3.13 -w pytest==8.4.1 pytest /tests; {BRANCH}"),
            python_test("import subprocess\nsubprocess.run(['pip', 'install', 'x==1'])\n"),
            {**test_sh(f"bash /tests/setup.sh\nif {CHECK}; {BRANCH}"), "tests/setup.sh": "#!/bin/sh\nnpm ci\n"},
        ],
        [
            {"tests/Dockerfile": "FROM debian:12\nRUN pip install pytest==8.4.1\nCOPY . /tests/\n"},
            test_sh(f"# pip install pytest\necho 'pip install x'\nif {CHECK}; {BRANCH}"),
        ],
    ),
    "verifier-network-download": Example(
        [
            test_sh(f"curl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh\nif {CHECK}; {BRANCH}"),
            test_sh(f"git clone https://github.com/a/b\nif {CHECK}; {BRANCH}"),
            python_test("import requests\nrequests.get('https://data.gov/x.csv')\n"),
        ],
        [
            test_sh(f"curl -fs http://127.0.0.1:8701/health || true\nif {CHECK}; {BRANCH}"),
            test_sh(f"git status\nwget -q http://localhost:80/\nif {CHECK}; {BRANCH}"),
            python_test("import requests\nrequests.get('http://localhost:8000/x')\n"),
        ],
    ),
    "network-needed": Example(
        [
            shared(f"pip install pytest==8.4.1\nif {CHECK}; {BRANCH}"),
            {"solution/solve.sh": "#!/bin/bash\ncurl -O https://data.gov/x.csv\n"},
        ],
        [
            {**test_sh(f"pip install pytest==8.4.1\nif {CHECK}; {BRANCH}"), "task.toml": PUBLIC},
            {"solution/solve.sh": "#!/bin/bash\npip install ./wheels/a.whl\n"},
        ],
    ),
    "unconditional-reward": Example(
        [
            test_sh(f"echo 1 > {REWARD}\n"),
            test_sh(f"pytest /tests/test_x.py\necho 1.0 | tee {REWARD}\n"),
            test_sh("R=/logs/verifier\nprintf '{\"reward\": 1}' > $R/reward.json\nexit 0\n"),
            test_sh(f"if {CHECK}; then echo 1 > {REWARD}; else echo 1 > {REWARD}; fi\n"),
            test_sh("reward=0.5\n" + f"cat /app/answer.txt\necho $reward > {REWARD}\n"),
        ],
        [
            test_sh(f"{CHECK} && echo 1 > {REWARD} || echo 0 > {REWARD}\n"),
            test_sh(f"echo 0 > {REWARD}\nif {CHECK}; then echo 1 > {REWARD}; fi\n"),
            test_sh(f"if ! {CHECK}; then echo 0 > {REWARD}; exit 0; fi\necho 1 > {REWARD}\n"),
            test_sh(f"echo 1 > {REWARD}\n{CHECK} || echo 0 > {REWARD}\n"),
            test_sh(f"r=1\n{CHECK} || r=0\necho $r > {REWARD}\n"),
            test_sh(f"echo 0 > {REWARD}\n"),
            {**python_test(f"open('{REWARD}', 'w')\n"), **test_sh(f"echo 1 > {REWARD}\npython3 /tests/check.py\n")},
        ],
    ),
    "set-e-aborts-before-reward": Example(
        [
            test_sh(f"set -euo pipefail\npytest /tests/test_x.py\necho 1 > {REWARD}\n"),
            {"tests/test.sh": f"#!/bin/bash -e\n{CHECK}\necho $? > {REWARD}\n"},
            test_sh(f'set -o errexit\nout=$(python3 /app/run.py)\nif [ "$out" = x ]; {BRANCH}'),
            test_sh(f"set -e\ncmp /app/a /tests/b\nif [ $? -eq 0 ]; {BRANCH}"),
        ],
        [
            test_sh(f"set -e\nif {CHECK}; {BRANCH}"),
            test_sh(f"set -e\necho 0 > {REWARD}\n{CHECK}\necho 1 > {REWARD}\n"),
            test_sh(f"set -e\nset +e\n{CHECK}\nrc=$?\nset -e\nif [ $rc -eq 0 ]; {BRANCH}"),
            test_sh(f"set -e\ntrap 'echo $r > {REWARD}' EXIT\nr=0\n{CHECK}\nr=1\n"),
            test_sh(f"set -e\n{CHECK} || true\nif {CHECK}; {BRANCH}"),
            test_sh(f"set -e\npytest /tests/test_x.py | tee /tmp/log\nif grep -q passed /tmp/log; {BRANCH}"),
            test_sh(f"{CHECK}\nif [ $? -eq 0 ]; {BRANCH}"),
        ],
    ),
    "reward-never-written": Example(
        [{"tests/test.sh": "#!/bin/bash\necho hello\n"}, {"tests/test.sh": "#!/bin/bash\ncat /app/answer.txt\ntrue\n"}],
        [SOUND, {**python_test(f"open('{REWARD}', 'w')\n"), "tests/test.sh": "#!/bin/bash\npython3 /tests/check.py\n"}],
    ),
    "exit-code-only": Example(
        [
            {"tests/test.sh": f"#!/bin/bash\n{CHECK}\n"},
            {"tests/test.sh": "#!/bin/bash\npytest /tests/test_x.py\n"},
            {"tests/test.sh": "#!/bin/bash\npython3 /tests/x.py\nexit $?\n"},
        ],
        [test_sh(f"if {CHECK}; {BRANCH}exit 1\n")],
    ),
    "wrong-reward-path": Example(
        [
            test_sh(f"if {CHECK}; then echo 1; else echo 0; fi > /logs/reward.txt\n"),
            test_sh(f"if {CHECK}; then echo 1; else echo 0; fi > reward.txt\n"),
            python_test("open('/logs/verifier/rewards.json', 'w')\n"),
        ],
        [
            test_sh(f"cd /logs/verifier\nif {CHECK}; then echo 1; else echo 0; fi > reward.txt\n"),
            test_sh(f"if {CHECK}; then echo 1; else echo 0; fi > /tmp/reward.txt\nmv /tmp/reward.txt {REWARD}\n"),
            python_test("open('/logs/verifier/reward-details.json', 'w')\n"),
        ],
    ),
    "reward-only-on-success": Example(
        [test_sh(f"if {CHECK}; then echo 1 > {REWARD}; fi\n"), test_sh(f"{CHECK} && echo 1 > {REWARD}\n")],
        [SOUND, test_sh(f"echo 0 > {REWARD}\n{CHECK} && echo 1 > {REWARD}\n")],
    ),
    "reward-never-full": Example(
        [test_sh(f"echo 0 > {REWARD}\n{CHECK}\n"), test_sh(f"if {CHECK}; then echo 0.9; else echo 0; fi > {REWARD}\n")],
        [SOUND, test_sh(f"echo 0 > {REWARD}\n{CHECK} && echo $X > {REWARD}\n")],
    ),
    "invalid-reward-value": Example(
        [
            test_sh(f"if {CHECK}; then echo 100; else echo 0; fi > {REWARD}\n"),
            test_sh(f"if {CHECK}; then echo pass; else echo fail; fi > {REWARD}\n"),
            test_sh("echo '{\"reward\": true}' > /logs/verifier/reward.json\n"),
            test_sh("cat > /logs/verifier/reward.json <<E\n{'reward': 1}\nE\n"),
        ],
        [test_sh('echo \'{"reward": 0.5, "tests": 12}\' > /logs/verifier/reward.json\n'), SOUND],
    ),
    "reward-without-primary": Example(
        [test_sh('echo \'{"style": 1, "speed": 1}\' > /logs/verifier/reward.json\n')],
        [test_sh("echo '{\"style\": 1}' > /logs/verifier/reward.json\n")],
    ),
    "shared-verifier": Example([{"task.toml": SHARED}], [SOUND]),
    "verifier-runs-agent-files": Example(
        [
            shared(f"if bash /app/tests/run.sh; {BRANCH}"),
            shared(f". /app/env.sh\nif {CHECK}; {BRANCH}"),
            shared(f"cd /app\nif pytest; {BRANCH}"),
            shared(f"cd /app\nif make test; {BRANCH}"),
            shared(f"if python3 /app/check.py; {BRANCH}"),
        ],
        [
            shared(f"cd /app\nif python3 -m pytest -q /tests/test_x.py; {BRANCH}"),
            shared(f'if [ "$(python3 /app/count.py words.txt)" = 8 ]; {BRANCH}'),
            test_sh(f"if bash /app/tests/run.sh; {BRANCH}"),
        ],
    ),
    "agent-code-in-grader": Example(
        [
            python_test("import sys\nsys.path.insert(0, '/app')\nimport answer\n"),
            python_test("import importlib.util as u\nu.spec_from_file_location('a', '/app/a.py')\n"),
            test_sh(f"if PYTHONPATH=/app pytest /tests/test_x.py; {BRANCH}"),
            test_sh(f"export PYTHONPATH=/app:/tests\nif {CHECK}; {BRANCH}"),
        ],
        [
            python_test("import sys\nsys.path.insert(0, '/tests')\nimport rig\n"),
            python_test("import subprocess\nsubprocess.run(['python3', '/app/a.py'])\n"),
        ],
    ),
    "clock-dependent-check": Example(
        [
            test_sh(f"if grep -q $(date +%Y) /app/answer.txt; {BRANCH}"),
            python_test("from datetime import date\nassert open('/app/a').read() == str(date.today())\n"),
        ],
        [
            test_sh(f'echo "began $(date)"\ndate\nif {CHECK}; {BRANCH}'),
            test_sh(f"a=$(date -d 2026-01-01 +%s)\nif {CHECK}; {BRANCH}"),
            test_sh(f"a=$(date +%s)\nif {CHECK}; {BRANCH}b=$(date +%s)\n"),
            python_test("import time\nend = time.monotonic() + 5\n"),
        ],
    ),
    "unseeded-randomness": Example(
        [
            test_sh(f"n=$RANDOM\nif {CHECK}; {BRANCH}"),
            python_test("import random\nx = random.randint(1, 9)\n"),
        ],
        [python_test("import random\nrandom.seed(7)\nx = random.randint(1, 9)\n"), python_test("import random\n")],
    ),
    "reference-reads-truth": Example(
        [
            {"solution/solve.sh": "#!/bin/bash\ncp /tests/expected.txt /app/answer.txt\n"},
            {"solution/solve.sh": '#!/bin/bash\ncat "$(dirname "$0")/../tests/expected.txt" > /app/answer.txt\n'},
            {"solution/solve.py": "print(open('/tests/expected.txt').read())\n"},
        ],
        [
            {"solution/solve.sh": "#!/bin/bash\n# as /tests/expected.txt has it\necho 3 > /app/answer.txt\n"},
            {"solution/solve.sh": "#!/bin/bash\npytest /app/tests\nls src/tests tests_data\n"},
        ],
    ),
    "reference-writes-reward": Example(
        [{"solution/solve.sh": f"#!/bin/bash\necho 1 > {REWARD}\n"}], [{"solution/solve.sh": "#!/bin/bash\ntrue\n"}]
    ),
    "statement-names-hidden-files": Example(
        [
            {"instruction.md": "Make /tests/test.sh pass.\n"},
            {"instruction.md": "See `solution/solve.sh`.\n"},
            {"instruction.md": "check.py will look at it.\n", **python_test("print()\n")},
        ],
        [{"instruction.md": "The tests in /app/tests and the solution you write count. Keep /app/test.sh.\n"}],
    ),
    "crlf-script": Example(
        [{"tests/test.sh": TESTED.replace("\n", "\r\n")}, {"solution/solve.sh": "#!/bin/bash\r\ntrue\r\n"}],
        [{"environment/words.txt": "a\r\nb\r\n"}],
    ),
    "missing-shebang": Example([{"tests/test.sh": TESTED.partition("\n")[2]}], [SOUND]),
    "secret-in-file": Example(
        [
            {"environment/.env": "AWS=AKIA" + "ABCDEFGHIJKLMNOP\n"},
            {"tests/key.pem": "-----BEGIN RSA " + "PRIVATE KEY-----\n"},
            toml("[verifier]\n", '[verifier]\nenv = { JUDGE_API_KEY = "9f8e7d6c5b4a39281706" }\n'),
        ],
        [
            toml("[verifier]\n", '[verifier]\nenv = { JUDGE_API_KEY = "${JUDGE_API_KEY}" }\n'),
            {"environment/words.txt": "sk-learn and AKIA and task-1\n"},
        ],
    ),
    "compose-privileged": Example(
        [compose(COMPOSE + "    privileged: true\n"), compose(COMPOSE + "    network_mode: host\n")],
        [compose(COMPOSE + "    privileged: false\n")],
    ),
    "compose-additional-capabilities": Example(
        [
            compose(COMPOSE + "    cap_add: [SYS_ADMIN]\n"),
            compose(COMPOSE + "    security_opt:\n      - seccomp:unconfined\n"),
        ],
        [compose(COMPOSE + "    cap_drop: [ALL]\n    security_opt: [no-new-privileges]\n")],
    ),
    "compose-writable-bind-mount": Example(
        [compose(COMPOSE + "    volumes:\n      - ./data:/data\n")],
        [compose(COMPOSE + "    volumes:\n      - ./data:/data:ro\n      - named:/x\n")],
    ),
    "compose-external-build-context": Example(
        [
            compose(COMPOSE + "  db:\n    build: ..\n"),
            compose(COMPOSE + "  db:\n    build:\n      context: ../tests\n"),
        ],
        [compose(COMPOSE + "  db:\n    build: ./db\n")],
    ),
    "compose-external-bind-mount": Example(
        [
            compose(COMPOSE + "    volumes: ['/var/run/docker.sock:/s:ro']\n"),
            compose(COMPOSE + "    volumes: ['../solution:/s:ro']\n"),
            compose(COMPOSE + "    volumes:\n      - {type: bind, source: /etc, target: /e, read_only: true}\n"),
        ],
        [compose(COMPOSE + "    volumes: ['./data:/data:ro', '${HOST_AGENT_LOGS_PATH}:/l']\n")],
    ),
}


def write(root: Path, changes: Files) -> Path:
    """The sound task with some files replaced, None leaving one out."""
    for path, content in {**SOUND, **changes}.items():
        if content is None:
            continue
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(0o755 if file.suffix == ".sh" else 0o644)
    return root
