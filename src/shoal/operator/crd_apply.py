"""Brings the definition of the ClusterPolicy onto a cluster: helm does that once, and not when a chart is upgraded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.resources import RawObject, Resource
from shoal.operator.crd import definition

DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    dict,
    namespaced=False,
    whole=True,
)
#: How often the API server is asked whether it serves the kind.
_PAUSE: Final = 0.2


class DefinitionError(KubeError):
    """The API server has the definition and does not serve the kind."""


async def apply_definitions(client: Client, *, patience: float) -> list[str]:
    """Apply all definitions, by force, and wait until their kinds are served; their names."""
    applied = []
    for manifest in (definition(),):
        made: RawObject = await client.apply(DEFINITIONS, manifest, force=True)
        await _established(client, made["metadata"]["name"], patience)
        applied.append(str(made["metadata"]["name"]))
    return applied


async def _established(client: Client, name: str, patience: float) -> None:
    said = "the server says nothing of it"
    try:
        async with asyncio.timeout(patience):
            while True:
                conditions = _conditions(await client.get(DEFINITIONS, name))
                if conditions.get("Established", ("", ""))[0] == "True":
                    return
                status, message = conditions.get("NamesAccepted", ("", ""))
                said = message if status == "False" else said
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise DefinitionError(
            f"CustomResourceDefinition {name} is not established after {patience:g} s ({said}): see "
            f"kubectl describe crd {name}"
        ) from None


def _conditions(crd: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """By type: status and message."""
    found = (crd.get("status") or {}).get("conditions") or ()
    return {str(one.get("type")): (str(one.get("status")), str(one.get("message"))) for one in found}
