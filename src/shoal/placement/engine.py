"""Decide: for a request the node and the cards, under a policy, in well under a millisecond.

Pods of one template are one class, of which the engine keeps what is known on every node (`class_columns`). A booking
changes one node, so only that node is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np

from shoal.model.allocation import Allocation
from shoal.model.request import Request
from shoal.placement import assignment
from shoal.placement.class_columns import ClassColumns
from shoal.placement.classes import STEPS, PodClass
from shoal.placement.columns import SHARES, WHOLE, BoolArray, FloatArray
from shoal.placement.errors import PolicyError, RowsError
from shoal.placement.ledger import Booking, Ledger, NodeLedger
from shoal.placement.policies import COST, POLICIES, Policy
from shoal.placement.trial import CardRules, NodeFilter, NodeRefusal, Trial
from shoal.placement.weights import FAVOUR
from shoal.placement.without import FitsWithout, fits_by_requests
from shoal.placement.worth.demand import DemandCounter, demand_of
from shoal.placement.worth.valuation import Valuation

#: Memory for the columns of all classes; the ones unused for longest are dropped beyond it.
COLUMN_BYTES = 32 << 20
#: Classes remembered before those with no pod left are forgotten.
_CLASSES = 10_000


class Engine:
    """One ledger, one demand, and the policies that choose on them."""

    def __init__(
        self,
        ledger: Ledger,
        policy: Policy = POLICIES["fragmentation"],
        *,
        policies: Sequence[Policy] = tuple(POLICIES.values()),
        rng: Random | None = None,
    ) -> None:
        self.ledger = ledger
        self.policy = policy
        self.demand = DemandCounter()
        self.valuation = Valuation(ledger.columns)
        self._policies = {known.name: known for known in (*policies, policy)}
        self._rng = rng or Random(0)
        self._classes: dict[Request, PodClass] = {}
        self._columns: dict[tuple[PodClass, str], ClassColumns] = {}
        self._next_refresh = self.demand.next_refresh()

    # The life of a pod

    def place(
        self, pod: str, request: Request, *, among: BoolArray | None = None, favour: FloatArray | None = None
    ) -> Allocation | None:
        """Decide and book. A pod that does not fit counts as waiting until it is placed or removed.

        `among` and `favour` as in `decide`.
        """
        policy = self.policy_for(request)
        nodes = self._checked(among, favour)
        pod_class = self.class_of(request)
        self._refresh_if_due()
        self.demand.arrive(pod, pod_class)
        allocation = self._decide(pod_class, policy, *nodes)
        if allocation is not None:
            self.ledger.assume(Booking(pod, allocation, request.cpu_milli, request.memory_mib))
            self.demand.place(pod)
        self._refresh_if_due()
        return allocation

    def wait(self, pod: str, request: Request) -> None:
        """The pod is there and has no node yet: it counts in the demand. What is booked for it stays."""
        self.demand.arrive(pod, self.class_of(request))

    def assume(self, pod: str, request: Request, allocation: Allocation) -> None:
        """Book a decision made before, as `place` does. Raises BookingError when its cards cannot take it any more."""
        self.ledger.assume(Booking(pod, allocation, request.cpu_milli, request.memory_mib))
        self.demand.arrive(pod, self.class_of(request))
        self.demand.place(pod)

    def confirm(self, booking: Booking, request: Request) -> None:
        """The cluster shows this pod on its node, whoever put it there: it is booked and counts as placed."""
        self.ledger.confirm(booking)
        self.demand.arrive(booking.pod, self.class_of(request))
        self.demand.place(booking.pod)

    def release(self, pod: str) -> None:
        """The pod did not get to its node after all: it holds nothing, and waits again if it was there."""
        self.ledger.release(pod)
        self.demand.displace(pod)

    def remove(self, pod: str) -> None:
        """The pod is gone or has finished, placed or not."""
        self.ledger.release(pod)
        self.demand.depart(pod)

    # Questions

    def decide(
        self, request: Request, *, among: BoolArray | None = None, favour: FloatArray | None = None
    ) -> Allocation | None:
        """Where the pod would go, nothing booked. Both arrays are by row, as in `ledger.columns`.

        `among` limits the nodes. `favour` adds `weights.FAVOUR` times itself to what a node is worth: a difference of
        1.0 decides whatever the policy says, one of 1 / FAVOUR weighs as much as one point of the policy's scores (a
        whole GPU of future demand under `fragmentation`), and equal favour leaves the choice to the policy. `random`
        draws among the most favoured nodes; a policy that takes the second best takes the second by the sum.
        """
        policy = self.policy_for(request)
        nodes = self._checked(among, favour)
        self._refresh_if_due()
        return self._decide(self.class_of(request), policy, *nodes)

    def fits(self, request: Request) -> BoolArray:
        """The nodes that can take the pod under its policy, by row."""
        policy = self.policy_for(request)
        self._refresh_if_due()
        return self._columns_now(self.class_of(request), policy).fits()

    def fits_without(self, request: Request) -> FitsWithout:
        """A question about one node at a time: can it take the pod once some of those there are gone?"""
        pod_class = self.class_of(request)
        pod_class.steps = STEPS
        return FitsWithout(self.ledger, pod_class, self.policy_for(request).filters)

    def refused_by_load(self, request: Request, nodes: Iterable[NodeLedger]) -> list[NodeLedger]:
        """Of these nodes those that would take the pod were nothing used beyond what is booked."""
        pod_class, filters = self.class_of(request), self.policy_for(request).filters
        return [
            node
            for node in nodes
            if node.name in self.ledger.lowered
            and not all(rule.fits(node, pod_class) for rule in filters)
            and fits_by_requests(node, pod_class, filters)
        ]

    def passes(self, request: Request, rule: NodeFilter) -> BoolArray:
        """The nodes that one filter passes for the pod, by row."""
        tables = self._columns_now(self.class_of(request), self.policy_for(request)).tables
        return rule.passes(Trial(tables, np.arange(self.ledger.columns.rows)))

    def explain(self, request: Request, node: NodeLedger) -> list[NodeRefusal]:
        """What the filters of the pod's policy say against a node, in their order; nothing when it can take the pod."""
        pod_class = self.class_of(request)
        refusals = (rule.refusal(node, pod_class) for rule in self.policy_for(request).filters)
        return [refusal for refusal in refusals if refusal is not None]

    def worths(self, request: Request) -> FloatArray:
        """What every node is worth to the pod under its policy, by row; -inf where it does not fit.

        `decide` takes the highest, the first of equal ones, unless the policy is to take another.
        """
        return self._worths(request, self.policy_for(request))

    def efficiency(self, request: Request, *, among: BoolArray | None = None) -> float:
        """How much of what the pod's best place costs is the pod itself, 0 to 1, whatever policy is in force.

        z / (z + c): z what the pod takes of the node's cards, c what is lost beside it there (`policies.COST`), both in
        whole cards, which are worth 1 under any demand: the numbers of clusters can be compared. 0 where the pod fits
        nowhere. The pod's own policy decides nothing here, but a name that is not known is refused.
        """
        self._checked(among, None)
        self.policy_for(request)
        worths = self._worths(request, COST)
        rows = np.flatnonzero(worths > -np.inf if among is None else among & (worths > -np.inf))
        if not len(rows):
            return 0.0
        cost = np.maximum(0.0, -worths[rows])
        size = self._sizes(self.class_of(request))[self.ledger.columns.code[rows] // SHARES].max(axis=1)
        return float((size / (size + cost)).max())

    def _sizes(self, pod_class: PodClass) -> FloatArray:
        """How many cards of each make the pod takes, in parts; one where it takes none."""
        kinds, needs = self.ledger.columns.kinds, pod_class.needs
        if not needs:
            return np.ones(len(kinds))
        return np.array([sum(need.gpus * need.size_on(kind) for need in needs) for kind in kinds]) / WHOLE

    def _worths(self, request: Request, policy: Policy) -> FloatArray:
        self._refresh_if_due()
        return self._columns_now(self.class_of(request), policy).worths()

    # The demand

    def refresh(self) -> None:
        """Make the demand anew from the pods that are there."""
        if any(policy.learns for policy in self._policies.values()):
            self.valuation.adopt(demand_of(self.demand.counts, self.ledger.columns, cpu_milli=self.ledger.cpu_milli()))
            self.forget()
        self._next_refresh = self.demand.next_refresh()

    def _refresh_if_due(self) -> None:
        if self.demand.arrivals >= self._next_refresh:
            self.refresh()

    def use(self, policy: Policy) -> None:
        """Decide by this policy from now on, also for pods and nodes that ask for it by name."""
        self.policy = policy
        self._policies[policy.name] = policy
        self.forget()

    def forget(self) -> None:
        """Drop what is kept about classes: each is tried on all nodes again, with the same result."""
        self._columns.clear()

    # Parts

    def class_of(self, request: Request) -> PodClass:
        """The one class of all equal requests."""
        known = self._classes.get(request)
        if known is None:
            if len(self._classes) >= _CLASSES:
                self._classes = {
                    request: known for request, known in self._classes.items() if known in self.demand.counts
                }
            known = self._classes[request] = PodClass(request)
        return known

    def policy_for(self, request: Request) -> Policy:
        if request.policy is None:
            return self.policy
        try:
            return self._policies[request.policy]
        except KeyError:
            raise PolicyError(
                f"no policy {request.policy!r}: choose one of {', '.join(sorted(self._policies))}"
            ) from None

    def _rules_for(self, pod_class: PodClass, policy: Policy) -> CardRules:
        """A pod's own policy comes before a node's, a node's before the configured one."""
        if pod_class.request.policy is not None:
            return CardRules(policy.cards, {})
        return CardRules(policy.cards, {name: known.cards for name, known in self._policies.items()})

    def _checked(
        self, among: BoolArray | None, favour: FloatArray | None
    ) -> tuple[BoolArray | None, FloatArray | None]:
        """Which nodes, and what each is favoured by, in the scale of the scores."""
        rows = self.ledger.columns.rows
        for name, given in (("among", among), ("favour", favour)):
            if given is not None and given.shape != (rows,):
                raise RowsError(f"{name} has shape {given.shape}, the ledger {rows} rows: give one value for each row")
        if favour is None:
            return among, None
        if not np.isfinite(favour).all():
            row = int(np.flatnonzero(~np.isfinite(favour))[0])
            raise RowsError(f"favour of row {row} is {favour[row]}: give numbers, and leave nodes out with among")
        return among, FAVOUR * favour

    def _decide(
        self, pod_class: PodClass, policy: Policy, among: BoolArray | None, favour: FloatArray | None
    ) -> Allocation | None:
        columns = self._columns_now(pod_class, policy)
        row = columns.best(self._rng, among, favour)
        if row is None:
            return None
        node = self.ledger.node_at(row)
        return assignment.allocation(node, pod_class, columns.cards_on(row, self._rng), policy.name)

    def _columns_now(self, pod_class: PodClass, policy: Policy) -> ClassColumns:
        """The class over all nodes, as they are now."""
        if self.valuation.catch_up():
            self.forget()
        pod_class.steps = STEPS
        columns = self._columns_of(pod_class, policy)
        columns.catch_up()
        return columns

    def _columns_of(self, pod_class: PodClass, policy: Policy) -> ClassColumns:
        key = (pod_class, policy.name)
        columns = self._columns.pop(key, None)
        if columns is None:
            columns = ClassColumns(pod_class, policy, self._rules_for(pod_class, policy), self.ledger, self.valuation)
            while self._columns and columns.nbytes * (len(self._columns) + 1) > COLUMN_BYTES:
                del self._columns[next(iter(self._columns))]
        self._columns[key] = columns
        return columns
