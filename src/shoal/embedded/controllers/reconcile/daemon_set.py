"""DaemonSets: one pod on each node that is meant, replaced node by node when the template changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.controllers.execute import (
    Action,
    Create,
    EventAction,
    Owned,
    Remember,
    Removal,
    Requeue,
    StatusUpdate,
)
from shoal.embedded.controllers.reconcile import pods, revisions
from shoal.embedded.controllers.reconcile.pods import claim
from shoal.embedded.controllers.reconcile.replica_set import BURST, CREATED, DELETED, NOT_CREATED, NOT_DELETED
from shoal.embedded.controllers.reconcile.revisions import History
from shoal.embedded.kinds import PODS, REVISIONS
from shoal.embedded.patch.json_values import copied
from shoal.embedded.store import Object
from shoal.kube.selectors import labels_term, read_node_selector
from shoal.kube.taints import NO_EXECUTE, NO_SCHEDULE, read_taints, read_tolerations, untolerated
from shoal.model.backoff import Backoff

_GENERATION: Final = "deprecated.daemonset.template.generation"
_GENERATION_LABEL: Final = "pod-template-generation"
_TOLERATED: Final = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    *((f"node.kubernetes.io/{name}", "NoSchedule") for name in ("disk-pressure", "memory-pressure", "pid-pressure")),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_HOST_NETWORK: Final = ("node.kubernetes.io/network-unavailable", "NoSchedule")
_BACKOFF: Final = Backoff(first=1.0, longest=900.0)


def fits_affinity(spec: Mapping[str, Any], node: Object) -> bool:
    """Whether the node has what the node selector and the required node affinity ask for."""
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    if not labels_term(spec.get("nodeSelector") or {}).matches(name, labels):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or read_node_selector(required).matches(name, labels)


def keeps_away(spec: Mapping[str, Any], node: Object, effects: Collection[str]) -> bool:
    """Whether a taint with one of these effects keeps the pod away."""
    taints, tolerations = node.get("spec", {}).get("taints"), spec.get("tolerations")
    return bool(untolerated(read_taints(taints), read_tolerations(tolerations), effects))


@dataclass(frozen=True, slots=True)
class Delay:
    """How long a failed pod of a node is kept, since when."""

    delay: timedelta
    since: datetime


def reconcile(daemon_set: Object, owned: Owned, now: datetime) -> list[Action]:
    """What to do about one DaemonSet."""
    if pods.is_deleted(daemon_set):
        return []
    claimed, adopted = claim(daemon_set, owned.pods, PODS)
    history = revisions.history_of(daemon_set, owned.revisions)
    step = _Step(daemon_set, claimed, owned, history, now)
    actions: list[Action] = []
    if owned.failure is None:
        step.manage()
        if not step.actions and daemon_set["spec"]["updateStrategy"]["type"] == "RollingUpdate":
            step.roll()
        actions = [*adopted, *history.actions, *step.actions, *_forgotten(daemon_set, claimed, history)]
    status = step.status()
    if status != daemon_set.get("status"):
        actions.append(StatusUpdate({**daemon_set, "status": status}))
    min_ready = daemon_set["spec"].get("minReadySeconds", 0)
    again = [pods.next_available(claimed, min_ready, now) if min_ready else None, step.again]
    if due := min((when for when in again if when), default=None):
        actions.append(Requeue(due))
    return actions


@dataclass(slots=True)
class _Node:
    """A node, or only its name if it is gone, and the pods for it."""

    here: list[Object] = field(default_factory=list)
    should_run: bool = False
    may_stay: bool = False
    known: bool = False


class _Step:
    """One look at a DaemonSet."""

    def __init__(
        self, daemon_set: Object, claimed: list[Object], owned: Owned, history: History, now: datetime
    ) -> None:
        self.actions: list[Action] = []
        self.again: datetime | None = None
        self._set = daemon_set
        self._now = now
        self._hash = revisions.hash_label(history.update)
        self._generation = (daemon_set["metadata"].get("annotations") or {}).get(_GENERATION)
        self._min_ready = daemon_set["spec"].get("minReadySeconds", 0)
        self._template = _template(daemon_set, self._generation, self._hash)
        self._delays: dict[str, Delay] = dict(owned.memory or {})
        self._nodes = self._by_node(owned.nodes, claimed)

    def _by_node(self, nodes: tuple[Object, ...], claimed: list[Object]) -> dict[str, _Node]:
        found = {node["metadata"]["name"]: _Node([], *self._wanted(node), known=True) for node in nodes}
        for pod in claimed:
            name = _target(pod)
            if name and not (pods.is_finished(pod) and pods.is_deleted(pod)):
                found.setdefault(name, _Node()).here.append(pod)
        for one in found.values():
            one.here.sort(key=_oldest_first)
        return dict(sorted(found.items()))

    def _wanted(self, node: Object) -> tuple[bool, bool]:
        """Whether a pod should run there, and whether one that does may stay."""
        spec, name = self._template["spec"], node["metadata"]["name"]
        if spec.get("nodeName", name) != name or not fits_affinity(spec, node):
            return False, False
        if not keeps_away(spec, node, (NO_EXECUTE, NO_SCHEDULE)):
            return True, True
        return False, not keeps_away(spec, node, (NO_EXECUTE,))

    def manage(self) -> None:
        """Make the missing pods, delete those that failed, that are too many, or on a node that is not meant."""
        remembered = dict(self._delays)
        create, delete = [], []
        for name, node in self._nodes.items():
            if not node.known:
                delete += [pod for pod in node.here if not pod["spec"].get("nodeName")]
            elif node.should_run and not node.here:
                create.append(name)
            elif node.may_stay:
                delete += self._spare(name, node)
                if self._surge() and node.should_run and not any(map(pods.is_active, node.here)):
                    create.append(name)
            else:
                delete += [pod for pod in node.here if not pods.is_deleted(pod)]
        self._sync(create, delete)
        if remembered != self._delays:
            self.actions.append(Remember(self._delays))

    def _spare(self, name: str, node: _Node) -> list[Object]:
        """The pods of a node that must go."""
        spare, running = [], []
        for pod in node.here:
            if pods.is_deleted(pod):
                continue
            if pods.is_finished(pod):
                spare += self._ended(name, pod)
            else:
                running.append(pod)
        if not self._surge():
            return [*spare, *running[1:]]
        new = [pod for pod in running if self._is_new(pod)]
        old = [pod for pod in running if not self._is_new(pod)]
        spare += [*new[1:], *old[1:]]
        if new and old and (not pods.is_ready(old[0]) or self._is_up(new[0])):
            spare.append(old[0])
        return spare

    def _ended(self, node: str, pod: Object) -> list[Object]:
        """A pod that should run for ever and does not is deleted, a failed one ever more slowly."""
        full, delay = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", self._delays.get(node)
        if pods.phase(pod) == "Succeeded":
            text = f"Found succeeded daemon pod {full} on node {node}, will try to delete it"
            self.actions.append(EventAction("SucceededDaemonPod", text))
            return [pod]
        if delay is not None and self._now < delay.since + delay.delay:
            self._look_again(delay.since + delay.delay)
            return []
        longer = _BACKOFF.longer(delay.delay.total_seconds() if delay is not None else 0.0)
        self._delays[node] = Delay(timedelta(seconds=longer), self._now)
        text = f"Found failed daemon pod {full} on node {node}, will try to kill it"
        self.actions.append(EventAction("FailedDaemonPod", text, warning=True))
        return [pod]

    def roll(self) -> None:
        """Replace pods of an old template, as many as may be missing or too many at a time."""
        surge, missing = self._allowed()
        alive = {
            name: [pod for pod in node.here if not pods.is_deleted(pod)]
            for name, node in self._nodes.items()
            if node.here or node.should_run
        }
        if surge:
            return self._roll_with_surge(alive, surge)
        down = 0
        at_once: list[Object] = []
        candidates: list[Object] = []
        for here in alive.values():
            new = [pod for pod in here if self._is_new(pod)]
            old = [pod for pod in here if not self._is_new(pod)]
            if len(here) != 1:
                down += 1
            elif new:
                down += not self._is_up(new[0])
            elif not self._is_up(old[0]):
                at_once.append(old[0])
                down += 1
            else:
                candidates.append(old[0])
        return self._sync([], [*at_once, *candidates[: max(0, missing - down)]])

    def _roll_with_surge(self, alive: dict[str, list[Object]], surge: int) -> None:
        delete: list[Object] = []
        at_once: list[str] = []
        candidates: list[str] = []
        used = 0
        for name, here in alive.items():
            new = [pod for pod in here if self._is_new(pod)]
            old = [pod for pod in here if not self._is_new(pod)]
            if not old:
                continue
            if new:
                if self._is_up(new[0]):
                    delete.append(old[0])
                else:
                    used += 1
            elif self._nodes[name].should_run:
                (candidates if self._is_up(old[0]) else at_once).append(name)
        self._sync([*at_once, *candidates[: max(0, surge - used)]], delete)

    def _allowed(self) -> tuple[int, int]:
        total = sum(node.should_run for node in self._nodes.values())
        rolling = self._set["spec"]["updateStrategy"].get("rollingUpdate") or {}
        surge = pods.scaled(rolling.get("maxSurge", 0), total, up=True)
        missing = pods.scaled(rolling.get("maxUnavailable", 0), total, up=True)
        return surge, 1 if total and not surge and not missing else missing

    def _surge(self) -> bool:
        strategy = self._set["spec"]["updateStrategy"]
        rolling = strategy.get("rollingUpdate") or {}
        return strategy["type"] == "RollingUpdate" and pods.scaled(rolling.get("maxSurge", 0), 1, up=True) > 0

    def _sync(self, create: list[str], delete: list[Object]) -> None:
        for name in create[:BURST]:
            pod = pods.from_template(self._template, self._set)
            pin(pod["spec"], name)
            self.actions.append(Create(PODS, pod, CREATED, NOT_CREATED))
        self.actions += [Removal(PODS, pod, DELETED, NOT_DELETED) for pod in delete[:BURST]]
        if len(create) > BURST or len(delete) > BURST:
            self._look_again(self._now)

    def _look_again(self, at: datetime) -> None:
        self.again = at if self.again is None else min(self.again, at)

    def _is_new(self, pod: Object) -> bool:
        labels = pod["metadata"].get("labels") or {}
        by_generation = self._generation is not None and labels.get(_GENERATION_LABEL) == self._generation
        return by_generation or labels.get(revisions.LABEL) == self._hash

    def _is_up(self, pod: Object) -> bool:
        return pods.is_available(pod, self._min_ready, self._now)

    def status(self) -> Object:
        """The counters over all nodes."""
        known = [node for node in self._nodes.values() if node.known]
        first = [node.here[0] for node in known if node.should_run and node.here]
        wanted, available = sum(node.should_run for node in known), sum(map(self._is_up, first))
        always = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
        return pods.counters(
            {
                "currentNumberScheduled": len(first),
                "numberMisscheduled": sum(bool(node.here) and not node.should_run for node in known),
                "desiredNumberScheduled": wanted,
                "numberReady": sum(map(pods.is_ready, first)),
                "observedGeneration": self._set["metadata"].get("generation", 0),
                "updatedNumberScheduled": sum(map(self._is_new, first)),
                "numberAvailable": available,
                "numberUnavailable": wanted - available,
                "collisionCount": (self._set.get("status") or {}).get("collisionCount"),
            },
            shown=always,
        )


def _template(daemon_set: Object, generation: str | None, short: str) -> Object:
    """The template with the tolerations and labels that every daemon pod gets."""
    template: Object = copied(daemon_set["spec"]["template"])
    spec = template["spec"]
    tolerations = list(spec.get("tolerations") or ())
    for key, effect in (*_TOLERATED, *((_HOST_NETWORK,) if spec.get("hostNetwork") else ())):
        wanted = {"key": key, "operator": "Exists", "effect": effect}
        tolerations = [one for one in tolerations if not _same_taint(one, wanted)]
        tolerations.append(wanted)
    spec["tolerations"] = tolerations
    labels = {**(template["metadata"].get("labels") or {}), revisions.LABEL: short}
    if generation is not None:
        labels[_GENERATION_LABEL] = generation
    template["metadata"]["labels"] = labels
    return template


def _same_taint(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return all(one.get(name) == other.get(name) for name in ("key", "effect", "operator"))


def pin(spec: Object, node: str) -> None:
    """Let the pod go to this node alone; every other required term gives way, the rest of the affinity stays."""
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [only]}


def _target(pod: Object) -> str:
    """The node that a pod is on, or meant for."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for one in term.get("matchFields") or ():
            if one.get("key") == "metadata.name" and len(one.get("values") or ()) == 1:
                return str(one["values"][0])
    return ""


def _oldest_first(pod: Object) -> tuple[bool, str, str]:
    metadata = pod["metadata"]
    return not pod["spec"].get("nodeName"), metadata.get("creationTimestamp", ""), metadata["name"]


def _forgotten(daemon_set: Object, claimed: list[Object], history: History) -> list[Action]:
    """Delete the oldest revisions beyond the limit, of those that no pod was made from."""
    old = [one for one in history.all if one is not history.update]
    live = {(pod["metadata"].get("labels") or {}).get(revisions.LABEL) for pod in claimed}
    dead = [one for one in old if revisions.hash_label(one) not in live]
    return [Removal(REVISIONS, one) for one in dead[: max(0, len(old) - daemon_set["spec"]["revisionHistoryLimit"])]]
