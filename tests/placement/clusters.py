"""Short ways to write clusters, requests and bookings in tests: all of them make the real, plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.gpu import Gpu, Link, NodeGpus
from shoal.model.request import ANY_CARD, CardSelector, ContainerKind, ContainerRequest, Request, Share
from shoal.placement.classes import PodClass
from shoal.placement.columns import BoolArray
from shoal.placement.engine import Engine
from shoal.placement.ledger import Booking, Ledger, NodeLedger
from shoal.placement.trial import NodeFilter, NodeRefusal, Trial

GIB = 1024
WHOLE = Share(exclusive=True)


def uuid_of(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def card(node: str, index: int, gib: float = 16, *, links: Mapping[int, int] | None = None, **facts: object) -> Gpu:
    """A card; `links` are the lanes to other cards of the node, by their index."""
    joined = tuple(Link(uuid_of(node, peer), lanes) for peer, lanes in (links or {}).items())
    return Gpu(uuid_of(node, index), index, int(gib * GIB), links=joined, **facts)  # type: ignore[arg-type]


def node(
    name: str, cards: Iterable[Gpu | float] = (), *, cores: float = 64, gib: int = 512, policy: str | None = None
) -> NodeGpus:
    """A node; a number among its cards stands for a card of that many GiB."""
    gpus = tuple(
        each if isinstance(each, Gpu) else card(name, position, each, model="T4") for position, each in enumerate(cards)
    )
    return NodeGpus(name, gpus, int(cores * 1000), gib * GIB, policy)


def ledger_of(*nodes: NodeGpus) -> Ledger:
    ledger = Ledger()
    for each in nodes:
        ledger.set_inventory(each)
    return ledger


def request(
    *shares: Share, gpus: int = 1, cores: float = 0, gib: int = 0, selector: CardSelector = ANY_CARD
) -> Request:
    """A pod with one ordinary container per share, each on `gpus` cards."""
    containers = tuple(ContainerRequest(f"c{i}", gpus, share) for i, share in enumerate(shares))
    return Request(containers, int(cores * 1000), gib * GIB, selector)


def booking(pod: str, node: str, shares: Mapping[int, Share], *, cores: float = 0, gib: int = 0) -> Booking:
    """A pod of one container that holds these shares, by the indices of the cards."""
    cards = tuple(CardShare(uuid_of(node, index), index, share) for index, share in shares.items())
    containers = (ContainerAllocation("main", cards, ContainerKind.APP),) if cards else ()
    return Booking(pod, Allocation(node, containers), int(cores * 1000), gib * GIB)


def refusals(engine: Engine, asked: Request) -> dict[str, NodeRefusal]:
    """The nodes that cannot take the pod, with the first reason of each."""
    return {each.name: found[0] for each in engine.ledger.nodes() if (found := engine.explain(asked, each))}


class RefusesNode(NodeFilter):
    """A filter as somebody may add it: it knows nothing of cards, and has no plain form."""

    name = "Closed"
    reason = "closed for the day"

    def __init__(self, *nodes: str) -> None:
        self._nodes = frozenset(nodes)

    def passes(self, trial: Trial) -> BoolArray:
        return np.array([trial.ledger.node_at(int(row)).name not in self._nodes for row in trial.rows], np.bool_)

    def refusal(self, node: NodeLedger, pod_class: PodClass) -> NodeRefusal | None:
        return NodeRefusal(self.name, self.reason) if node.name in self._nodes else None
