"""What is allocated in a cluster: its nodes with their cards, what pods hold of each, and who waits for one.

Pure: objects in, values out. All amounts are MiB. Text that others wrote is made printable here, once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.model.allocation import Allocation
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import NO_SHARE, Share

UNKNOWN_ADDRESS = "unknown"
#: Columns by card index end here; a node with a higher index shows its cards by position.
MAX_SLOTS = 256

_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class PodUse:
    """A pod that asks for GPUs: the cards it holds, or what it asks for and why it holds none."""

    namespace: str
    name: str
    node: str = ""
    phase: str = ""
    #: None when its cards are not known.
    allocation: Allocation | None = None
    #: What is held of each card, by UUID.
    held: dict[str, Share] = field(default_factory=dict)
    asked_mib: int = 0
    why: str = ""
    #: Told to end, and holding its share until it has.
    ending: bool = False


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node: its cards, the pods on them, and those on the node whose card is not known."""

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

    @property
    def pending_mib(self) -> int:
        """Memory of the pods whose card is not known."""
        return sum(pod.asked_mib for pod in self.pending)

    def share(self, gpu: Gpu) -> Share:
        """What is held of a card."""
        return self.held.get(gpu.uuid, NO_SHARE)

    def allocated(self, gpu: Gpu) -> int:
        """Memory taken of a card; a card that one pod has alone is taken in full."""
        return taken(self.share(gpu), gpu)

    def totals(self, unit: MemoryUnit) -> tuple[int, int]:
        """Units allocated, those of pods without a known card included, and units in all."""
        allocated = sum(unit.ceil(self.allocated(gpu)) for gpu in self.node.gpus) + unit.ceil(self.pending_mib)
        if self.offered_mib is not None:
            return allocated, unit.floor(self.offered_mib)
        return allocated, sum(unit.floor(gpu.memory_mib) for gpu in self.node.gpus)

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

    @property
    def sharing(self) -> tuple[NodeUse, ...]:
        """The nodes that gpushare's tables show."""
        return tuple(use for use in self.nodes if use.shares)


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
