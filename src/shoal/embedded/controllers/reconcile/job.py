"""Jobs: pods until enough of them have succeeded, or too many have failed.

Each pod carries a finalizer until it is counted, so none is lost or counted twice. Pod failure policies, success
policies and limits per index are not obeyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from shoal.embedded.controllers.execute import (
    Action,
    Create,
    EventAction,
    Owned,
    Remember,
    Removal,
    Requeue,
    StatusUpdate,
    Update,
)
from shoal.embedded.controllers.reconcile import pods
from shoal.embedded.controllers.reconcile.pods import claim
from shoal.embedded.controllers.reconcile.replica_set import BURST, CREATED, DELETED, NOT_CREATED, NOT_DELETED
from shoal.embedded.kinds import JOBS, PODS
from shoal.embedded.patch.json_values import copied
from shoal.embedded.registry import timestamp
from shoal.embedded.store import Object
from shoal.model.backoff import Backoff

# The indexes of an Indexed Job: sets of numbers, and the text that a status keeps them in (`0-2,4,7,8`).


ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"
_VARIABLE: Final = "JOB_COMPLETION_INDEX"
_LONGEST_BASE: Final = 58


def parsed(text: str, completions: int) -> frozenset[int]:
    """The numbers that a text stands for, of those below the number of completions."""
    numbers: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            numbers.update(range(int(first), min(int(last or first), completions - 1) + 1))
    return frozenset(number for number in numbers if number < completions)


def text_of(numbers: Iterable[int]) -> str:
    """Numbers as a status keeps them: two in a row with a comma, more with a dash."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    return ",".join(parts)


def index_of(pod: Object) -> int | None:
    """The index that a pod was made for."""
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    return int(text) if text.isdigit() else None


def first_free(taken: Set[int], count: int, completions: int) -> list[int]:
    """The lowest indexes that nobody works on."""
    free: list[int] = []
    for number in range(completions):
        if len(free) == count:
            break
        if number not in taken:
            free.append(number)
    return free


def doubled(active: list[Object], completions: int) -> list[Object]:
    """Pods too many: those beyond the completions, and all but one of each index."""
    seen: set[int] = set()
    spare = []
    for pod in active:
        index = index_of(pod)
        if index is None or index >= completions or index in seen:
            spare.append(pod)
        else:
            seen.add(index)
    return spare


def indexed(pod: Object, job: str, index: int) -> Object:
    """The pod for one index: its annotation and label, its host name, and the variable its containers read."""
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["annotations"] = {**metadata.get("annotations", {}), ANNOTATION: str(index)}
    metadata["labels"] = {**metadata.get("labels", {}), ANNOTATION: str(index)}
    ending = f"-{index}-"
    metadata["generateName"] = f"{job[: _LONGEST_BASE - len(ending)]}{ending}"
    spec["hostname"] = f"{job}-{index}"
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{ANNOTATION}']"}}
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        if not any(one.get("name") == _VARIABLE for one in container.get("env") or ()):
            container["env"] = [*(container.get("env") or ()), {"name": _VARIABLE, "valueFrom": source}]
    return pod


TRACKING: Final = "batch.kubernetes.io/job-tracking"
_OURS: Final = "kubernetes.io/job-controller"
_BACKOFF: Final = Backoff(first=10.0, longest=600.0)
_REACHED: Final = ("CompletionsReached", "Reached expected number of succeeded pods")
_TOO_MANY_FAILED: Final = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
_TOO_LATE: Final = ("DeadlineExceeded", "Job was active longer than specified deadline")


@dataclass(frozen=True, slots=True)
class Failures:
    """How many pods failed since one succeeded, and when the last did."""

    count: int = 0
    last: datetime | None = None

    def due(self) -> datetime | None:
        """When the next pod may be made."""
        if not self.count or self.last is None:
            return None
        return self.last + timedelta(seconds=_BACKOFF.after(self.count))


def reconcile(job: Object, owned: Owned, now: datetime) -> list[Action]:
    """What to do about one Job."""
    if job["spec"].get("managedBy", _OURS) != _OURS:
        return []
    if is_finished(job):
        return [*_let_go(owned.pods), *_expired(job, now)]
    return _Step(job, owned, now).actions()


def is_finished(job: Object) -> bool:
    """Complete or failed."""
    return _end(job) is not None


def released(pod: Object) -> list[Action]:
    """Free a pod that no running Job counts."""
    return _let_go((pod,))


def _end(job: Object) -> Object | None:
    for one in (job.get("status") or {}).get("conditions") or ():
        if one.get("type") in ("Complete", "Failed") and one.get("status") == "True":
            return dict(one)
    return None


def _expired(job: Object, now: datetime) -> list[Action]:
    """A finished Job with a time to live is deleted after it."""
    span, end = job["spec"].get("ttlSecondsAfterFinished"), _end(job)
    since = pods.moment(end.get("lastTransitionTime")) if end else None
    if span is None or since is None or pods.is_deleted(job):
        return []
    due = since + timedelta(seconds=span)
    return [Requeue(due)] if due > now else [Removal(JOBS, job, propagation="Foreground")]


def _let_go(of: tuple[Object, ...] | list[Object]) -> list[Action]:
    return [Update(PODS, _untracked(pod)) for pod in of if _is_tracked(pod)]


class _Step:
    """One look at a Job that is not finished."""

    def __init__(self, job: Object, owned: Owned, now: datetime) -> None:
        self._job = job
        self._spec = job["spec"]
        self._now = now
        self._failure = owned.failure
        self._status: Object = copied(job.get("status") or {})
        self._pods, self._adopted = claim(job, owned.pods, PODS, finalizer=TRACKING)
        self._active = [pod for pod in self._pods if pods.is_active(pod)]
        self._completions: int | None = self._spec.get("completions")
        self._indexed = self._spec.get("completionMode") == "Indexed"
        self._suspended = bool(self._spec.get("suspend"))
        self._only_failed = self._spec.get("podReplacementPolicy") == "Failed"
        new = [pod for pod in self._pods if _is_tracked(pod) and self._counts(pod)]
        self._succeeded_now = [pod for pod in new if pods.phase(pod) == "Succeeded"]
        self._failed_now = [pod for pod in new if self._is_failed(pod)]
        memory = owned.memory if isinstance(owned.memory, Failures) else Failures()
        self._failures = self._counted(memory)
        self._later: list[Action] = [] if self._failures == memory else [Remember(self._failures)]
        #: Pods deleted in this look, and those of them that are not to be counted.
        self._deleted: list[Object] = []
        self._uncounted: list[str] = []
        self._made = 0

    def actions(self) -> list[Action]:
        """Counting comes first: what is made or deleted after it may be refused, and must not undo it."""
        if not self._suspended:
            self._status.setdefault("startTime", timestamp(self._now))
        end, message = self._judged()
        if end:
            self._drop(self._active)
        elif self._failure is None and not pods.is_deleted(self._job):
            self._manage()
        if not end and self._is_complete():
            end, message = "SuccessCriteriaMet", _REACHED
        elif not end and self._failure is None and not pods.is_deleted(self._job):
            self._note_suspension()
        freed = self._count(end)
        told = self._finish(end, message)
        actions: list[Action] = [*self._adopted, *freed]
        if self._status != (self._job.get("status") or {}):
            actions.append(StatusUpdate({**self._job, "status": self._status}))
        return [*actions, *self._later, *told]

    def _judged(self) -> tuple[str, tuple[str, str]]:
        """The end that the Job has come to, if any: the condition that says so first, its reason and message."""
        present = self._status.get("conditions") or []
        for kind in ("SuccessCriteriaMet", "FailureTarget"):
            found = pods.found(present, kind)
            if found is not None and found.get("status") == "True":
                return kind, (found["reason"], found["message"])
        failed = self._status.get("failed", 0) + len(self._failed_now)
        if failed > self._spec["backoffLimit"] or self._restarted_too_often():
            return "FailureTarget", _TOO_MANY_FAILED
        limit, since = self._spec.get("activeDeadlineSeconds"), pods.moment(self._status.get("startTime"))
        if limit is not None and since is not None and not self._suspended:
            due = since + timedelta(seconds=limit)
            if due <= self._now:
                return "FailureTarget", _TOO_LATE
            self._later.append(Requeue(due))
        return "", ("", "")

    def _restarted_too_often(self) -> bool:
        if self._spec["template"]["spec"].get("restartPolicy") != "OnFailure":
            return False
        restarts = sum(
            one.get("restartCount", 0)
            for pod in self._pods
            if pods.phase(pod) in ("Running", "Pending")
            for group in ("initContainerStatuses", "containerStatuses")
            for one in pod["status"].get(group) or ()
        )
        limit = self._spec["backoffLimit"]
        return bool(restarts > 0 if limit == 0 else restarts >= limit)

    def _manage(self) -> None:
        """Have as many pods at work as are wanted."""
        if self._suspended:
            return self._drop(self._active, counted=False)
        wanted, at_work = self._wanted(), len(self._active)
        spare = doubled(self._active, self._completions or 0) if self._indexed else []
        if len(spare) < at_work - wanted:
            rest = [pod for pod in self._active if pod not in spare]
            spare += pods.deletion_order(rest, {})[: at_work - wanted - len(spare)]
        if spare:
            return self._drop(spare[:BURST], counted=False)
        leaving = sum(map(pods.is_terminating, self._pods)) if self._only_failed else 0
        missing = wanted - at_work - leaving
        if missing <= 0:
            return None
        due = self._failures.due()
        if due is not None and due > self._now:
            self._later.append(Requeue(due))
            return None
        return self._make(min(missing, BURST))

    def _wanted(self) -> int:
        """How many pods should be at work."""
        succeeded, parallelism = self._succeeded(), self._spec["parallelism"]
        if self._completions is None:
            return len(self._active) if succeeded else parallelism
        return int(max(0, min(self._completions - succeeded, parallelism)))

    def _make(self, count: int) -> None:
        indexes: list[int | None] = [None] * count
        if self._indexed:
            taken = {index_of(pod) for pod in self._active} - {None}
            if self._only_failed:
                taken |= {index_of(pod) for pod in self._pods if pods.is_terminating(pod)} - {None}
            busy = {number for number in taken if number is not None} | self._indexes()
            indexes = [*first_free(busy, count, self._completions or 0)]
        for index in indexes:
            pod = pods.from_template(self._spec["template"], self._job)
            pod["metadata"]["finalizers"] = [*pod["metadata"].get("finalizers", ()), TRACKING]
            if index is not None:
                indexed(pod, self._job["metadata"]["name"], index)
            self._later.append(Create(PODS, pod, CREATED, NOT_CREATED))
        self._made = len(indexes)

    def _drop(self, spare: list[Object], *, counted: bool = True) -> None:
        """Delete pods. Those that are not to be counted lose their finalizer before."""
        if self._failure is not None:
            return
        for pod in spare:
            if not counted:
                self._uncounted.append(pod["metadata"]["uid"])
                self._later += _let_go((pod,))
            self._later.append(Removal(PODS, pod, DELETED, NOT_DELETED))
        self._deleted += spare

    def _is_complete(self) -> bool:
        left = len(self._active) - len(self._deleted) + self._made
        succeeded = self._succeeded()
        return left == 0 and (succeeded > 0 if self._completions is None else succeeded >= self._completions)

    def _note_suspension(self) -> None:
        present = self._status.get("conditions") or []
        current = pods.found(present, "Suspended")
        status = current["status"] if current else "False"
        if self._suspended and status != "True":
            self._set_condition("Suspended", "True", "JobSuspended", "Job suspended")
            self._later.append(EventAction("Suspended", "Job suspended"))
            self._status.pop("startTime", None)
        elif not self._suspended and status == "True":
            self._set_condition("Suspended", "False", "JobResumed", "Job resumed")
            self._later.append(EventAction("Resumed", "Job resumed"))
            self._status["startTime"] = timestamp(self._now)

    def _count(self, end: str) -> list[Action]:
        """Count the pods that have ended, in the status, and free them."""
        failed, freed = 0, []
        gone = pods.is_deleted(self._job)
        for pod in self._pods:
            if not _is_tracked(pod) or pod["metadata"]["uid"] in self._uncounted:
                continue
            is_failed = self._is_failed(pod)
            if not (gone or end or is_failed or pods.phase(pod) == "Succeeded"):
                continue
            freed.append(pod)
            if pods.phase(pod) != "Succeeded" and (is_failed or end == "FailureTarget") and self._counts(pod):
                failed += 1
        indexes, succeeded = self._indexes(), self._succeeded()
        active = len(self._active) - len(self._deleted) + self._made
        ready = sum(map(pods.is_ready, self._active)) - sum(map(pods.is_ready, self._deleted))
        terminating = sum(map(pods.is_terminating, self._pods)) + len(self._deleted)
        counters = {
            "active": active,
            "succeeded": succeeded,
            "failed": self._status.get("failed", 0) + failed,
            "completedIndexes": text_of(indexes) if self._indexed else "",
            "ready": ready,
            "terminating": terminating,
        }
        shown = pods.counters(counters, shown=("ready", "terminating"))
        rest = {name: value for name, value in self._status.items() if name not in counters}
        self._status = {**rest, **shown, "uncountedTerminatedPods": {}}
        return _let_go(freed)

    def _finish(self, end: str, message: tuple[str, str]) -> list[Action]:
        """Write down the end; the last word is spoken only when no pod is on its way out any more."""
        if not end:
            return []
        if pods.found(self._status.get("conditions") or (), end) is None:
            self._set_condition(end, "True", *message)
        if self._status["terminating"]:
            return []
        if end == "SuccessCriteriaMet":
            self._set_condition("Complete", "True", *message)
            self._status["completionTime"] = timestamp(self._now)
            return [EventAction("Completed", "Job completed")]
        self._set_condition("Failed", "True", *message)
        return [EventAction(*message, warning=True)]

    def _set_condition(self, kind: str, status: str, reason: str, message: str) -> None:
        made = {
            **pods.made(kind, status, reason, message, self._now),
            "lastProbeTime": timestamp(self._now),
        }
        present = self._status.get("conditions") or []
        self._status["conditions"] = [*pods.without(present, kind), made]

    def _indexes(self) -> frozenset[int]:
        """The indexes that are done."""
        if not self._indexed or self._completions is None:
            return frozenset()
        before = parsed((self._job.get("status") or {}).get("completedIndexes", ""), self._completions)
        now = {index_of(pod) for pod in self._succeeded_now}
        return before | {number for number in now if number is not None}

    def _succeeded(self) -> int:
        if self._indexed:
            return len(self._indexes())
        return int((self._job.get("status") or {}).get("succeeded", 0)) + len(self._succeeded_now)

    def _counts(self, pod: Object) -> bool:
        """Whether a pod counts at all: in an Indexed Job it must have an index that is wanted."""
        if not self._indexed:
            return True
        index = index_of(pod)
        return index is not None and index < (self._completions or 0)

    def _is_failed(self, pod: Object) -> bool:
        if pods.phase(pod) == "Failed":
            return True
        return not self._only_failed and pods.is_terminating(pod)

    def _counted(self, before: Failures) -> Failures:
        """The failures in a row, with the pods that have ended since."""
        ended = sorted(map(_ended, self._failed_now))
        if not self._succeeded_now:
            return Failures(before.count + len(ended), ended[-1]) if ended else before
        since = max(map(_ended, self._succeeded_now))
        later = [when for when in ended if when > since]
        return Failures(len(later), later[-1] if later else None)


def _ended(pod: Object) -> datetime:
    """When a pod ended: as its containers say, else as it was deleted or made."""
    states = [one.get("state", {}).get("terminated") for one in pod["status"].get("containerStatuses") or ()]
    times = [pods.moment((state or {}).get("finishedAt")) for state in states]
    known = [when for when in times if when is not None]
    if known and len(known) == len(times):
        return max(known)
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata:
        grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds", 0))
        return datetime.fromisoformat(metadata["deletionTimestamp"]) - grace
    return datetime.fromisoformat(metadata["creationTimestamp"])


def _is_tracked(pod: Object) -> bool:
    return TRACKING in (pod["metadata"].get("finalizers") or ())


def _untracked(pod: Object) -> Object:
    new: Object = copied(pod)
    new["metadata"]["finalizers"] = [one for one in new["metadata"]["finalizers"] if one != TRACKING]
    return new
