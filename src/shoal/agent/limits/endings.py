"""Ends the MPS clients of pods that are being deleted, before kubelet kills their processes.

A client that is killed while it computes leaves its server, and with it its neighbours, in an undefined state. So at
the end of a pod's grace period the MPS daemon terminates its clients, and drains their work. The time is measured from
when the agent saw the deletion, by its own clock. A pod that is deleted by force, or killed for another reason than its
deletion, is not covered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from shoal.agent.limits.mps import Mps
from shoal.agent.node.cgroups import pod_of
from shoal.gpu.errors import MpsError
from shoal.kube.objects.pod import Pod

log = logging.getLogger(__name__)

#: How long before the end of the grace period clients are terminated; half of a period that is shorter than twice this.
MARGIN_SECONDS: Final = 2.0
_DEFAULT_GRACE_SECONDS: Final = 30
_LOOK_SECONDS: Final = 0.25
#: `/proc/PID/cgroup` is shorter.
_MOST: Final = 1 << 16


class ClientEndings:
    """Ends clients of the pods of one node. `run` until it is cancelled."""

    def __init__(
        self,
        mps: Mps,
        pods: Callable[[], Iterable[Pod]],
        proc: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pods` are those that may have clients; `proc` is the host's `/proc`."""
        self._mps = mps
        self._pods = pods
        self._proc = proc
        self._clock = clock
        #: By UID, when the clients of pods that are being deleted are terminated.
        self._at: dict[str, float] = {}
        self._ended: set[str] = set()

    async def run(self) -> None:
        """Look at the pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for pod in self.due():
                    group.create_task(self.end(pod))
                await asyncio.sleep(_LOOK_SECONDS)

    def due(self) -> Iterator[Pod]:
        """The pods whose grace period ends, each once."""
        now = self._clock()
        before, self._at = self._at, {}
        for pod in self._pods():
            meta = pod.metadata
            if meta.deletion_timestamp is None:
                continue
            # The grace period of a pod can be shortened, not extended.
            self._at[meta.uid] = at = min(before.get(meta.uid, now + _wait(pod)), now + _wait(pod))
            if now >= at and meta.uid not in self._ended:
                self._ended.add(meta.uid)
                yield pod
        self._ended &= self._at.keys()

    async def end(self, pod: Pod) -> None:
        """Terminate the clients of a pod."""
        meta = pod.metadata
        try:
            ended = await self._mps.terminate(lambda pid: self._owner(pid) == meta.uid)
        except MpsError as error:
            log.warning("pod %s/%s: its MPS clients are not terminated: %s", meta.namespace, meta.name, error)
            return
        if ended:
            log.info("pod %s/%s: its %d MPS clients are terminated", meta.namespace, meta.name, ended)

    def _owner(self, pid: int) -> str:
        try:
            with (self._proc / str(pid) / "cgroup").open("rb") as file:
                return pod_of(file.read(_MOST).decode(errors="replace"))
        except OSError:  # it has ended
            return ""


def _wait(pod: Pod) -> float:
    """Seconds from the deletion of a pod until its clients are terminated."""
    grace = pod.metadata.deletion_grace_period_seconds
    if grace is None:
        grace = pod.spec.termination_grace_period_seconds
    if grace is None:
        grace = _DEFAULT_GRACE_SECONDS
    return max(grace - MARGIN_SECONDS, grace / 2)
