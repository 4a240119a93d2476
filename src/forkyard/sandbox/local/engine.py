"""The spawner as seen from the user's process: started once, asked for sandboxes, ended by closing its socket."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError, EngineLost, SandboxError
from forkyard.sandbox.inside import BEGIN, PLACE, wire
from forkyard.sandbox.local.cgroups import Group, Groups
from forkyard.sandbox.local.diskwatch import DiskWatch
from forkyard.sandbox.local.idmap import IdMap
from forkyard.sandbox.local.live import Live
from forkyard.sandbox.local.mounts import handed_over
from forkyard.sandbox.values import Mount
from forkyard.values import MIB

BLANKS = 4  # processes kept ready: what a fork has to wait for is then its disk alone
ASKED_AT_ONCE = 16
FILL_DELAY = 0.01
PURGE_DELAY = 0.2
ERRAND_LIMIT = 64 * MIB
_ROOM = (
    "close sandboxes that are not needed, or raise the bound that was met: open files (ulimit -n), processes "
    "(ulimit -u, sysctl kernel.pid_max), namespaces (sysctl user), memory"
)
PROGRAM = BEGIN + "control = int(sys.argv[1]); spawner.main(control, spawner.configuration(control))"


Answer = tuple[dict[str, Any], list[int]]


class Engine:
    """One spawner process, which ends with this process. Sandboxes live on when only the spawner dies."""

    def __init__(
        self,
        control: socket.socket,
        process: subprocess.Popen[bytes],
        shifted_usr: bool,
        ids: IdMap,
        groups: Groups,
    ) -> None:
        self._control = control
        self._process = process
        self._groups = groups
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE)
        self._expected: deque[asyncio.Future[Answer]] = deque()
        self._gone = False
        self._blanks: deque[Live] = deque()
        self._purging: asyncio.TimerHandle | None = None
        self._filling: asyncio.Task[None] | None = None
        self._exchanges: set[asyncio.Future[Live]] = set()
        self.shifted_usr = shifted_usr
        self._shifts = ids.owner[0] != os.getuid()  # the sandboxes' root is somebody else outside
        asyncio.get_running_loop().add_reader(control.fileno(), self._readable)

    @classmethod
    async def start(cls, store: Path, ids: IdMap, groups: Groups, program: str = PROGRAM) -> Engine:
        """Start the spawner over a store directory. ConfigError says why this machine does not allow it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = {
            "store": str(store),
            "mode": ids.mode,
            "uid_map": ids.uid_map,
            "gid_map": ids.gid_map,
            "mapper": ids.mapper,
            "host_root": ids.owner[0] == 0,
        }
        process = subprocess.Popen(  # noqa: ASYNC220 - a few milliseconds, once
            [sys.executable, "-I", "-S", "-c", program, str(theirs.fileno()), PLACE],
            pass_fds=[theirs.fileno()],
            env={},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is for the user's process alone
        )
        theirs.close()
        ours.send(json.dumps(config).encode())
        try:
            answer = await asyncio.to_thread(_first_answer, ours)
            if answer is None or "error" in answer:
                raise ConfigError(_cannot_start(answer))
        except BaseException:  # the caller may have gone away
            process.kill()
            process.wait()
            ours.close()
            raise
        return cls(ours, process, bool(answer["shifted_usr"]), ids, groups)

    @property
    def alive(self) -> bool:
        """Whether the spawner still runs."""
        return not self._gone and self._process.poll() is None

    async def take(self) -> Live:
        """A blank PID 1, from the few that wait ready; others are made meanwhile."""
        while self._blanks:
            blank = self._blanks.popleft()
            if blank.alive:
                break
            await blank.kill("it died before it was used")
        else:
            blank = await self._spawn()
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill())
        return blank

    async def _fill(self) -> None:
        await asyncio.sleep(FILL_DELAY)  # do not compete with the fork that was just asked for
        with suppress(SandboxError):  # said by whoever asks for a sandbox next
            while len(self._blanks) < BLANKS:
                blank = await self._spawn()
                self._blanks.append(blank)
                await blank.warm()

    async def _spawn(self) -> Live:
        try:
            group = self._groups.make()
        except OSError as err:
            raise no_room(err) from err
        spawning = asyncio.ensure_future(self._exchange(group))
        self._exchanges.add(spawning)
        spawning.add_done_callback(self._exchanges.discard)
        try:
            return await asyncio.shield(spawning)
        except asyncio.CancelledError:  # the answer still comes, and somebody else can use it
            spawning.add_done_callback(self._keep)
            raise
        except EngineLost:
            group.remove()
            raise

    def _keep(self, spawning: asyncio.Future[Live]) -> None:
        if not spawning.cancelled() and spawning.exception() is None:
            self._blanks.append(spawning.result())

    async def _exchange(self, group: Group) -> Live:
        expected: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            ours, theirs = socket.socketpair()
        except OSError as err:
            raise no_room(err) from err
        try:
            async with self._asking:
                if self._gone:
                    raise EngineLost("the engine's spawner is gone")
                self._expected.append(expected)
                with group.entrances() as entrances:
                    self._control.sendmsg([wire.SPAWN], wire.ancillary([theirs.fileno(), *entrances]))
                answer, fds = await expected
        except OSError as err:
            ours.close()
            if not self.alive:
                self._lost()
                raise EngineLost("the engine's spawner is gone") from err
            if expected in self._expected:
                self._expected.remove(expected)
            raise no_room(err) from err
        except BaseException:  # lost, or cancelled: a PID 1 that came of it ends with its socket
            ours.close()
            raise
        finally:
            theirs.close()
        if "error" in answer:
            ours.close()
            raise EngineLost(f"the kernel refused a new sandbox: {answer['error']}; {_ROOM}")
        return Live(int(answer["pid"]), fds[0], ours, group)

    async def hand_over(self, live: Live, mounts: tuple[Mount, ...]) -> None:
        """Give a blank PID 1 what its boot is to mount; SandboxError when it cannot be had."""
        namespace = os.open(f"/proc/{self._process.pid}/ns/user", os.O_RDONLY) if self._shifts else None
        try:
            for mount in mounts:
                with handed_over(mount, namespace) as fd:
                    await live.mount(mount, fd, bind=namespace is None)
        finally:
            if namespace is not None:
                os.close(namespace)

    def start_apart(self, namespaces: list[int], group: Group) -> socket.socket:
        """The other end of a process that enters a sandbox's namespaces and control groups (see `inside/apart.py`)."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, group.all_entrances() as entrances:
                self._control.sendmsg([b'{"op": "apart"}'], wire.ancillary([theirs.fileno()]))
                ours.sendmsg([b"x"], wire.ancillary([*namespaces, *entrances]))
        except OSError as err:
            ours.close()
            raise EngineLost(f"nothing can be started beside a sandbox: {err.strerror}") from err
        return ours

    def start_disk_watch(self) -> DiskWatch:
        """A watcher of disks; it lives until it is closed, also when the spawner dies."""
        return DiskWatch.start(self._control)

    def _readable(self) -> None:
        """Answers come in the order of the requests; several may be under way, since the spawner takes its time."""
        try:
            data, control = wire.receive_some(self._control, 1 << 16)
        except BlockingIOError:
            return
        except OSError as err:
            if err.errno == errno.EMFILE and self._expected:  # its socket is closed by whoever asked, and it ends
                _fail(self._expected.popleft(), err)
                return
            data, control = b"", []
        if not data:
            self._lost()
        elif self._expected:
            expected, fds = self._expected.popleft(), wire.received_fds(control)
            if not expected.cancelled():
                expected.set_result((json.loads(data), fds))
                return
            for fd in fds:
                os.close(fd)

    def _lost(self) -> None:
        self._gone = True
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        while self._expected:
            _fail(self._expected.popleft(), EngineLost("the engine's spawner is gone"))

    async def errand(self, op: str, **fields: Any) -> dict[str, Any]:
        """Have a child of the spawner work on disks (see `inside/errands.py`). SandboxError says why it could not.

        A caller that is cancelled leaves only after the child has ended.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            try:
                self._control.sendmsg([json.dumps({"op": op, **fields}).encode()], wire.ancillary([theirs.fileno()]))
            except OSError as err:
                raise EngineLost("the engine's spawner is gone") from err
            theirs.close()
            answering = asyncio.ensure_future(_last_answer(ours))
            try:
                answer = await asyncio.shield(answering)
            except asyncio.CancelledError:
                ours.shutdown(socket.SHUT_WR)
                await asyncio.wait([answering])
                answering.exception()
                raise
        if "error" in answer:
            raise SandboxError(str(answer["error"]))
        return answer

    def purge(self) -> None:
        """Have the store's trash emptied in the background, soon: what is closed together is deleted together."""
        if self._purging is None:
            self._purging = asyncio.get_running_loop().call_later(PURGE_DELAY, self._purge)

    def _purge(self) -> None:
        self._purging = None
        with suppress(OSError):
            self._control.send(json.dumps({"op": "purge"}).encode())

    async def close(self) -> None:
        """End the spawner, and wait until the trash is empty."""
        if self._purging is not None:
            self._purging.cancel()  # the janitor looks once more before it ends
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        await asyncio.gather(*self._exchanges, return_exceptions=True)
        while self._blanks:
            await self._blanks.popleft().kill("the engine was closed")
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        await asyncio.to_thread(self._process.wait)


def _fail(expected: asyncio.Future[Answer], err: Exception) -> None:
    if not expected.done():  # its loop may be ending
        expected.set_exception(err)
        expected.exception()  # seen: whoever waits gets it


async def _last_answer(sock: socket.socket) -> dict[str, Any]:
    """Everything that comes before the end of the file."""
    loop = asyncio.get_running_loop()
    received = bytearray()
    while piece := await loop.sock_recv(sock, 1 << 18):
        received += piece
        if len(received) > ERRAND_LIMIT:
            raise SandboxError(f"the answer is over the limit of {ERRAND_LIMIT} bytes")
    if not received:
        raise SandboxError(
            "what worked on its disk was killed, most likely for want of memory: make room, and try again"
        )
    answer: dict[str, Any] = json.loads(received)
    return answer


def no_room(err: OSError) -> EngineLost:
    """The error for a machine that has no room for one more sandbox."""
    return EngineLost(f"the host cannot start another sandbox now: {err.strerror}; {_ROOM}")


def _first_answer(control: socket.socket) -> dict[str, Any] | None:
    data = control.recv(1 << 16)
    control.setblocking(False)
    return json.loads(data) if data else None


def _cannot_start(answer: dict[str, Any] | None) -> str:
    said = answer["error"] if answer else "the spawner ended before it was ready"
    hint = ""
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if os.getuid() != 0 and restricted.exists() and restricted.read_text().strip() == "1":
        hint = "; AppArmor restricts them here: run as root, or set kernel.apparmor_restrict_unprivileged_userns=0"
    elif answer and answer.get("errno") in (1, 13, 28):
        hint = "; allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone) or run as root"
    return f"the local provider cannot start here: it needs Linux user namespaces ({said}){hint}; see `forkyard doctor`"
