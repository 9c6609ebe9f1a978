"""Annotations that the agent writes on a pod once its containers were created.

`ALIYUN_COM_GPU_MEM_ASSIGNED` is gpushare's sign that the pod has started, `shoal.dev/isolation` tells what limits it to
its shares; both come in one write. If somebody changes the record of the pod's cards, the agent restores it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Final

from shoal.agent.errors import IdentityError
from shoal.agent.node.pods import NodePod, NodePods
from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, KubeError, NotFoundError
from shoal.kube.events import Recorder, reference_to
from shoal.kube.resources import PODS
from shoal.model.contract import gpushare, shoal
from shoal.model.contract.gpushare import BindState
from shoal.model.errors import CodecError
from shoal.model.gpu import LimitedBy

log = logging.getLogger(__name__)

REASON_CHANGED: Final = "GPUDecisionChanged"
_RETRY_SECONDS: Final = 5.0
#: The shortest time between two restorations of one pod's record, however often somebody changes it.
_PUT_BACK_SECONDS: Final = 30.0


def due(known: NodePod, isolation: LimitedBy | None) -> dict[str, str]:
    """The annotations that the pod lacks; none before its containers were created."""
    if not all(known.begun(name) for name in known.holding.resources if name in known.holding.app_names):
        return {}
    marks = _assigned(known)
    if isolation is not None and known.pod.metadata.annotations.get(shoal.ANNOTATION_ISOLATION) != str(isolation):
        marks[shoal.ANNOTATION_ISOLATION] = str(isolation)
    return marks


def _assigned(known: NodePod) -> dict[str, str]:
    """gpushare's sign of a started pod; nothing if the pod has it or was not placed with gpushare's annotations."""
    annotations = known.pod.metadata.annotations
    try:
        state = gpushare.decode_state(annotations)
    except CodecError as error:
        log.debug("pod %s: %s", "/".join(known.key), error)
        return {}
    if state is None or state.assigned:
        return {}
    flags = (gpushare.ANNOTATION_ASSIGNED, gpushare.ANNOTATION_ALLOCATION_ASSIGNED)
    marks = gpushare.state_annotations(BindState(state.assume_time_ns, assigned=True))
    # Only in the spellings that the pod's scheduler used.
    return {key: marks[key] for key in flags if key in annotations or key == gpushare.ANNOTATION_ASSIGNED}


class PodAnnotations:
    """Writes the annotations of the node's pods. `run` until it is cancelled."""

    def __init__(
        self,
        client: Client,
        pods: NodePods,
        recorder: Recorder,
        isolation: Callable[[str], LimitedBy | None],
        record: Callable[[NodePod], dict[str, str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`isolation` gives what limits the pod of a UID; `record` the annotations to restore, if some were changed."""
        self._client = client
        self._pods = pods
        self._recorder = recorder
        self._isolation = isolation
        self._record = record
        self._clock = clock
        #: By UID, when a pod's record was restored last.
        self._put_back: dict[str, float] = {}
        #: By UID, what was written last.
        self._set: dict[str, dict[str, str]] = {}
        self._noted: set[str] = set()
        self._wake = asyncio.Event()

    def note(self, pods: Iterable[str]) -> None:
        """Look at these pods, by UID, at the next turn: they have changed."""
        self._noted.update(pods)
        self._wake.set()

    async def run(self) -> None:
        """Write the annotations that noted pods lack. What fails is tried again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            noted, self._noted = self._noted, set()
            failed = {uid for uid in noted if not await self._settle(uid)}
            if failed:
                await asyncio.sleep(_RETRY_SECONDS)
                self.note(failed)

    async def _settle(self, uid: str) -> bool:
        """Whether the pod has all its annotations now; False to try again."""
        known = self._pods.get(uid)
        if known is None or known.over:
            self._set.pop(uid, None)
            self._put_back.pop(uid, None)
            return True
        if not known.holding.resources:
            return True
        meta = known.pod.metadata
        try:
            marks = due(known, self._isolation(uid))
            if marks and self._set.get(uid) != marks:
                patch = {"metadata": {"uid": meta.uid, "annotations": marks}}
                await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
                self._set[uid] = marks
            return await self._keep_record(known)
        except (NotFoundError, ConflictError):
            return True  # gone, or another pod of its name
        except (KubeError, IdentityError) as error:
            log.warning("the mark of %s/%s: %s", meta.namespace, meta.name, error)
            return False

    async def _keep_record(self, known: NodePod) -> bool:
        """Whether the pod's record tells what the pod was given. A changed one is restored, not too often."""
        record = self._record(known)
        if not record:
            return True
        now = self._clock()
        if now - self._put_back.get(known.uid, -math.inf) < _PUT_BACK_SECONDS:
            return False
        self._put_back[known.uid] = now
        self._recorder.record(
            reference_to(PODS, known.pod),
            "Warning",
            REASON_CHANGED,
            "its record of cards was changed after they were given: that has no effect, and it is put back",
        )
        meta = known.pod.metadata
        patch = {"metadata": {"uid": meta.uid, "annotations": record}}
        await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
        return True
