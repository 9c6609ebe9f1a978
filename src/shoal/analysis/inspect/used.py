"""What is used beside what was requested: readings of collectors joined with the cards and pods of the API server.

What is not known is None, and never 0: a sum of which a part is not known is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shoal.analysis.collectors import Collectors, Measured
from shoal.analysis.inspect.use import ClusterUse, NodeUse, PodUse, taken
from shoal.metrics.history_points import UTILISATION
from shoal.metrics.history_wire import CardReading, ContainerReading, NodeReading
from shoal.model.contract import shoal
from shoal.model.gpu import Gpu

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PodOnCard:
    """A pod on a card. `requested_mib` is 0 for one that uses a card nobody gave it."""

    namespace: str
    name: str
    requested_mib: int
    used_bytes: int | None = None
    utilisation: int | None = None
    containers: tuple[ContainerReading, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedCard:
    """A card with its reading; None when it was not measured."""

    node: NodeUse
    gpu: Gpu
    reading: CardReading | None
    pods: tuple[PodOnCard, ...]

    @property
    def requested_mib(self) -> int:
        """Memory that pods of all namespaces requested of it."""
        return self.node.allocated(self.gpu)


@dataclass(frozen=True, slots=True)
class UsedNode:
    """A node with its cards."""

    node: NodeUse
    reading: NodeReading | None
    cards: tuple[UsedCard, ...]
    #: Why nothing is known of it; empty when something is.
    why: str = ""

    @property
    def used_bytes(self) -> int | None:
        """Memory used of all its cards; None unless each tells."""
        return total(card.reading.used_bytes if card.reading else None for card in self.cards)


@dataclass(frozen=True, slots=True)
class UsedPicture:
    """What is used in a cluster now, by node, with the utilisation of cards in the last minutes, by UUID."""

    nodes: Mapping[str, UsedNode] = field(default_factory=dict)
    trends: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


#: The past of cards in a picture: ten minutes in twelve steps.
_TREND: Final = {"of": "cards", "series": UTILISATION, "last": "600", "step": "50"}


async def read_trends(collectors: Collectors, nodes: Collection[str]) -> dict[str, tuple[float | None, ...]]:
    """The utilisation of cards in the last minutes. Raises NotMeasuredError and KubeError."""
    answers = await collectors.history(nodes, _TREND)
    return {series.card: series.values for answer in answers.values() for series in answer.series}


def picture(
    cluster: ClusterUse, measured: Measured, trends: Mapping[str, Sequence[float | None]] | None = None
) -> UsedPicture:
    """Readings joined with a cluster."""
    return UsedPicture({node.node.node.name: node for node in used_nodes(cluster, measured)}, trends or {})


def used_nodes(cluster: ClusterUse, measured: Measured) -> list[UsedNode]:
    """All nodes of a cluster with what is used of them; pods are those that the cluster shows."""
    return [
        used_node(
            use,
            measured.nodes.get(use.node.name),
            measured.silent.get(use.node.name, ""),
            shown=shown_by(cluster.namespace),
        )
        for use in cluster.nodes
    ]


def shown_by(namespace: str) -> Callable[[str], bool]:
    """Which namespaces are shown where one is asked for; empty for all."""
    return lambda one: not namespace or one == namespace


def total(parts: Iterable[int | None]) -> int | None:
    """A sum; None if a part is not known, or if there is none."""
    known: list[int] = []
    for part in parts:
        if part is None:
            return None
        known.append(part)
    return sum(known) if known else None


def used_node(
    use: NodeUse, reading: NodeReading | None, why: str = "", *, shown: Callable[[str], bool] = lambda namespace: True
) -> UsedNode:
    """A node with its reading. Of pods that have none of a card and use it, those of namespaces `shown` are told."""
    cards = tuple(_card(use, gpu, reading, shown) for gpu in sorted(use.node.gpus, key=lambda gpu: gpu.index))
    return UsedNode(use, reading, cards, why)


def _card(use: NodeUse, gpu: Gpu, node: NodeReading | None, shown: Callable[[str], bool]) -> UsedCard:
    reading = None if node is None else next((card for card in node.cards if _is(card, gpu)), None)
    holders = [pod for pod in use.pods if gpu.uuid in pod.held]
    containers = () if reading is None else reading.containers
    pods = [_holder(pod, gpu, [one for one in containers if _of(one, pod)]) for pod in holders]
    known = {(pod.namespace, pod.name) for pod in holders}
    others = [one for one in containers if (one.namespace, one.pod) not in known and one.used_bytes]
    return UsedCard(use, gpu, reading, (*pods, *_uninvited(others, shown)))


def _is(card: CardReading, gpu: Gpu) -> bool:
    return card.index == gpu.index if shoal.is_made_up(gpu.uuid) else card.uuid == gpu.uuid


def _of(container: ContainerReading, pod: PodUse) -> bool:
    return (container.namespace, container.pod) == (pod.namespace, pod.name)


def _holder(pod: PodUse, gpu: Gpu, containers: Sequence[ContainerReading]) -> PodOnCard:
    requested = taken(pod.held[gpu.uuid], gpu)
    return _pod(pod.namespace, pod.name, requested, containers)


def _uninvited(containers: Sequence[ContainerReading], shown: Callable[[str], bool]) -> Iterator[PodOnCard]:
    """Pods that use a card without having requested any of it."""
    for key in sorted({(one.namespace, one.pod) for one in containers}):
        if shown(key[0]):
            yield _pod(*key, 0, [one for one in containers if (one.namespace, one.pod) == key])


def _pod(namespace: str, name: str, requested: int, containers: Sequence[ContainerReading]) -> PodOnCard:
    """A pod with its containers together; those of which nothing runs on the card use nothing of it."""
    running = [one for one in containers if one.source is not None]
    return PodOnCard(
        namespace,
        name,
        requested,
        total(one.used_bytes for one in running),
        total(one.utilisation for one in running),
        tuple(containers),
    )


def mib(used: int | None) -> int | None:
    """Bytes in MiB, rounded; None stays None."""
    return None if used is None else round(used / _MIB)
