"""Commands of MPS protocol 2, and what a client's container needs to be limited by it.

Limits are defaults for servers that start later, or stand in a container's environment, and a container that unsets
that escapes them: a convention, not a wall. One server runs for one user at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shoal.gpu.errors import MpsError
from shoal.model.contract import nvidia
from shoal.model.errors import shown

Command = tuple[str, ...]

LIST_SERVERS: Command = ("get_server_list",)
QUIT: Command = ("quit",)
#: The priority of clients whose work gives way; others have 0.
BELOW_NORMAL: Final = "1"


def list_clients(server_pid: int) -> Command:
    """The PIDs of a server's clients."""
    return ("get_client_list", str(_positive(server_pid, "the PID of a server")))


def start_server(uid: int) -> Command:
    """Start the server of a user, instead of waiting for the first client."""
    if uid < 0:
        raise MpsError(f"{shown(uid)} is not a user's number: give 0 or more")
    return ("start_server", "-uid", str(uid))


def set_default_memory_limit(ordinal: int, mebibytes: int) -> Command:
    """What a client may use of the card with this ordinal, on servers that start from now on.

    Ordinals, not UUIDs: limits by UUID are known not to be applied.
    """
    if ordinal < 0:
        raise MpsError(f"{shown(ordinal)} is not the ordinal of a card: give 0 or more")
    return ("set_default_device_pinned_mem_limit", str(ordinal), memory(mebibytes))


def set_default_threads(percent: int) -> Command:
    """The part of a card's threads that a client may use, on servers that start from now on."""
    return ("set_default_active_thread_percentage", str(percentage(percent)))


def terminate_client(server_pid: int, client_pid: int) -> Command:
    """End a client's work on the card; it blocks until that is done."""
    server = str(_positive(server_pid, "the PID of a server"))
    return ("terminate_client", server, str(_positive(client_pid, "the PID of a client")))


def parse_pids(answer: str) -> tuple[int, ...]:
    """The PIDs in an answer of `get_server_list` or `get_client_list`."""
    words = answer.split()
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 11):
            raise MpsError(f"the MPS daemon answered {shown(answer.strip())} where PIDs were expected: see its log")
    return tuple(map(int, words))


def client_environment(
    pipe_directory: Path,
    *,
    memory_mib: Mapping[int, int] | None = None,
    threads: int | None = None,
    yields: bool = False,
) -> dict[str, str]:
    """The environment that makes a container's programs clients of a daemon, with their limits.

    `memory_mib` is by the cards' ordinals as the container sees them. `yields` gives them a priority below normal.
    """
    environment = {nvidia.ENV_MPS_PIPE_DIRECTORY: str(pipe_directory)}
    if memory_mib:
        limits = (f"{ordinal}={memory(mib)}" for ordinal, mib in sorted(memory_mib.items()))
        environment[nvidia.ENV_MPS_MEMORY_LIMIT] = ",".join(limits)
    if threads is not None:
        environment[nvidia.ENV_MPS_THREAD_PERCENTAGE] = str(percentage(threads))
    if yields:
        environment[nvidia.ENV_MPS_PRIORITY] = BELOW_NORMAL
    return environment


def memory(mebibytes: int) -> str:
    """An amount of memory as MPS reads it."""
    return f"{_positive(mebibytes, 'a limit in MiB')}M"


def percentage(percent: int) -> int:
    """A part of a card's threads, checked."""
    if not 1 <= percent <= 100:
        raise MpsError(f"{shown(percent)} is not a part of a card's threads: give 1 to 100")
    return percent


def _positive(value: int, what: str) -> int:
    if value < 1:
        raise MpsError(f"{shown(value)} cannot be {what}: give 1 or more")
    return value
