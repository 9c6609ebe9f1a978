"""The status of a pod as kubelet writes it, from the states of its containers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from shoal.embedded.nodes.pods.machine import PodRun
from shoal.embedded.nodes.pods.states import ContainerRun, Ended, Running, Waiting, containers_of
from shoal.embedded.registry import timestamp
from shoal.model.contract import kubernetes
from shoal.model.request import ContainerKind

#: Conditions that are kubelet's; all others stay as they are.
OWN: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
_NEVER: Final = "1970-01-01T00:00:00Z"
Status = dict[str, Any]
#: By a container's specification, what its status tells of the devices of its claims.
ContainerHealth = Callable[[Mapping[str, Any]], list[Status]]


#: What others write into a pod's status: kubelet leaves it as it is.
_OTHERS: Final = ("resourceClaimStatuses", "extendedResourceClaimStatus", "nodeAllocatableResourceClaimStatuses")


def with_others(status: Status, pod: Mapping[str, Any]) -> Status:
    """A status of kubelet's with what others wrote into the pod's."""
    old = pod.get("status") or {}
    return {**status, **{name: old[name] for name in _OTHERS if name in old}}


def refused(pod: Mapping[str, Any], reason: str, message: str, now: datetime) -> Status:
    """The status of a pod that the node does not take."""
    old = pod.get("status") or {}
    status: Status = {
        "observedGeneration": pod["metadata"].get("generation", 1),
        "phase": "Failed",
        "message": f"Pod was rejected: {message}",
        "reason": reason,
        "startTime": timestamp(now),
        "qosClass": old.get("qosClass", "BestEffort"),
    }
    others = [one for one in old.get("conditions") or () if one["type"] not in OWN]
    return {**status, "conditions": others} if others else status


def pod_status(
    pod: Mapping[str, Any], run: PodRun, *, host: str, now: datetime, health: ContainerHealth | None = None
) -> Status:
    """The status of a pod that the node has taken. `health` tells how the devices of a container's claims are."""
    spec, old = pod["spec"], pod.get("status") or {}
    phase = phase_of(run)
    statuses = {
        one["name"]: _container(
            one, run.containers[one["name"]], run, now, health if kind is ContainerKind.APP else None
        )
        for kind, one in containers_of(spec)
    }
    conditions = _conditions(run, statuses, phase)
    status: Status = {
        "observedGeneration": pod["metadata"].get("generation", 1),
        "phase": phase,
        "conditions": _dated(conditions, old.get("conditions") or [], pod["metadata"].get("generation", 1), now),
    }
    if run.failure is not None:
        status["reason"], status["message"] = run.failure
    status |= {"hostIP": host, "hostIPs": [{"ip": host}]}
    if run.address:
        address = host if spec.get("hostNetwork") else run.address
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    status["startTime"] = timestamp(run.started or now)
    if spec.get("initContainers"):
        status["initContainerStatuses"] = [statuses[one["name"]] for one in spec["initContainers"]]
    # kubelet sorts these by name, and those of init containers not.
    status["containerStatuses"] = [statuses[name] for name in sorted(one["name"] for one in spec["containers"])]
    status["qosClass"] = old.get("qosClass", "BestEffort")
    return status


def phase_of(run: PodRun) -> str:
    """Pending, Running, Succeeded or Failed."""
    if run.over:
        return _final_phase(run)
    every = list(run.containers.values())
    inits = [one for one in every if one.kind is ContainerKind.INIT]
    rest = [one for one in every if one.kind is not ContainerKind.INIT]
    pending = any(not isinstance(one.state, Ended) and one.last is None for one in inits)
    waiting = [one for one in rest if isinstance(one.state, Waiting) and one.last is None]
    if pending or waiting or not run.initialised:
        return "Pending"
    return "Running"


def _final_phase(run: PodRun) -> str:
    if run.failure is not None:
        return "Failed"
    apps = [one for one in run.containers.values() if one.kind is ContainerKind.APP]
    ends = [one.state if isinstance(one.state, Ended) else one.last for one in apps]
    if all(end is None for end in ends) and run.stopping:
        return "Failed"
    return "Succeeded" if all(end is not None and end.code == 0 for end in ends) else "Failed"


def _container(
    spec: Mapping[str, Any], one: ContainerRun, run: PodRun, now: datetime, health: ContainerHealth | None
) -> Status:
    ran = isinstance(one.state, Running | Ended)
    last = _state(one.last) if one.last is not None else {}
    status: Status = {
        "name": one.name,
        "state": _state(one.state) or {"waiting": {"reason": _first_wait(one, run)}},
        "lastState": last,
        "ready": _ready(one, now),
        "restartCount": one.restarts,
        "image": spec["image"],
        "imageID": f"simulated://{spec['image']}" if ran or one.last else "",
    }
    if isinstance(one.state, Running | Ended):
        status["containerID"] = one.state.id
    elif one.last is not None:
        status["containerID"] = one.last.id
    status["started"] = isinstance(one.state, Running)
    resources = spec.get("resources") or {}
    if ran and resources.get("requests"):
        status["allocatedResources"] = dict(resources["requests"])
    status["resources"] = resources
    told = health(spec) if health is not None and resources.get("claims") else []
    return {**status, "allocatedResourcesStatus": told} if told else status


def _first_wait(one: ContainerRun, run: PodRun) -> str:
    """Why a container that nobody has tried to start waits."""
    has_init = any(other.kind is not ContainerKind.APP for other in run.containers.values())
    return "PodInitializing" if has_init else "ContainerCreating"


def _state(state: Waiting | Running | Ended) -> Status:
    if isinstance(state, Running):
        return {"running": {"startedAt": timestamp(state.started)}}
    if isinstance(state, Ended):
        ended: Status = {"exitCode": state.code, "reason": state.reason}
        if state.message:
            ended["message"] = state.message
        ended["startedAt"] = timestamp(state.started) if state.started else _NEVER
        ended["finishedAt"] = timestamp(state.finished)
        ended["containerID"] = state.id
        return {"terminated": ended}
    if not state.reason:
        return {}
    return {"waiting": {"reason": state.reason, **({"message": state.message} if state.message else {})}}


def _ready(one: ContainerRun, now: datetime) -> bool:
    if isinstance(one.state, Running):
        return one.kind is not ContainerKind.INIT and one.state.ready_at is not None and one.state.ready_at <= now
    return one.kind is ContainerKind.INIT and isinstance(one.state, Ended) and one.state.code == 0


def _conditions(run: PodRun, statuses: Mapping[str, Status], phase: str) -> list[Status]:
    sandbox = bool(run.address) and phase not in kubernetes.FINISHED_PHASES
    ready = _containers_ready(run, statuses, phase)
    return [
        {"type": "PodReadyToStartContainers", "status": "True" if sandbox else "False"},
        _initialised(run, statuses, phase),
        {"type": "Ready", **ready},
        {"type": "ContainersReady", **ready},
        {"type": "PodScheduled", "status": "True"},
    ]


def _initialised(run: PodRun, statuses: Mapping[str, Status], phase: str) -> Status:
    condition = {"type": "Initialized", "status": "True"}
    if phase == "Succeeded":
        return {**condition, "reason": "PodCompleted"}
    if run.initialised:
        return condition
    open_ = [
        one.name
        for one in run.containers.values()
        if (one.kind is ContainerKind.INIT and not statuses[one.name]["ready"])
        or (one.kind is ContainerKind.SIDECAR and not statuses[one.name]["started"])
    ]
    if not open_:
        return condition
    message = f"containers with incomplete status: [{' '.join(open_)}]"
    return {"type": "Initialized", "status": "False", "reason": "ContainersNotInitialized", "message": message}


def _containers_ready(run: PodRun, statuses: Mapping[str, Status], phase: str) -> Status:
    if phase in kubernetes.FINISHED_PHASES:
        return {"status": "False", "reason": "PodCompleted" if phase == "Succeeded" else "PodFailed"}
    unready = [
        one.name
        for one in run.containers.values()
        if one.kind is not ContainerKind.INIT and not statuses[one.name]["ready"]
    ]
    if not unready:
        return {"status": "True"}
    message = f"containers with unready status: [{' '.join(unready)}]"
    return {"status": "False", "reason": "ContainersNotReady", "message": message}


def _dated(conditions: list[Status], old: list[Status], generation: int, now: datetime) -> list[Status]:
    """The conditions with the moments of their last changes, and those of others behind them."""
    before = {one["type"]: one for one in old}
    found: list[Status] = []
    for condition in conditions:
        was = before.get(condition["type"], {})
        kept = was.get("lastTransitionTime") if was.get("status") == condition["status"] else None
        dated: Status = {
            "type": condition["type"],
            "observedGeneration": generation,
            "status": condition["status"],
            "lastProbeTime": None,
            "lastTransitionTime": kept or timestamp(now),
        }
        found.append(dated | {name: condition[name] for name in ("reason", "message") if name in condition})
    return [*found, *(one for one in old if one["type"] not in OWN)]
