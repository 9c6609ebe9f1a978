"""The facts from the API server, each kind listed once. Nodes and pods must be readable; what else is not is said."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from shoal.cli.ask.picture.facts import PRIORITY_CLASSES, Facts
from shoal.cli.ask.picture.settings import CONFIGMAP, settings_of
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, NotFoundError
from shoal.kube.objects.others import ConfigMap
from shoal.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
    key_of,
)
from shoal.model.contract import gpushare, keti
from shoal.model.contract.gpushare import MemoryUnit

T = TypeVar("T")

_STORAGE: Final = "pods with volumes may be told wrong"
_SICK: Final = "cards that gpushare's lists call unhealthy count as healthy"
_POLICY_PLACES: Final = (keti.NAMESPACE, gpushare.EXTENDER_NAMESPACE)


async def read_facts(client: Client, *, unit: MemoryUnit | None = None) -> Facts:
    """All that a decision depends on. Raises KubeError when nodes or pods cannot be read."""
    reading = _Reading(client)
    workloads = asyncio.gather(
        client.list(NODES),
        client.list(PODS),
        reading.all(NAMESPACES, "namespaces selected by label count as if there were none"),
        reading.all(POD_DISRUPTION_BUDGETS, "disruption budgets count as if there were none"),
        reading.all(PRIORITY_CLASSES, "pods of a file have the priority 0"),
    )
    storage = asyncio.gather(
        reading.all(VOLUMES, _STORAGE), reading.all(CLAIMS, _STORAGE), reading.all(STORAGE_CLASSES, _STORAGE)
    )
    (nodes, pods, namespaces, budgets, priorities), (volumes, claims, classes), maps = await asyncio.gather(
        workloads, storage, reading.config_maps()
    )
    found = {key_of(one): one for one in maps}
    settings, problem = settings_of(nodes.items, pods.items, found.pop(CONFIGMAP, None), unit=unit)
    return Facts(
        settings=settings,
        nodes=tuple(nodes.items),
        pods=tuple(pods.items),
        namespaces=namespaces,
        volumes=volumes,
        claims=claims,
        storage_classes=classes,
        budgets=budgets,
        priority_classes=priorities,
        config_maps=tuple(found.values()),
        missing=tuple(dict.fromkeys([*reading.missing, *problem])),
    )


class _Reading:
    """Lists kinds, and remembers those that this user may not read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.missing: list[str] = []

    async def all(self, resource: Resource[T], so: str, *, namespace: str = "") -> tuple[T, ...]:
        """All objects of a kind; none when they may not be read, or when the server does not know the kind."""
        try:
            return tuple((await self._client.list(resource, namespace=namespace)).items)
        except ForbiddenError:
            where = f" in {namespace}" if namespace else ""
            self.missing.append(f"you may not read {resource.plural}{where}: {so}")
        except NotFoundError:
            pass
        return ()

    async def config_maps(self) -> list[ConfigMap]:
        """KETI's policy, gpushare's lists of sick cards, and the scheduler's settings."""
        places = [(namespace, name) for namespace in _POLICY_PLACES for name in keti.POLICY_CONFIGMAPS]
        listed, named = await asyncio.gather(
            self.all(CONFIG_MAPS, _SICK, namespace=gpushare.UNHEALTHY_CONFIGMAP_NAMESPACE),
            asyncio.gather(*(self._config_map(*place) for place in (*places, CONFIGMAP))),
        )
        return [*(one for one in listed if _lists_cards(one)), *(one for one in named if one is not None)]

    async def _config_map(self, namespace: str, name: str) -> ConfigMap | None:
        try:
            return await self._client.get(CONFIG_MAPS, name, namespace=namespace)
        except ForbiddenError:
            self.missing.append(f"you may not read configmap {namespace}/{name}: it counts as if there were none")
        except NotFoundError:
            pass
        return None


def _lists_cards(configmap: ConfigMap) -> bool:
    return configmap.metadata.name.startswith(gpushare.UNHEALTHY_CONFIGMAP_PREFIX)
