"""Whose the memory and the load of a card are. Pure: readings in, the use of each container and of nobody out.

Per card: the containers' memory and what is unattributed add up to what is used. Nothing is guessed. A part that is not
known is left out, and where one is, nobody can say how much of the card is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.gpu.protocol import Process
from shoal.metrics.processes import ContainerRef

_PERCENT: Final = 100


class UseSource(StrEnum):
    """Who tells what a container uses of a card, the best first."""

    #: The driver's own account of the container's cgroup.
    CGROUP = "cgroup"
    #: The list of the MPS server's clients.
    MPS = "mps"
    #: The list of the card's processes.
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """What a container uses of one card. None is not known, and never 0."""

    container: ContainerRef
    source: UseSource
    memory_bytes: int | None
    utilisation: int | None = None


@dataclass(frozen=True, slots=True)
class CardUse:
    """What is used of one card, by whom. `unattributed_bytes` is None when it is not known."""

    used_bytes: int | None
    unattributed_bytes: int | None
    containers: tuple[ContainerUse, ...] = ()


def attribute(
    used_bytes: int | None,
    processes: Iterable[Process],
    owners: Mapping[int, ContainerRef],
    accounts: Mapping[ContainerRef, int],
) -> CardUse:
    """Divide a card's use among containers.

    `used_bytes` leaves out what driver and firmware keep. `owners` are the containers of PIDs, `accounts` what the
    driver has counted for containers' cgroups. The readings are made one after another: when the parts add up to more
    than was read before them, the card uses as much as its parts.
    """
    groups: dict[ContainerRef, list[Process]] = {}
    foreign: list[Process] = []
    for process in processes:
        owner = owners.get(process.pid)
        if owner is None:
            foreign.append(process)
        else:
            groups.setdefault(owner, []).append(process)
    uses = [
        _use(container, groups.get(container, ()), accounts.get(container))
        for container in sorted(accounts.keys() | groups.keys(), key=lambda ref: (ref.pod_uid, ref.container_id))
    ]
    known = sum(use.memory_bytes for use in uses if use.memory_bytes is not None)
    if used_bytes is None or any(use.memory_bytes is None for use in uses):
        return CardUse(used_bytes, None, tuple(uses))
    # A process whose container is not known may be in an account already.
    apart = 0 if accounts else sum(process.memory_bytes or 0 for process in foreign)
    used = max(used_bytes, known + apart)
    return CardUse(used, used - known, tuple(uses))


def _use(container: ContainerRef, processes: Iterable[Process], account: int | None) -> ContainerUse:
    processes = tuple(processes)
    through_mps = any(process.mps for process in processes)
    source = UseSource.CGROUP if account is not None else UseSource.MPS if through_mps else UseSource.PROCESS
    memory = account if account is not None else _sum(process.memory_bytes for process in processes)
    # Under MPS the driver tells the load of the server, which is that of all its clients.
    load = None if through_mps or not processes else _sum(process.utilisation for process in processes)
    return ContainerUse(container, source, memory, load if load is None or load <= _PERCENT else None)


def _sum(parts: Iterable[int | None]) -> int | None:
    """The sum; None when a part is not known."""
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
