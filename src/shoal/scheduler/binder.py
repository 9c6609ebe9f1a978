"""The one write of a decision: a Binding with the node and the annotations of all families.

A refusal is final: the booking is cancelled and the pod can be decided again. When the outcome is open (the connection
broke, the server failed half way) the same Binding is sent again until there is an answer: a Binding sent earlier may
still arrive, and must find no other decision. "Conflict" then means that the pod has a node, and the pod itself tells
which. Only errors that may not come again are tried again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from shoal.kube.client import Client
from shoal.kube.errors import (
    AnswerError,
    ApiError,
    ConflictError,
    KubeError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    UnreachableError,
)
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import PODS
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import Allocation
from shoal.model.backoff import Backoff
from shoal.model.contract.decisions import encode_decision
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus
from shoal.scheduler.errors import BindError
from shoal.scheduler.state.cluster_state import ClusterState

log = logging.getLogger(__name__)

#: The Binding may or may not have been made.
_OPEN: Final = (UnreachableError, UnavailableError, AnswerError, TooManyRequestsError, UnauthorizedError)
_BACKOFF: Final = Backoff(first=0.2, longest=5.0)


class Binder:
    """Writes decisions that `ClusterState.place` has booked, and confirms or cancels the booking by the outcome."""

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        *,
        may_write: Callable[[], bool],
        now_ns: Callable[[], int],
        rng: random.Random | None = None,
        on_bind: Callable[[str], None] = lambda uid: None,
    ) -> None:
        self._client = client
        self._state = state
        self._may_write = may_write
        self._now_ns = now_ns
        self._rng = rng or random.Random()
        self._on_bind = on_bind
        self._busy: dict[str, str] = {}

    async def bind(self, pod: Pod, allocation: Allocation) -> None:
        """Write the decision. Raises BindError when the API server refuses it."""
        uid = pod.metadata.uid
        if uid in self._busy:
            raise BindError(f"it is being bound to {self._busy[uid]} already")
        self._busy[uid] = allocation.node
        self._on_bind(uid)
        try:
            await self._bind(pod, allocation)
        except BindError:
            raise
        except Exception as error:
            # Unforeseen: the booking must not stay for ever, but the Binding may have arrived.
            log.exception("binding %s/%s failed", pod.metadata.namespace, pod.metadata.name)
            await self._settle_by_the_pod(pod, allocation.node, {}, f"binding failed: {error}")
        finally:
            del self._busy[uid]

    async def _bind(self, pod: Pod, allocation: Allocation) -> None:
        uid, node = pod.metadata.uid, allocation.node
        node_ledger = self._state.engine.ledger.node(node)
        if node_ledger is None or node_ledger.inventory is None:
            self._state.cancel(uid)
            raise BindError(f"node {node} is gone")
        annotations = annotations_of(
            pod, allocation, inventory=node_ledger.inventory, unit=self._state.unit, now_ns=self._now_ns()
        )
        if annotations:
            self._state.write(uid, annotations)
        try:
            await self._write(pod, node, annotations)
        except ConflictError as error:
            await self._settle_by_the_pod(pod, node, annotations, error.message)
        except KubeError as error:
            self._state.cancel(uid)
            raise BindError(error.message if isinstance(error, ApiError) and error.message else str(error)) from error

    async def _write(self, pod: Pod, node: str, annotations: Mapping[str, str]) -> None:
        """Send the Binding until there is an answer."""
        failures = 0
        while True:
            if not self._may_write():
                # Whoever leads now decides. What was sent stays booked here until the process ends.
                raise asyncio.CancelledError("no longer the leader")
            try:
                await self._client.bind(pod, node, annotations=annotations)
                return
            except _OPEN as error:
                failures += 1
                log.warning("binding %s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
                await self._pause(failures)

    async def _settle_by_the_pod(self, pod: Pod, node: str, annotations: Mapping[str, str], why: str) -> None:
        """Confirm or cancel by what the API server shows of the pod: it has a node, is another of its name, or is gone.

        `why` is what the BindError says when the pod did not get this decision.
        """
        meta = pod.metadata
        failures = 0
        while True:
            try:
                now = await self._client.get(PODS, meta.name, namespace=meta.namespace)
                break
            except NotFoundError:
                self._state.cancel(meta.uid)
                raise BindError("the pod is gone") from None
            except _OPEN as error:
                failures += 1
                log.warning("reading %s/%s: %s", meta.namespace, meta.name, error)
                await self._pause(failures)
            except KubeError as error:
                # Asking again would not help. If the pod has a node after all, the watch shows it.
                self._state.cancel(meta.uid)
                raise BindError(f"{why}; and the pod cannot be read: {error}") from error
        if now.metadata.uid == meta.uid and now.spec.node_name:
            # The watch may be behind this; both lead to the same booking.
            self._state.on_pod(Change(ChangeType.MODIFIED, pod, now))
            if now.spec.node_name == node and annotations.items() <= now.metadata.annotations.items():
                return
        self._state.cancel(meta.uid)
        raise BindError(why)

    async def _pause(self, failures: int) -> None:
        await asyncio.sleep(_BACKOFF.jittered(failures, self._rng))


def annotations_of(
    pod: Pod, allocation: Allocation, *, inventory: NodeGpus, unit: MemoryUnit, now_ns: int
) -> dict[str, str]:
    """The decision in the words of all families; none for a pod without GPUs."""
    names = [container.name for container in pod.spec.containers]
    return encode_decision(allocation, app_names=names, node=inventory, unit=unit, now_ns=now_ns)
