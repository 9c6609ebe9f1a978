"""Would a class of pods fit on a node if some of the pods there were gone? Asked for victims of preemption.

Or if nothing were used beyond what is booked? Asked by who explains why a pod waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.placement.classes import PodClass
from shoal.placement.ledger import Ledger, NodeLedger
from shoal.placement.trial import NodeFilter


class FitsWithout:
    """Answers for one class under the filters of its policy, by the exact amounts.

    Memory that is used beyond bookings stays used: nobody can tell that it would go with a pod.

    The ledger stays as it is: a copy of the node last asked about is kept, so that asking again with one pod more or
    less costs only that pod and the filters.
    """

    def __init__(self, ledger: Ledger, pod_class: PodClass, filters: Sequence[NodeFilter]) -> None:
        self._ledger = ledger
        self._class = pod_class
        self._filters = filters
        self._version = -1
        self._node: NodeLedger | None = None
        self._gone: frozenset[str] = frozenset()

    def __call__(self, name: str, without: frozenset[str]) -> bool:
        """Whether the class fits on the node without these pods; those that are not there make no difference."""
        node = self.node(name, without)
        return node is not None and all(rule.fits(node, self._class) for rule in self._filters)

    def node(self, name: str, without: frozenset[str]) -> NodeLedger | None:
        """The books of the node without these pods, to be read until the next question; None for an unknown node."""
        node = self._copy_of(name)
        if node is None:
            return None
        for pod in without - self._gone:
            _post(node, pod, -1)
        for pod in self._gone - without:
            _post(node, pod, +1)
        self._gone = without
        return node

    def _copy_of(self, name: str) -> NodeLedger | None:
        version = self._ledger.columns.version
        if self._node is None or self._node.name != name or self._version != version:
            self._version = version
            self._gone = frozenset()
            node = self._ledger.node(name)
            self._node = None if node is None or node.inventory is None else _copy(node)
        return self._node


def fits_by_requests(node: NodeLedger, pod_class: PodClass, filters: Sequence[NodeFilter]) -> bool:
    """Whether the class would fit on the node were nothing used beyond what is booked."""
    node = _copy(node)
    for card in node.slots:
        card.beyond_mib = 0
    return all(rule.fits(node, pod_class) for rule in filters)


def _copy(node: NodeLedger) -> NodeLedger:
    cards = {uuid: replace(card) for uuid, card in node.cards.items()}
    return replace(node, cards=cards, slots=[cards[card.inventory.uuid] for card in node.slots])


def _post(node: NodeLedger, pod: str, sign: int) -> None:
    booking = node.pods.get(pod)
    if booking is None:
        return
    node.cpu_used += sign * booking.cpu_milli
    node.memory_used += sign * booking.memory_mib
    for uuid, share in booking.allocation.held().items():
        node.cards[uuid].add(share, sign)
