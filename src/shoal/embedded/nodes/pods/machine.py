"""What happens to a pod's containers, by kubelet's rules: the order of starts, restarts, back-off, stopping.

No I/O and no clock: whoever drives a `PodRun` tells it the time and what became of a start, and is told what to start
next and when to look again. What a run does by itself follows from its plan, so a look that comes late sees the same
as one in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.nodes.pods.states import (
    CRASH_LOOP,
    ContainerRun,
    Ended,
    Log,
    Running,
    Timing,
    Waiting,
    containers_of,
    ended_reason,
)
from shoal.embedded.nodes.pods.workload import Plan
from shoal.model.request import ContainerKind

DEADLINE: Final = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell about a container, or about the pod if no container is named."""

    reason: str
    message: str
    container: str = ""
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now: containers to start, events to tell; and when to look again, if nothing happens before."""

    start: tuple[ContainerRun, ...] = ()
    notes: tuple[Note, ...] = ()
    wake: datetime | None = None


class PodRun:
    """The containers of one pod on one node, as its runtime has them. It outlives a restart of kubelet."""

    def __init__(self, pod: Mapping[str, Any], *, timing: Timing | None = None) -> None:
        spec, meta = pod["spec"], pod["metadata"]
        self.containers = {one["name"]: ContainerRun(one["name"], kind) for kind, one in containers_of(spec)}
        self.name = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
        self.started: datetime | None = None
        self.address = ""
        self.initialised = False
        #: Reason and message of a pod that ends for another cause than its containers.
        self.failure: tuple[str, str] | None = None
        #: Its containers are told to end, and none is started any more.
        self.stopping = False
        self._policy = spec.get("restartPolicy", "Always")
        self._deadline = spec.get("activeDeadlineSeconds")
        self._grace = spec.get("terminationGracePeriodSeconds", 30)
        self._timing = timing or Timing()

    @property
    def running(self) -> list[ContainerRun]:
        """The containers that run."""
        return [one for one in self.containers.values() if isinstance(one.state, Running)]

    @property
    def over(self) -> bool:
        """Nothing runs, and nothing will."""
        if self.running:
            return False
        return self.stopping or self._init_failed() or self._apps_ended()

    def step(self, now: datetime) -> Step:
        """Move on to this moment."""
        self._advance(now)
        notes: list[Note] = []
        starts: list[ContainerRun] = []
        self._check_deadline(now, notes)
        if not self.stopping:
            if not self.initialised and not self._init_failed():
                self._initialise(now, starts, notes)
            if self.initialised:
                self._run_all(now, starts, notes)
            if self._init_failed() or self._apps_ended():
                self._stop(self.running, now, self._grace, notes)
        return Step(tuple(starts), tuple(notes), self._wake(now))

    def _initialise(self, now: datetime, starts: list[ContainerRun], notes: list[Note]) -> None:
        for one in self._of(ContainerKind.INIT, ContainerKind.SIDECAR):
            if one.kind is ContainerKind.SIDECAR:
                if isinstance(one.state, Running):
                    continue
            elif isinstance(one.state, Ended) and one.state.code == 0:
                continue
            if not isinstance(one.state, Running):
                self._want(one, now, starts, notes)
            return
        self.initialised = True

    def _run_all(self, now: datetime, starts: list[ContainerRun], notes: list[Note]) -> None:
        if self._apps_ended():
            return
        for one in self._of(ContainerKind.SIDECAR, ContainerKind.APP):
            if isinstance(one.state, Running) or (isinstance(one.state, Ended) and not self._restarts(one, one.state)):
                continue
            self._want(one, now, starts, notes)

    def _want(self, one: ContainerRun, now: datetime, starts: list[ContainerRun], notes: list[Note]) -> None:
        """Start a container, unless it has to wait after its last end."""
        if one.not_before is not None and now < one.not_before:
            return
        if isinstance(one.state, Ended) and self._holds_off(one, one.state, now):
            text = _go_duration(one.back_off)
            message = f"back-off {text} restarting failed container={one.name} pod={self.name}"
            one.not_before = one.state.finished + timedelta(seconds=one.back_off)
            one.last = one.state
            one.state = Waiting(CRASH_LOOP, message)
            told = f"Back-off restarting failed container {one.name} in pod {self.name}"
            notes.append(Note("BackOff", told, one.name, warning=True))
            return
        starts.append(one)

    def _holds_off(self, one: ContainerRun, ended: Ended, now: datetime) -> bool:
        if one.back_off_at is None or not one.back_off:
            return False
        if self._expired(one, ended.finished):
            return False
        return (now - ended.finished).total_seconds() < one.back_off

    def _expired(self, one: ContainerRun, ended: datetime) -> bool:
        """A container that ran for long starts anew."""
        since = one.back_off_at
        return since is not None and (ended - since).total_seconds() > 2 * self._timing.back_off.longest

    def wait(self, now: datetime) -> Step:
        """Move on to this moment while nothing may be started yet: only the pod's deadline can come."""
        notes: list[Note] = []
        self._check_deadline(now, notes)
        return Step(notes=tuple(notes), wake=self._due())

    def begun(self, name: str, now: datetime, container_id: str, plan: Plan) -> None:
        """A container has been created and started."""
        one = self.containers[name]
        ended = one.state if isinstance(one.state, Ended) else one.last
        if ended is not None:
            fresh = self._expired(one, ended.finished)
            one.back_off = self._timing.back_off.longer(0.0 if fresh else one.back_off)
            one.back_off_at = now
            one.last = ended
            one.previous_log = one.log
            one.restarts += 1
        one.runs += 1
        one.not_before = one.stopping = None
        one.state = Running(now, container_id, plan)
        one.log = Log([(now + timedelta(seconds=after), line) for after, line in plan.lines])
        self._advance(now)

    def broken(self, name: str, now: datetime, container_id: str, message: str) -> None:
        """A container has been created, but its program could not be started."""
        self.begun(name, now, container_id, Plan())
        one = self.containers[name]
        one.state = Ended(128, "StartError", now, container_id, message=message)
        one.log.close(now)

    def not_begun(self, name: str, now: datetime, reason: str, message: str) -> None:
        """A container could not be created; it is tried again."""
        one = self.containers[name]
        if isinstance(one.state, Ended):
            one.last = one.state
        one.state = Waiting(reason, message)
        one.not_before = now + timedelta(seconds=self._timing.retry)

    def exited(self, name: str, now: datetime, code: int, lines: tuple[str, ...] = ()) -> None:
        """A container has ended for a cause outside its plan."""
        one = self.containers[name]
        if isinstance(one.state, Running):
            one.log.add(now, lines)
            self._end(one, one.state, now, code, ended_reason(code))

    def stop(self, now: datetime, grace: float) -> list[Note]:
        """Tell all containers to end, and kill those that still run when their grace is over."""
        notes: list[Note] = []
        self.stopping = True
        self._stop(self.running, now, grace, notes)
        self._advance(now)
        return notes

    def crash(self, now: datetime) -> None:
        """The node went down, and every container with it."""
        for one in self.running:
            if isinstance(one.state, Running):
                self._end(one, one.state, now, 255, "Unknown")
        # Ordinary init containers run again in a new sandbox.
        self.address = ""
        self.initialised = False
        for one in self._of(ContainerKind.INIT):
            one.last = one.state if isinstance(one.state, Ended) else one.last
            one.state = Waiting()

    def _stop(self, which: list[ContainerRun], now: datetime, grace: float, notes: list[Note]) -> None:
        killed = now + timedelta(seconds=grace)
        for one in which:
            if one.stopping is None:
                one.stopping = (now, killed)
                notes.append(Note("Killing", f"Stopping container {one.name}", one.name))
            elif killed < one.stopping[1]:
                one.stopping = (one.stopping[0], killed)

    def _check_deadline(self, now: datetime, notes: list[Note]) -> None:
        due = self._due()
        if due is None or now < due or self.over:
            return
        self.failure = DEADLINE
        self.stopping = True
        notes.append(Note(*DEADLINE))
        self._stop(self.running, now, self._grace, notes)
        self._advance(now)

    def _due(self) -> datetime | None:
        if self._deadline is None or self.started is None or self.stopping:
            return None
        return self.started + timedelta(seconds=self._deadline)

    def _advance(self, now: datetime) -> None:
        for one in self.running:
            end = one.end_at()
            if end is not None and end[0] <= now and isinstance(one.state, Running):
                self._end(one, one.state, *end)

    def _end(self, one: ContainerRun, was: Running, at: datetime, code: int, reason: str) -> None:
        one.state = Ended(code, reason, at, was.id, started=was.started)
        one.log.close(at)
        one.stopping = None

    def _wake(self, now: datetime) -> datetime | None:
        moments = [end[0] for one in self.running if (end := one.end_at()) is not None]
        for one in self.containers.values():
            if one.not_before is not None and isinstance(one.state, Waiting):
                moments.append(one.not_before)
            if isinstance(one.state, Running) and one.state.ready_at is not None:
                moments.append(one.state.ready_at)
        due = self._due()
        if due is not None and not self.over:
            moments.append(due)
        return min((moment for moment in moments if moment > now), default=None)

    def _of(self, *kinds: ContainerKind) -> list[ContainerRun]:
        return [one for one in self.containers.values() if one.kind in kinds]

    def _restarts(self, one: ContainerRun, ended: Ended) -> bool:
        """Whether a container that has ended is started again."""
        if one.kind is ContainerKind.SIDECAR:
            return True
        return self._policy == "Always" or (self._policy == "OnFailure" and ended.code != 0)

    def _init_failed(self) -> bool:
        """Whether an init container failed for good."""
        if self._policy != "Never":
            return False
        inits = self._of(ContainerKind.INIT)
        return any(isinstance(one.state, Ended) and one.state.code != 0 for one in inits)

    def _apps_ended(self) -> bool:
        """Whether all ordinary containers have ended for good."""
        apps = self._of(ContainerKind.APP)
        return all(isinstance(one.state, Ended) and not self._restarts(one, one.state) for one in apps)


def _go_duration(seconds: float) -> str:
    """As Go prints it: 10s, 1m20s, 5m0s."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{rest:g}s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
