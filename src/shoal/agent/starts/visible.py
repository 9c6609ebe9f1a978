"""Containers that say themselves which cards they see, where NVIDIA's runtime would believe them.

Without CDI the runtime reads a container's environment, and there the pod's own words win over the plugin's. What the
image or an `envFrom` says cannot be seen here: for those the toolkit has a setting, which `shoal doctor` looks at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from shoal.agent.errors import RefusedError
from shoal.agent.node.pods import Known
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.resources import PODS, RawObject
from shoal.model.contract import nvidia
from shoal.model.errors import shown

#: The words for no card at all.
_NO_CARDS: Final = ("", "none", "void")
_LISTS: Final = ("containers", "initContainers", "ephemeralContainers")


async def refuse_own_choice(client: Client, known: Known, container: str) -> None:
    """RefusedError for a container whose environment names cards. The pod is read in full: nobody else needs it."""
    namespace, name = known.key
    try:
        found = await client.list(PODS.raw, namespace=namespace, fields=f"metadata.name={name}")
    except KubeError as error:
        raise RefusedError(f"the environment of container {shown(container)} cannot be read: {error}") from error
    if any(chooses(pod, container) for pod in found.items if pod["metadata"].get("uid") == known.uid):
        raise RefusedError(
            f"container {shown(container)} sets {nvidia.ENV_VISIBLE_DEVICES}, and so would choose cards itself: remove "
            "it, and ask for GPUs by resources"
        )


def chooses(pod: RawObject, container: str) -> bool:
    """Whether a container of a pod names cards in its environment."""
    return any(
        one.get("name") == nvidia.ENV_VISIBLE_DEVICES and ("valueFrom" in one or one.get("value", "") not in _NO_CARDS)
        for one in _environment(pod, container)
    )


def _environment(pod: RawObject, container: str) -> Iterable[dict[str, Any]]:
    for part in _LISTS:
        for one in pod["spec"].get(part) or ():
            if one.get("name") == container:
                yield from one.get("env") or ()
