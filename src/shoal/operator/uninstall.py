"""What is taken away when the last policy is deleted: operands, their files on nodes, and what stands on the nodes.

World in, actions out, like the reconcile. There is no memory but the cluster: a node that still has a trace of Shoal is
still to be done, and the DaemonSet `shoal-cleanup` is there from the first write to the last but one. So an operator
that was killed between any two writes goes on from there, and so does `shoal uninstall` without an operator.

1. `shoal-cleanup` is made; it has pods on nodes with the label `shoal.dev/cleanup` only.
2. All other operands are deleted. A node whose pods have ended gets the label; the driver ends when nobody uses it.
3. A pod of `shoal-cleanup` removes the files of its node and is ready then: labels, annotations and the taint go.
4. When no node has a trace, the rest goes, and the finalizer last.

A node that is not ready, or does not come to an end, is given up after a time, and told. Pods with cards go on running:
what they have was given to them when they started.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import RawObject, meta_of
from shoal.model.contract import mechanisms, nvidia, shoal
from shoal.model.contract.discovery import ANNOTATION_FACTS, NAME_WORKERS_BUS, NAME_WORKERS_CARDS
from shoal.model.contract.kubernetes import FINISHED_PHASES, LABEL_APP
from shoal.model.contract.load import NAME_COLLECTOR
from shoal.model.contract.operator import (
    ANNOTATION_UPGRADE,
    ANNOTATION_VALIDATION,
    FINALIZER,
    LABEL_CLEANUP,
    LABEL_POLICY,
    NAME_CLEANUP,
    NAME_DRIVER,
    NAME_MPS,
    NAME_TOOLKIT,
    NAME_VALIDATOR,
    NAME_VALIDATOR_RUNTIME,
    OPERAND_CLEANUP,
    TAINT_STARTING,
)
from shoal.operator import nodes as deploy
from shoal.operator.actions import Action, Apply, Delete, PatchNode, SetFinalizer, Tell
from shoal.operator.upgrade_node import mark_of
from shoal.operator.world import World, is_ready

#: DaemonSets that the operator makes, and `deploy/` has without it.
DAEMON_SETS: Final = (
    shoal.NAME_AGENT,
    NAME_MPS,
    NAME_WORKERS_BUS,
    NAME_WORKERS_CARDS,
    NAME_COLLECTOR,
    NAME_VALIDATOR,
    NAME_VALIDATOR_RUNTIME,
    NAME_TOOLKIT,
    NAME_DRIVER,
    NAME_CLEANUP,
)
#: Annotations that Shoal writes on nodes. Nobody else has these names.
NODE_ANNOTATIONS: Final = (
    shoal.ANNOTATION_GPUS,
    shoal.ANNOTATION_HELD,
    shoal.ANNOTATION_FAULTS,
    mechanisms.ANNOTATION_MECHANISMS,
    ANNOTATION_FACTS,
    ANNOTATION_VALIDATION,
    ANNOTATION_UPGRADE,
)
#: The option of `shoal-cleanup` for nodes where NVIDIA's operator goes on.
KEEP_VALIDATIONS: Final = "--keep-validations"

#: After the first step: for pods of operands to end, for the files of nodes, and for a node that is not ready.
STOP_SECONDS: Final = 45.0
CLEAN_SECONDS: Final = 120.0
UNREADY_SECONDS: Final = 60.0
#: Longer for each node of the cluster: pods of a DaemonSet come one after another.
_NODE_SECONDS: Final = 0.05

REASON_USED: Final = "UninstallWithPods"
REASON_LEFT: Final = "UninstallIncomplete"
_ON: Final = "true"
_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Uninstall:
    """One look at an uninstall: what to do now, what is waited for, and what stays."""

    actions: tuple[Action, ...] = ()
    waiting: str = ""
    #: In words, with what to do.
    left: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self.actions and not self.waiting


def is_due(world: World) -> bool:
    """Whether there are policies, and all of them are being deleted."""
    return bool(world.policies) and not any(map(_lives, world.policies))


def released(world: World) -> tuple[Action, ...]:
    """The finalizers that policies lose which are deleted while another one goes on: nothing is taken away for them."""
    if not any(map(_lives, world.policies)):
        return ()
    return tuple(_finalizers_off(world))


def plan(world: World, *, began: float | None = None) -> Uninstall:
    """The next step of taking everything away. Call it again when the world has changed, or time has passed.

    `began`: when that was asked for, in Unix seconds; else the policies tell it.
    """
    return _Look(world, began).plan()


def has_trace(node: Node, *, beside_nvidia: bool = False) -> bool:
    """Whether something of Shoal stands on a node."""
    return node.metadata.deletion_timestamp is None and removal(node, beside_nvidia=beside_nvidia) is not None


def removal(node: Node, *, beside_nvidia: bool = False) -> PatchNode | None:
    """What takes everything of Shoal off a node's object; None if there is nothing.

    `beside_nvidia`: NVIDIA's operator goes on, and its labels are left to it.
    """
    meta = node.metadata
    labels: dict[str, str | None] = {}
    if not beside_nvidia:
        labels |= deploy.removed_labels(meta.labels)
        labels |= {key: None for key in (nvidia.LABEL_UPGRADE_STATE,) if key in meta.labels}
    if LABEL_CLEANUP in meta.labels:
        labels[LABEL_CLEANUP] = None
    theirs = () if beside_nvidia else (nvidia.ANNOTATION_UPGRADE_ENABLED, nvidia.ANNOTATION_UPGRADE_INITIAL)
    annotations: dict[str, str | None] = {key: None for key in (*NODE_ANNOTATIONS, *theirs) if key in meta.annotations}
    mark = mark_of(node)
    cordoned = mark is not None and mark.cordoned and node.spec.unschedulable
    taints = (TAINT_STARTING,) if any(taint.key == TAINT_STARTING for taint in node.spec.taints) else ()
    if not (labels or annotations or taints):
        return None
    return PatchNode(
        meta.name,
        meta.uid,
        labels=labels,
        annotations=annotations,
        remove_taints=taints,
        unschedulable=False if cordoned else None,
    )


def operand_of(pod: Pod) -> str:
    """The operand that a pod belongs to; empty if it is none. deploy/keti gives DaemonSets other names, no labels."""
    owners = [owner.name for owner in pod.metadata.owner_references if owner.kind == "DaemonSet"]
    names = (*owners, pod.metadata.labels.get(LABEL_APP, "")) if owners else ()
    return next((name for name in names if name in DAEMON_SETS), "")


class _Look:
    """The world as an uninstall sees it."""

    def __init__(self, world: World, began: float | None) -> None:
        self.world = world
        self.asked = began
        self.beside = bool(world.nvidia_policies)
        self.daemons = {name: obj for (kind, name), obj in world.owned.items() if kind == "DaemonSet"}
        self.cleanup = self.daemons.pop(NAME_CLEANUP, None)
        self.driver = self.daemons.pop(NAME_DRIVER, None)
        self.manifests = world.operands.get(OPERAND_CLEANUP, ())
        self.can_clean = self.cleanup is not None or bool(self.manifests)
        self.targets = [node for node in world.nodes.values() if has_trace(node, beside_nvidia=self.beside)]
        self.passed = world.now - self._began()
        self.waits: list[str] = []
        self.left: list[str] = []

    def plan(self) -> Uninstall:
        actions = tuple(self._actions())
        return Uninstall(actions, _words(self.waits) if self.waits else "", tuple(self.left))

    def _began(self) -> float:
        """When the first step was taken; before it, when that was asked for."""
        if self.cleanup is not None:
            return _moment(self.cleanup, "creationTimestamp", self.world.now)
        if self.asked is not None:
            return self.asked
        asked = [_moment(policy, "deletionTimestamp", self.world.now) for policy in self.world.policies]
        return min(asked, default=self.world.now)

    def _actions(self) -> Iterator[Action]:
        if self.targets and self.cleanup is None and self.manifests:
            yield from self._users_told()
            for manifest in self.manifests:
                yield Apply(_own(manifest, self.world, self.beside))
        for obj in self.daemons.values():
            yield _deleted(obj)
        yield from self._driver()
        for node in self.targets:
            yield from self._node(node)
        if not self.targets:
            yield from self._rest()

    def _users_told(self) -> Iterator[Action]:
        """Say it once, with the first step."""
        users = [pod for pods in self.world.gpu_pods.values() for pod in pods if _runs(pod)]
        if users and self.world.policies:
            meta = meta_of(self.world.policies[0])
            named = _words([f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in users])
            words = (
                f"{len(users)} pods have cards and go on running, without a restart of their containers: {named}; "
                "clients of MPS end with its daemon"
            )
            yield Tell("ClusterPolicy", meta.name, meta.uid, REASON_USED, words, warning=True)

    def _driver(self) -> Iterator[Action]:
        """The driver's container goes last: what holds the driver open would keep it from being unloaded."""
        if self.driver is None:
            return
        users = [pod.metadata.name for name in self.world.nodes for pod in self._working(name) if self._counts(name)]
        if self.daemons or (users and self.passed < STOP_SECONDS):
            self.waits.append(f"the end of {_words(users)}" if users else "the end of operands")
        else:
            yield _deleted(self.driver)

    def _node(self, node: Node) -> Iterator[Action]:
        name = node.metadata.name
        working = self._working(name)
        if working and self.passed < STOP_SECONDS and self._counts(name):
            self.waits.append(f"node {name}: the end of {_words([pod.metadata.name for pod in working])}")
            return
        if not self.can_clean:
            yield from self._given_up(node, "there is no manifest of shoal-cleanup")
            return
        if self.cleanup is None:  # it is made in this step
            self.waits.append(f"node {name}: {NAME_CLEANUP}")
            return
        if LABEL_CLEANUP not in node.metadata.labels:
            self.waits.append(f"node {name}: {NAME_CLEANUP}")
            yield PatchNode(name, node.metadata.uid, labels={LABEL_CLEANUP: _ON})
            return
        pods = [pod for pod in self.world.operand_pods.get(name, ()) if operand_of(pod) == NAME_CLEANUP]
        if any(is_ready(pod) and pod.metadata.deletion_timestamp is None for pod in pods):
            yield from self._freed(node)
        elif self.passed >= self._patience(node):
            why = f"its pod of {NAME_CLEANUP} did not come to an end" if is_ready(node) else "it is not ready"
            yield from self._given_up(node, why)
        else:
            self.waits.append(f"node {name}: its files")

    def _working(self, node: str) -> list[Pod]:
        """The pods of operands that still write on a node."""
        pods = self.world.operand_pods.get(node, ())
        return [pod for pod in pods if operand_of(pod) not in ("", NAME_CLEANUP, NAME_DRIVER) and _runs(pod)]

    def _counts(self, node: str) -> bool:
        """Whether a node's pods can be expected to end."""
        return is_ready(self.world.nodes[node])

    def _patience(self, node: Node) -> float:
        return CLEAN_SECONDS + _NODE_SECONDS * len(self.world.nodes) if is_ready(node) else UNREADY_SECONDS

    def _given_up(self, node: Node, why: str) -> Iterator[Action]:
        name = node.metadata.name
        words = f"Shoal's files stay on the node, since {why}: run `shoal uninstall --node` on it"
        self.left.append(f"node {name}: {words}")
        yield Tell("Node", name, node.metadata.uid, REASON_LEFT, words, warning=True)
        yield from self._freed(node)

    def _freed(self, node: Node) -> Iterator[Action]:
        patch = removal(node, beside_nvidia=self.beside)
        assert patch is not None
        yield patch

    def _rest(self) -> Iterator[Action]:
        """What has no part on nodes, then the finalizers: last, and only when nothing else is seen any more."""
        objects = [obj for obj in self.world.owned.values() if obj is not self.driver]
        for obj in objects:
            if obj.get("kind") != "DaemonSet" or obj is self.cleanup:
                yield _deleted(obj)
        if self.world.owned:
            self.waits.append("the end of its objects")
        else:
            yield from _finalizers_off(self.world)


def _finalizers_off(world: World) -> Iterator[SetFinalizer]:
    for policy in world.policies:
        meta = meta_of(policy)
        if meta.deletion_timestamp is not None and FINALIZER in meta.finalizers:
            yield SetFinalizer(meta.name, meta.uid, present=False)


def _own(manifest: RawObject, world: World, beside_nvidia: bool) -> dict[str, Any]:
    """The manifest as the operator applies it: in its namespace, by its label, on chosen nodes."""
    made: dict[str, Any] = copy.deepcopy(manifest)
    policy = meta_of(world.policies[0]).name if world.policies else ""
    meta = made.setdefault("metadata", {})
    meta["namespace"] = world.namespace
    meta.setdefault("labels", {})[LABEL_POLICY] = policy
    if made.get("kind") == "DaemonSet":
        spec = made["spec"]["template"]["spec"]
        spec.setdefault("nodeSelector", {})[LABEL_CLEANUP] = _ON
        if beside_nvidia:
            for container in spec.get("initContainers") or ():
                container["args"] = [*container.get("args", ()), KEEP_VALIDATIONS]
    return made


def _deleted(obj: Mapping[str, Any]) -> Delete:
    meta = meta_of(obj)
    return Delete(obj.get("apiVersion", ""), obj.get("kind", ""), meta.name, meta.namespace, meta.uid)


def _lives(policy: RawObject) -> bool:
    return meta_of(policy).deletion_timestamp is None


def _runs(pod: Pod) -> bool:
    return pod.status.phase not in FINISHED_PHASES


def _moment(obj: RawObject, field: str, otherwise: float) -> float:
    """A time of an object's metadata, as Unix seconds."""
    text = (obj.get("metadata") or {}).get(field)
    try:
        return datetime.datetime.fromisoformat(text).timestamp() if text else otherwise
    except ValueError:
        return otherwise


def _words(names: list[str]) -> str:
    """Some names of a list, which may be long."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
