"""When a leader gives up its lease of its own accord: its node is being drained, and another replica can lead.

Only the leader is ready, and the disruption budget keeps the ready one. So the leader of a cordoned node lets another
lead first; from then on its own pod may be evicted. It goes on leading while no other
replica runs on a node that is not cordoned.

No I/O. The own pod is found by its name in the namespace of the Lease; a process that is no pod never hands over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType


class Handover:
    """Knows the pods of the own namespace; `node` gives a node as last seen."""

    def __init__(self, *, namespace: str, name: str, node: Callable[[str], Node | None]) -> None:
        self._namespace = namespace
        self._name = name
        self._node = node
        self._pods: dict[str, Pod] = {}
        self._news = asyncio.Event()

    def on_pod(self, change: Change[Pod]) -> None:
        """A pod appeared, changed or went away."""
        meta = change.object.metadata
        if meta.namespace != self._namespace:
            return
        if change.kind is ChangeType.DELETED:
            self._pods.pop(meta.name, None)
        else:
            self._pods[meta.name] = change.object
        self._news.set()

    def on_node(self, change: Change[Node]) -> None:
        """A node appeared, changed or went away."""
        old, new = change.old, change.new
        if old is None or new is None or old.spec.unschedulable != new.spec.unschedulable:
            self._news.set()

    async def until_due(self) -> None:
        """Wait until another replica should lead."""
        while not self.due():
            self._news.clear()
            await self._news.wait()

    def due(self) -> bool:
        """Whether another replica should lead."""
        own = self._pods.get(self._name)
        return own is not None and self._is_cordoned(own) and any(self._could_lead(pod, own) for pod in self._others())

    def _others(self) -> list[Pod]:
        return [pod for name, pod in self._pods.items() if name != self._name]

    def _could_lead(self, pod: Pod, own: Pod) -> bool:
        """A running replica of ours, which is a pod with our ServiceAccount, on a node that stays."""
        return (
            pod.spec.service_account_name == own.spec.service_account_name
            and pod.metadata.deletion_timestamp is None
            and pod.status.phase == "Running"
            and all(status.state is not None and status.state.running for status in pod.status.container_statuses)
            and not self._is_cordoned(pod)
        )

    def _is_cordoned(self, pod: Pod) -> bool:
        """A node that is not known counts as cordoned: nobody should rely on it."""
        node = self._node(pod.spec.node_name)
        return node is None or node.spec.unschedulable
