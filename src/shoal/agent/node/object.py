"""The node's own object: the agent publishes cards and totals in it, and restores them when somebody removes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Quantities
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES
from shoal.kube.store import Change
from shoal.model import quantity
from shoal.model.backoff import Backoff
from shoal.model.contract import gpushare
from shoal.model.errors import QuantityError

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first=0.5, longest=30.0)


class NodeObject:
    """The Node object of one name. `run` writes what was published until it is cancelled."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        isolation_changed: Callable[[], None] = lambda: None,
        labels_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`isolation_changed` is called when the label that switches limits off comes or goes."""
        self.name = name
        self._isolation_changed = isolation_changed
        self._labels_changed = labels_changed
        self._was_isolated = True
        self._client = client
        self._annotations: dict[str, str | None] = {}
        self._resources: dict[str, tuple[int, int] | None] = {}
        self._wake = asyncio.Event()
        self._there = asyncio.Event()
        self.reflector: Reflector[Node] = Reflector(
            client, NODES, fields=f"metadata.name={name}", consumers=[self._on_node]
        )

    @property
    def node(self) -> Node | None:
        """The node as last seen."""
        return self.reflector.store.get(self.name)

    @property
    def isolated(self) -> bool:
        """Whether containers are limited to their shares; label `cgpu.disable.isolation` switches that off."""
        node = self.node
        return node is None or node.metadata.labels.get(gpushare.LABEL_NO_ISOLATION) != "true"

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's labels as last seen."""
        node = self.node
        return {} if node is None else node.metadata.labels

    def publish(self, annotations: Mapping[str, str | None], resources: Mapping[str, tuple[int, int] | None]) -> None:
        """Set annotations, and capacity and allocatable of resources; None removes one.

        Earlier values that are not named now stay.
        """
        shall = {**self._annotations, **annotations}, {**self._resources, **resources}
        if shall != (self._annotations, self._resources):
            self._annotations, self._resources = shall
            self._wake.set()

    def _on_node(self, change: Change[Node]) -> None:
        if change.new is not None and change.new.status.node_info.kubelet_version:
            self._there.set()
        if self.isolated != self._was_isolated:
            self._was_isolated = self.isolated
            self._isolation_changed()
        before = {} if change.old is None else change.old.metadata.labels
        if self.labels != before:
            self._labels_changed()
        self._wake.set()

    async def wait_registered(self) -> None:
        """Return when kubelet has registered the node: its version is known only then."""
        await self._there.wait()

    async def run(self) -> None:
        """Write what differs, whenever that changes, until cancelled."""
        pause = _BACKOFF.first
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.settle()
                pause = _BACKOFF.first
            except KubeError as error:
                log.warning("node %s: %s", self.name, error)
                await asyncio.sleep(pause)
                pause = _BACKOFF.longer(pause)
                self._wake.set()

    async def settle(self) -> None:
        """Write what differs, once."""
        node = self.node
        if node is None:
            return
        present = node.metadata.annotations
        annotations = {key: value for key, value in self._annotations.items() if present.get(key) != value}
        if annotations:
            await self._client.patch(NODES, self.name, {"metadata": {"annotations": annotations}})
        status: dict[str, Any] = {}
        for place, part in enumerate(("capacity", "allocatable")):
            amounts: Quantities = getattr(node.status, part)
            for resource, counts in self._resources.items():
                wanted = None if counts is None else counts[place]
                if not _same(amounts.get(resource), wanted):
                    status.setdefault(part, {})[resource] = None if wanted is None else str(wanted)
        if status:
            await self._client.patch(NODES, self.name, {"status": status}, subresource="status")


def _same(present: str | int | float | None, wanted: int | None) -> bool:
    if present is None or wanted is None:
        return present is None and wanted is None
    try:
        return quantity.parse(present) == wanted
    except QuantityError:
        return False  # not a number: it is overwritten
