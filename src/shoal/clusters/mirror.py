"""What a pod at home shows of its copy: the patch of its status, and what its Events say. Pure.

Seen on kube-apiserver 1.36: all of this may be written on a gated pod, PodScheduled too, without which kubectl prints
SchedulingGated for a pod that runs; qosClass and claims may not be. A server takes any phase after any other, so that a
status that is final is kept final here. Addresses are never mirrored: a podIP would go into EndpointSlices. What a
member writes is bounded, and what cannot be read is left out.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Final

import msgspec

from shoal.kube.objects.meta import Base
from shoal.model.contract.clusters import CONDITION_DISPATCHED
from shoal.model.contract.kubernetes import FINISHED_PHASES

PHASES: Final = frozenset({"Pending", "Running", "Unknown", *FINISHED_PHASES})
SCHEDULED: Final = "PodScheduled"
REASON_DISPATCHED: Final = "Dispatched"
#: Its copy was deleted in the cluster where it ran, or it was removed by force.
REASON_DELETED: Final = "CopyDeleted"
#: Its cluster did not answer for so long that it is replaced.
REASON_LOST: Final = "ClusterLost"
REASON_SILENT: Final = "ClusterNotAnswering"
DISRUPTED: Final = "DisruptionTarget"
MAX_MESSAGE: Final = 1024

_Word = Annotated[str, msgspec.Meta(max_length=512)]
_Text = Annotated[str, msgspec.Meta(max_length=32 * 1024)]
#: As an API server takes it: one that this cluster's refused would keep the pod from ending here.
_Time = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
        r"(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})\Z"
    ),
]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _Running(Base, frozen=True, kw_only=True):
    started_at: _Time | None = None


class _Waiting(Base, frozen=True, kw_only=True):
    reason: _Word = ""
    message: _Text = ""


class _Terminated(Base, frozen=True, kw_only=True, omit_defaults=False):
    exit_code: _Int32 = 0
    signal: _Int32 = 0
    reason: _Word = ""
    message: _Text = ""
    started_at: _Time | None = None
    finished_at: _Time | None = None
    container_id: _Word = msgspec.field(default="", name="containerID")


class _State(Base, frozen=True, kw_only=True):
    waiting: _Waiting | None = None
    running: _Running | None = None
    terminated: _Terminated | None = None


class _Container(Base, frozen=True, kw_only=True, omit_defaults=False):
    name: _Word
    state: _State = _State()
    last_state: _State = _State()
    ready: bool = False
    restart_count: _Int32 = 0
    image: _Word = ""
    image_id: _Word = msgspec.field(default="", name="imageID")
    container_id: _Word = msgspec.field(default="", name="containerID")
    started: bool | None = None


class _Condition(Base, frozen=True, kw_only=True):
    type: _Word
    status: _Word = ""
    reason: _Word = ""
    message: _Text = ""
    last_transition_time: _Time | None = None


_Containers = Annotated[tuple[_Container, ...], msgspec.Meta(max_length=100)]


class MirroredStatus(Base, frozen=True, kw_only=True):
    """What is mirrored of a status."""

    phase: _Word = "Pending"
    reason: _Word = ""
    message: _Text = ""
    start_time: _Time | None = None
    conditions: Annotated[tuple[_Condition, ...], msgspec.Meta(max_length=64)] = ()
    init_container_statuses: _Containers = ()
    container_statuses: _Containers = ()


_STATUS: Final = msgspec.json.Decoder(MirroredStatus)


def read_status(written: msgspec.Raw) -> MirroredStatus:
    """A status; an empty one where it cannot be read."""
    try:
        return _STATUS.decode(written)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return MirroredStatus()


def status_patch(
    home: MirroredStatus,
    copy: MirroredStatus,
    *,
    cluster: str,
    node: str,
    logs: str,
    now: datetime.datetime,
) -> dict[str, Any] | None:
    """The patch that makes home's status tell of its copy; None if it does, or if it is final.

    `logs` is the command that shows the pod's logs.
    """
    if home.phase in FINISHED_PHASES:
        return None
    wanted: dict[str, Any] = {
        "phase": copy.phase if copy.phase in PHASES else "Unknown",
        "reason": copy.reason,
        "message": copy.message,
        "startTime": copy.start_time,
        "initContainerStatuses": copy.init_container_statuses,
        "containerStatuses": copy.container_statuses,
    }
    shown = {
        "phase": home.phase,
        "reason": home.reason,
        "message": home.message,
        "startTime": home.start_time,
        "initContainerStatuses": home.init_container_statuses,
        "containerStatuses": home.container_statuses,
    }
    patch = {key: value for key, value in wanted.items() if value != shown[key]}
    conditions = _conditions(home, _told(copy, cluster=cluster, node=node, logs=logs), now)
    if conditions:
        patch["conditions"] = conditions
    return _builtins(patch) if patch else None


def _told(copy: MirroredStatus, *, cluster: str, node: str, logs: str) -> list[_Condition]:
    """The conditions of a copy as home shows them."""
    told = [one for one in copy.conditions if one.type not in (SCHEDULED, CONDITION_DISPATCHED)]
    if node:
        where = f"on node {node} of cluster {cluster}"
        told.append(_Condition(type=SCHEDULED, status="True", reason=REASON_DISPATCHED, message=where))
        message = f"{where}; kubectl logs here is empty: use `{logs}`"
    elif copy.reason in (REASON_DELETED, REASON_LOST):
        message = copy.message
    else:
        message = f"in cluster {cluster}, without a node yet"
        why = unschedulable(copy)
        message = one_line(f"{message}: {why}" if why else message)
    told.append(_Condition(type=CONDITION_DISPATCHED, status="True", reason=REASON_DISPATCHED, message=message))
    return told


def unschedulable(copy: MirroredStatus) -> str:
    """Why a copy has no node, in the words of its scheduler; empty while nobody has said."""
    for one in copy.conditions:
        if one.type == SCHEDULED and one.status == "False" and one.reason == "Unschedulable":
            return one_line(one.message or one.reason)
    return ""


def waiting_patch(home: MirroredStatus, reason: str, message: str, now: datetime.datetime) -> dict[str, Any] | None:
    """The patch that says why a pod is nowhere yet; None if it says so, or if it is over."""
    if home.phase in FINISHED_PHASES:
        return None
    return _dispatched_patch(home, "False", reason, message, now)


def silent_patch(home: MirroredStatus, message: str, now: datetime.datetime) -> dict[str, Any] | None:
    """The patch that says that a pod's cluster does not answer, and what follows; None if it says so, or is over."""
    return None if home.phase in FINISHED_PHASES else _dispatched_patch(home, "Unknown", REASON_SILENT, message, now)


def _dispatched_patch(
    home: MirroredStatus, status: str, reason: str, message: str, now: datetime.datetime
) -> dict[str, Any] | None:
    told = _Condition(type=CONDITION_DISPATCHED, status=status, reason=reason, message=one_line(message))
    conditions = _conditions(home, [told], now)
    return _builtins({"conditions": conditions}) if conditions else None


def final_patch(
    home: MirroredStatus,
    copy: MirroredStatus | None,
    *,
    cluster: str,
    node: str,
    logs: str,
    now: datetime.datetime,
    lost: bool = False,
) -> dict[str, Any]:
    """The patch that ends a pod at home as its copy ended; a copy that was deleted before it ended has failed.

    `lost`: so has one whose cluster is lost.
    """
    ended = copy or MirroredStatus(container_statuses=home.container_statuses, start_time=home.start_time)
    if ended.phase not in FINISHED_PHASES:
        reason = REASON_LOST if lost else REASON_DELETED
        message = f"its copy in cluster {cluster} was deleted"
        if lost:
            message = f"cluster {cluster} did not answer for too long, and removes its copy: its owner replaces it"
        disrupted = _Condition(type=DISRUPTED, status="True", reason=reason, message=message)
        others = tuple(one for one in ended.conditions if one.type != DISRUPTED)
        not_ready = tuple(
            _Condition(type=one.type, status="False", reason="PodFailed") if one.type in _READINESS else one
            for one in (others or home.conditions)
        )
        ended = msgspec.structs.replace(
            ended, phase="Failed", reason=reason, message=message, conditions=(*not_ready, disrupted)
        )
    return status_patch(home, ended, cluster=cluster, node=node, logs=logs, now=now) or {"phase": ended.phase}


_READINESS: Final = ("Ready", "ContainersReady")


def _conditions(home: MirroredStatus, wanted: list[_Condition], now: datetime.datetime) -> list[_Condition]:
    """Those of the wanted ones that home does not show so. A condition of our own keeps its time while it holds."""
    shown = {one.type: one for one in home.conditions}
    moment = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    changed = []
    for one in wanted:
        before = shown.get(one.type)
        if one.last_transition_time is None:
            same = before is not None and before.status == one.status
            since = before.last_transition_time if same and before is not None else moment
            one = msgspec.structs.replace(one, last_transition_time=since or moment)
        if one != before:
            changed.append(one)
    return changed


def _builtins(patch: dict[str, Any]) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(patch)
    for one in built.get("conditions", ()):
        # What is not said any more must not stay: a patch merges conditions.
        one.setdefault("reason", None)
        one.setdefault("message", None)
    for key in ("reason", "message"):
        if built.get(key) == "":
            built[key] = None
    for group in ("initContainerStatuses", "containerStatuses"):
        if group in built:
            built[group] = [_container(one) for one in built[group]] or None
    return built


def _container(status: dict[str, Any]) -> dict[str, Any]:
    for key in ("state", "lastState"):
        ended = status[key].get("terminated")
        if ended is not None:
            status[key] = {"terminated": {name: value for name, value in ended.items() if value not in ("", None)}}
    return {key: value for key, value in status.items() if value is not None}


def one_line(message: str) -> str:
    """Words that may be a member's, as one line that a terminal can show."""
    message = "".join(letter if letter.isprintable() else " " for letter in message)
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
