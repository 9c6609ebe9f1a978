"""Memory limits on containers' own cgroups: the hook that a CDI spec names, and the socket on which it asks the agent.

The runtime runs the hook on the host when the container's cgroup exists and its program has not begun. The hook, a
small C program, sends the cgroup and the limits that stand in its arguments; the agent sets them through the driver and
says so. Without that answer the hook fails, and with it the start of the container. Nothing is kept between calls.
Where NVIDIA's own CDI spec runs a hook that does the same for all of the cards, that one is given the limit instead.

Only hard limits are set: they vanish with their cgroup. Managed memory is not counted by the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.agent.errors import AgentError, LimitError
from shoal.gpu.errors import GpuError
from shoal.gpu.protocol import MemoryLimit, Nvml
from shoal.kubelet.cdi import ContainerEdits, Hook
from shoal.kubelet.files import write_whole
from shoal.model.contract import nvidia
from shoal.model.contract.node_files import LIMIT_PROGRAM
from shoal.model.errors import shown

log = logging.getLogger(__name__)

PROGRAM: Final = LIMIT_PROGRAM
OK: Final = "ok"
GREETING: Final = "limit 1"
_HOOK: Final = "createRuntime"
_VENDOR_CARD: Final = "--gpu-id="
_HOOK_SECONDS: Final = 30
_READ_SECONDS: Final = 10.0
_MAX_REQUEST: Final = 64 * 1024
_MAX_LIMITS: Final = 256
_LIMIT: Final = re.compile(r"(?P<uuid>[A-Za-z0-9][A-Za-z0-9._:/-]{0,299})=(?P<bytes>[0-9]{1,19})")
_CREDENTIALS: Final = struct.Struct("3i")
_MEBIBYTE: Final = 2**20


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """What a hook asks for: a cgroup, relative to the root of cgroups, and hard limits in bytes by card."""

    cgroup: str
    limits: Mapping[str, int]


def hook_edits(program: Path, socket_path: Path, memory_mib: Mapping[str, int]) -> ContainerEdits:
    """The hook that sets limits on a container's cgroup."""
    limits = tuple(f"{uuid}={mib * _MEBIBYTE}" for uuid, mib in memory_mib.items())
    hook = Hook(_HOOK, str(program), (PROGRAM, str(socket_path), *limits), timeout=_HOOK_SECONDS)
    return ContainerEdits(hooks=(hook,))


def vendor_edits(hooks: Iterable[Hook], memory_mib: Mapping[str, int]) -> ContainerEdits | None:
    """The variables that make NVIDIA's own hook set the limits; None if it does not run for all cards or they differ.

    That hook needs both variables, and knows one pair for all cards.
    """
    served = {
        word.removeprefix(_VENDOR_CARD)
        for hook in hooks
        if hook.hook_name == _HOOK and nvidia.HOOK_MEMORY_LIMITS in hook.args
        for word in hook.args
    }
    amounts = set(memory_mib.values())
    if len(amounts) != 1 or not served.issuperset(memory_mib):
        return None
    return ContainerEdits(env=(f"{nvidia.ENV_MEMORY_REQUEST}=0", f"{nvidia.ENV_MEMORY_LIMIT}={amounts.pop()}"))


def decoded(raw: bytes) -> LimitRequest:
    """The request of a hook."""
    lines = raw.decode(errors="replace").split("\n")
    if len(raw) > _MAX_REQUEST or len(lines) < 4 or lines[0] != GREETING or lines[-1]:
        raise LimitError(f"{shown(raw[:80])} is no request of {PROGRAM}: is it of another version?")
    cgroup, *asked = lines[1:-1]
    if not cgroup.startswith("/") or "\0" in cgroup or ".." in cgroup.split("/") or not cgroup.strip("/"):
        raise LimitError(f"{shown(cgroup)} is not a container's cgroup as the host sees it: run the hook on the host")
    limits: dict[str, int] = {}
    for item in asked[:_MAX_LIMITS]:
        match = _LIMIT.fullmatch(item)
        if match is None or int(match["bytes"]) < 1:
            raise LimitError(f"{shown(item)} is no limit: write UUID=BYTES")
        limits[match["uuid"]] = int(match["bytes"])
    return LimitRequest(cgroup, limits)


def apply(nvml: Nvml, root: Path, request: LimitRequest) -> None:
    """Set the limits of a request."""
    cgroup = str(root / request.cgroup.lstrip("/"))
    for uuid, amount in request.limits.items():
        try:
            nvml.set_memory_limit(uuid, cgroup, MemoryLimit(hard_bytes=amount))
        except GpuError as error:
            raise LimitError(f"the memory limit of {amount // _MEBIBYTE} MiB could not be set: {error}") from error


def install(program: Path, folder: Path) -> Path:
    """Put the hook's program where the host can run it; its path."""
    place = folder / PROGRAM
    try:
        write_whole(place, program.read_bytes(), mode=0o755)
    except OSError as error:
        raise LimitError(f"{program} cannot be put into {folder}: {error.strerror or error}") from error
    return place


@contextlib.asynccontextmanager
async def serve(nvml: Nvml, socket_path: Path, root: Path) -> AsyncIterator[None]:
    """Answer hooks on a socket that only root can use. `root` is where the host's cgroups are."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            _check_peer(writer)
            async with asyncio.timeout(_READ_SECONDS):
                request = decoded(await _all(reader))
            await asyncio.to_thread(apply, nvml, root, request)
            log.info("limits of %s are set: %s", request.cgroup, dict(request.limits))
            said = OK
        except TimeoutError:
            said = f"the request was not complete after {_READ_SECONDS:.0f} s"
        except AgentError as error:
            log.warning("a container does not start: %s", error)
            said = str(error)
        with contextlib.suppress(ConnectionError):  # the runtime has given up on the hook
            writer.write(f"{said}\n".encode())
            await writer.drain()
        writer.close()

    # start_unix_server removes the socket when it closes, from Python 3.13 on: hooks wait at it for the next agent.
    server = await asyncio.start_server(answer, sock=_bound(socket_path))
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


def _bound(socket_path: Path) -> socket.socket:
    """A listening socket, in the place of one that an earlier process left."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        socket_path.parent.mkdir(parents=True, exist_ok=True)
        socket_path.unlink(missing_ok=True)
        listener.bind(str(socket_path))
        socket_path.chmod(0o600)
    except OSError as error:
        listener.close()
        raise LimitError(f"hooks cannot be answered on {socket_path}: {error.strerror or error}") from error
    return listener


async def _all(reader: asyncio.StreamReader) -> bytes:
    raw = b""
    while len(raw) <= _MAX_REQUEST and (more := await reader.read(_MAX_REQUEST + 1 - len(raw))):
        raw += more
    return raw


def _check_peer(writer: asyncio.StreamWriter) -> None:
    peer = writer.get_extra_info("socket")
    _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid not in (0, os.geteuid()):
        raise LimitError(f"user {uid} may not set limits: the hook runs as root")
