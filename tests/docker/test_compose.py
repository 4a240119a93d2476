"""Compose projects: `main` as a sandbox, services beside it, and what becomes of all when they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.dockerd import Docker
from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox import PUBLIC, Feature, Limits
from forkyard.sandbox.docker import ComposePlan, DockerProvider
from tests.docker.parts import BASE, containers, killed_after

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SIDECAR = """
services:
  main:
    volumes: ["shared:/shared"]
  api:
    build: {context: ./api}
    volumes: ["shared:/shared"]
    environment: {OURS: "${FORKYARD_OF_THE_CALLER:-unset}", CASE: "${CASE}"}
    healthcheck: {test: ["CMD", "test", "-e", "/srv/hits"], interval: 1s, retries: 30}
volumes:
  shared:
"""
SERVE = """
touch /shared/in; chmod 666 /shared/in; echo "serving $OURS $CASE"; cd /srv
while :; do wc -l < /shared/in > hits.new && mv hits.new hits; sleep 0.1; done
"""
LEFT_BEHIND = """
import asyncio, pathlib, sys
from forkyard.sandbox.docker import ComposePlan, DockerProvider

async def main():
    provider = DockerProvider(pathlib.Path(sys.argv[1]), sys.argv[2])
    await provider.compose(ComposePlan(pathlib.Path(sys.argv[3]), image="base:1"))
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def program(docker: DockerProvider) -> None:
    if Feature.COMPOSE not in docker.features:
        pytest.skip("there is no program for compose (apt-get install docker-compose)")


def written(directory: Path, text: str) -> Path:
    (directory / "docker-compose.yaml").write_text(text)
    return directory


def left(engine: Docker) -> list[str]:
    """Containers, networks and volumes of projects."""
    networks = json.loads(engine.call("GET", "/networks"))
    volumes = json.loads(engine.call("GET", "/volumes"))["Volumes"] or []
    found = [*(each["Names"][0] for each in containers(engine)), *(each["Name"] for each in [*networks, *volumes])]
    return [name for name in found if "forkyard-" in name]


async def test_main_is_a_sandbox_and_a_service_beside_it_is_collected_from_when_main_has_stopped(
    docker: DockerProvider, engine: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKYARD_OF_THE_CALLER", "secret")
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nWORKDIR /app\n")
    (tmp_path / "api").mkdir()
    (tmp_path / "api/Dockerfile").write_text(
        f'FROM {BASE}\nRUN mkdir -p /srv\nCOPY serve.sh /srv/serve.sh\nCMD ["bash", "/srv/serve.sh"]\n'
    )
    (tmp_path / "api/serve.sh").write_text(SERVE)
    plan = ComposePlan(
        written(tmp_path, SIDECAR), env={"A": "x$y ${Z} 'q'"}, variables={"CASE": "v"}, limits=Limits(memory_mb=256)
    )
    project = await docker.compose(plan)
    main, api = project.main, await project.service("api")
    assert (await main.run('pwd; printf %s "$A"')).stdout == "/app\nx$y ${Z} 'q'"
    assert (await main.run("for i in 1 2 3; do echo hit >> /shared/in; done; printf 999 > /tmp/stats")).ok
    assert (await api.run("until [ $(cat /srv/hits) = 3 ]; do sleep 0.1; done", timeout=100)).ok
    assert (await main.run("exec 3<>/dev/tcp/api/9")).exit_code != 0  # the name is known, and nobody listens
    late = await main.run("(setsid sleep 60 &); sleep 60", timeout=0.5)
    assert late.timed_out and (await main.run("ps ax | grep -c '[s]leep 60'")).stdout == "0\n"
    for refused in (main.fork, main.pause):
        with pytest.raises(SandboxError, match="compose project"):
            await refused()
    await main.stop()
    assert main.info.state == "stopped"
    assert (await api.run("printf '{\"hits\": %s}' $(cat /srv/hits) > /tmp/stats")).ok
    assert await api.read("/tmp/stats") == b'{"hits": 3}'
    assert "serving unset v" in await project.logs("api")
    with pytest.raises(ConfigError, match="no service 'db'"):
        await project.service("db")
    await main.start()
    assert await main.read("/tmp/stats") == b"999"
    await main.close()
    assert left(engine) == []
    with pytest.raises(SandboxError, match="closed"):
        await api.run("true")


async def test_services_reach_each_other_and_nothing_else(
    docker: DockerProvider, engine: Docker, tmp_path: Path
) -> None:
    serve = "while :; do sleep 1; done"
    joined = f"  joined: {{image: '{BASE}', command: ['sleep', '600'], network_mode: 'service:other', tty: true}}\n"
    other = f"  other: {{image: '{BASE}', command: ['sh', '-c', '{serve}']}}\n"
    plan = ComposePlan(written(tmp_path, f"services:\n{other}{joined}"), image=BASE)
    project = await docker.compose(plan)
    for box in (project.main, await project.service("other")):
        for again in (False, True):
            if again:
                await box.stop()
                await box.start()
            gateway = json.loads(engine.call("GET", f"/networks/{project.name}_default"))["IPAM"]["Config"][0][
                "Gateway"
            ]
            for address in (gateway, "192.0.2.1", "169.254.169.254", "10.0.0.1"):
                result = await box.run(["bash", "-c", f"exec 3<>/dev/tcp/{address}/80"], timeout=60)
                assert "No route to host" in result.stderr, address
    assert await project.logs("joined") == ""
    for name in ("main", "other"):
        result = await project.main.run(["bash", "-c", f"exec 3<>/dev/tcp/{name}/9"], timeout=60)
        assert "refused" in result.stderr
    await project.down()
    await project.down()
    assert left(engine) == []


async def test_with_the_network_public_the_ways_stay_open(docker: DockerProvider, tmp_path: Path) -> None:
    project = await docker.compose(
        ComposePlan(written(tmp_path, "services: {main: {init: true}}\n"), image=BASE, network=PUBLIC)
    )
    routes = (await project.main.run("sed 1d /proc/net/route")).stdout
    assert "eth0" in routes and not routes.startswith("*")
    await project.down()


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (f"services:\n  api: {{image: '{BASE}', network_mode: host, command: sleep 9}}\n", ConfigError, "network mode"),
        (f"services:\n  api: {{image: '{BASE}', cap_add: [NET_ADMIN], command: sleep 9}}\n", ConfigError, "NET_ADMIN"),
        (f"services:\n  api: {{image: '{BASE}', command: sh -c 'echo broken; exit 3'}}\n", SandboxError, "broken"),
        ("services: [\n", ConfigError, "docker-compose.yaml"),
    ],
    ids=["host network", "may set routes", "a service that fails", "no YAML"],
)
async def test_what_cannot_be_up_leaves_nothing(
    docker: DockerProvider, engine: Docker, tmp_path: Path, text: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await docker.compose(ComposePlan(written(tmp_path, text), image=BASE))
    assert left(engine) == []


async def test_a_sweep_removes_the_project_of_a_killed_owner(engine: Docker, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    written(tmp_path / "project", f"services:\n  api: {{image: '{BASE}', command: sleep 600}}\n")
    killed_after(LEFT_BEHIND, str(tmp_path / "home"), engine.address, str(tmp_path / "project"))
    assert left(engine) != []
    async with DockerProvider(tmp_path / "home", engine.address) as provider:
        assert ["compose project" in line for line in await provider.sweep()] == [True]
    assert (left(engine), list((tmp_path / "home/run").iterdir())) == ([], [])
