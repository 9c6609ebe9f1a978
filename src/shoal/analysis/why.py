"""Why a pod waits, or why it is where it is: everything `shoal why` tells, from one dry run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from shoal.analysis.dry_run import DryRun, finished, full_name
from shoal.analysis.node_fit import Answer, NodeAnswer, by_node
from shoal.analysis.unschedulable import Unschedulable, unschedulable
from shoal.analysis.what_if import PodPlacement, placed_as
from shoal.analysis.words import asked, record_of
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError
from shoal.kube.objects.others import Event
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import EVENTS
from shoal.model.bound import allocation_of
from shoal.model.contract import clusters
from shoal.model.contract.groups import decode_group
from shoal.model.errors import CodecError, RequestError
from shoal.model.gpu import NodeGpus
from shoal.model.manifest import pod_parts
from shoal.placement.errors import PolicyError

#: The state of a pod that was sent to a joined cluster.
_ELSEWHERE = "elsewhere"
#: Newest events that are told.
_EVENTS = 5


class PodEvent(Answer, frozen=True):
    """An event of the pod."""

    reason: str
    message: str
    when: str = ""
    by: str = ""


class PodExplanation(Answer, frozen=True):
    """What is told of one pod: where it is or would go, and why; or why it waits."""

    pod: str
    #: pending, placed, elsewhere, or finished.
    state: str
    asks: str = ""
    policy: str = ""
    policy_from: str = ""
    #: The joined cluster that it was sent to, and where it is there.
    cluster: str = ""
    where: str = ""
    #: Why it cannot be placed as it is written.
    refused: str = ""
    #: What keeps it from being tried: gates, a group that is not complete, another scheduler.
    held_up: tuple[str, ...] = ()
    #: Whether what is measured of the cards counts beside requests, and where it does not.
    live_load: str = ""
    #: The scheduler's last word on the pod.
    condition: str = ""
    events: tuple[PodEvent, ...] = ()
    #: Where it is, and where it would go now.
    placed: PodPlacement | None = None
    would_go: PodPlacement | None = None
    #: Whose annotation names its cards; empty when none does and they are guessed.
    record: str = ""
    problem: str = ""
    #: The nodes, were it placed now.
    nodes: tuple[NodeAnswer, ...] = ()
    unplaced: Unschedulable | None = None

    @property
    def wants_gpu(self) -> bool:
        """Whether it asks for cards; a request that cannot be read counts as one."""
        return bool(self.asks or self.refused)


async def read_events(client: Client, name: str, *, namespace: str) -> Sequence[Event]:
    """The events of pods of that name, in all namespaces if none is given; none where they may not be read."""
    try:
        fields = f"involvedObject.kind=Pod,involvedObject.name={name}"
        return (await client.list(EVENTS, namespace=namespace, fields=fields)).items
    except ForbiddenError:
        return ()


def explain_pod(dry_run: DryRun, pod: Pod, *, events: Iterable[Event] = (), details: int) -> PodExplanation:
    """Why the pod is where it is, or why it waits. The dry run is changed by it: do not use it afterwards."""
    condition = next((one.message or "" for one in pod.status.conditions if one.type == "PodScheduled"), "")
    known = PodExplanation(full_name(pod), _state(pod), condition=condition, events=told_events(events))
    try:
        request = dry_run.check(pod)
        policy = dry_run.engine.policy_for(request).name
    except (RequestError, PolicyError) as error:
        return _with(known, refused=str(error))
    own = "the pod's annotation" if request.policy is not None else dry_run.in_force.known_from
    known = _with(known, asks=asked(request), policy=policy, policy_from=own)
    if not request.containers or finished(pod):
        return known
    if known.state == _ELSEWHERE:
        told = (one.message for one in pod.status.conditions if one.type == clusters.CONDITION_DISPATCHED)
        return _with(known, cluster=clusters.sent_to(pod.metadata.annotations), where=next(told, "") or "")
    known = _with(known, live_load=dry_run.live_load)
    if pod.spec.node_name:
        return _placed(known, dry_run, pod, details)
    return _pending(known, dry_run, pod, details)


def _pending(known: PodExplanation, dry_run: DryRun, pod: Pod, details: int) -> PodExplanation:
    known = _with(known, held_up=tuple(_held_up(dry_run, pod)))
    going = dry_run.place(pod)
    if going is None:
        return _with(known, unplaced=unschedulable(dry_run, pod, details=details))
    dry_run.state.cancel(pod.metadata.uid, quietly=True)
    return _with(known, would_go=placed_as(dry_run, pod, going), nodes=tuple(by_node(dry_run, pod, details=details)))


def _placed(known: PodExplanation, dry_run: DryRun, pod: Pod, details: int) -> PodExplanation:
    booking = dry_run.engine.ledger.booking(pod.metadata.uid)
    record, problem = _record(dry_run, pod)
    claimed = dry_run.held_by_claims(pod)
    if claimed is not None:
        return _with(known, placed=placed_as(dry_run, pod, claimed), record="its claims")
    if booking is not None:
        # What the record names is what decided then; the policy told before is the one in force now.
        known = _with(known, placed=placed_as(dry_run, pod, booking.allocation))
    again = dry_run.take_out(pod)
    going = dry_run.place(again)
    dry_run.state.cancel(pod.metadata.uid, quietly=True)
    return _with(
        known,
        record=record,
        problem=problem,
        would_go=None if going is None else placed_as(dry_run, again, going),
        nodes=tuple(by_node(dry_run, again, details=details)),
    )


def _record(dry_run: DryRun, pod: Pod) -> tuple[str, str]:
    """Whose annotation names the cards of the pod, and what is wrong with it."""
    node = dry_run.engine.ledger.node(pod.spec.node_name)
    inventory = node.inventory if node is not None and node.inventory is not None else NodeGpus(pod.spec.node_name)
    try:
        found = allocation_of(pod_parts(pod), node=inventory, unit=dry_run.state.unit)
    except CodecError as error:
        return "", str(error)
    return ("" if found is None else record_of(pod.metadata.annotations)), ""


def _held_up(dry_run: DryRun, pod: Pod) -> Iterable[str]:
    if pod.metadata.deletion_timestamp is not None:
        yield "it is being deleted"
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        yield f"scheduling gates: {gates}: it is not tried until they are removed"
    names = dry_run.snapshot.settings.scheduler_names
    if pod.spec.scheduler_name and pod.spec.scheduler_name not in names:
        yield f"its scheduler is {pod.spec.scheduler_name}: Shoal decides only if that one asks it"
    try:
        group = decode_group(pod.metadata.labels, pod.metadata.annotations)
    except CodecError as error:
        yield str(error)
        return
    if group is not None:
        there = sum(_same_group(other, pod, group.name) for other in dry_run.snapshot.pods)
        if there < group.minimum:
            yield f"pod group {group.name}: {there} of {group.minimum} pods are there"


def _same_group(other: Pod, pod: Pod, name: str) -> bool:
    if other.metadata.namespace != pod.metadata.namespace or finished(other):
        return False
    try:
        group = decode_group(other.metadata.labels, other.metadata.annotations)
    except CodecError:
        return False
    return group is not None and group.name == name


def _state(pod: Pod) -> str:
    if finished(pod):
        return "finished"
    if pod.spec.node_name:
        return "placed"
    return _ELSEWHERE if clusters.sent_to(pod.metadata.annotations) else "pending"


def told_events(events: Iterable[Event]) -> tuple[PodEvent, ...]:
    """The newest events of a pod, in words."""
    return tuple(_said(one) for one in _newest(events))


def _newest(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=_when)[-_EVENTS:]


def _when(event: Event) -> str:
    series = event.series.last_observed_time if event.series is not None else None
    return series or event.last_timestamp or event.event_time or event.first_timestamp or ""


def _said(event: Event) -> PodEvent:
    return PodEvent(event.reason, event.message, _when(event), event.reporting_component or event.source.component)


def _with(known: PodExplanation, **more: object) -> PodExplanation:
    return replace(known, **more)
