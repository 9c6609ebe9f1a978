"""What a pod is told when its containers were created: gpushare's mark of a started one, and what keeps its shares.

gpushare's is `ALIYUN_COM_GPU_MEM_ASSIGNED`; it and `shoal.dev/isolation` come in one write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from shoal.agent.pods import Known
from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, KubeError, NotFoundError
from shoal.kube.resources import PODS
from shoal.model.contract import gpushare, shoal
from shoal.model.contract.gpushare import BindState
from shoal.model.errors import CodecError
from shoal.model.gpu import Isolation

log = logging.getLogger(__name__)


def due(known: Known, isolation: Isolation | None) -> dict[str, str]:
    """The annotations to set; none while the pod has not started, or when it has them."""
    if not all(known.begun(name) for name in known.holding.resources if name in known.holding.app_names):
        return {}
    marks = _assigned(known)
    if isolation is not None and known.pod.metadata.annotations.get(shoal.ANNOTATION_ISOLATION) != isolation.value:
        marks[shoal.ANNOTATION_ISOLATION] = isolation.value
    return marks


def _assigned(known: Known) -> dict[str, str]:
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


class Marks:
    """Sets marks, each once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        #: By UID, what was written last.
        self._set: dict[str, dict[str, str]] = {}

    async def settle(self, pods: list[Known], isolations: Mapping[str, Isolation]) -> None:
        """Set all marks that are due. What fails is tried again at the next change of a pod."""
        alive = {known.uid for known in pods}
        self._set = {uid: marks for uid, marks in self._set.items() if uid in alive}
        for known in pods:
            marks = due(known, isolations.get(known.uid)) if known.holding.resources else {}
            if not marks or self._set.get(known.uid) == marks:
                continue
            meta = known.pod.metadata
            patch = {"metadata": {"uid": meta.uid, "annotations": marks}}
            try:
                await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
                self._set[known.uid] = marks
            except (NotFoundError, ConflictError):
                continue  # gone, or another pod of its name
            except KubeError as error:
                log.warning("the mark of %s/%s: %s", meta.namespace, meta.name, error)
