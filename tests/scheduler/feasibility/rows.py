"""Builds the package's cluster from manifests, with rows as a ledger would give them out."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.kube.objects.node import Namespace, Node
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.scheduler.feasibility.feasibility import Feasibility, Verdict
from shoal.scheduler.feasibility.tables import ClusterTables
from tests.scheduler.feasibility.world import Manifest, World


def pod_of(manifest: Manifest) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(manifest), type=Pod)


class Rows:
    """A cluster and who has which row. Rows that become free are given out again, the last one first."""

    def __init__(self, world: World | None = None) -> None:
        self.tables = ClusterTables()
        self.feasibility = Feasibility(self.tables)
        self.rows: dict[str, int] = {}
        self._free: list[int] = []
        self._used = 0
        if world is not None:
            self.take_in(world)

    def take_in(self, world: World) -> None:
        for namespace in world.namespaces.values():
            self.tables.set_namespace(msgspec.convert(namespace, Namespace))
        for storage_class in world.classes.values():
            self.tables.set_storage_class(msgspec.convert(storage_class, StorageClass))
        for volume in world.volumes.values():
            self.tables.set_volume(msgspec.convert(volume, PersistentVolume))
        for claim in world.claims.values():
            self.tables.set_claim(msgspec.convert(claim, PersistentVolumeClaim))
        for node in world.nodes.values():
            self.set_node(node)
        for pod in world.pods.values():
            self.add_pod(pod)

    def row(self, node: str) -> int:
        if node not in self.rows:
            if self._free:
                self.rows[node] = self._free.pop()
            else:
                self.rows[node], self._used = self._used, self._used + 1
        return self.rows[node]

    def set_node(self, manifest: Manifest) -> None:
        node = msgspec.convert(manifest, Node)
        self.tables.set_node(self.row(node.metadata.name), node)

    def remove_node(self, name: str) -> None:
        row = self.rows.pop(name)
        self.tables.remove_node(row)
        self._free.append(row)

    def add_pod(self, manifest: Manifest) -> None:
        self.tables.add_pod(pod_of(manifest), self.row(manifest["spec"]["nodeName"]))

    def verdict(self, manifest: Manifest) -> Verdict:
        return self.feasibility.verdict(pod_of(manifest))

    def names(self, mask: Any) -> set[str]:
        """The nodes of a mask; fails for a row that is True without a node."""
        by_row = {row: name for name, row in self.rows.items()}
        return {by_row[row] for row in mask.nonzero()[0].tolist()}
