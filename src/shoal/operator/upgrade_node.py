"""The upgrade of one node's driver: what is there, and the next step. Pure.

A step is one write of the node, which changes state, cordon and memory together: an operator that was killed goes on
from the state it finds. Which nodes may begin is not decided here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import ContainerStatus, Pod
from shoal.kube.selectors import LabelSelector, parse_label_selector
from shoal.model.contract import nvidia
from shoal.model.contract.kubernetes import FINISHED_PHASES, LABEL_REVISION
from shoal.model.contract.operator import (
    ANNOTATION_UPGRADE,
    NAME_DRIVER,
    NAME_VALIDATOR,
    UpgradeMark,
    decode_upgrade,
    encode_upgrade,
)
from shoal.model.errors import CodecError
from shoal.operator.actions import Action, DeletePod, Evict, PatchNode, Tell
from shoal.operator.gpu_pods import uses_gpu
from shoal.operator.nodes import DEPLOY, LABELS_DEPLOY, is_gpu_node, is_paused
from shoal.operator.policy import DrainFields, PodDeletionFields, UpgradePolicyFields
from shoal.operator.validation import validation_of
from shoal.operator.world import World

State = Literal[
    "upgrade-required",
    "cordon-required",
    "wait-for-jobs-required",
    "pod-deletion-required",
    "drain-required",
    "pod-restart-required",
    "validation-required",
    "uncordon-required",
    "upgrade-done",
    "upgrade-failed",
]
REQUIRED: Final = "upgrade-required"
CORDON: Final = "cordon-required"
JOBS: Final = "wait-for-jobs-required"
PODS: Final = "pod-deletion-required"
DRAIN: Final = "drain-required"
RESTART: Final = "pod-restart-required"
VALIDATION: Final = "validation-required"
UNCORDON: Final = "uncordon-required"
DONE: Final = "upgrade-done"
FAILED: Final = "upgrade-failed"

#: States from which a node can go back: its old driver still runs.
REVERSIBLE: Final = frozenset((CORDON, JOBS, PODS, DRAIN))
#: States of a node that is taken out of service.
ACTIVE: Final = REVERSIBLE | {RESTART, VALIDATION, UNCORDON}

#: States in which no pod with a card shall come to the node.
_EMPTIED: Final = frozenset((JOBS, PODS, DRAIN, RESTART))

#: A driver may be compiled on the node: NVIDIA's startup probe gives it twenty minutes.
RESTART_SECONDS: Final = 1800
#: Restarts of a container of the driver after which it counts as failed, as NVIDIA has it.
MOST_RESTARTS: Final = 10
#: How long a validator may take to find the new driver well, as NVIDIA has it.
VALIDATION_SECONDS: Final = 600
#: After this a validator has looked again, and what it says is about the new driver.
SETTLE_SECONDS: Final = 30
#: When pods that would not go are asked again.
RETRY_SECONDS: Final = 3600

_DAEMON_SET: Final = "DaemonSet"
_ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"
_LONGEST_WHY: Final = 300
_MEMORY: Final = "Memory"
#: NVIDIA's tags begin with the version of the driver: 550.90.07-ubuntu22.04.
_TAG: Final = re.compile(r":([0-9]{1,6}(?:\.[0-9]{1,6}){1,2})(?:-[^/:@]*)?(?:@.*)?$")

_selector = lru_cache(maxsize=64)(parse_label_selector)


@dataclass(frozen=True, slots=True)
class NodeUpgrade:
    """One node with a driver of the operator's, as its upgrade sees it."""

    node: Node
    #: Of the label; empty for none, or one that is no state.
    state: str
    #: The memory of this state; of another one when somebody changed the label; None for none.
    mark: UpgradeMark | None
    #: The pod of the driver; None for none.
    driver: Pod | None
    #: Newest revision of the driver's DaemonSet; None: not known now.
    newest: str | None

    @property
    def name(self) -> str:
        return self.node.metadata.name

    @property
    def cordoned(self) -> bool:
        """Whether the operator cordoned it."""
        return self.mark is not None and self.mark.cordoned

    @property
    def skipped(self) -> bool:
        """Whether an administrator wants no upgrade here."""
        return self.node.metadata.labels.get(nvidia.LABEL_UPGRADE_SKIP) == "true"

    @property
    def ready(self) -> bool:
        """Whether kubelet says that the node is well."""
        return all(one.status == "True" for one in self.node.status.conditions if one.type == "Ready")

    @property
    def outdated(self) -> bool:
        """Whether another driver than the newest runs, which nobody has deleted yet."""
        if self.driver is None or self.newest is None or self.driver.metadata.deletion_timestamp is not None:
            return False
        return self.driver.metadata.labels.get(LABEL_REVISION) != self.newest

    @property
    def current(self) -> bool:
        """Whether the newest driver is there, well or not."""
        if self.driver is None or self.newest is None or self.driver.metadata.deletion_timestamp is not None:
            return False
        return self.driver.metadata.labels.get(LABEL_REVISION) == self.newest

    @property
    def upgraded(self) -> bool:
        """Whether the newest driver is there and well, as its pod says."""
        return self.current and self.driver is not None and _is_ready(self.driver)

    @property
    def beginning(self) -> bool:
        """Whether the driver's pod has just begun, with NVIDIA's driver manager, which unloads the old driver."""
        if self.driver is None or self.driver.metadata.deletion_timestamp is not None:
            return False
        return any(not found.ready for found in self.driver.status.init_container_statuses)

    @property
    def unloading(self) -> bool:
        """Whether a driver is loaded that NVIDIA's driver manager must unload: only then it pauses operands."""
        labels = self.node.metadata.labels
        return self.beginning and any(is_paused(labels.get(key, "")) for key in LABELS_DEPLOY)

    @property
    def lost(self) -> bool:
        """Whether the upgrade failed such that the node has no driver that is known to work."""
        return self.state == FAILED and self.mark is not None and self.mark.failed != "pods"

    @property
    def unavailable(self) -> bool:
        """Whether the node counts against `maxUnavailable`. A failed one that shall be skipped does no longer."""
        if self.lost and self.skipped:
            return False
        return self.node.spec.unschedulable or not self.ready or self.state in ACTIVE or self.lost

    def elapsed(self, now: float) -> float:
        """Seconds in this state. A clock that went back counts from nought."""
        return 0.0 if self.mark is None else max(now - self.mark.since, 0.0)


def seen(world: World) -> list[NodeUpgrade]:
    """The nodes that have a driver of the operator's, or whose upgrade it began; in order of names."""
    newest = newest_revision(world)
    found = []
    for name in sorted(world.nodes):
        node = world.nodes[name]
        if node.metadata.deletion_timestamp is None:
            state = node.metadata.labels.get(nvidia.LABEL_UPGRADE_STATE, "")
            driver = _driver_of(world.operand_pods.get(name, ()))
            known = state if state in ACTIVE or state in (REQUIRED, DONE, FAILED) else ""
            found.append(NodeUpgrade(node, known, mark_of(node), driver, newest))
    return found


def mark_of(node: Node) -> UpgradeMark | None:
    """What the operator remembers of a node's upgrade; None for nothing, or nothing that can be read."""
    text = node.metadata.annotations.get(ANNOTATION_UPGRADE)
    if text is None:
        return None
    try:
        return decode_upgrade(text)
    except CodecError:
        return None


def progress(node: Node) -> UpgradeMark | None:
    """State of a node's upgrade that is under way or failed, since when, and what it waits for; None if none is."""
    mark = mark_of(node)
    if mark is None or mark.state != node.metadata.labels.get(nvidia.LABEL_UPGRADE_STATE):
        return None
    return mark if mark.state in ACTIVE or mark.state == FAILED else None


def is_managed(node: Node) -> bool:
    """Whether the driver of a node is the operator's to replace: an administrator may have said otherwise."""
    labels = node.metadata.labels
    deploy = labels.get(nvidia.deploy_label("driver"), "")
    if labels.get(nvidia.LABEL_DEPLOY_OPERANDS) == "false":
        return False
    if deploy == "":
        return is_gpu_node(labels)
    return deploy == DEPLOY or is_paused(deploy)


def newest_revision(world: World) -> str | None:
    """The newest revision of the driver; None while its DaemonSet's controller has not seen the newest template."""
    found = world.owned.get((_DAEMON_SET, NAME_DRIVER))
    if found is None:
        return None
    generation = (found.get("metadata") or {}).get("generation") or 0
    observed = (found.get("status") or {}).get("observedGeneration") or 0
    return world.revisions.get(NAME_DRIVER) if observed >= generation else None


def _driver_of(pods: Iterable[Pod]) -> Pod | None:
    """The driver's pod: one that stays rather than one that goes, the younger rather than the older."""
    drivers = [pod for pod in pods if _owner(pod) == (_DAEMON_SET, NAME_DRIVER)]
    return max(
        drivers,
        key=lambda pod: (
            pod.metadata.deletion_timestamp is None,
            pod.metadata.creation_timestamp or "",
            pod.metadata.uid,
        ),
        default=None,
    )


def _owner(pod: Pod) -> tuple[str, str]:
    """Kind and name of a pod's controller; empty for none."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return owner.kind, owner.name
    return "", ""


# Writes


def enter(one: NodeUpgrade, state: State, now: float, *, why: str = "", **changes: Any) -> PatchNode:
    """Bring a node to a state. `changes` are fields of its mark; those not named stay."""
    mark = one.mark or UpgradeMark(state=state, since=0)
    again = mark.state == state == one.state
    since = mark.since if again and mark.since <= now else math.floor(now)
    mark = msgspec.structs.replace(mark, state=state, since=since, why=_plain(why), **changes)
    return _patch(one, state, encode_upgrade(mark))


def finish(one: NodeUpgrade, state: State | None, *, enabled: bool = True) -> PatchNode | None:
    """Forget a node's upgrade and uncordon it if the operator cordoned it; None if there is nothing to do."""
    annotations: dict[str, str | None] = {
        key: None
        for key in (ANNOTATION_UPGRADE, nvidia.ANNOTATION_UPGRADE_INITIAL)
        if key in one.node.metadata.annotations
    }
    if not enabled and nvidia.ANNOTATION_UPGRADE_ENABLED in one.node.metadata.annotations:
        annotations[nvidia.ANNOTATION_UPGRADE_ENABLED] = None
    changed = one.node.metadata.labels.get(nvidia.LABEL_UPGRADE_STATE) != state
    if not changed and not annotations:
        return None
    labels = {nvidia.LABEL_UPGRADE_STATE: state} if changed else {}
    return PatchNode(
        one.name,
        one.node.metadata.uid,
        labels=labels,
        annotations=annotations,
        unschedulable=False if one.cordoned and one.node.spec.unschedulable else None,
    )


def _patch(one: NodeUpgrade, state: str, mark: str, **more: Any) -> PatchNode:
    meta = one.node.metadata
    labels: dict[str, str | None] = {}
    if meta.labels.get(nvidia.LABEL_UPGRADE_STATE) != state:
        labels[nvidia.LABEL_UPGRADE_STATE] = state
    return PatchNode(meta.name, meta.uid, labels=labels, annotations={ANNOTATION_UPGRADE: mark}, **more)


def tell(one: NodeUpgrade, reason: str, message: str, *, warning: bool = False) -> Tell:
    """An Event about the node."""
    return Tell("Node", one.name, one.node.metadata.uid, reason, _plain(message), warning)


def _plain(text: str) -> str:
    """Words that may be another's, as one line of bounded length."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * _LONGEST_WHY])
    return line if len(line) <= _LONGEST_WHY else line[: _LONGEST_WHY - 1] + "…"


# Steps


def step(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    """What a node in the midst of its upgrade, or done with it, needs now."""
    if one.state in ACTIVE or one.state == FAILED:
        if one.mark is None or one.mark.state != one.state or one.mark.since > world.now:
            # Somebody wrote the label, or the clock went back: the state begins now.
            return [_anew(one, world.now)]
        if one.state in _EMPTIED and not one.node.spec.unschedulable:
            # Somebody uncordoned it: pods would come back under a driver that goes.
            return [_cordoned(one, enter(one, _as_state(one.state), world.now, why=one.mark.why))]
        if one.state in REVERSIBLE and one.upgraded:
            return [enter(one, VALIDATION, world.now)]  # the newest driver came without it: nobody needs to go
        return _STEPS[one.state](one, world, policy)
    if one.state == REQUIRED:
        return _required(one, world)
    return _at_rest(one, world)


def _anew(one: NodeUpgrade, now: float) -> PatchNode:
    """Begin a state that somebody else wrote, or whose memory is gone.

    Then NVIDIA's annotation tells whether the node was cordoned before.
    """
    state = _as_state(one.state)
    why = "" if one.mark is None else one.mark.why
    if one.state == FAILED and (one.mark is None or not one.mark.failed):
        return enter(one, state, now, why=why, failed="driver" if one.node.spec.unschedulable else "pods")
    if one.mark is not None:
        return enter(one, state, now, why=why)
    before = one.state == CORDON or nvidia.ANNOTATION_UPGRADE_INITIAL in one.node.metadata.annotations
    return enter(one, state, now, cordoned=one.node.spec.unschedulable and not before)


def _as_state(state: str) -> State:
    return state  # type: ignore[return-value]


def _at_rest(one: NodeUpgrade, world: World) -> list[Action]:
    """Not begun, or done."""
    if one.outdated:
        return [enter(one, REQUIRED, world.now)]
    if one.cordoned:
        # Somebody took the label away in the midst of an upgrade.
        return [enter(one, VALIDATION, world.now)] if one.current else []
    written = one.node.metadata.labels.get(nvidia.LABEL_UPGRADE_STATE, DONE)
    patch = finish(one, DONE) if one.mark is not None or written != DONE else None
    return [] if patch is None else [patch]


def _required(one: NodeUpgrade, world: World) -> list[Action]:
    if one.current:  # the driver went back to what it was, or somebody deleted the pod
        if one.cordoned:
            return [enter(one, VALIDATION, world.now)]
        patch = finish(one, DONE)
        return [] if patch is None else [patch]
    if one.mark is None or one.mark.state != REQUIRED or one.mark.since > world.now:
        return [enter(one, REQUIRED, world.now)]
    return []


def begin(one: NodeUpgrade, now: float) -> list[Action]:
    """Take a node out of service, first of all by saying so: its place is taken from here on."""
    patch = enter(one, CORDON, now, failed="", pod="")
    if one.node.spec.unschedulable and not one.cordoned:
        patch = _with(patch, annotations={nvidia.ANNOTATION_UPGRADE_INITIAL: "true"})
    return [patch, tell(one, "DriverUpgradeStarted", "its driver is replaced: the node is cordoned and emptied first")]


def _cordon(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    after: State = JOBS if policy.wait_for_completion.pod_selector else PODS
    return [_cordoned(one, enter(one, after, world.now))]


def _cordoned(one: NodeUpgrade, patch: PatchNode) -> PatchNode:
    """The write, cordoning the node as well. Refused if the node has changed: an administrator may have cordoned it."""
    if one.node.spec.unschedulable:
        return patch
    mark = msgspec.structs.replace(decode_upgrade(patch.annotations[ANNOTATION_UPGRADE] or ""), cordoned=True)
    return _with(
        patch,
        annotations={ANNOTATION_UPGRADE: encode_upgrade(mark)},
        unschedulable=True,
        resource_version=one.node.metadata.resource_version,
    )


def _with(patch: PatchNode, *, annotations: dict[str, str | None], **more: Any) -> PatchNode:
    fields = {"labels": patch.labels, "unschedulable": patch.unschedulable, "resource_version": patch.resource_version}
    return PatchNode(patch.name, patch.uid, annotations={**patch.annotations, **annotations}, **{**fields, **more})


def _jobs(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    wanted = policy.wait_for_completion
    # One that cannot be read may mean any pod.
    selector = _selector(wanted.pod_selector) or LabelSelector(())
    jobs = [pod for pod in _living(world.gpu_pods.get(one.name, ())) if selector.matches(pod.metadata.labels)]
    late = wanted.timeout_seconds and one.elapsed(world.now) >= wanted.timeout_seconds
    if not jobs or late or not wanted.pod_selector:
        return [enter(one, PODS, world.now)]
    return _waiting(one, world, f"waits for {_listed(jobs)} to finish, as waitForCompletion.podSelector says")


def _pods(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    rules = policy.pod_deletion
    left = to_evict(world.gpu_pods.get(one.name, ()))
    if not left:
        return [_restart(one, world)]
    if _late(one, world, rules) and policy.drain.enable:
        return [enter(one, DRAIN, world.now)]
    return _until_gone(one, world, rules, left, "driver.upgradePolicy.podDeletion")


def _drain(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    rules = policy.drain
    selector = _selector(rules.pod_selector)
    pods = {pod.metadata.uid: pod for pod in (*world.gpu_pods.get(one.name, ()), *world.drained_pods.get(one.name, ()))}
    wanted = [
        pod
        for pod in pods.values()
        if uses_gpu(pod) or (selector is not None and selector.matches(pod.metadata.labels))
    ]
    left = to_evict(wanted) if rules.enable else []
    if not left:
        return [_restart(one, world)]
    return _until_gone(one, world, rules, left, "driver.upgradePolicy.drain")


def _restart(one: NodeUpgrade, world: World) -> PatchNode:
    """To the driver's pod, with what the validator says of the old driver."""
    report = validation_of(one.node)
    found = None if report is None else report.steps.get("driver")
    return enter(one, RESTART, world.now, pod="", before=None if found is None else found.since)


def _late(one: NodeUpgrade, world: World, rules: PodDeletionFields | DrainFields) -> bool:
    return rules.timeout_seconds > 0 and one.elapsed(world.now) >= rules.timeout_seconds


def _until_gone(
    one: NodeUpgrade, world: World, rules: PodDeletionFields | DrainFields, left: list[Pod], section: str
) -> list[Action]:
    """Ask pods to go, and say what is waited for. Where the driver is being unloaded there is no going back."""
    if _late(one, world, rules) and not one.beginning:
        return _give_up(one, world, rules, left, section)
    evictions: list[Action] = [
        Evict(pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
        for pod in left
        if pod.metadata.deletion_timestamp is None and not _objection(pod, rules)
    ]
    why, blocked = _kept(world, rules, left, section)
    return [*_waiting(one, world, why, blocked=blocked), *evictions]


def _give_up(
    one: NodeUpgrade, world: World, rules: PodDeletionFields | DrainFields, left: list[Pod], section: str
) -> list[Action]:
    """Pods would not go: the node serves on with its old driver, and is tried again later."""
    kept, _ = _kept(world, rules, left, section)
    why = f"pods did not go in {rules.timeout_seconds} s: {kept}"
    patch = returned(one, enter(one, FAILED, world.now, why=why, failed="pods", cordoned=False))
    return [patch, tell(one, "DriverUpgradeFailed", why, warning=True)]


def returned(one: NodeUpgrade, patch: PatchNode) -> PatchNode:
    """The write, bringing the node back into service as it was before the operator cordoned it."""
    initial = nvidia.ANNOTATION_UPGRADE_INITIAL
    annotations: dict[str, str | None] = {initial: None} if initial in one.node.metadata.annotations else {}
    uncordon = False if one.cordoned and one.node.spec.unschedulable else None
    return _with(patch, annotations=annotations, unschedulable=uncordon)


def _kept(world: World, rules: PodDeletionFields | DrainFields, left: list[Pod], section: str) -> tuple[str, bool]:
    """What keeps pods, and whether a person must see to it."""
    for pod in left:
        if objection := _objection(pod, rules):
            field, words = objection
            return f"{_shown(pod)} {words}: delete it, or set {section}.{field} to true", True
    for pod in left:
        said = world.refusals.get(pod.metadata.uid)
        if pod.metadata.deletion_timestamp is None and said is not None:
            return f"{_shown(pod)} is kept by a disruption budget: {said}", True
    return f"waits for {_listed(left)} to end", False


def _waiting(one: NodeUpgrade, world: World, why: str, *, blocked: bool = False) -> list[Action]:
    """Say what is waited for, once."""
    if one.mark is not None and one.mark.why == _plain(why):
        return []
    patch = enter(one, _as_state(one.state), world.now, why=why)
    return [patch, *([tell(one, "DriverUpgradeBlocked", why, warning=True)] if blocked else [])]


def _pod_restart(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    left = to_evict(world.gpu_pods.get(one.name, ()))
    deleted = one.mark is not None and one.mark.pod != ""
    if left and (one.beginning or (one.outdated and not deleted)):  # they came before everybody saw the cordon
        return _until_gone(one, world, policy.pod_deletion, left, "driver.upgradePolicy.podDeletion")
    if one.outdated and one.driver is not None and one.mark is not None and (policy.auto_upgrade or deleted):
        meta = one.driver.metadata
        actions: list[Action] = [] if one.mark.pod == meta.uid else [_deleting(one, world.now, meta.uid)]
        return [*actions, DeletePod(meta.name, meta.namespace, meta.uid)]
    if one.upgraded:
        return [enter(one, VALIDATION, world.now)]
    failure = _failure(one.driver) if one.current and one.driver is not None else None
    if failure is None and one.elapsed(world.now) >= RESTART_SECONDS and not one.outdated:
        failure = f"its driver was not ready in {RESTART_SECONDS // 60} minutes"
    return [] if failure is None else _fail(one, world, failure)


def _deleting(one: NodeUpgrade, now: float, pod: str) -> PatchNode:
    """Remember which pod is deleted; the time for the next one begins now."""
    mark = one.mark or UpgradeMark(state=RESTART, since=0)
    mark = msgspec.structs.replace(mark, since=math.floor(now), pod=pod, why="")
    return _patch(one, RESTART, encode_upgrade(mark))


def _validation(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    if one.outdated:
        return [enter(one, RESTART, world.now)]  # a newer driver came
    why = _invalid(one, world)
    if why == "":
        return [enter(one, UNCORDON, world.now)]
    if one.current and one.driver is not None and (failure := _failure(one.driver)) is not None:
        return _fail(one, world, failure)
    if one.elapsed(world.now) >= VALIDATION_SECONDS:
        return _fail(one, world, f"not validated in {VALIDATION_SECONDS // 60} minutes: {why}")
    changed = one.mark is None or one.mark.why != _plain(why)
    return [enter(one, VALIDATION, world.now, why=why)] if changed else []


def _uncordon(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    if one.outdated:
        return [enter(one, RESTART, world.now)]  # a newer driver came while the node is empty
    patch = finish(one, DONE)
    return [] if patch is None else [patch, tell(one, "DriverUpgradeDone", "its driver is the newest")]


def _failed(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    """A driver that becomes well after all ends the failure."""
    if one.current and _invalid(one, world) == "":
        return [enter(one, UNCORDON, world.now, failed="")]
    return []


def _fail(one: NodeUpgrade, world: World, why: str) -> list[Action]:
    words = f"{why}: see the log of {NAME_DRIVER} on this node"
    return [
        enter(one, FAILED, world.now, why=words, failed="driver"),
        tell(one, "DriverUpgradeFailed", words, warning=True),
    ]


_STEPS: Final = {
    CORDON: _cordon,
    JOBS: _jobs,
    PODS: _pods,
    DRAIN: _drain,
    RESTART: _pod_restart,
    VALIDATION: _validation,
    UNCORDON: _uncordon,
    FAILED: _failed,
}


# Pods


def to_evict(pods: Iterable[Pod]) -> list[Pod]:
    """The pods that must be gone first: not those of DaemonSets, of the node itself, or that say they may stay."""
    return [
        pod
        for pod in _living(pods)
        if _owner(pod)[0] != _DAEMON_SET
        and _ANNOTATION_MIRROR not in pod.metadata.annotations
        and pod.metadata.labels.get(nvidia.LABEL_UPGRADE_DRAIN_SKIP) != "true"
    ]


def _living(pods: Iterable[Pod]) -> list[Pod]:
    living = [pod for pod in pods if pod.status.phase not in FINISHED_PHASES]
    return sorted(living, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


def _objection(pod: Pod, rules: PodDeletionFields | DrainFields) -> tuple[str, str] | None:
    """The field that lets such a pod be evicted, and what would be lost; None if it may go."""
    if not rules.force and _owner(pod) == ("", ""):
        return "force", "has no controller that makes it anew"
    if not rules.delete_empty_dir and any(
        volume.empty_dir is not None and volume.empty_dir.medium != _MEMORY for volume in pod.spec.volumes
    ):
        return "deleteEmptyDir", "has data in an emptyDir"
    return None


def _shown(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _listed(pods: list[Pod]) -> str:
    more = len(pods) - 1
    return _shown(pods[0]) + (f" and {more} more" if more else "")


# The driver


def _is_ready(pod: Pod) -> bool:
    found = pod.status.container_statuses
    return pod.status.phase == "Running" and bool(found) and all(one.ready for one in found)


def _failure(pod: Pod) -> str | None:
    """Why a driver counts as failed before its time is up; None if it does not."""
    for found in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if not found.ready and found.restart_count > MOST_RESTARTS:
            return f"container {found.name} restarted {found.restart_count} times{_last_words(found)}"
    return None


def _last_words(found: ContainerStatus) -> str:
    waiting = None if found.state is None else found.state.waiting
    return f", {waiting.reason}" if waiting is not None and waiting.reason else ""


def _invalid(one: NodeUpgrade, world: World) -> str:
    """Why the new driver is not known to work; empty when it is."""
    if not one.upgraded or one.driver is None:
        return "the driver's pod is not ready"
    validator = one.node.metadata.labels.get(nvidia.deploy_label("operator-validator"), "")
    if is_paused(validator):
        return "NVIDIA's driver manager has not let the validator back onto the node"
    if (_DAEMON_SET, NAME_VALIDATOR) not in world.owned or validator not in ("", DEPLOY):
        return ""  # nobody validates here
    report = validation_of(one.node)
    found = None if report is None else report.steps.get("driver")
    if report is None or found is None:
        return "the node's validator says nothing of the driver"
    if not found.ready:
        return f"the node's validator says: {found.why or 'the driver is not ready'}"
    wanted = version_of(one.driver)
    if wanted and report.driver_version and report.driver_version != wanted:
        return f"driver {report.driver_version} is loaded, not {wanted}: reboot the node if that stays"
    if one.mark is None or (found.since == one.mark.before and one.elapsed(world.now) < SETTLE_SECONDS):
        return "the node's validator has not looked again yet"
    return ""


def version_of(pod: Pod) -> str:
    """The version of the driver that a pod brings, as its image's tag says; empty if it does not say."""
    for container in pod.spec.containers:
        if found := _TAG.search(container.image):
            return found[1]
    return ""
