"""Commands of MPS protocol 3, and its answers: named servers, and namespaces that limit the clients in them.

A namespace's limits are a wall for clients that are given its directory alone: the `default` namespace of a server has
none until they are set (`set_server`). Limits are set before the first client comes; afterwards the daemon refuses.
Nothing outlives the daemon. SM partitions are left out: a client chooses its own, so they bind nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.gpu.errors import MpsError
from shoal.gpu.mps.v2 import BELOW_NORMAL, Command, memory, percentage
from shoal.model.errors import shown

DEFAULT_NAMESPACE: Final = "default"
QUIT: Command = ("-q",)
_CSV: Final = "--format=csv,noheader"
_NAME: Final = re.compile(r"[a-z0-9_]{1,64}")
_DEVICE: Final = re.compile(r"[A-Za-z0-9-]{1,80}")


@dataclass(frozen=True, slots=True)
class Server:
    """A named MPS server."""

    name: str
    uid: int
    #: None while it does not run yet.
    pid: int | None
    status: str
    pipe_directory: Path


@dataclass(frozen=True, slots=True)
class Namespace:
    """A part of a server, with limits of its own. `pipe_directory` is what its clients are given."""

    name: str
    server: str
    pipe_directory: Path
    memory_limit: str
    threads: str


@dataclass(frozen=True, slots=True)
class Client:
    """A program that computes through a server."""

    pid: int
    server: str
    namespace: str


def list_servers() -> Command:
    """All servers; `parse_servers` reads the answer."""
    return ("server", "list", _CSV)


def create_server(name: str, *, devices: Sequence[str] = ()) -> Command:
    """A server, on all cards or on these alone. In multi-user mode it is root's."""
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise MpsError(f"{shown(device)} is not a card: give its UUID")
    allowed = (f"--allowed-devices={','.join(devices)}",) if devices else ()
    return ("server", "create", _named(name), *allowed)


def set_server(name: str, *, memory_mib: int | None = None, threads: int | None = None) -> Command:
    """The limits of a server's `default` namespace."""
    return ("server", "set", _named(name), *_limits(memory_mib, threads))


def delete_server(name: str, *, force: bool = False) -> Command:
    """Remove a server; with force, its clients too."""
    return ("server", "delete", _named(name), *(("--force",) if force else ()))


def list_namespaces(server: str) -> Command:
    """A server's namespaces; `parse_namespaces` reads the answer."""
    return ("namespace", "list", f"--server={_named(server)}", _CSV)


def create_namespace(name: str, *, server: str) -> Command:
    """A namespace without limits."""
    return ("namespace", "create", _named(name), f"--server={_named(server)}")


def set_namespace(
    name: str, *, server: str, memory_mib: int | None = None, threads: int | None = None, yields: bool = False
) -> Command:
    """A namespace's limits. The daemon refuses while it has clients. `yields`: a priority below normal."""
    return ("namespace", "set", _named(name), f"--server={_named(server)}", *_limits(memory_mib, threads, yields))


def delete_namespace(name: str, *, server: str, force: bool = False) -> Command:
    """Remove a namespace; with force, though it has clients."""
    return ("namespace", "delete", _named(name), f"--server={_named(server)}", *(("--force",) if force else ()))


def list_clients() -> Command:
    """The clients of all servers; `parse_clients` reads the answer. As a table, the daemon would cut PIDs short."""
    return ("client", "list", "--all", _CSV)


def terminate_client(pid: int) -> Command:
    """End a client; it blocks until the client's work on the card is done."""
    if pid < 1:
        raise MpsError(f"{shown(pid)} cannot be the PID of a client: give 1 or more")
    return ("client", "terminate", str(pid))


def parse_servers(answer: str) -> tuple[Server, ...]:
    """The servers. Allowed devices are a list within the line, so what follows them is left alone."""
    return tuple(
        Server(cells[0], _number(cells[1], answer), _pid(cells[2]), cells[3], Path(cells[4]))
        for cells in _cells(answer, least=7)
    )


def parse_namespaces(answer: str) -> tuple[Namespace, ...]:
    """The namespaces. The memory limit may hold commas; the cells on both sides of it do not."""
    return tuple(
        Namespace(cells[0], cells[1], Path(cells[-1]), memory_limit=",".join(cells[3:-3]), threads=cells[-3])
        for cells in _cells(answer, least=7)
    )


def parse_clients(answer: str) -> tuple[Client, ...]:
    """The clients. The command line at the end may hold anything."""
    return tuple(Client(_number(cells[0], answer), cells[1], cells[3]) for cells in _cells(answer, least=5))


def _cells(answer: str, *, least: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    for row in rows:
        if len(row) < least:
            raise MpsError(f"the MPS daemon answered {shown(','.join(row))}, fewer than {least} cells: see its log")
    return rows


def _number(cell: str, answer: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 11):
        raise MpsError(
            f"the MPS daemon answered {shown(cell)} where a number was expected: see its log ({shown(answer)})"
        )
    return int(cell)


def _pid(cell: str) -> int | None:
    return int(cell) if cell.isascii() and cell.isdigit() and 0 < len(cell) < 11 and int(cell) else None


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise MpsError(f"{shown(name)} is no name for MPS: use lower case, digits and underscores, at most 64 of them")
    return name


def _limits(memory_mib: int | None, threads: int | None, yields: bool = False) -> Command:
    if memory_mib is None and threads is None and not yields:
        raise MpsError("no limit is given: set the memory, the threads or both")
    return (
        *(() if memory_mib is None else (f"--pinned-memory-limit={memory(memory_mib)}",)),
        *(() if threads is None else (f"--active-thread-percentage={percentage(threads)}",)),
        *((f"--client-priority={BELOW_NORMAL}",) if yields else ()),
    )
