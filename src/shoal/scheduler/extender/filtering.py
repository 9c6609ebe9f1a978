"""The verb filter: which of the nodes can take the pod, and for the others why not.

kube-scheduler makes one message of all distinct reasons and writes it to the pod. So the words are the same for all
nodes that are short of the same thing, and only the first few are described card by card.

Where nobody prefers a node for other reasons than its cards, kube-scheduler would take the node that the engine takes,
once it had asked again and scored all others. With many nodes that costs more than the decision. So it gets just that
node then, and no more is written, read or asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Final

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import gpushare
from shoal.model.errors import RequestError
from shoal.model.gpu import Gpu
from shoal.model.request import Request
from shoal.placement.classes import PodClass
from shoal.placement.columns import ALIVE, SHARES, BoolArray, Rows
from shoal.placement.engine import Engine
from shoal.placement.errors import PolicyError
from shoal.placement.filters import CardFit
from shoal.placement.ledger import CardLedger, Ledger, NodeLedger
from shoal.scheduler.claims.names import names_of
from shoal.scheduler.diagnosis import node_refusal, other_refusals, shortage
from shoal.scheduler.extender.holds import Holds
from shoal.scheduler.extender.refused import RefusedPods
from shoal.scheduler.extender.wire import ExtenderArgs, Filtered
from shoal.scheduler.holds import fits_but_for
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.offer.holds import OfferHolds
from shoal.scheduler.state.cluster_state import ClusterState

#: Classes, and sets of cards of each, that are remembered.
_CLASSES: Final = 1_000
_SETS: Final = 1_000
_MAX_KEY: Final = 2**62

#: How many makes of cards there were, and a node's cards as digits to that base.
_Key = tuple[int, int]

#: Few enough nodes to offer all that fit, and to say why the others do not.
OFFER_ALL: Final = 64
#: Nodes that are described card by card, and the longest description of one.
DETAILED: Final = 8
MAX_DETAIL: Final = 300
UNKNOWN_NODE: Final = "The node is not known to the GPU scheduler yet"
BESIDE_CARDS: Final = "Insufficient cpu or memory beside the GPUs"
BAD_REQUEST: Final = "bad request"
HELD: Final = "all cards that fit are held for some seconds for other pods: the pod is tried again"


class EmptyNodes:
    """Whether nodes could take a pod if all their cards were empty; if not, no preemption helps there.

    Asked for thousands of nodes at a time, of which most have the same cards: each set of cards is tried once per
    class. Cards that are unhealthy or cut into partitions count as usable, so a yes may still turn out wrong; a no
    never does.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._card_fit = CardFit()
        self._known: BoundedCache[PodClass, BoundedCache[_Key, bool]] = BoundedCache(_CLASSES)

    def refuse(self, pod_class: PodClass, rows: Rows) -> BoolArray:
        """For each of these nodes, whether it could not take the pod even if nobody else were there."""
        refused = self._by_cards(pod_class, rows)
        if pod_class.several:
            refused = refused | (self._ledger.columns.alive[rows] < ALIVE)
        return refused

    def _by_cards(self, pod_class: PodClass, rows: Rows) -> BoolArray:
        columns, selector = self._ledger.columns, pod_class.selector
        base = len(columns.kinds)
        if selector.uuids or selector.not_uuids or base**columns.slots > _MAX_KEY:
            return np.zeros(len(rows), np.bool_)  # cards of one make are not alike then, or sets too many to tell apart
        # The makes of a node's cards, slot by slot, as the digits of one number.
        keys = columns.code[rows] // SHARES @ base ** np.arange(columns.slots, dtype=np.int64)
        known = self._known.of(pod_class, lambda: BoundedCache(_SETS))
        if len(keys) and (keys == keys[0]).all():
            return np.full(len(keys), self._answer(known, pod_class, (base, int(keys[0]))))
        sets, places = np.unique(keys, return_inverse=True)
        answers = [self._answer(known, pod_class, (base, key)) for key in sets.tolist()]
        return np.array(answers, np.bool_)[places]

    def _answer(self, known: BoundedCache[_Key, bool], pod_class: PodClass, key: _Key) -> bool:
        return known.of(key, lambda: not self._card_fit.fits(self._node(key), pod_class))

    def _node(self, key: _Key) -> NodeLedger:
        base, rest = key
        cards: list[CardLedger] = []
        while rest:
            rest, digit = divmod(rest, base)
            if digit:
                kind, slot = self._ledger.columns.kinds[digit], len(cards)
                gpu = Gpu(str(slot), slot, kind.memory_mib, kind.model, mps_clients=kind.mps_clients)
                cards.append(CardLedger(gpu, slot))
        return NodeLedger("", 0, slots=cards)


@dataclass(frozen=True, slots=True)
class OfferRule:
    """When the best node alone is offered. `prefers`: whether the pod, a node or another pod prefers some nodes."""

    prefers: Callable[[Pod], bool]
    all_up_to: int = OFFER_ALL

    def best_alone(self, pod: Pod, args: ExtenderArgs) -> bool:
        """Whether kube-scheduler has nothing to choose for this pod."""
        return len(args.names) > self.all_up_to and not self.prefers(pod)


class FilterVerb:
    """Filters nodes for kube-scheduler by what the engine says of them."""

    def __init__(
        self,
        state: ClusterState,
        holds: Holds,
        refused: RefusedPods,
        *,
        offer_holds: OfferHolds,
        metrics: Metrics,
        offer: OfferRule,
    ) -> None:
        self._state = state
        self._holds = holds
        self._offer_holds = offer_holds
        self._refused = refused
        self._metrics = metrics
        self._offer = offer
        self._empty = EmptyNodes(state.engine.ledger)

    def __call__(self, pod: Pod, args: ExtenderArgs) -> Filtered:
        """The answer. When only one node passes, its cards are held: kube-scheduler takes it without scoring."""
        uid, names = pod.metadata.uid, args.names
        self._refused.drop(uid)
        try:
            request = self._state.request(pod)
            if not request.containers:
                return Filtered([True] * len(names))
            self._holds.release(uid)
            booked = self._state.engine.ledger.booking(uid)
            if booked is not None:
                return Filtered(error=f"the pod is being bound to {booked.node} already")
            rows = rows_of(self._state, names)
            elsewhere = self._not_devices(pod, names)
            if elsewhere:
                out = [place for place, name in enumerate(names) if name in elsewhere]
                rows[out] = self._state.engine.ledger.columns.rows
            among = self._among(rows)
            best = self._held_for(pod, among)
            if best is None and self._offer.best_alone(pod, args):
                best = self._holds.place(pod, among=among)
            if best is not None:
                passed = [False] * len(names)
                passed[names.index(best.node)] = True
                return Filtered(passed)
            fits = self._fitting(request, rows)
        except (RequestError, PolicyError) as error:
            self._metrics.refusals.inc(BAD_REQUEST, by=len(names))
            return Filtered(unresolvable=dict.fromkeys(names, str(error)))
        count = int(np.count_nonzero(fits))
        if not count and self._waits_for_holds(request, among):
            return Filtered(error=HELD)
        if not count:
            self._state.wait(pod)
            self._refused.add(pod, among)
        elif count == 1:
            self._holds.place(pod, node=names[int(fits.argmax())])
        passed = fits.tolist()
        if count == len(names):
            return Filtered(passed)
        refused = list(compress(names, (~fits).tolist())) if count else names
        failed, unresolvable = self._reasons(request, refused, rows[~fits], last=not count)
        if elsewhere:
            failed = {name: reason for name, reason in failed.items() if name not in elsewhere}
        return Filtered(passed, failed, {**unresolvable, **elsewhere})

    def _not_devices(self, pod: Pod, names: Sequence[str]) -> dict[str, str]:
        """The nodes that do not serve the pod's names by devices, and why that rules them out: claims are made by the
        standalone scheduler alone.
        """
        if not self._state.tables.nodes.mechanisms:
            return {}
        asked = names_of(pod)
        return {
            node: f"{node} serves {name} by claims, or is changing that: such pods need the gpu-scheduler"
            for node in names
            for name in asked & self._state.mechanisms(node).keys()
        }

    def _held_for(self, pod: Pod, among: BoolArray) -> Allocation | None:
        """What an offer has held for the pod, which is a copy: held for its bind from now on."""
        held = self._offer_holds.take(pod)
        if held is None or not self._offer_holds.give(pod, held, among):
            return None
        self._holds.keep(pod, held)
        return held

    def _among(self, rows: Rows) -> BoolArray:
        """The rows as a mask, without the row of unknown nodes."""
        among = np.zeros(self._state.engine.ledger.columns.rows + 1, np.bool_)
        among[rows] = True
        return among[:-1]

    def _fitting(self, request: Request, rows: Rows) -> BoolArray:
        """Whether each node can take the request. The row after the last stands for unknown nodes."""
        fits: BoolArray = np.append(self._state.engine.fits(request), False)[rows]
        return fits

    def _reasons(
        self, request: Request, names: Sequence[str], rows: Rows, *, last: bool
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Why the pod cannot go to these nodes: where preemption might help, and where it cannot.

        Nobody reads the reasons while another node is left. Only the `last` ones are worth the details.
        """
        engine = self._state.engine
        columns, pod_class = engine.ledger.columns, engine.class_of(request)
        known = rows < columns.rows
        bare = np.zeros(len(rows), np.bool_)
        bare[known] = columns.code[rows[known]].max(axis=1) == 0
        hopeless = np.zeros(len(rows), np.bool_)
        carded = known & ~bare
        if last:
            hopeless[carded] = self._empty.refuse(pod_class, rows[carded])
        short = shortage(pod_class)
        lacking = carded & ~hopeless
        others: list[tuple[BoolArray, str]] = []
        for reason, refused in other_refusals(engine, request):
            others.append((lacking & np.append(refused, False)[rows], reason))
            lacking &= ~others[-1][0]
        failed = self._told(names, *others, (lacking, short), (~known, UNKNOWN_NODE))
        unresolvable = self._told(names, (hopeless, short), (bare, gpushare.REASON_NOT_SHARED))
        if last:
            for name, row in zip(names[:DETAILED], rows[:DETAILED].tolist(), strict=True):
                if row < columns.rows:
                    told = failed if name in failed else unresolvable
                    told[name] = _detail(told[name], engine, engine.ledger.node_at(row), request)
        return failed, unresolvable

    def _told(self, names: Sequence[str], *reasons: tuple[BoolArray, str]) -> dict[str, str]:
        """The nodes under each reason, with the reason, counted in the metrics."""
        told: dict[str, str] = {}
        for which, reason in reasons:
            count = int(np.count_nonzero(which))
            if count:
                some = names if count == len(names) else compress(names, which.tolist())
                told.update(dict.fromkeys(some, reason))
                self._metrics.refusals.inc(reason, by=count)
        return told

    def _waits_for_holds(self, request: Request, among: BoolArray) -> bool:
        """Whether the pod would fit but for cards that are only held.

        Such a refusal must not count: no pod may be preempted for it, and the end of a hold is no event that would make
        kube-scheduler try the pod again. After an error it tries the pod again by itself.
        """
        return fits_but_for(self._state, request, among, self._holds.uids() | self._offer_holds.keys())


def rows_of(state: ClusterState, names: Sequence[str]) -> Rows:
    """The rows of nodes; a node that is not known has the row after the last."""
    unknown = state.engine.ledger.columns.rows
    return np.fromiter(map(state.rows.get, names, repeat(unknown)), np.intp, len(names))


def _detail(short: str, engine: Engine, node: NodeLedger, request: Request) -> str:
    if not node.slots:
        return gpushare.not_shared_reason(node.name)
    detail = node_refusal(engine, node, request)
    text = f"{short}: {detail}" if detail else f"{BESIDE_CARDS}: {node.name}"
    return text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 1] + "…"
