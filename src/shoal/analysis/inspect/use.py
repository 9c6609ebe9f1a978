"""What is allocated in a cluster: its nodes with their cards, what pods hold of each, and who waits for one.

Pure: objects in, values out. All amounts are MiB. Text that others wrote is made printable here, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from shoal.model import quantity
from shoal.model.allocation import Allocation
from shoal.model.contract import gpushare
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import QuantityError
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import NO_SHARE, Share

UNKNOWN_ADDRESS = "unknown"
#: Columns by card index end here; a node with a higher index shows its cards by position.
MAX_SLOTS = 256

_NUMBER = re.compile(r"([0-9]+)")


class PodUse(msgspec.Struct, frozen=True, gc=False):
    """A pod that asks for GPUs: the cards it holds, or what it asks for and why it holds none."""

    namespace: str
    name: str
    node: str = ""
    phase: str = ""
    #: None when its cards are not known.
    allocation: Allocation | None = None
    #: What is held of each card, by UUID.
    held: dict[str, Share] = msgspec.field(default_factory=dict)
    asked_mib: int = 0
    why: str = ""
    #: Told to end, and holding its share until it has.
    ending: bool = False
    #: When it was made, as the API server says it; empty when that is not known.
    created: str = ""
    #: The joined cluster that it was sent to, where it runs or waits.
    cluster: str = ""
    #: The claims of devices by which it holds some or all of it.
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node: its cards, the pods on them, and those on the node whose card is not known.

    `pods` and `pending` are the pods to show; the amounts are those of all pods.
    """

    node: NodeGpus
    address: str
    pods: tuple[PodUse, ...] = ()
    pending: tuple[PodUse, ...] = ()
    #: Memory the node offers when that is not the sum of its cards: gpushare divides it and rounds down.
    offered_mib: int | None = None
    cordoned: bool = False
    ready: bool = True
    #: Whether it offers shares of memory; gpushare's tables show no others.
    shares: bool = True
    #: What is held of each card, by UUID.
    held: dict[str, Share] = field(default_factory=dict)
    #: Memory of the pods whose card is not known.
    pending_mib: int = 0

    def share(self, gpu: Gpu) -> Share:
        """What is held of a card."""
        return self.held.get(gpu.uuid, NO_SHARE)

    def allocated(self, gpu: Gpu) -> int:
        """Memory taken of a card; a card that one pod has alone is taken in full."""
        return taken(self.share(gpu), gpu)

    def totals(self, unit: MemoryUnit) -> tuple[int, int]:
        """Units allocated, those of pods without a known card included, and units in all."""
        gpus = self.node.gpus
        allocated = sum([unit.ceil(self.allocated(gpu)) for gpu in gpus if gpu.uuid in self.held])
        allocated += unit.ceil(self.pending_mib)
        if self.offered_mib is not None:
            return allocated, unit.floor(self.offered_mib)
        return allocated, sum([unit.floor(gpu.memory_mib) for gpu in gpus])

    def slots(self) -> dict[int, Gpu]:
        """The cards by the column they stand in: their index."""
        if any(gpu.index >= MAX_SLOTS for gpu in self.node.gpus):
            return dict(enumerate(sorted(self.node.gpus, key=lambda gpu: gpu.index)))
        return {gpu.index: gpu for gpu in self.node.gpus}


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """The whole cluster, or the nodes that were asked for."""

    nodes: tuple[NodeUse, ...]
    #: Pods that ask for GPUs and have no node, or one without cards.
    waiting: tuple[PodUse, ...] = ()
    #: What could not be read, in words.
    problems: tuple[str, ...] = ()
    #: What `aliyun.com/gpu-mem` counts here; None when no node tells.
    unit: MemoryUnit | None = None
    #: The one whose pods are shown; empty for all.
    namespace: str = ""
    #: Pods that were sent to another cluster.
    elsewhere: tuple[PodUse, ...] = ()

    @property
    def pods(self) -> int:
        """How many pods there are to show."""
        return len(self.waiting) + sum(len(use.pods) + len(use.pending) for use in self.nodes)

    @property
    def sharing(self) -> tuple[NodeUse, ...]:
        """The nodes that gpushare's tables show."""
        return tuple(use for use in self.nodes if use.shares)


def of_namespace(cluster: ClusterUse, namespace: str) -> ClusterUse:
    """The cluster with the pods of one namespace; cards stay as full as all pods make them. Empty leaves all pods."""
    if not namespace:
        return cluster

    def own(pods: Iterable[PodUse]) -> tuple[PodUse, ...]:
        return tuple(pod for pod in pods if pod.namespace == namespace)

    nodes = tuple(replace(use, pods=own(use.pods), pending=own(use.pending)) for use in cluster.nodes)
    return replace(
        cluster, nodes=nodes, waiting=own(cluster.waiting), elsewhere=own(cluster.elsewhere), namespace=namespace
    )


def taken(share: Share, gpu: Gpu) -> int:
    """Memory that a share takes of its card."""
    return gpu.memory_mib if share.exclusive else share.memory_mib


def totals(nodes: Sequence[NodeUse], unit: MemoryUnit) -> tuple[int, int]:
    """Units allocated and in all, over some nodes."""
    each = [use.totals(unit) for use in nodes]
    return sum(one for one, _ in each), sum(total for _, total in each)


def percent(part: int, whole: int) -> int:
    """Rounded down, as gpushare does."""
    return part * 100 // whole if whole else 0


def natural(name: str) -> tuple[list[tuple[str, int]], str]:
    """A key that sorts n2 before n10."""
    parts = _NUMBER.split(name)
    return [(text, int(number or 0)) for text, number in zip(parts[::2], [*parts[1::2], ""], strict=True)], name


def printable(text: str) -> str:
    """The text on one line, without characters that a terminal would act on."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


def offered(resources: Mapping[str, object], resource: str) -> int:
    """How many of a resource a node offers; 0 for what cannot be read."""
    try:
        return max(0, quantity.whole(resources.get(resource, 0)))
    except QuantityError:
        return 0


def unit_of_inventory(units: int, gpus: Iterable[Gpu]) -> MemoryUnit | None:
    """The unit in which these cards are offered as so many units; None when none are."""
    most_gib = sum(MemoryUnit.GIB.ceil(gpu.memory_mib) for gpu in gpus)
    if not units or not most_gib:
        return None
    return MemoryUnit.MIB if units > most_gib else MemoryUnit.GIB


def unit_of_capacity(resources: Mapping[str, object]) -> MemoryUnit | None:
    """gpushare's guess; None for a node that does not count memory."""
    units, count = offered(resources, gpushare.RESOURCE_MEMORY), offered(resources, gpushare.RESOURCE_COUNT)
    return gpushare.guess_unit(units // count) if units and count else None
