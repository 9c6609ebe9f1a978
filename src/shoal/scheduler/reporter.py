"""Tells people about their pods: events, and the pod's PodScheduled condition. Never waits, never fails.

Conditions wait in a queue of one entry per pod, so that a pod that is tried often costs one write at a time, and the
last word is the one written. What the pod shows already is not written again.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, KubeError, NotFoundError
from shoal.kube.events import Recorder, reference_to
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS
from shoal.model.allocation import Allocation
from shoal.scheduler.diagnosis import placed

log = logging.getLogger(__name__)

CONDITION: Final = "PodScheduled"
REASON_UNSCHEDULABLE: Final = "Unschedulable"
#: Longest message written into a condition.
_MAX_MESSAGE: Final = 4096
_WRITERS: Final = 4


@dataclass(frozen=True, slots=True)
class _StatusPatch:
    """A pod and what is to be written into its status."""

    pod: Pod
    status: dict[str, Any]


class Reporter:
    """Writes events and conditions. `run` writes the conditions; those reported before it runs are kept."""

    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        *,
        now: Callable[[], datetime.datetime],
        may_write: Callable[[], bool],
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._now = now
        self._may_write = may_write
        self._pending: dict[str, _StatusPatch] = {}
        self._there = asyncio.Event()

    def scheduled(self, pod: Pod, allocation: Allocation) -> None:
        """The pod has its node and its cards."""
        self._pending.pop(pod.metadata.uid, None)
        cards = {card.uuid: card.index for container in allocation.containers for card in container.cards}
        where = placed(allocation.node, [(index, uuid) for uuid, index in cards.items()])
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._recorder.record(
            reference_to(PODS, pod), "Normal", "Scheduled", f"Successfully assigned {name} to {where}"
        )

    def waiting(
        self,
        pod: Pod,
        message: str,
        *,
        reason: str = REASON_UNSCHEDULABLE,
        nominated: str | None = None,
        once: bool = False,
    ) -> None:
        """The pod cannot be placed now; `nominated` is the node that is being cleared for it.

        With `once` no Event repeats what the pod's condition shows already.
        """
        if once and _shows(pod, reason, message, nominated):
            return
        self._recorder.record(reference_to(PODS, pod), "Warning", "FailedScheduling", message)
        if not _shows(pod, reason, message, nominated):
            condition = {"type": CONDITION, "status": "False", "reason": reason, "message": message[:_MAX_MESSAGE]}
            old = next((known for known in pod.status.conditions if known.type == CONDITION), None)
            if old is None or old.status != "False":
                condition["lastTransitionTime"] = self._time()
            status: dict[str, Any] = {"conditions": [condition]}
            if nominated is not None:
                status["nominatedNodeName"] = nominated
            self._enqueue(_StatusPatch(pod, status))

    def try_again(self, pod: Pod) -> None:
        """The pod is another scheduler's, and fits by now: a change of the pod makes that one try it again."""
        condition = {
            "type": CONDITION,
            "status": "False",
            "reason": REASON_UNSCHEDULABLE,
            "lastProbeTime": self._time(),
        }
        self._enqueue(_StatusPatch(pod, {"conditions": [condition]}))

    def warn(self, obj: Node | Pod, reason: str, message: str) -> None:
        """Something is wrong with an object."""
        log.warning("%s %s: %s", type(obj).__name__.lower(), obj.metadata.name, message)
        reference = reference_to(NODES, obj) if isinstance(obj, Node) else reference_to(PODS, obj)
        self._recorder.record(reference, "Warning", reason, message)

    def note(self, pod: Pod, reason: str, message: str) -> None:
        """Something happened to a pod."""
        self._recorder.record(reference_to(PODS, pod), "Normal", reason, message)

    def forget(self, uid: str) -> None:
        """The pod is bound or gone: what was to be said of its waiting is dropped."""
        self._pending.pop(uid, None)

    async def run(self) -> None:
        """Write conditions until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_WRITERS):
                group.create_task(self._write_all())

    def _enqueue(self, pending: _StatusPatch) -> None:
        self._pending[pending.pod.metadata.uid] = pending
        self._there.set()

    async def _write_all(self) -> None:
        while True:
            while not self._pending:
                self._there.clear()
                await self._there.wait()
            uid = next(iter(self._pending))
            pending = self._pending.pop(uid)
            if self._may_write():
                await self._write(pending)

    async def _write(self, pending: _StatusPatch) -> None:
        meta = pending.pod.metadata
        # The uid makes the server refuse when another pod has taken the name.
        patch = {"metadata": {"uid": meta.uid}, "status": pending.status}
        try:
            await self._client.patch(
                PODS,
                meta.name,
                patch,
                namespace=meta.namespace,
                kind="strategic",
                subresource="status",
            )
        except (NotFoundError, ConflictError):
            return  # gone, or another pod of that name
        except KubeError as error:
            log.warning("condition of %s/%s: %s", meta.namespace, meta.name, error)

    def _time(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _shows(pod: Pod, reason: str, message: str, nominated: str | None) -> bool:
    known = next((condition for condition in pod.status.conditions if condition.type == CONDITION), None)
    return (
        known is not None
        and (known.status, known.reason, known.message) == ("False", reason, message[:_MAX_MESSAGE])
        and (nominated is None or (pod.status.nominated_node_name or "") == nominated)
    )
