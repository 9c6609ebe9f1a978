"""What kube-controller-manager does about nodes: taints for those that are cordoned, not ready or quiet, and evictions.

`NodeLifecycle` is the loop; what it decides is in the functions above it, which are pure. Whole zones that go quiet are
treated like single nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.deletion import DeleteOptions, Deletion
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import NODES, PODS
from shoal.embedded.nodes.clock import Clock
from shoal.embedded.nodes.node_object import LEASE_NAMESPACE
from shoal.embedded.recorder import EventWriter
from shoal.embedded.registry import Registry, timestamp
from shoal.embedded.store import Key, Object, key_of
from shoal.kube.taints import NO_EXECUTE, read_taints, read_tolerations, tolerates
from shoal.model.contract import kubernetes

#: A node that gave no sign of life for so long is quiet.
QUIET: Final = timedelta(seconds=50)
PERIOD: Final = timedelta(seconds=5)
_LEASES: Final = ("coordination.k8s.io", "leases")
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_WATCHED: Final = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
#: Taints that follow from conditions: type and status.
_BY_CONDITION: Final = {
    ("Ready", "False"): _NOT_READY,
    ("Ready", "Unknown"): _UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
_OWN: Final = frozenset({*_BY_CONDITION.values(), kubernetes.TAINT_UNSCHEDULABLE})


def quieted(status: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status of a node that went quiet: nobody knows how it is."""
    present = {one["type"]: one for one in status.get("conditions") or ()}
    for kind in _WATCHED:
        was = present.get(kind)
        if was is None:
            reason, message = "NodeStatusNeverUpdated", "Kubelet never posted node status."
            was = {"type": kind, "lastHeartbeatTime": timestamp(now)}
        elif was["status"] == "Unknown":
            continue
        else:
            reason, message = "NodeStatusUnknown", "Kubelet stopped posting node status."
        present[kind] = {
            **was,
            "status": "Unknown",
            "lastTransitionTime": timestamp(now),
            "reason": reason,
            "message": message,
        }
    return {**status, "conditions": list(present.values())}


def taints_of(node: Mapping[str, Any], now: datetime) -> list[dict[str, Any]]:
    """All taints a node should have: those of others, and those that follow from its state."""
    old: list[dict[str, Any]] = node["spec"].get("taints") or []
    conditions = (node.get("status") or {}).get("conditions") or ()
    states = {(one["type"], one["status"]) for one in conditions}
    wanted = [(key, "NoSchedule") for state, key in _BY_CONDITION.items() if state in states]
    if not any(one["type"] == "Ready" for one in conditions):
        wanted.append((_NOT_READY, "NoSchedule"))
    wanted += [
        (_BY_CONDITION[state], "NoExecute") for state in (("Ready", "False"), ("Ready", "Unknown")) if state in states
    ]
    if node["spec"].get("unschedulable"):
        wanted.append((kubernetes.TAINT_UNSCHEDULABLE, "NoSchedule"))
    present = {(one["key"], one["effect"]): one for one in old}
    kept = [one for one in old if one["key"] not in _OWN]
    return kept + [
        present.get(taint) or {"key": taint[0], "effect": taint[1], "timeAdded": timestamp(now)} for taint in wanted
    ]


def stays(pod: Mapping[str, Any], taints: Iterable[Mapping[str, Any]]) -> float | None:
    """How many seconds a pod may stay under these taints; None: as long as it likes."""
    tolerations = read_tolerations(pod["spec"].get("tolerations"))
    allowed: list[float] = []
    for taint in read_taints(taints):
        if taint.effect != NO_EXECUTE:
            continue
        used = [one for one in tolerations if tolerates(one, taint)]
        if not used:
            return 0.0
        allowed += [max(0.0, float(one.toleration_seconds)) for one in used if one.toleration_seconds is not None]
    return min(allowed, default=None)


@dataclass(slots=True)
class _Life:
    """The last sign of life of a node, when it was seen, and the objects that were looked at last."""

    sign: tuple[Any, ...]
    seen: datetime
    node: Object
    lease: Object | None


class NodeLifecycle:
    """The controller. `run` works until it is cancelled."""

    def __init__(
        self, registry: Registry, deletion: Deletion, recorder: EventWriter, clock: Clock, *, quiet: timedelta = QUIET
    ) -> None:
        self._registry = registry
        self._deletion = deletion
        self._recorder = recorder
        self._clock = clock
        self._quiet = quiet
        self._lives: dict[str, _Life] = {}
        #: Since when pods are under taints that they do not stand for ever, by UID.
        self._doomed: dict[str, tuple[Key, datetime]] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Look every few seconds, and whenever a node has changed."""
        self._registry.store.listen(NODES.key, self._wake.set)
        try:
            while True:
                self._wake.clear()
                soon = self.look()
                now = self._clock.now()
                await self._clock.wait(self._wake, min(now + PERIOD, soon) if soon else now + PERIOD)
        finally:
            self._registry.store.unlisten(NODES.key, self._wake.set)

    def look(self) -> datetime | None:
        """Do all that is due; when the next pod must go."""
        now = self._clock.now()
        nodes = self._registry.store.objects(NODES.key)
        for name in set(self._lives) - {node["metadata"]["name"] for node in nodes}:
            del self._lives[name]
        tainted: dict[str, list[dict[str, Any]]] = {}
        for node in nodes:
            fresh = self._look_at(node, now)
            no_execute = [one for one in fresh["spec"].get("taints") or () if one["effect"] == "NoExecute"]
            if no_execute:
                tainted[node["metadata"]["name"]] = no_execute
        return self._evict(tainted, now)

    def _look_at(self, node: Object, now: datetime) -> Object:
        name = node["metadata"]["name"]
        lease = self._registry.store.get(_LEASES, (LEASE_NAMESPACE, name))
        life = self._lives.get(name)
        if life is not None and life.node is node and life.lease is lease and now - life.seen <= self._quiet:
            return node  # as the last look left it
        heartbeats = [one.get("lastHeartbeatTime") for one in (node.get("status") or {}).get("conditions") or ()]
        sign = (node["metadata"]["uid"], ((lease or {}).get("spec") or {}).get("renewTime"), *heartbeats)
        if life is None or life.sign != sign:
            life = self._lives[name] = _Life(sign, now, node, lease)
        life.node, life.lease = node, lease
        if now - life.seen > self._quiet:
            node = self._silence(node, now)
        taints = taints_of(node, now)
        if taints == (node["spec"].get("taints") or []):
            return node
        spec = {key: value for key, value in node["spec"].items() if key != "taints"}
        return self._write(node, {**node, "spec": {**spec, "taints": taints} if taints else spec})

    def _silence(self, node: Object, now: datetime) -> Object:
        status = quieted(node.get("status") or {}, now)
        if status == node.get("status"):
            return node
        was_ready = any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in (node.get("status") or {}).get("conditions", ())
        )
        node = self._write(node, {**node, "status": status}, subresource="status")
        if was_ready:
            name = node["metadata"]["name"]
            message = f"Node {name} status is now: NodeNotReady"
            self._recorder.tell(node, "NodeNotReady", message, component="node-controller")
            for pod in self._registry.store.objects(PODS.key):
                if pod["spec"].get("nodeName") == name:
                    self._unready(pod, now)
        return node

    def _unready(self, pod: Object, now: datetime) -> None:
        conditions = (pod.get("status") or {}).get("conditions") or []
        if not any(one["type"] == "Ready" and one["status"] != "False" for one in conditions):
            return
        changed = [
            {**one, "status": "False", "lastTransitionTime": timestamp(now)} if one["type"] == "Ready" else one
            for one in conditions
        ]
        self._set_conditions(pod, changed)
        self._recorder.tell(pod, "NodeNotReady", "Node is not ready", component="node-controller", warning=True)

    def _evict(self, tainted: Mapping[str, list[dict[str, Any]]], now: datetime) -> datetime | None:
        """Delete the pods whose time under the taints of their node is over; when the next one must go."""
        if not tainted and not self._doomed:
            return None
        soon: list[datetime] = []
        doomed: dict[str, tuple[Key, datetime]] = {}
        for pod in self._registry.store.objects(PODS.key):
            taints = tainted.get(pod["spec"].get("nodeName", ""))
            uid = pod["metadata"]["uid"]
            if "deletionTimestamp" in pod["metadata"]:
                continue
            seconds = stays(pod, taints) if taints else None
            if seconds is None:
                self._spare(pod)
                continue
            since = self._doomed.get(uid, (key_of(pod), now))[1]
            due = since + timedelta(seconds=seconds)
            if due <= now:
                self._delete(pod, now)
            else:
                doomed[uid] = (key_of(pod), since)
                soon.append(due)
        self._doomed = doomed
        return min(soon, default=None)

    def _spare(self, pod: Object) -> None:
        if pod["metadata"]["uid"] in self._doomed:
            message = f"Cancelling deletion of Pod {'/'.join(key_of(pod))}"
            self._recorder.tell(pod, "TaintManagerEviction", message, component="taint-eviction-controller")

    def _delete(self, pod: Object, now: datetime) -> None:
        message = f"Marking for deletion Pod {'/'.join(key_of(pod))}"
        self._recorder.tell(pod, "TaintManagerEviction", message, component="taint-eviction-controller")
        target = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(now),
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
        }
        conditions = (pod.get("status") or {}).get("conditions") or []
        self._set_conditions(pod, [*(one for one in conditions if one["type"] != target["type"]), target])
        try:
            self._deletion.delete(PODS, *key_of(pod), DeleteOptions(uid=pod["metadata"]["uid"]))
        except ApiStatus as error:
            if error.code not in (404, 409):  # gone already
                raise

    def _set_conditions(self, pod: Object, conditions: list[dict[str, Any]]) -> None:
        status = {**(pod.get("status") or {}), "conditions": conditions}
        self._registry.update(
            PODS, *key_of(pod), {**pod, "status": status}, subresource="status", manager="kube-controller-manager"
        )

    def _write(self, old: Object, new: Object, *, subresource: str = "") -> Object:
        name = old["metadata"]["name"]
        written, _ = self._registry.update(
            NODES, "", name, new, subresource=subresource, manager="kube-controller-manager"
        )
        return written
