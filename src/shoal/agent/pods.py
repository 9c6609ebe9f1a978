"""The pods of this node: one watch of them alone, and what each holds of the cards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from shoal.agent.errors import IdentityError
from shoal.agent.holdings import Holding, holding_of
from shoal.agent.replicas import Slicing
from shoal.kube.client import Client
from shoal.kube.objects.pod import ContainerStatus, Pod
from shoal.kube.reflector import Reflector
from shoal.kube.resources import PODS, manifest_of
from shoal.kube.store import Change
from shoal.model.allocation import Allocation
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus

_OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Known:
    """A pod and what it holds."""

    pod: Pod
    holding: Holding

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.pod.metadata.uid

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.pod.metadata.namespace, self.pod.metadata.name

    @property
    def over(self) -> bool:
        """No container of it runs or will run."""
        return self.pod.status.phase in _OVER

    @property
    def counts(self) -> bool:
        """Whether its allocation takes room: one that is not the pod's own is not given, unless that was before."""
        return not self.over and (not self.holding.problem or self.any_begun)

    def begun(self, container: str) -> bool:
        """Whether a container has been created, now or earlier."""
        status = self._status(container)
        return status is not None and bool(status.container_id)

    @property
    def any_begun(self) -> bool:
        """Whether any container that asks for cards has been created."""
        return any(self.begun(name) for name in self.holding.resources)

    def _status(self, container: str) -> ContainerStatus | None:
        status = self.pod.status
        return next(
            (one for one in (*status.init_container_statuses, *status.container_statuses) if one.name == container),
            None,
        )


class NodePods:
    """All pods bound to the node. `changed` is called after each change."""

    def __init__(
        self, client: Client, node: NodeGpus, *, unit: MemoryUnit, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.node = node
        #: How cards are cut into replicas now.
        self.slicing: Slicing | None = None
        self._unit = unit
        self._changed = changed
        self._known: dict[str, Known] = {}
        #: Decisions of the agent's own that the watch has not shown yet.
        self._assumed: dict[str, Allocation] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self.reflector: Reflector[Pod] = Reflector(
            client, PODS, fields=f"spec.nodeName={node.name}", consumers=[self._on_pod]
        )

    def __iter__(self) -> Iterator[Known]:
        """The pods that are not over."""
        return (known for known in self._known.values() if not known.over)

    def get(self, uid: str) -> Known | None:
        """The pod with a UID."""
        return self._known.get(uid)

    async def find(self, uid: str, seconds: float) -> Known:
        """The pod with a UID; kubelet may know it a moment before the watch does."""
        if uid not in self._known:
            future = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(uid, []).append(future)
            try:
                async with asyncio.timeout(seconds):
                    await future
            except TimeoutError as error:
                raise IdentityError(
                    f"the API server has not told of the pod with UID {uid} for {seconds:.0f} s: it will be asked again"
                ) from error
            finally:
                self._forget(uid, future)
        return self._known[uid]

    def _forget(self, uid: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(uid, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(uid, None)

    def move_to(self, node: NodeGpus, slicing: Slicing | None = None) -> None:
        """The node's cards have changed, or how they are cut."""
        self.node = node
        self.slicing = slicing
        for known in list(self._known.values()):
            self._take(known.pod)
        self._changed()

    def assume(self, uid: str, allocation: Allocation | None) -> None:
        """Count a decision that is on its way to the API server; None takes it back."""
        known = self._known.get(uid)
        if allocation is None or known is None:
            self._assumed.pop(uid, None)
        else:
            self._assumed[uid] = allocation
        if known is not None:
            self._take(known.pod)

    def written(self, pod: Pod) -> None:
        """The API server's answer to a write of the agent's own: it counts before the watch tells of it."""
        self._assumed.pop(pod.metadata.uid, None)
        if pod.metadata.uid in self._known:
            self._take(pod)
            self._changed()

    def _on_pod(self, change: Change[Pod]) -> None:
        uid = change.object.metadata.uid
        if change.new is None:
            self._known.pop(uid, None)
            self._assumed.pop(uid, None)
        elif not self._is_older(change.new):
            self._take(change.new)
        self._changed()

    def _is_older(self, pod: Pod) -> bool:
        """Whether the watch is behind what the server has answered to a write."""
        known = self._known.get(pod.metadata.uid)
        if known is None:
            return False
        versions = [one.metadata.resource_version for one in (pod, known.pod)]
        return all(version.isdigit() for version in versions) and int(versions[0]) < int(versions[1])

    def _take(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        status = pod.status
        begun = {one.name for one in (*status.init_container_statuses, *status.container_statuses) if one.container_id}
        holding = holding_of(manifest_of(pod), node=self.node, unit=self._unit, slicing=self.slicing, begun=begun)
        if uid in self._assumed:
            holding = replace(holding, allocation=self._assumed[uid], problem="")
        self._known[uid] = Known(pod, holding)
        for future in self._waiting.pop(uid, ()):
            if not future.done():
                future.set_result(None)
