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
    """What limits a container to its share of a GPU, from the strongest to none."""

    #: The driver limits the memory of the container's cgroup. The only memory limit that a tenant cannot lift.
    CGROUP = "cgroup"
    #: MPS limits the compute of the container's own namespace. Its memory limit is a convention: a program that names
    #: a GPU it cannot see in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT drops it.
    NAMESPACE = "mps-namespace"
    #: MPS limits clients by their environment, which a container can change: a convention, for compute as for memory.
    #: For pods of namespaces that opted in.
    MPS = "mps"
    #: Shares are counted, and nothing more.
    NONE = "none"

    @property
    def enforces_memory(self) -> bool:
        """Whether a tenant cannot lift the memory limit."""
        return self is Isolation.CGROUP

    @property
    def by_mps(self) -> bool:
        """Whether MPS sets the limits, of compute as of memory."""
        return self in (Isolation.NAMESPACE, Isolation.MPS)


@dataclass(frozen=True, slots=True)
class LimitedBy:
    """What limits memory, and what limits compute.

    Written as one word where one mode limits both or only memory is limited, else as `cgroup+mps-namespace`.
    """

    memory: Isolation = Isolation.NONE
    compute: Isolation = Isolation.NONE

    def __str__(self) -> str:
        alone = self.compute in (self.memory, Isolation.NONE)
        return self.memory.value if alone else f"{self.memory.value}+{self.compute.value}"

    @classmethod
    def read(cls, written: str) -> LimitedBy | None:
        """What `str` of one has written; None for any other text."""
        memory, both, compute = written.partition("+")
        try:
            first = Isolation(memory)
            found = cls(first, Isolation(compute) if both else first if first.by_mps else Isolation.NONE)
        except ValueError:
            return None
        return found if str(found) == written else None


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
    #: What limits the memory of shares.
    isolation: Isolation = Isolation.NONE
    #: What limits their compute.
    compute_isolation: Isolation = Isolation.NONE

    @property
    def limited_by(self) -> LimitedBy:
        """What limits shares of it."""
        return LimitedBy(self.isolation, self.compute_isolation)


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
