"""What a pod is told when its containers were created: gpushare's mark of a started one, and what keeps its shares.

gpushare's is `ALIYUN_COM_GPU_MEM_ASSIGNED`; it and `shoal.dev/isolation` come in one write. A record of its cards that
somebody has changed is put back.
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
from shoal.model.gpu import Isolation

log = logging.getLogger(__name__)

REASON_CHANGED: Final = "GPUDecisionChanged"
_RETRY_SECONDS: Final = 5.0
#: Between two times that a pod's record is put back: who changes it again and again makes no more work than this.
_PUT_BACK_SECONDS: Final = 30.0


def due(known: NodePod, isolation: Isolation | None) -> dict[str, str]:
    """The annotations to set; none while the pod has not started, or when it has them."""
    if not all(known.begun(name) for name in known.holding.resources if name in known.holding.app_names):
        return {}
    marks = _assigned(known)
    if isolation is not None and known.pod.metadata.annotations.get(shoal.ANNOTATION_ISOLATION) != isolation.value:
        marks[shoal.ANNOTATION_ISOLATION] = isolation.value
    return marks


def _assigned(known: NodePod) -> dict[str, str]:
    """gpushare's mark; none if the pod has it or is none of gpushare's."""
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
    """Sets marks, each once. `run` until it is cancelled."""

    def __init__(
        self,
        client: Client,
        pods: NodePods,
        recorder: Recorder,
        isolation: Callable[[str], Isolation | None],
        record: Callable[[NodePod], dict[str, str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`isolation` tells by its UID what keeps a pod to its shares, `record` what its record of cards should be."""
        self._client = client
        self._pods = pods
        self._recorder = recorder
        self._isolation = isolation
        self._record = record
        self._clock = clock
        #: By UID, when a record was put back last.
        self._put_back: dict[str, float] = {}
        #: By UID, what was written last.
        self._set: dict[str, dict[str, str]] = {}
        self._noted: set[str] = set()
        self._wake = asyncio.Event()

    def note(self, pods: Iterable[str]) -> None:
        """Something has changed about these pods, by UID."""
        self._noted.update(pods)
        self._wake.set()

    async def run(self) -> None:
        """Set the marks that are due on pods that were noted. What fails is tried again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            noted, self._noted = self._noted, set()
            failed = {uid for uid in noted if not await self._settle(uid)}
            if failed:
                await asyncio.sleep(_RETRY_SECONDS)
                self.note(failed)

    async def _settle(self, uid: str) -> bool:
        """Whether the pod has its marks."""
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
        """Whether the pod's record tells what it has been given; one that was changed is put back, not too often."""
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
