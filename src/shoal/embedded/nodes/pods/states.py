"""The states of a pod's containers on a node, and the few numbers of kubelet that their changes obey."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.nodes.clock import Clock
from shoal.embedded.nodes.pods.workload import Plan
from shoal.model.backoff import Backoff
from shoal.model.request import ContainerKind

CRASH_LOOP: Final = "CrashLoopBackOff"
_REASONS: Final = {0: "Completed"}
_BACKOFF: Final = Backoff(first=10.0, longest=300.0)


@dataclass(frozen=True, slots=True)
class Timing:
    """kubelet's intervals, in seconds."""

    back_off: Backoff = _BACKOFF
    #: Until a container that could not be created is tried again.
    retry: float = 10.0
    #: Until a container starts once it is decided on; the real thing takes about a second.
    start: float = 0.0
    #: Between two signs of life of a node, and two statuses of it that say nothing new.
    renew: float = 10.0
    report: float = 300.0
    #: Until a pod's status that somebody else wrote is put right.
    reconcile: float = 10.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not started, and why; without a reason it is what everybody waits for at first."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Runs since then."""

    started: datetime
    id: str
    plan: Plan

    @property
    def ready_at(self) -> datetime | None:
        """When it becomes ready; None: never."""
        seconds = self.plan.ready_seconds
        return None if seconds is None else self.started + timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Ended:
    """Has run, or could not be started."""

    code: int
    reason: str
    finished: datetime
    id: str
    started: datetime | None = None
    message: str = ""


@dataclass(slots=True)
class Log:
    """The lines of one run of a container, with the moments they are written; those of the future are not there yet."""

    lines: list[tuple[datetime, str]] = field(default_factory=list)
    #: When the container ended, and its log with it.
    closed: datetime | None = None
    #: Set when lines were added or the log was closed, for those who follow it.
    moved: set[asyncio.Event] = field(default_factory=set)

    def until(self, now: datetime) -> list[tuple[datetime, str]]:
        """What has been written."""
        end = now if self.closed is None else min(now, self.closed)
        return [line for line in self.lines if line[0] <= end]

    def add(self, at: datetime, lines: Iterable[str]) -> None:
        """Write more."""
        self.lines += [(at, line) for line in lines]
        self._tell()

    def close(self, at: datetime) -> None:
        """The container has ended."""
        self.closed = at
        self._tell()

    async def wait(self, clock: Clock, seen: datetime) -> None:
        """Until there may be more than was seen at that moment."""
        wake = asyncio.Event()
        self.moved.add(wake)
        try:
            await clock.wait(wake, min((at for at, _ in self.lines if at > seen), default=None))
        finally:
            self.moved.discard(wake)

    def _tell(self) -> None:
        for wake in self.moved:
            wake.set()


@dataclass(slots=True)
class ContainerRun:
    """One container of a pod on its node."""

    name: str
    kind: ContainerKind
    state: Waiting | Running | Ended = Waiting()
    last: Ended | None = None
    restarts: int = 0
    #: It is not started before.
    not_before: datetime | None = None
    #: Seconds to wait after its next end, and since when that holds.
    back_off: float = 0.0
    back_off_at: datetime | None = None
    #: It was told to end, and is killed at the second moment.
    stopping: tuple[datetime, datetime] | None = None
    log: Log = field(default_factory=Log)
    previous_log: Log | None = None
    #: How often it was started, to give each run an ID of its own.
    runs: int = 0

    def end_at(self) -> tuple[datetime, int, str] | None:
        """When the present run ends, with which code and why; None: not by itself."""
        if not isinstance(self.state, Running):
            return None
        plan, found = self.state.plan, []
        if plan.seconds is not None:
            end = self.state.started + timedelta(seconds=plan.seconds)
            found.append((end, plan.code, plan.reason or ended_reason(plan.code)))
        if self.stopping is not None:
            told, killed = self.stopping
            if plan.stop_seconds is not None and told + timedelta(seconds=plan.stop_seconds) <= killed:
                end = told + timedelta(seconds=plan.stop_seconds)
                found.append((end, plan.stop_code, ended_reason(plan.stop_code)))
            else:
                found.append((killed, 137, ended_reason(137)))
        return min(found, key=lambda end: end[0], default=None)


def ended_reason(code: int) -> str:
    """The word of a container runtime for an exit code."""
    return _REASONS.get(code, "Error")


def containers_of(spec: Mapping[str, Any]) -> Iterator[tuple[ContainerKind, Mapping[str, Any]]]:
    """The containers of a pod in the order they start."""
    for container in spec.get("initContainers") or ():
        sidecar = container.get("restartPolicy") == "Always"
        yield (ContainerKind.SIDECAR if sidecar else ContainerKind.INIT), container
    for container in spec["containers"]:
        yield ContainerKind.APP, container
