"""Pods as the API server shows them to a collector."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, nvidia, shoal
from shoal.model.request import Share

NODE = "node-1"


def container_id(number: int) -> str:
    """The ID of a container, as cgroups have it."""
    return f"{number:064x}"


def pod_uid(number: int) -> str:
    """The UID of a pod."""
    return f"00000000-0000-4000-8000-{number:012x}"


def manifest(
    name: str,
    *,
    shares: Mapping[str, Sequence[tuple[str, int]]] | None = None,
    wholes: Mapping[str, Sequence[str]] | None = None,
    plain: Sequence[str] = (),
    ids: Mapping[str, str] | None = None,
    namespace: str = "default",
    uid: str = "",
    node: str = NODE,
    annotations: Mapping[str, str] | None = None,
    phase: str = "Running",
) -> dict[str, Any]:
    """A pod that was placed: by container the cards it has GiB of, or as a whole. `ids` are containers' IDs."""
    entries = [
        ContainerAllocation(one, tuple(CardShare(uuid, 0, Share(memory_mib=gib * 1024)) for uuid, gib in cards))
        for one, cards in (shares or {}).items()
    ] + [
        ContainerAllocation(one, tuple(CardShare(uuid, 0, Share(exclusive=True)) for uuid in cards))
        for one, cards in (wholes or {}).items()
    ]
    asked = {
        one: {gpushare.RESOURCE_MEMORY: str(sum(gib for _, gib in cards))} for one, cards in (shares or {}).items()
    }
    asked |= {one: {nvidia.RESOURCE_GPU: str(len(cards))} for one, cards in (wholes or {}).items()}
    record = {shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(Allocation(node, tuple(entries)))} if entries else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            **({"uid": uid} if uid else {}),
            "annotations": {**record, **(annotations or {})},
        },
        "spec": {
            "nodeName": node,
            "containers": [
                *({"name": one, "image": "i", "resources": {"limits": asked[one]}} for one in asked),
                *({"name": one, "image": "i"} for one in plain),
            ],
        },
        "status": {
            "phase": phase,
            "containerStatuses": [
                {"name": one, "containerID": f"containerd://{known}"} for one, known in (ids or {}).items()
            ],
        },
    }


def pod(name: str, **parts: Any) -> Pod:
    """The same, decoded."""
    return msgspec.convert(manifest(name, **parts), Pod)
