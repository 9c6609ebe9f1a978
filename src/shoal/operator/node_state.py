"""How a node stands: the step it is at, since when, why, and what to do. Pure.

The words of the policy's status and of `shoal doctor`. What is known comes from the node's own validator and from the
pods of operands on the node; of a node only what is about that node is believed. All text from there is bounded and
printed as one line.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import ContainerStatus, Pod
from shoal.model.contract import nvidia
from shoal.model.contract.operator import Step, UpgradeMark
from shoal.operator.components import BY_DAEMON_SET, Component
from shoal.operator.nodes import DEPLOY, is_gpu_node, is_paused
from shoal.operator.policy_status import TroubledNode, bounded
from shoal.operator.upgrade_node import FAILED, progress
from shoal.operator.validation import STEPS, first_unready, unreadable, validation_of

#: The longest piece of a node's or a pod's text that is repeated.
_SAID: Final = 300
#: The step of a node whose kubelet says nothing.
STEP_NODE: Final = "node"
_IMAGE_REASONS: Final = (
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
)
_CREATE_REASONS: Final = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreStartHookError",
)
_WAIT_PREFIX: Final = "wait-"
#: Further operands whose trouble may keep a node at a step.
_CONCERNED: Final[Mapping[Step, tuple[str, ...]]] = {
    "driver": ("driver", "validator"),
    "toolkit": ("toolkit", "validator-runtime"),
    "cuda": ("validator-runtime",),
    "plugin": ("agent", "mps", "validator"),
}


class Grade(IntEnum):
    """How bad it is: what fails stands before what waits, and that before what begins."""

    FAILS = 0
    WAITS = 1
    BEGINS = 2


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a node does not serve yet."""

    node: str
    uid: str
    step: str
    grade: Grade
    #: RFC 3339; empty if nobody knows.
    since: str
    why: str
    fix: str = ""

    def told(self) -> TroubledNode:
        """As the status of a policy has it."""
        return TroubledNode(
            name=self.node, step=bounded(self.step, 63), since=self.since, why=bounded(self.why), fix=bounded(self.fix)
        )


@dataclass(frozen=True, slots=True)
class _PodTrouble:
    grade: Grade
    why: str
    fix: str
    since: str


def is_served(node: Node) -> bool:
    """Whether a node shall serve cards: it has some, and nobody has switched all operands off."""
    labels = node.metadata.labels
    return (
        node.metadata.deletion_timestamp is None
        and is_gpu_node(labels)
        and labels.get(nvidia.LABEL_DEPLOY_OPERANDS) != "false"
    )


def is_chosen(component: Component, labels: Mapping[str, str]) -> bool:
    """Whether a component's DaemonSet chooses a node with these labels."""
    return all(labels.get(nvidia.deploy_label(part)) == DEPLOY for part in component.parts)


def trouble_of(
    node: Node, pods: Sequence[Pod], components: Iterable[Component], steps: tuple[Step, ...] = STEPS
) -> Trouble | None:
    """What keeps a node from serving; None when it serves. `pods`: those of operands on the node."""
    meta = node.metadata

    def trouble(step: str, grade: Grade, since: str | None, why: str, fix: str = "") -> Trouble:
        return Trouble(meta.name, meta.uid, step, grade, since or "", bounded(why), bounded(fix))

    for condition in node.status.conditions:
        if condition.type == "Ready" and condition.status != "True":
            why = f"the node is not ready: {said(condition.reason)} {said(condition.message)}".rstrip(": ")
            fix = f"see kubectl describe node {meta.name}, and kubelet's log there"
            return trouble(STEP_NODE, Grade.FAILS, condition.last_transition_time, why, fix)
    chosen = [one for one in components if one.parts]
    by_operand = _by_operand(pods)
    upgrade = progress(node)
    if upgrade is not None:
        if upgrade.state == FAILED or upgrade.why:
            grade = Grade.FAILS if upgrade.state == FAILED else Grade.WAITS
            why = said(upgrade.why) or "its driver was not replaced"
            return trouble(upgrade.state, grade, moment(upgrade.since), why, _fix(upgrade))
        # The new driver may fail long before the upgrade counts as failed.
        drivers = [
            _component_trouble(one, node, by_operand.get(one.operand)) for one in chosen if one.operand == "driver"
        ]
        for found in drivers:
            if found is not None and found.grade is Grade.FAILS:
                return trouble(upgrade.state, found.grade, found.since, found.why, found.fix)
        return trouble(upgrade.state, Grade.WAITS, moment(upgrade.since), "its driver is being replaced", _fix(upgrade))
    report = validation_of(node)
    step = first_unready(report, steps)
    if step is None:
        return _beyond_steps(node, chosen, by_operand)
    # What the pods of the step say tells more than the check that fails for want of them.
    concerned = [one for one in chosen if one.operand in _CONCERNED[step]]
    troubles = [_component_trouble(one, node, by_operand.get(one.operand)) for one in concerned]
    worst = min((one for one in troubles if one is not None), key=lambda one: one.grade, default=None)
    if worst is not None and worst.grade is Grade.FAILS:
        return trouble(step, worst.grade, worst.since, worst.why, worst.fix)
    told = report.steps.get(step) if report is not None else None
    if told is not None and told.why:
        grade = Grade.FAILS if told.fix else Grade.WAITS
        return trouble(step, grade, moment(told.since), said(told.why), said(told.fix))
    if wrong := unreadable(node):
        fix = f"kubectl annotate node {meta.name} shoal.dev/validation-: the validator writes it anew"
        return trouble(step, Grade.FAILS, None, said(wrong), fix)
    if worst is not None:
        return trouble(step, worst.grade, worst.since, worst.why, worst.fix)
    since = moment(told.since) if told is not None else None
    return trouble(step, Grade.BEGINS, since, _NOT_REACHED[step], "")


def _fix(upgrade: UpgradeMark) -> str:
    """What to do about an upgrade."""
    if upgrade.failed == "pods":
        retry = f"kubectl label node NODE {nvidia.LABEL_UPGRADE_STATE}=upgrade-required --overwrite"
        return f"the node serves on with its old driver; it is tried again within the hour, or now: {retry}"
    if upgrade.failed:
        skip = f"kubectl label node NODE {nvidia.LABEL_UPGRADE_SKIP}=true"
        return f"repair the driver; the node comes back by itself; to let others take its place: {skip}"
    return ""


#: Nobody complains, and the step is not reached.
_NOT_REACHED: Final[Mapping[Step, str]] = {
    "driver": "the validator has not looked at the driver yet",
    "toolkit": "the validator has not looked at the runtime yet",
    "cuda": "the validator has not looked at CUDA yet",
    "plugin": "the validator has not seen the node's GPU resources yet",
}


def _beyond_steps(node: Node, chosen: Sequence[Component], pods: Mapping[str, Pod]) -> Trouble | None:
    """The trouble of an operand on a node that has taken all steps."""
    worst: tuple[Component, _PodTrouble] | None = None
    for component in chosen:
        found = _component_trouble(component, node, pods.get(component.operand))
        if found is not None and (worst is None or found.grade < worst[1].grade):
            worst = component, found
    if worst is None:
        return None
    component, found = worst
    meta = node.metadata
    return Trouble(meta.name, meta.uid, component.operand, found.grade, found.since, found.why, found.fix)


def _by_operand(pods: Iterable[Pod]) -> dict[str, Pod]:
    """The newest pod of each operand."""
    newest: dict[str, Pod] = {}
    for pod in pods:
        component = component_of(pod)
        if component is None:
            continue
        other = newest.get(component.operand)
        if other is None or _age(pod) > _age(other):
            newest[component.operand] = pod
    return newest


def _age(pod: Pod) -> tuple[bool, str]:
    """Later is greater; one that is on its way out counts least."""
    return pod.metadata.deletion_timestamp is None, pod.metadata.creation_timestamp or ""


def component_of(pod: Pod) -> Component | None:
    """The component that a pod belongs to."""
    for owner in pod.metadata.owner_references:
        if owner.kind == "DaemonSet":
            return BY_DAEMON_SET.get(owner.name)
    return None


def target_of(pod: Pod) -> str:
    """The node that a DaemonSet's pod is for, also before it is bound; empty if nobody can tell."""
    if pod.spec.node_name:
        return pod.spec.node_name
    try:
        terms: Any = (pod.spec.affinity or {})["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for term in terms["nodeSelectorTerms"]:
            for field in term.get("matchFields") or ():
                if field["key"] == "metadata.name" and len(field["values"]) == 1:
                    return str(field["values"][0])
    except (KeyError, TypeError, AttributeError):
        pass
    return ""


def _component_trouble(component: Component, node: Node, pod: Pod | None) -> _PodTrouble | None:
    if not is_chosen(component, node.metadata.labels):
        return _kept_away(component, node)
    if pod is None:
        return _PodTrouble(Grade.BEGINS, f"{component.daemon_set} has no pod on the node yet", "", "")
    return pod_trouble(pod, component)


def _kept_away(component: Component, node: Node) -> _PodTrouble | None:
    """A component that the node's labels keep away. An administrator's word is no trouble, a pause is."""
    labels = node.metadata.labels
    for part in component.parts:
        key = nvidia.deploy_label(part)
        value = labels.get(key, "")
        if is_paused(value):
            why = f"{component.daemon_set} is kept away while the driver is replaced: {key}={said(value)}"
            fix = f"if no driver is being replaced: kubectl label node {node.metadata.name} {key}=true --overwrite"
            return _PodTrouble(Grade.WAITS, why, fix, "")
        if not value:
            return _PodTrouble(Grade.BEGINS, f"the node is not labelled {key} yet", "", "")
    return None


def pod_trouble(pod: Pod, component: Component) -> _PodTrouble | None:
    """What is wrong with the pod of an operand; None if it is ready."""
    ready = next((one for one in pod.status.conditions if one.type == "Ready"), None)
    if ready is not None and ready.status == "True":
        return None
    meta = pod.metadata
    since = (ready.last_transition_time if ready is not None else None) or meta.creation_timestamp or ""
    name = component.daemon_set
    describe = f"see kubectl -n {meta.namespace} describe pod {meta.name}"
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            since = condition.last_transition_time or since
            why = f"the pod of {name} finds no place on its node: {said(condition.message)}"
            fix = "make room on the node, or let daemonsets.tolerations of the policy cover its taints"
            return _PodTrouble(Grade.FAILS, why, fix, since)
    if pod.status.phase == "Failed":
        why = f"the pod of {name} has failed: {said(pod.status.reason)} {said(pod.status.message)}".rstrip(": ")
        return _PodTrouble(Grade.FAILS, why, describe, since)
    waiting_for = ""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        found = _container_trouble(status, pod, component)
        if found is not None:
            return _PodTrouble(Grade.FAILS, found[0], found[1], since)
        if status.state is not None and status.state.running is not None and status.name.startswith(_WAIT_PREFIX):
            waiting_for = status.name.removeprefix(_WAIT_PREFIX)
    if waiting_for:
        return _PodTrouble(Grade.WAITS, f"the pod of {name} waits for {said(waiting_for)}", "", since)
    if any(one.state is not None and one.state.running is not None for one in pod.status.container_statuses):
        words = f": {said(ready.message)}" if ready is not None and ready.message else ""
        return _PodTrouble(Grade.WAITS, f"the pod of {name} runs and is not ready{words}", _logs(pod), since)
    return _PodTrouble(Grade.BEGINS, f"the pod of {name} is starting", describe, since)


def _container_trouble(status: ContainerStatus, pod: Pod, component: Component) -> tuple[str, str] | None:
    """Why a container does not run, and what to do; None if nothing is wrong with it."""
    waiting = status.state.waiting if status.state is not None else None
    if waiting is None:
        return None
    what = f"container {said(status.name)} of {component.daemon_set}"
    if waiting.reason in _IMAGE_REASONS:
        image = _image(pod, status.name)
        why = (
            f"image {said(image)} of {component.daemon_set} cannot be pulled: {said(waiting.message) or waiting.reason}"
        )
        fix = (
            f"correct repository, image and version of {component.section} in the policy, or its imagePullSecrets; "
            "or bring the image onto the node"
        )
        return why, fix
    if waiting.reason in _CREATE_REASONS:
        return f"{what} cannot be created: {said(waiting.message) or waiting.reason}", _describe(pod)
    if waiting.reason == "CrashLoopBackOff":
        last = status.last_state.terminated if status.last_state is not None else None
        ended = "" if last is None else f", the last time with {last.exit_code} {said(last.reason)}"
        words = "" if last is None or not last.message else f": {said(last.message)}"
        return f"{what} ends again and again{ended}{words}", _logs(pod, status.name, previous=True)
    return None


def _image(pod: Pod, container: str) -> str:
    for one in (*pod.spec.init_containers, *pod.spec.containers):
        if one.name == container:
            return one.image
    return ""


def _describe(pod: Pod) -> str:
    return f"see kubectl -n {pod.metadata.namespace} describe pod {pod.metadata.name}"


def _logs(pod: Pod, container: str = "", *, previous: bool = False) -> str:
    chosen = f" -c {said(container)}" if container else ""
    return f"see kubectl -n {pod.metadata.namespace} logs {pod.metadata.name}{chosen}{' --previous' * previous}"


def said(text: str | None) -> str:
    """Text of a node or a pod as it is repeated: one line, not long."""
    return bounded((text or "").strip(), _SAID)


def moment(seconds: float) -> str:
    """Unix seconds as RFC 3339."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return ""
