"""The row of a pod: one word that sums up the states of all its containers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shoal.embedded.tables.layout import (
    NONE,
    Layout,
    age,
    columns,
    condition,
    is_true,
    moment,
    number,
    objects,
    part,
    since,
    text,
)

_OVER = {
    "Succeeded": {"reason": "Succeeded", "message": "The pod has completed successfully."},
    "Failed": {"reason": "Failed", "message": "The pod failed."},
}


@dataclass(slots=True)
class _Summary:
    reason: str
    ready: int = 0
    restarts: int = 0
    last_restart: datetime | None = None

    def count(self, status: dict[str, Any]) -> None:
        """Add the restarts of a container."""
        self.restarts += number(status, "restartCount")
        ended = moment(status, "lastState", "terminated", "finishedAt")
        if ended is not None and (self.last_restart is None or self.last_restart < ended):
            self.last_restart = ended


def _cells(pod: dict[str, Any], now: datetime) -> list[Any]:
    summary = _summary(pod)
    restarts = str(summary.restarts)
    if summary.restarts and summary.last_restart is not None:
        restarts += f" ({since(summary.last_restart, now)} ago)"
    total = len(objects(pod, "spec", "containers")) + len(_sidecars(pod))
    addresses = [text(entry, "ip") for entry in objects(pod, "status", "podIPs")]
    return [
        text(pod, "metadata", "name"),
        f"{summary.ready}/{total}",
        summary.reason,
        restarts,
        age(pod, now),
        (addresses[0] if addresses else text(pod, "status", "podIP")) or NONE,
        text(pod, "spec", "nodeName") or NONE,
        text(pod, "status", "nominatedNodeName") or NONE,
        _readiness_gates(pod),
    ]


def _summary(pod: dict[str, Any]) -> _Summary:
    phase = text(pod, "status", "phase")
    reason = text(pod, "status", "reason") or phase
    if text(condition(pod, "PodScheduled"), "reason") == "SchedulingGated":
        reason = "SchedulingGated"
    summary, initializing = _initialization(pod, reason)
    if not initializing or is_true(pod, "Initialized"):
        _containers(pod, summary)
    if text(pod, "metadata", "deletionTimestamp"):
        if text(pod, "status", "reason") == "NodeLost":
            summary.reason = "Unknown"
        elif phase not in _OVER:
            summary.reason = "Terminating"
    return summary


def _initialization(pod: dict[str, Any], reason: str) -> tuple[_Summary, bool]:
    """The summary up to the first init container that is not done, and whether there is one."""
    summary = _Summary(reason)
    sidecars = _sidecars(pod)
    beside = _Summary(reason)
    for index, status in enumerate(objects(pod, "status", "initContainerStatuses")):
        summary.count(status)
        sidecar = text(status, "name") in sidecars
        if sidecar:
            beside.count(status)
        if part(status, "state", "terminated") is not None and not number(status, "state", "terminated", "exitCode"):
            continue
        if sidecar and part(status, "started") is True:
            summary.ready += part(status, "ready") is True
            continue
        summary.reason = "Init:" + _init_reason(status, index, len(objects(pod, "spec", "initContainers")))
        if is_true(pod, "Initialized"):
            return _Summary(summary.reason, summary.ready, beside.restarts, beside.last_restart), True
        return summary, True
    return _Summary(reason, summary.ready, beside.restarts, beside.last_restart), False


def _init_reason(status: dict[str, Any], index: int, total: int) -> str:
    if part(status, "state", "terminated") is not None:
        return _end(status)
    waiting = text(status, "state", "waiting", "reason")
    return waiting if waiting and waiting != "PodInitializing" else f"{index}/{total}"


def _containers(pod: dict[str, Any], summary: _Summary) -> None:
    running, failure = False, ""
    for status in reversed(objects(pod, "status", "containerStatuses")):
        summary.count(status)
        if text(status, "state", "waiting", "reason"):
            summary.reason = text(status, "state", "waiting", "reason")
        elif part(status, "state", "terminated") is not None:
            summary.reason = _end(status)
            if number(status, "state", "terminated", "exitCode"):
                failure = summary.reason
        elif part(status, "ready") is True and part(status, "state", "running") is not None:
            running = True
            summary.ready += 1
    if summary.reason == "Completed":
        if running and is_true(pod, "Ready"):
            summary.reason = "Running"
        elif failure:
            summary.reason = failure
        elif running:
            summary.reason = "NotReady"


def _end(status: dict[str, Any]) -> str:
    ended = part(status, "state", "terminated")
    if text(ended, "reason"):
        return text(ended, "reason")
    if number(ended, "signal"):
        return f"Signal:{number(ended, 'signal')}"
    return f"ExitCode:{number(ended, 'exitCode')}"


def _sidecars(pod: dict[str, Any]) -> set[str]:
    init = objects(pod, "spec", "initContainers")
    return {text(container, "name") for container in init if text(container, "restartPolicy") == "Always"}


def _readiness_gates(pod: dict[str, Any]) -> str:
    gates = [text(gate, "conditionType") for gate in objects(pod, "spec", "readinessGates")]
    return f"{sum(is_true(pod, gate) for gate in gates)}/{len(gates)}" if gates else NONE


def _conditions(pod: dict[str, Any]) -> list[dict[str, str]]:
    over = _OVER.get(text(pod, "status", "phase"))
    return [{"type": "Completed", "status": "True", **over}] if over else []


POD = Layout(
    columns(*("Name", "Ready", "Status", "Restarts", "Age"), wide=("IP", "Node", "Nominated Node", "Readiness Gates")),
    _cells,
    _conditions,
)
