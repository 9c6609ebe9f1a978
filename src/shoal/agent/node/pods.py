"""The pods of this node: one watch of them alone, and what each holds of the cards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from shoal.agent.errors import IdentityError
from shoal.agent.node.holdings import Holding, holding_of
from shoal.agent.node.tally import Tally
from shoal.agent.nvidia.replicas import Slicing
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


@dataclass(slots=True)
class News:
    """What has changed: pods by UID, those of them that came, ended or hold something else, or all there is."""

    pods: set[str] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    everything: bool = False


class NodePods:
    """All pods bound to the node. `changed` is called after each change, and `news` tells which."""

    def __init__(
        self, client: Client, node: NodeGpus, *, unit: MemoryUnit, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.node = node
        #: How cards are cut into replicas now.
        self.slicing: Slicing | None = None
        self._unit = unit
        self._changed = changed
        #: What those hold that count.
        self.tally = Tally()
        self._known: dict[str, Known] = {}
        #: By card, the UIDs of the pods that are not over and have it in their allocation.
        self._on_card: dict[str, set[str]] = {}
        self._news = News()
        #: Decisions of the agent's own that the watch has not shown yet.
        self._assumed: dict[str, Allocation] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self.reflector: Reflector[Pod] = Reflector(
            client, PODS, fields=f"spec.nodeName={node.name}", consumers=[self.on_pod]
        )

    def __iter__(self) -> Iterator[Known]:
        """The pods that are not over."""
        return (known for known in self._known.values() if not known.over)

    def get(self, uid: str) -> Known | None:
        """The pod with a UID."""
        return self._known.get(uid)

    def alive(self, uid: str) -> bool:
        """Whether there is a pod with a UID that is not over."""
        known = self._known.get(uid)
        return known is not None and not known.over

    def on_card(self, uuid: str) -> Iterator[Known]:
        """The pods that are not over and have a card in their allocation."""
        return (self._known[uid] for uid in self._on_card.get(uuid, ()))

    def news(self) -> News:
        """What has changed since this was asked last."""
        news, self._news = self._news, News()
        return news

    def not_done(self, news: News) -> None:
        """News that could not be acted on: they are told again with the next ones."""
        self._news.pods |= news.pods
        self._news.holders |= news.holders
        self._news.everything |= news.everything

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
        self._news.everything = True
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

    def on_pod(self, change: Change[Pod]) -> None:
        """The watch tells of a change."""
        uid = change.object.metadata.uid
        if change.new is None:
            self._assumed.pop(uid, None)
            self._put(uid, None)
        elif not self._is_older(change.new):
            self._take(change.new, again=False)
        self._changed()

    def _is_older(self, pod: Pod) -> bool:
        """Whether the watch is behind what the server has answered to a write."""
        known = self._known.get(pod.metadata.uid)
        if known is None:
            return False
        versions = [one.metadata.resource_version for one in (pod, known.pod)]
        return all(version.isdigit() for version in versions) and int(versions[0]) < int(versions[1])

    def _take(self, pod: Pod, *, again: bool = True) -> None:
        """Know a pod as it is now. What it holds is read `again`, or when what says so has changed."""
        uid = pod.metadata.uid
        before = self._known.get(uid)
        if before is not None and not again and _same(before.pod, pod):
            holding = before.holding
        else:
            holding = holding_of(
                manifest_of(pod), node=self.node, unit=self._unit, slicing=self.slicing, begun=_begun(pod)
            )
            if uid in self._assumed:
                holding = replace(holding, allocation=self._assumed[uid], problem="")
        self._put(uid, Known(pod, holding))
        for future in self._waiting.pop(uid, ()):
            if not future.done():
                future.set_result(None)

    def _put(self, uid: str, known: Known | None) -> None:
        """Know this of a pod from now on, and count what it holds."""
        before = self._known.get(uid)
        if known is None:
            self._known.pop(uid, None)
        else:
            self._known[uid] = known
        cards = _cards(before) | _cards(known)
        for uuid in cards - _cards(known):
            self._on_card[uuid].discard(uid)
        for uuid in cards - _cards(before):
            self._on_card.setdefault(uuid, set()).add(uid)
        self.tally.put(uid, known.holding if known is not None and known.counts else None)
        self._news.pods.add(uid)
        if _held(before) != _held(known):
            self._news.holders.add(uid)


def _begun(pod: Pod) -> set[str]:
    """The containers that have been created."""
    status = pod.status
    return {one.name for one in (*status.init_container_statuses, *status.container_statuses) if one.container_id}


def _same(before: Pod, pod: Pod) -> bool:
    """Whether two versions of a pod hold the same."""
    metas = (before.metadata, pod.metadata)
    return (
        before.spec == pod.spec
        and metas[0].annotations == metas[1].annotations
        and metas[0].labels == metas[1].labels
        and _begun(before) == _begun(pod)
    )


def _held(known: Known | None) -> Holding | None:
    """What a pod that is not over holds."""
    return None if known is None or known.over else known.holding


def _cards(known: Known | None) -> set[str]:
    holding = _held(known)
    return set() if holding is None else set(holding.held())
