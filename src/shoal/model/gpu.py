"""Cards and the nodes that carry them, as the scheduler sees them.

A card is known by its UUID. Its index is an alias that may have gaps and may change at a reboot; nothing is keyed by
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

#: MPS clients one card serves unless its node says otherwise (the KETI device plugin's default).
DEFAULT_MPS_CLIENTS = 10
#: More memory than any card has; a request beyond it was written in another unit than it is counted in.
MAX_CARD_MIB = 2 * 1024 * 1024


class Isolation(StrEnum):
    """What keeps a container to its share of a card, from the strongest to none."""

    #: The driver limits the memory of the container's cgroup.
    CGROUP = "cgroup"
    #: MPS limits memory and threads of the container's own namespace.
    NAMESPACE = "mps-namespace"
    #: MPS limits clients by their environment, which a container can change. For pods of namespaces that opted in.
    MPS = "mps"
    #: Shares are counted, and nothing more.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Link:
    """An NVLink from the card that holds this to another card of its node."""

    peer: str
    lanes: int


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG partition of a card, with a UUID of its own."""

    uuid: str
    profile: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card."""

    uuid: str
    index: int
    memory_mib: int
    model: str = ""
    minor: int | None = None
    numa: int | None = None
    links: tuple[Link, ...] = ()
    healthy: bool = True
    #: Why the card is unhealthy, in words for a person; empty while it is healthy.
    fault: str = ""
    #: MIG mode is on: the card is handed out by partitions and takes no share of another kind.
    mig: bool = False
    mig_instances: tuple[MigInstance, ...] = ()
    #: How many MPS clients the card serves; 0 when it cannot serve any.
    mps_clients: int = DEFAULT_MPS_CLIENTS
    isolation: Isolation = Isolation.NONE


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """A node: its cards and what else a pod needs of it."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    #: The policy the node's own label asks for in the choice of cards; None leaves it to the pod or the configuration.
    policy: str | None = None
    #: The device plugin there serves one container of a pod with one card, and nothing else.
    one_container: bool = False

    def partitions(self) -> Iterator[tuple[Gpu, MigInstance]]:
        """The MIG partitions of its cards, each beside its card."""
        for gpu in self.gpus:
            if gpu.mig:
                for part in gpu.mig_instances:
                    yield gpu, part
