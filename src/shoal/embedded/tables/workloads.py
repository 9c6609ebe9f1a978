"""Rows of what makes pods: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from shoal.embedded.tables.cluster import name_of
from shoal.embedded.tables.layout import (
    NONE,
    Layout,
    age,
    columns,
    human_duration,
    is_true,
    labels_text,
    mapping,
    moment,
    number,
    objects,
    part,
    selector_text,
    since,
    text,
)

_WIDE = ("Containers", "Images", "Selector")
_JOB_ENDS = ("Complete", "Failed")
_JOB_STATES = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def _pods(spec: Any) -> list[Any]:
    containers = objects(spec, "template", "spec", "containers")
    return [",".join(text(container, field) for container in containers) for field in ("name", "image")]


def _deployment(value: dict[str, Any], now: datetime) -> list[Any]:
    return [
        name_of(value),
        f"{number(value, 'status', 'readyReplicas')}/{number(value, 'spec', 'replicas')}",
        number(value, "status", "updatedReplicas"),
        number(value, "status", "availableReplicas"),
        age(value, now),
        *_pods(part(value, "spec")),
        selector_text(part(value, "spec", "selector")),
    ]


def _replica_set(value: dict[str, Any], now: datetime) -> list[Any]:
    return [
        name_of(value),
        number(value, "spec", "replicas"),
        number(value, "status", "replicas"),
        number(value, "status", "readyReplicas"),
        age(value, now),
        *_pods(part(value, "spec")),
        selector_text(part(value, "spec", "selector")) or NONE,
    ]


def _stateful_set(value: dict[str, Any], now: datetime) -> list[Any]:
    ready = f"{number(value, 'status', 'readyReplicas')}/{number(value, 'spec', 'replicas')}"
    return [name_of(value), ready, age(value, now), *_pods(part(value, "spec"))]


def _daemon_set(value: dict[str, Any], now: datetime) -> list[Any]:
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
    return [
        name_of(value),
        *(number(value, "status", name) for name in (*counts, "updatedNumberScheduled", "numberAvailable")),
        labels_text(mapping(value, "spec", "template", "spec", "nodeSelector")),
        age(value, now),
        *_pods(part(value, "spec")),
        selector_text(part(value, "spec", "selector")) or NONE,
    ]


def _job(value: dict[str, Any], now: datetime) -> list[Any]:
    started, ended = moment(value, "status", "startTime"), moment(value, "status", "completionTime")
    return [
        name_of(value),
        _job_state(value),
        _completions(value),
        human_duration((ended or now) - started) if started else "",
        age(value, now),
        *_pods(part(value, "spec")),
        selector_text(part(value, "spec", "selector")) or NONE,
    ]


def _job_state(job: dict[str, Any]) -> str:
    states: tuple[str, ...] = (*_JOB_ENDS, *_JOB_STATES)
    if text(job, "metadata", "deletionTimestamp"):
        states = _JOB_ENDS
    found = next((state for state in states if is_true(job, state)), "")
    return found or ("Running" if states != _JOB_ENDS else "Terminating")


def _completions(job: dict[str, Any]) -> str:
    succeeded, parallelism = number(job, "status", "succeeded"), number(job, "spec", "parallelism")
    if part(job, "spec", "completions") is not None:
        return f"{succeeded}/{number(job, 'spec', 'completions')}"
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _cron_job(value: dict[str, Any], now: datetime) -> list[Any]:
    last = moment(value, "status", "lastScheduleTime")
    job = part(value, "spec", "jobTemplate", "spec")
    return [
        name_of(value),
        text(value, "spec", "schedule"),
        text(value, "spec", "timeZone") or NONE,
        _flag(part(value, "spec", "suspend")),
        len(objects(value, "status", "active")),
        since(last, now) if last else NONE,
        age(value, now),
        *_pods(job),
        selector_text(part(job, "selector")) or NONE,
    ]


def _flag(value: Any) -> str:
    return str(value) if isinstance(value, bool) else "<unset>"


DEPLOYMENT = Layout(columns("Name", "Ready", "Up-to-date", "Available", "Age", wide=_WIDE), _deployment)
REPLICA_SET = Layout(
    columns("Name", "Desired", "Current", "Ready", "Age", wide=_WIDE, integers=("Desired", "Current", "Ready")),
    _replica_set,
)
STATEFUL_SET = Layout(columns("Name", "Ready", "Age", wide=("Containers", "Images")), _stateful_set)
DAEMON_SET = Layout(
    columns(
        *("Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age"),
        wide=_WIDE,
        integers=("Desired", "Current", "Ready", "Up-to-date", "Available"),
    ),
    _daemon_set,
)
JOB = Layout(columns("Name", "Status", "Completions", "Duration", "Age", wide=_WIDE), _job)
CRON_JOB = Layout(
    columns(
        *("Name", "Schedule", "Timezone", "Suspend", "Active", "Last Schedule", "Age"),
        wide=_WIDE,
        integers=("Active",),
        booleans=("Suspend",),
    ),
    _cron_job,
)
