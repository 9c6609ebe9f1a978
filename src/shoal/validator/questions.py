"""Questions to NVIDIA's libraries, each asked by a process of its own (`child.py`), within bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from shoal.validator.errors import CheckError

#: How long a process that was killed may take to be gone. One that waits in the kernel may never be.
_KILLED_SECONDS: Final = 5.0
_MOST: Final = 65536
_WORDS: Final = 512
_REBOOT: Final = "look at dmesg of the node; a driver that hangs mostly needs a reboot"


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[str, msgspec.Meta(max_length=256)] = ""
    count: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    why: str = ""
    fix: str = ""
    absent: bool = False


_DECODER: Final = msgspec.json.Decoder(_Answer)


class AbsentError(CheckError):
    """The library is not there."""


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """What a driver says of itself."""

    version: str
    cards: int


class DriverQuestions:
    """Asks one question at a time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        #: A process that could not be ended.
        self._stuck: asyncio.subprocess.Process | None = None

    async def nvml(self, root: str = "") -> DriverAnswer:
        """The driver, by NVML's library under a root, or by the one that the loader finds. CheckError if it fails."""
        return await self._ask("nvml", *([root] if root else []))

    async def cuda(self) -> DriverAnswer:
        """Whether CUDA can begin here. CheckError if not."""
        return await self._ask("cuda")

    async def _ask(self, kind: Literal["nvml", "cuda"], *more: str) -> DriverAnswer:
        if self._stuck is not None:
            if self._stuck.returncode is None:
                raise CheckError("NVIDIA's driver hangs: a process that asked it cannot be ended", _REBOOT)
            self._stuck = None
        reading, writing = os.pipe()
        try:
            text = await self._run(kind, reading, writing, more)
        finally:
            os.close(reading)
        try:
            answer = _DECODER.decode(text)
        except msgspec.MsgspecError as error:
            raise CheckError(f"the answer of NVIDIA's library cannot be read: {error}", _REBOOT) from error
        if answer.absent:
            raise AbsentError("NVIDIA's library is not there", "")
        if answer.why:
            raise CheckError(plain(answer.why), plain(answer.fix))
        return DriverAnswer(plain(answer.version)[:64], answer.count)

    async def _run(self, kind: str, reading: int, writing: int, more: tuple[str, ...]) -> bytes:
        what = "NVML" if kind == "nvml" else "CUDA"
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "shoal.validator.child", kind, str(writing), *more),
                pass_fds=(writing,),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise CheckError(f"no process can be started: {error.strerror}", "give the validator more room") from error
        finally:
            os.close(writing)
        try:
            async with asyncio.timeout(self._seconds):
                code = await process.wait()
        except TimeoutError:
            raise CheckError(f"{what} did not answer within {self._seconds:g} s", _REBOOT) from None
        finally:
            await self._end(process)
        if code < 0:
            raise CheckError(f"{what} crashed ({signal.Signals(-code).name})", "install NVIDIA's driver anew")
        if code:
            raise CheckError(f"{what} could not be asked: the process ended with {code}", "look at the validator's log")
        os.set_blocking(reading, False)
        try:
            return os.read(reading, _MOST)
        except BlockingIOError:
            return b""

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        try:
            async with asyncio.timeout(_KILLED_SECONDS):
                await process.wait()
        except TimeoutError:
            self._stuck = process


def plain(text: str) -> str:
    """Words that can be shown: printable, and not too long."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= _WORDS else shown[: _WORDS - 1] + "…"
