"""MPS, NVIDIA's service that lets several programs compute on a card at once: its control daemon, and its commands.

The daemon runs in the background on its own (`-d`), so it outlives the process that started it: ending it ends every
program that computes through it. There is no handle to hold on to; a daemon is known by its pipe directory, and whoever
knows that can ask it. Commands go through the control program, the one published way. That program ends with status 0
whether the daemon obeyed or not: a refusal is known by its words, some are silent, and so a limit is read back.

Protocol 2 limits by convention: limits stand in a client's environment, and a container that unsets that escapes them.
Protocol 3 has named servers, and namespaces that limit the clients that are given the namespace's directory alone. They
limit compute; a limit of memory is a convention, since a client that names a GPU it cannot see in
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT drops it. Limits are set before the first client comes; nothing outlives the daemon.

Protocol 2 was run on NVIDIA's daemons of R535 and R550. None of protocol 3 (R615) could be had: commands and answers
follow NVIDIA's manual. When to start a daemon and what to limit is the agent's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from shoal.gpu.errors import MpsError, MpsRefusalError, NoMpsDaemonError
from shoal.model.contract import nvidia
from shoal.model.errors import shown

Command = tuple[str, ...]

PROGRAM: Final = "nvidia-cuda-mps-control"
DEFAULT_NAMESPACE: Final = "default"
#: The daemon's socket in its pipe directory; the path of a socket has room for 107 bytes.
_SOCKET: Final = "control"
_SOCKET_PATH: Final = 107
#: `<server>/<namespace>/` of protocol 3 comes in between; names made from container ids are this long at most.
_ROOM_FOR_NAMES: Final = 40
_MOST_OUTPUT: Final = 2**20
_ALREADY: Final = "already running"
_PAUSE: Final = 0.1
#: A daemon that has ended may look as if it listened for this long.
_DYING: Final = 0.3
_CSV: Final = "--format=csv,noheader"
_LIST_SERVERS: Final[Mapping[int, Command]] = {2: ("get_server_list",), 3: ("server", "list", _CSV)}
_QUIT: Final[Mapping[int, Command]] = {2: ("quit",), 3: ("-q",)}
#: The priority of clients whose work gives way; others have 0.
_BELOW_NORMAL: Final = "1"
#: Cells of a line that tells of a server or a namespace.
_LEAST_CELLS: Final = 7
_NAME: Final = re.compile(r"[a-z0-9_]{1,64}")
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,9}")
_UUID_PREFIX: Final = "GPU-"
_FAULT: Final = "FAULT"
_MEMORY: Final = re.compile(r"(?:[0-9]+=)?(?P<amount>[1-9][0-9]{0,14})(?P<unit>[MG])")
_UNITS_MIB: Final = {"M": 1, "G": 1024}
#: How NVIDIA's daemons of R535 to R555 begin a line that refuses; `error` for those that are not known here.
_REFUSAL: Final = re.compile(
    r"^(?:unknown command|invalid |insufficient privileges|not enough privilege|cannot |unable |failed |error\b"
    r"|a [^,\n]* is required|no default |the mps control daemon is shutting down"
    r"|server [^,\n]*(?:not found|is <busy>))",
    re.IGNORECASE | re.MULTILINE,
)


class MpsHealth(StrEnum):
    """How a daemon is."""

    RUNNING = "running"
    ABSENT = "absent"
    #: Something holds the socket and does not answer.
    SILENT = "silent"


class MpsDaemon:
    """The control daemon of a pipe directory."""

    def __init__(
        self,
        *,
        pipe_directory: Path,
        log_directory: Path,
        environment: Mapping[str, str],
        protocol: Literal[2, 3] = 2,
        multi_user: bool = False,
        program: str = PROGRAM,
        patience: float = 10.0,
    ) -> None:
        """`environment` is what the program gets besides its own variables. `patience`: seconds for an answer."""
        longest = len(bytes(pipe_directory / _SOCKET)) + (_ROOM_FOR_NAMES if protocol == 3 else 0)
        if longest > _SOCKET_PATH:
            raise MpsError(
                f"the pipe directory {shown(str(pipe_directory))} is too long for sockets: use a shorter one"
            )
        if multi_user and protocol == 2:
            raise MpsError("protocol 2 has no multi-user mode: use protocol 3")
        self.pipe_directory = pipe_directory
        self.log_directory = log_directory
        self.protocol = protocol
        self._program = program
        self._patience = patience
        self._multi_user = multi_user
        self._environment = {
            **environment,
            nvidia.ENV_MPS_PIPE_DIRECTORY: str(pipe_directory),
            nvidia.ENV_MPS_LOG_DIRECTORY: str(log_directory),
            # It overrules the flag, so one that this process was started with must not get through.
            nvidia.ENV_MPS_PROTOCOL: str(protocol),
        }

    async def start(self) -> bool:
        """Have the daemon running; False when it was already."""
        self.pipe_directory.mkdir(parents=True, exist_ok=True)
        self.log_directory.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + self._patience
        while (health := await self.health()) is not MpsHealth.RUNNING:
            status, said = await self._launch()
            if not status and await self.health() is MpsHealth.RUNNING:
                return True
            if not status:
                raise MpsError(f"the MPS daemon started and does not answer: see {self.log_directory}")
            # One that ends holds its lock for a moment after its socket is gone.
            if _ALREADY not in said or health is MpsHealth.SILENT or time.monotonic() >= until:
                raise MpsError(
                    f"the MPS daemon did not start (exit status {status}): {shown(said)}; see {self.log_directory}"
                )
            await asyncio.sleep(_PAUSE)
        return False

    async def _launch(self) -> tuple[int, str]:
        """Exit status and words of the program when it is told to start the daemon."""
        flags = ["-d", *(("-p", "3") if self.protocol == 3 else ()), *(("-m",) if self._multi_user else ())]
        # A file and not a pipe: the daemon inherits it, and a pipe would not end before the daemon does. In memory,
        # since a container may have nowhere to write.
        with os.fdopen(os.memfd_create("mps"), "w+b") as output:
            process = await self._spawn(flags, output=output.fileno())
            status = await self._ended(process, "start")
            output.seek(0)
            return status, output.read(_MOST_OUTPUT).decode(errors="replace").strip()

    async def health(self) -> MpsHealth:
        """Whether the daemon answers. Costs a short-lived process."""
        if not (self.pipe_directory / _SOCKET).exists():
            return MpsHealth.ABSENT
        try:
            await self.tell(_LIST_SERVERS[self.protocol])
        except NoMpsDaemonError:
            return MpsHealth.ABSENT
        except MpsError:
            return MpsHealth.SILENT
        return MpsHealth.RUNNING

    async def tell(self, command: Command) -> str:
        """Give the daemon a command of its protocol; its answer. MpsRefusalError if it says that it refuses."""
        for word in command:
            if not word or any(mark in word for mark in "\0\n\r"):
                raise MpsError(f"{shown(word)} cannot be part of an MPS command: leave it out")
        if self.protocol == 3:
            status, said = await self._run(["-p", "3", *command], b"")
        else:
            status, said = await self._run([], " ".join(command).encode() + b"\n")
        if status and await self._is_gone(said):
            raise NoMpsDaemonError(f"no MPS daemon answers in {self.pipe_directory}: start it")
        if status or _REFUSAL.search(said):
            raise MpsRefusalError(f"the MPS daemon refused {shown(' '.join(command))}: {shown(said.strip())}")
        return said

    async def quit(self) -> None:
        """Stop the daemon and its servers, and with them every client. No daemon is no error."""
        with contextlib.suppress(NoMpsDaemonError):
            await self.tell(_QUIT[self.protocol])

    async def _run(self, arguments: Sequence[str], sent: bytes) -> tuple[int, str]:
        process = await self._spawn(arguments, output=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(self._patience):
                said, _ = await process.communicate(sent)
        except TimeoutError as error:
            raise MpsError(
                f"the MPS daemon in {self.pipe_directory} does not answer: see {self.log_directory}"
            ) from error
        finally:
            await _gone(process)
        return process.returncode or 0, said[:_MOST_OUTPUT].decode(errors="replace")

    async def _ended(self, process: asyncio.subprocess.Process, what: str) -> int:
        try:
            async with asyncio.timeout(self._patience):
                return await process.wait()
        except TimeoutError as error:
            raise MpsError(
                f"{self._program} did not {what} in {self._patience:.0f} s: see {self.log_directory}"
            ) from error
        finally:
            await _gone(process)

    async def _spawn(self, arguments: Sequence[str], *, output: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self._program,
                *arguments,
                stdin=asyncio.subprocess.PIPE if output == asyncio.subprocess.PIPE else asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
            )
        except OSError as error:
            raise MpsError(
                f"{self._program} cannot be run ({error.strerror}): it comes with NVIDIA's driver"
            ) from error

    async def _is_gone(self, said: str) -> bool:
        """Whether there is no daemon any more. One that dies of a command may hold its socket for a moment longer than
        the connection; a refusal has words.
        """
        if self._listening() and not said.strip():
            await asyncio.sleep(_DYING)
        return not self._listening()

    def _listening(self) -> bool:
        """Whether anyone holds the socket; one that was killed leaves its file behind."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.settimeout(0)
            try:
                probe.connect(str(self.pipe_directory / _SOCKET))
            except OSError as error:
                return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED)
        return True


async def _gone(process: asyncio.subprocess.Process) -> None:
    """End a control program that is still there: it only carries a command, the daemon is another process."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@dataclass(frozen=True, slots=True)
class MpsProcess:
    """A client's process as the daemon lists it: numbers, one of which is its PID; in protocol 2 its server's PID."""

    numbers: tuple[int, ...]
    server: str = ""


async def list_processes(daemon: MpsDaemon) -> tuple[MpsProcess, ...]:
    """The processes of all clients."""
    if daemon.protocol == 3:
        rows = (await daemon.tell(("client", "list", "--all", _CSV))).splitlines()
        return tuple(MpsProcess(tuple(int(cell) for cell in row.split(",") if _is_number(cell))) for row in rows)
    found: list[MpsProcess] = []
    for server in (await daemon.tell(_LIST_SERVERS[2])).split():
        try:
            answer = await daemon.tell(("get_client_list", server))
        except MpsRefusalError:  # it has ended meanwhile
            continue
        found += [MpsProcess((int(word),), server) for word in answer.split() if _is_number(word)]
    return tuple(found)


async def terminate_process(daemon: MpsDaemon, process: MpsProcess, pid: int) -> None:
    """End a client in order: its work is drained, its next call fails, and its process lives on."""
    if daemon.protocol == 3:
        await daemon.tell(("client", "terminate", str(pid)))
    else:
        await daemon.tell(("terminate_client", process.server, str(pid)))


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


# Protocol 2


def client_environment(
    pipe_directory: Path,
    *,
    memory_mib: int | None = None,
    threads: int | None = None,
    yields: bool = False,
) -> dict[str, str]:
    """The environment that makes a container's programs clients of a daemon, with their limits.

    `memory_mib` is for containers with one GPU: a client that names a GPU it does not see drops every limit. The GPU is
    named by its ordinal as the container sees it, since limits by UUID are known not to be applied. `yields` gives the
    programs a priority below normal.
    """
    environment = {nvidia.ENV_MPS_PIPE_DIRECTORY: str(pipe_directory)}
    if memory_mib is not None:
        environment[nvidia.ENV_MPS_MEMORY_LIMIT] = f"0={_memory(memory_mib)}"
    if threads is not None:
        environment[nvidia.ENV_MPS_THREAD_PERCENTAGE] = str(_percentage(threads))
    if yields:
        environment[nvidia.ENV_MPS_PRIORITY] = _BELOW_NORMAL
    return environment


async def faulted_servers(daemon: MpsDaemon) -> tuple[str, ...]:
    """Of protocol 2, the PIDs of the servers that a client's fault has stopped. R535 cannot say, and has none."""
    found = []
    for pid in (await daemon.tell(_LIST_SERVERS[2])).split():
        try:
            status = await daemon.tell(("get_server_status", pid))
        except MpsRefusalError:  # it has ended meanwhile, or the daemon does not know the command
            continue
        if status.strip().upper() == _FAULT:
            found.append(pid)
    return tuple(found)


# Protocol 3. SM partitions are left out: a client chooses its own, so they bind nobody.


@dataclass(frozen=True, slots=True)
class MpsServer:
    """A server, as the daemon lists it."""

    name: str
    status: str
    #: The UUIDs of the GPUs that it may use; none are listed of one that may use all.
    gpus: frozenset[str] = frozenset()

    @property
    def faulted(self) -> bool:
        """Whether a client's fault has stopped it: it takes no new clients until all it has have left."""
        return self.status.upper() == _FAULT


@dataclass(frozen=True, slots=True)
class MpsNamespace:
    """A part of a server, with limits of its own as the daemon writes them."""

    name: str
    memory_limit: str
    threads: str

    def difference(self, *, memory_mib: int | None = None, threads: int | None = None) -> str:
        """What is not as it was to be, in words; empty if these limits hold. None was not to be limited.

        Amounts are compared as finely as the daemon writes them: 3000M is `2G` to NVIDIA's daemons.
        """
        if memory_mib is not None and not _limits_to(self.memory_limit, memory_mib):
            return f"the memory limit of MPS namespace {self.name} is {shown(self.memory_limit)}, not {memory_mib}M"
        if threads is not None and not _is_percentage(self.threads, threads):
            return f"MPS namespace {self.name} has {shown(self.threads)} percent of the threads, not {threads}"
        return ""


def list_servers() -> Command:
    """All servers; `parse_servers` reads the answer."""
    return _LIST_SERVERS[3]


def create_server(name: str, *, gpus: Iterable[str] = ()) -> Command:
    """A server on the GPUs with these UUIDs, or on all. In multi-user mode it is root's.

    List the servers again afterwards: with an unknown UUID the daemon accepts the command, and the server ends at once.
    """
    uuids = sorted(gpus)
    for uuid in uuids:
        if not _UUID.fullmatch(uuid):
            raise MpsError(f"{shown(uuid)} is no UUID of a GPU: survey the GPUs again")
    return ("server", "create", _named(name), *((f"--allowed-devices={','.join(uuids)}",) if uuids else ()))


def delete_server(name: str) -> Command:
    """Remove a server that has no clients."""
    return ("server", "delete", _named(name))


def list_namespaces(server: str) -> Command:
    """A server's namespaces; `parse_namespaces` reads the answer."""
    return ("namespace", "list", f"--server={_named(server)}", _CSV)


def create_namespace(name: str, *, server: str) -> Command:
    """A namespace without limits."""
    return ("namespace", "create", _named(name), f"--server={_named(server)}")


def set_namespace(
    name: str, *, server: str, memory_mib: int | None = None, threads: int | None = None, yields: bool = False
) -> Command:
    """A namespace's limits, to be set before its first client. `yields`: a priority below normal."""
    if memory_mib is None and threads is None and not yields:
        raise MpsError("no limit is given: set the memory, the threads or both")
    return (
        "namespace",
        "set",
        _named(name),
        f"--server={_named(server)}",
        *(() if memory_mib is None else (f"--pinned-memory-limit={_memory(memory_mib)}",)),
        *(() if threads is None else (f"--active-thread-percentage={_percentage(threads)}",)),
        *((f"--client-priority={_BELOW_NORMAL}",) if yields else ()),
    )


def delete_namespace(name: str, *, server: str, force: bool = False) -> Command:
    """Remove a namespace; with force, though it has clients."""
    return ("namespace", "delete", _named(name), f"--server={_named(server)}", *(("--force",) if force else ()))


def parse_servers(answer: str) -> tuple[MpsServer, ...]:
    """The servers."""
    return tuple(
        MpsServer(cells[0], cells[3], frozenset(cell for cell in cells[5:] if cell.startswith(_UUID_PREFIX)))
        for cells in _cells(answer)
    )


def parse_namespaces(answer: str) -> tuple[MpsNamespace, ...]:
    """The namespaces. The memory limit may hold commas; the cells on both sides of it do not."""
    return tuple(MpsNamespace(cells[0], ",".join(cells[3:-3]), cells[-3]) for cells in _cells(answer))


def _cells(answer: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    for row in rows:
        if len(row) < _LEAST_CELLS:
            raise MpsError(
                f"the MPS daemon answered {shown(','.join(row))}, fewer than {_LEAST_CELLS} cells: see its log"
            )
    return rows


def _limits_to(written: str, memory_mib: int) -> bool:
    """Whether every amount in a limit such as `3G` or `0=3G,1=3G` is this one, as finely as it is written."""
    found = [_MEMORY.fullmatch(item.strip()) for item in written.split(",")]
    return all(match and int(match["amount"]) == memory_mib // _UNITS_MIB[match["unit"]] for match in found)


def _is_percentage(written: str, percent: int) -> bool:
    try:
        return float(written.removesuffix("%")) == percent
    except ValueError:
        return False


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise MpsError(f"{shown(name)} is no name for MPS: use lower case, digits and underscores, at most 64 of them")
    return name


def _memory(mebibytes: int) -> str:
    if mebibytes < 1:
        raise MpsError(f"{shown(mebibytes)} cannot be a limit in MiB: give 1 or more")
    return f"{mebibytes}M"


def _percentage(percent: int) -> int:
    if not 1 <= percent <= 100:
        raise MpsError(f"{shown(percent)} is not a part of a card's threads: give 1 to 100")
    return percent
