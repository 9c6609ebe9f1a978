"""A dry run: the scheduler's own ledger, filters and policy on a cluster snapshot, in this process alone.

Answers come from the code that the scheduler runs, so they are the scheduler's, but for what only its process knows.
Under `fragmentation` the prices are those of the pods that are there now, where a running scheduler's may be up to 500
arrivals old; and of equal nodes the first by name is taken, where it takes the one it saw first.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from shoal.analysis.live_load import take_loads
from shoal.analysis.policy import in_force, policy_asked_for
from shoal.analysis.snapshot import ClusterSnapshot
from shoal.kube.objects.claims import ResourceClaim
from shoal.kube.objects.meta import ObjectMeta, ObjectReference, OwnerReference
from shoal.kube.objects.pod import Pod, PodResourceClaim, PodResourceClaimStatus
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.resources import key_of
from shoal.kube.store import Change, ChangeType, Store
from shoal.model.allocation import Allocation
from shoal.model.contract import kubernetes
from shoal.model.errors import RequestError
from shoal.model.pod import check_cluster
from shoal.model.request import Request
from shoal.placement.columns import BoolArray
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.scheduler.claims.errors import NotReadyError
from shoal.scheduler.claims.placing import ClaimsPlacing
from shoal.scheduler.feasibility.feasibility import Feasibility, Verdict
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.preemption import DisruptionBudgets
from shoal.scheduler.queue.order import Standing, standing_of
from shoal.scheduler.state.claim_bookings import claim_key
from shoal.scheduler.state.cluster_state import CardsFit, ClusterState

T = TypeVar("T")


class DryRun:
    """What the scheduler would decide were it started now. Pods that are placed here are placed nowhere else."""

    def __init__(
        self, snapshot: ClusterSnapshot, *, policy: str | None = None, pods: Iterable[Pod] | None = None
    ) -> None:
        """`policy` replaces the one in force, `pods` those of the snapshot. Raises PolicyError."""
        self.snapshot = snapshot
        self.in_force = in_force(snapshot) if policy is None else policy_asked_for(snapshot, policy)
        self.engine = Engine(Ledger(), self.in_force.policy)
        tables = ClusterTables()
        self.state = ClusterState(
            self.engine,
            tables,
            unit=snapshot.settings.memory_unit,
            news=lambda news: None,
            report=lambda obj, reason, text: None,
        )
        self.feasibility = Feasibility(tables)
        self.budgets = DisruptionBudgets(_store(snapshot.budgets))
        #: Claims of devices; what was decided here is written nowhere.
        self.claims = ClaimsPlacing(None, self.state, clock=lambda: 0.0)
        self._promised: list[tuple[Standing, str, str]] = []
        self._take_in_all_but_pods()
        #: On which nodes what is measured counts, in words.
        self.live_load = take_loads(self.engine.ledger, snapshot.loads, snapshot.settings.live_load)
        for pod in sorted(snapshot.pods if pods is None else pods, key=born):
            self._take_in(pod)

    def _take_in_all_but_pods(self) -> None:
        snapshot, tables = self.snapshot, self.state.tables
        # As the API server lists them: of equal nodes the first is taken.
        _each(sorted(snapshot.nodes, key=key_of), self.state.on_node)
        _each(snapshot.config_maps, self.state.on_config_map)
        _each(snapshot.device_classes, self.claims.on_class)
        _each(snapshot.resource_slices, self.claims.on_slice)
        _each(snapshot.resource_claims, self.claims.on_claim)
        for namespace in snapshot.namespaces:
            tables.set_namespace(namespace)
        for volume in snapshot.volumes:
            tables.set_volume(volume)
        for claim in snapshot.claims:
            tables.set_claim(claim)
        for storage_class in snapshot.storage_classes:
            tables.set_storage_class(storage_class)

    def _take_in(self, pod: Pod) -> None:
        self.state.on_pod(Change(ChangeType.ADDED, None, pod))
        if not waits(pod):
            return
        if pod.status.nominated_node_name:
            self._promised.append((standing_of(pod), pod.status.nominated_node_name, full_name(pod)))
        request = self._demand(pod)
        if request is not None and request.containers and not pod.spec.scheduling_gates:
            self.state.wait(pod)

    def _demand(self, pod: Pod) -> Request | None:
        """What a waiting pod asks for; None when that is not known, or costs more than its namespace may spend."""
        try:
            if pod.spec.resource_claims:
                return self.claims.allocator.demand(self._with_claims(pod))
            return self.state.request(pod)
        except RequestError:
            return None

    # Questions

    def check(self, pod: Pod) -> Request:
        """What the pod asks for. Raises RequestError as the scheduler would refuse it, also for another cluster."""
        check_cluster(pod.metadata.annotations, self.snapshot.settings.cluster_name)
        return self._asked(pod)

    def verdict(self, pod: Pod) -> Verdict:
        """What the filters say, those of the pod's claims included. Raises RequestError."""
        verdict = self.feasibility.verdict(pod)
        if not pod.spec.resource_claims:
            return verdict
        pod = self._with_claims(pod)
        with self._question():
            self.claims.allocator.decide(pod, among=verdict.allowed)
            return self.claims.refusal(pod, verdict)[1]

    def cards_fit_without(self, pod: Pod) -> CardsFit:
        """Whether cards of a node could take the pod once some pods are gone. Raises RequestError."""
        if not pod.spec.resource_claims:
            return self.state.cards_fit_without(self.check(pod))
        with self._question():
            return self.claims.allocator.fits_without(self._with_claims(pod))

    def held_by_claims(self, pod: Pod) -> Allocation | None:
        """The cards of a bound pod's claims; None when it has none."""
        if pod.spec.resource_claims:
            claims = self.claims.allocator.claims(self._with_claims(pod))
        else:
            made = pod.status.extended_resource_claim_status
            found = None if made is None else self.state.claims.find(pod.metadata.namespace, made.resource_claim_name)
            claims = [found] if found is not None and found.is_made_for(pod.metadata.uid) else []
        booked = [(claim.metadata.name, self.engine.ledger.booking(claim_key(claim.metadata.uid))) for claim in claims]
        parts = tuple(
            dataclasses.replace(part, name=f"{name}/{part.name}")
            for name, booking in booked
            if booking is not None
            for part in booking.allocation.containers
        )
        return Allocation(pod.spec.node_name, parts) if parts else None

    def _asked(self, pod: Pod) -> Request:
        if not pod.spec.resource_claims:
            return self.state.request(pod)
        with self._question():
            return self.claims.allocator.request(self._with_claims(pod))

    @contextlib.contextmanager
    def _question(self) -> Iterator[None]:
        """A question about claims costs at most what one decision may, whatever was asked before."""
        self.claims.allocator.costs.forgive()
        try:
            yield
        except NotReadyError as error:
            raise RequestError(str(error)) from error

    def _with_claims(self, pod: Pod) -> Pod:
        """The pod with the claims that Kubernetes would make for it of templates, where it has not yet."""
        known = pod.status.resource_claim_statuses
        there = {status.name for status in known}
        made = tuple(
            self._made(pod, wanted)
            for wanted in pod.spec.resource_claims
            if wanted.resource_claim_template_name and wanted.name not in there
        )
        status = msgspec.structs.replace(pod.status, resource_claim_statuses=(*known, *made))
        return msgspec.structs.replace(pod, status=status)

    def _made(self, pod: Pod, wanted: PodResourceClaim) -> PodResourceClaimStatus:
        meta, template = pod.metadata, wanted.resource_claim_template_name
        place = (meta.namespace, template)
        found = next((one for one in self.snapshot.claim_templates if key_of(one) == place), None)
        if found is None:
            raise RequestError(f"there is no claim template {meta.namespace}/{template}: create it")
        name = f"{meta.name}-{wanted.name}"
        if self.state.claims.find(meta.namespace, name) is None:
            owner = OwnerReference(kind="Pod", name=meta.name, uid=meta.uid, controller=True)
            own = ObjectMeta(
                name=name, namespace=meta.namespace, uid=f"{meta.uid}/{wanted.name}", owner_references=(owner,)
            )
            claim = ResourceClaim(metadata=own, spec=found.spec.spec)
            self.claims.on_claim(Change(ChangeType.ADDED, None, claim))
        return PodResourceClaimStatus(name=wanted.name, resource_claim_name=name)

    def allowed(self, pod: Pod, verdict: Verdict) -> BoolArray:
        """The rows that the filters allow, without nodes that are being cleared for a more important pod."""
        allowed = verdict.allowed
        rows = [row for name, _ in self.promised(pod) if (row := self.state.row(name)) is not None]
        if rows:
            allowed = allowed.copy()
            allowed[rows] = False
        return allowed

    def promised(self, pod: Pod) -> list[tuple[str, str]]:
        """Nodes that are being cleared for a more important pod, and for which."""
        standing = standing_of(pod)
        return [(node, other) for holder, node, other in self._promised if holder.is_above(standing)]

    # Changes, seen by later questions

    def place(self, pod: Pod) -> Allocation | None:
        """Place the pod as the scheduler would, here alone. Raises RequestError and PolicyError."""
        self.check(pod)
        verdict = self.feasibility.verdict(pod)
        if not pod.spec.resource_claims:
            return self.state.place(pod, among=self.allowed(pod, verdict), favour=verdict.favour)
        return self.claims.place(self._with_claims(pod), among=self.allowed(pod, verdict), favour=verdict.favour)

    def promise_volumes(self, pod: Pod, node: str) -> None:
        """Reserve the volumes that a pod on this node would be bound to, so that no later pod gets them."""
        tables = self.state.tables
        for decision in self.feasibility.volume_decisions(pod, node) if pod.spec.volumes else ():
            claim = decision.claim.metadata
            if decision.volume is None:
                chosen = {**claim.annotations, kubernetes.ANNOTATION_SELECTED_NODE: node}
                meta = msgspec.structs.replace(claim, annotations=chosen)
                tables.set_claim(msgspec.structs.replace(decision.claim, metadata=meta))
            else:
                reference = ObjectReference(namespace=claim.namespace, name=claim.name, uid=claim.uid)
                spec = msgspec.structs.replace(decision.volume.spec, claim_ref=reference)
                tables.set_volume(msgspec.structs.replace(decision.volume, spec=spec))

    def take_out(self, pod: Pod) -> Pod:
        """Remove a placed pod; returns it as if it still waited for a node."""
        self.state.take_out(pod.metadata.uid)
        return unbound(pod)


def waits(pod: Pod) -> bool:
    """The pod has no node and wants one."""
    return not pod.spec.node_name and pod.metadata.deletion_timestamp is None and pod.status.phase in ("", "Pending")


def finished(pod: Pod) -> bool:
    """The pod has ended and holds nothing."""
    return pod.status.phase in kubernetes.FINISHED_PHASES


def unbound(pod: Pod) -> Pod:
    """The pod without its node, so that the decision it carries counts for nothing."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))


def born(pod: Pod) -> tuple[str, str, str]:
    """Sorts pods by creation; those of one second by name."""
    meta = pod.metadata
    return meta.creation_timestamp or "~", meta.namespace, meta.name


def full_name(pod: Pod) -> str:
    """Namespace and name."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _each(objects: Iterable[T], hear: Callable[[Change[T]], None]) -> None:
    for obj in objects:
        hear(Change(ChangeType.ADDED, None, obj))


def _store(budgets: Iterable[PodDisruptionBudget]) -> Store[PodDisruptionBudget]:
    store: Store[PodDisruptionBudget] = Store()
    for _ in store.replace(budgets):
        pass
    return store
