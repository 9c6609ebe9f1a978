"""What the filters read: nodes, pods, namespaces and volumes, by the ledger's rows.

The caller says which row a node has; rows are reused. Calls may come in any order (a pod before its node) and may be
repeated. Whatever could alter a verdict makes `version` grow; heartbeats and status updates do not.
"""

from __future__ import annotations

from shoal.kube.objects.node import Namespace, Node
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.model.contract import kubernetes
from shoal.scheduler.feasibility.columns import FreeResources
from shoal.scheduler.feasibility.node_table import NodeTable
from shoal.scheduler.feasibility.pod_spec import PodReader
from shoal.scheduler.feasibility.pod_table import PodTable
from shoal.scheduler.feasibility.storage_table import StorageTable


class ClusterTables:
    """The state of the cluster as the filters read it."""

    def __init__(self) -> None:
        self.version = 0
        self.nodes = NodeTable()
        self.free = FreeResources(self.nodes.size)
        self.pods = PodTable(self.nodes.size)
        self.storage = StorageTable()
        self.reader = PodReader()
        #: Rows that were given up: how often, and by which node last.
        self._left: dict[int, tuple[int, str]] = {}

    # Nodes

    def set_node(self, row: int, node: Node) -> None:
        """A node was added or changed."""
        self.make_room(row + 1)
        old = self.nodes.nodes[row]
        if old is not None and old.metadata.name != node.metadata.name:
            self.remove_node(row)
        if self.nodes.nodes[row] is None:
            self._clear_of_others(row, node.metadata.name)
        changed, more = self.nodes.set(row, node)
        self.free.change(row, more)
        self.version += changed

    def remove_node(self, row: int) -> None:
        """The node is gone. Its pods are kept: should it come back under its name, they count again."""
        node = self.nodes.nodes[row] if row < self.nodes.size else None
        if node is not None:
            self._left[row] = (self._left.get(row, (0, ""))[0] + 1, node.metadata.name)
            self.free.change(row, self.nodes.remove(row))
            self.version += 1

    def _clear_of_others(self, row: int, name: str) -> None:
        """Remove the pods of another node that had this row before."""
        epoch, last = self._left.get(row, (0, name))
        if last == name:
            return
        for uid, placed in list(self.pods.on_row(row)):
            if placed.node != name if placed.node else placed.epoch < epoch:
                self.remove_pod(uid)

    def make_room(self, rows: int) -> None:
        """Let verdicts have at least this many rows. Rows that are named get their room by themselves."""
        if rows > self.nodes.size:
            self.nodes.grow(rows)
            self.free.grow(self.nodes.size)
            self.pods.grow(self.nodes.size)
            self.version += 1

    # Pods

    def add_pod(self, pod: Pod, row: int) -> None:
        """The pod is bound or assumed there. One that has finished is taken out."""
        uid = pod.metadata.uid
        if pod.status.phase in kubernetes.FINISHED_PHASES:
            self.remove_pod(uid)
            return
        info = self.reader.info(pod)
        placed = self.pods.placed.get(uid)
        if placed is not None:
            if self.pods.same(placed, pod, row, info):
                placed.node = pod.spec.node_name or placed.node
                return
            self.remove_pod(uid)
        self.make_room(row + 1)
        left = self._left.get(row)
        self.pods.add(uid, pod, row, info, left[0] if left else 0)
        self.free.take(row, info.requests, 1)
        self.version += 1

    def remove_pod(self, uid: str) -> None:
        """The pod is gone, or was never bound after all."""
        placed = self.pods.remove(uid)
        if placed is not None:
            self.free.take(placed.row, placed.info.requests, -1)
            self.version += 1

    # Namespaces, volumes, claims and storage classes

    def set_namespace(self, namespace: Namespace) -> None:
        """A namespace was added or changed."""
        self.version += self.pods.set_namespace(namespace.metadata.name, namespace.metadata.labels)

    def remove_namespace(self, name: str) -> None:
        """A namespace is gone."""
        self.version += self.pods.set_namespace(name, None)

    def set_volume(self, volume: PersistentVolume) -> None:
        """A volume was added or changed."""
        self.version += self.storage.set_volume(volume)

    def remove_volume(self, name: str) -> None:
        """A volume is gone."""
        self.version += self.storage.remove_volume(name)

    def set_claim(self, claim: PersistentVolumeClaim) -> None:
        """A claim was added or changed."""
        self.version += self.storage.set_claim(claim)

    def remove_claim(self, namespace: str, name: str) -> None:
        """A claim is gone."""
        self.version += self.storage.remove_claim(namespace, name)

    def set_storage_class(self, storage_class: StorageClass) -> None:
        """A storage class was added or changed."""
        self.version += self.storage.set_class(storage_class)

    def remove_storage_class(self, name: str) -> None:
        """A storage class is gone."""
        self.version += self.storage.remove_class(name)
