"""The mark gpushare knows a started pod by: `ALIYUN_COM_GPU_MEM_ASSIGNED` is true once its containers were created."""

from __future__ import annotations

import logging

from shoal.agent.pods import Known
from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, KubeError, NotFoundError
from shoal.kube.resources import PODS
from shoal.model.contract import gpushare
from shoal.model.contract.gpushare import BindState
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)


def due(known: Known) -> dict[str, str]:
    """The annotations to set; none while the pod has not started, has its mark, or is none of gpushare's."""
    annotations = known.pod.metadata.annotations
    try:
        state = gpushare.decode_state(annotations)
    except CodecError as error:
        log.debug("pod %s: %s", "/".join(known.key), error)
        return {}
    if state is None or state.assigned:
        return {}
    if not all(known.begun(name) for name in known.holding.resources if name in known.holding.app_names):
        return {}
    flags = (gpushare.ANNOTATION_ASSIGNED, gpushare.ANNOTATION_ALLOCATION_ASSIGNED)
    marks = gpushare.state_annotations(BindState(state.assume_time_ns, assigned=True))
    # Only in the spellings that the pod's scheduler used.
    return {key: marks[key] for key in flags if key in annotations or key == gpushare.ANNOTATION_ASSIGNED}


class Marks:
    """Sets marks, each once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._set: set[str] = set()

    async def settle(self, pods: list[Known]) -> None:
        """Set all marks that are due. What fails is tried again at the next change of a pod."""
        self._set &= {known.uid for known in pods}
        for known in pods:
            if known.uid in self._set or not known.holding.resources or not (marks := due(known)):
                continue
            meta = known.pod.metadata
            patch = {"metadata": {"uid": meta.uid, "annotations": marks}}
            try:
                await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
                self._set.add(known.uid)
            except (NotFoundError, ConflictError):
                continue  # gone, or another pod of its name
            except KubeError as error:
                log.warning("the mark of %s/%s: %s", meta.namespace, meta.name, error)
