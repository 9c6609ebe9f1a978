"""An MPS control daemon: started, asked, stopped.

It runs in the background on its own (`-d`), so it outlives the process that started it: ending it ends every program
that computes through it. So there is no handle to hold on to; a daemon is known by its pipe directory, and whoever
knows that can ask it. Commands go through the control program, the one published way.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from shoal.gpu.errors import MpsError, NoMpsDaemonError
from shoal.gpu.mps import v2, v3
from shoal.gpu.mps.v2 import Command
from shoal.model.contract import nvidia
from shoal.model.errors import shown

PROGRAM: Final = "nvidia-cuda-mps-control"
#: The daemon's socket in its pipe directory; the path of a socket has room for 107 bytes.
_SOCKET: Final = "control"
_SOCKET_PATH: Final = 107
#: `<server>/<namespace>/` of protocol 3 comes in between; names made from container ids are this long at most.
_ROOM_FOR_NAMES: Final = 40
_MOST_OUTPUT: Final = 2**20


class Health(StrEnum):
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
        if await self.health() is Health.RUNNING:
            return False
        self.pipe_directory.mkdir(parents=True, exist_ok=True)
        self.log_directory.mkdir(parents=True, exist_ok=True)
        flags = ["-d", *(("-p", "3") if self.protocol == 3 else ()), *(("-m",) if self._multi_user else ())]
        # A file and not a pipe: the daemon inherits it, and a pipe would not end before the daemon does. In memory,
        # since a container may have nowhere to write.
        with os.fdopen(os.memfd_create("mps"), "w+b") as output:
            process = await self._spawn(flags, output=output.fileno())
            status = await self._ended(process, "start")
            output.seek(0)
            said = output.read(_MOST_OUTPUT).decode(errors="replace").strip()
        if status:
            raise MpsError(
                f"the MPS daemon did not start (exit status {status}): {shown(said)}; see {self.log_directory}"
            )
        if await self.health() is not Health.RUNNING:
            raise MpsError(f"the MPS daemon started and does not answer: see {self.log_directory}")
        return True

    async def health(self) -> Health:
        """Whether the daemon answers. Costs a short-lived process."""
        if not (self.pipe_directory / _SOCKET).exists():
            return Health.ABSENT
        try:
            await self.tell(v3.list_servers() if self.protocol == 3 else v2.LIST_SERVERS)
        except NoMpsDaemonError:
            return Health.ABSENT
        except MpsError:
            return Health.SILENT
        return Health.RUNNING

    async def tell(self, command: Command, *, patience: float | None = None) -> str:
        """Give the daemon a command of its protocol; its answer. `patience` is for commands that wait for clients."""
        for word in command:
            if not word or any(mark in word for mark in "\0\n\r"):
                raise MpsError(f"{shown(word)} cannot be part of an MPS command: leave it out")
        if self.protocol == 3:
            status, said = await self._run(["-p", "3", *command], b"", patience)
        else:
            status, said = await self._run([], " ".join(command).encode() + b"\n", patience)
        if status == 0:
            return said
        if not self._listening():
            raise NoMpsDaemonError(f"no MPS daemon answers in {self.pipe_directory}: start it")
        raise MpsError(f"the MPS daemon refused {shown(' '.join(command))}: {shown(said.strip())}")

    async def quit(self) -> None:
        """Stop the daemon and its servers, and with them every client. No daemon is no error."""
        with contextlib.suppress(NoMpsDaemonError):
            await self.tell(v3.QUIT if self.protocol == 3 else v2.QUIT)

    async def _run(self, arguments: Sequence[str], sent: bytes, patience: float | None) -> tuple[int, str]:
        process = await self._spawn(arguments, output=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(self._patience if patience is None else patience):
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

    def _listening(self) -> bool:
        """Whether anyone holds the socket; one that was killed leaves its file behind."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
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
