"""The pods of this node, from a watch of them alone, and what each holds of the cards.

A pod's record counts as the agent first accepted it; once a container was given its cards, those count. A later change
of the record has no effect here. A pod that was given cards holds them until the API server says that it is over and
none of its containers runs: its status alone is not enough, since others than kubelet may write it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from shoal.agent.errors import IdentityError, RefusedError
from shoal.agent.node.claims import HeldClaims
from shoal.agent.node.given import Given, GivenFiles
from shoal.agent.node.holdings import HeldTotals, PodHolding, given_holding, holding_of, names_gpus, used
from shoal.agent.nvidia.replicas import Slicing
from shoal.kube.client import Client
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.pod import ContainerStatus, Pod, PodSpec
from shoal.kube.reflector import Reflector
from shoal.kube.resources import PODS
from shoal.kube.store import Change
from shoal.model.allocation import Allocation, CardShare, Held
from shoal.model.bound import on_cards
from shoal.model.contract import kubernetes
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus
from shoal.model.request import NO_SHARE, Share


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod and what it holds."""

    pod: Pod
    holding: PodHolding
    #: Its containers were given their cards.
    given: bool = False
    #: No container of it runs or will run.
    over: bool = False

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.pod.metadata.uid

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.pod.metadata.namespace, self.pod.metadata.name

    @property
    def counts(self) -> bool:
        """Whether its allocation is counted on the cards: not if the pod is over or its record cannot be used."""
        return not self.over and not self.holding.problem

    def begun(self, container: str) -> bool:
        """Whether a container has been created, now or earlier."""
        status = self._status(container)
        return status is not None and bool(status.container_id)

    def _status(self, container: str) -> ContainerStatus | None:
        status = self.pod.status
        return next(
            (one for one in (*status.init_container_statuses, *status.container_statuses) if one.name == container),
            None,
        )


@dataclass(slots=True)
class PodChanges:
    """What has changed: pods by UID; those whose holding changed, came or ended; or everything on the node."""

    pods: set[str] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    everything: bool = False


@dataclass(frozen=True, slots=True)
class _Ending:
    """A pod that is over by the API server: its resource version then, and whether the object is deleted."""

    version: int
    gone: bool = False


class NodePods:
    """All pods bound to the node. `changed` is called after each change, and `news` tells which.

    `runs` says whether containers of the pod with a UID run, by what the node itself shows.
    """

    def __init__(
        self,
        client: Client,
        node: NodeGpus,
        *,
        unit: MemoryUnit,
        files: GivenFiles,
        runs: Callable[[str], bool],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.node = node
        #: How cards are cut into replicas now.
        self.slicing: Slicing | None = None
        #: The resource names that the node serves through claims.
        self._by_claims: frozenset[str] = frozenset()
        self._unit = unit
        self._files = files
        self._runs = runs
        self._changed = changed
        #: The sums over the pods and claims that count.
        self.totals = HeldTotals()
        #: What claims hold that are prepared on the node.
        self.claims = HeldClaims()
        self._known: dict[str, NodePod] = {}
        #: By card, the UIDs of the pods that are not over and have it in their allocation.
        self._on_card: dict[str, set[str]] = {}
        #: By resource, the UIDs of the pods that are not over and of which a container with it was created.
        self._using: dict[str, set[str]] = {}
        self._news = PodChanges()
        #: By UID, decisions of the agent that the watch has not shown yet.
        self._assumed: dict[str, Allocation] = {}
        #: By UID, the first accepted record of pods that were given nothing yet.
        self._first: dict[str, Allocation] = {}
        #: By UID, what pods were given.
        self._given: dict[str, Allocation] = {}
        #: By UID, pods that are over by the API server and may still run.
        self._ending: dict[str, _Ending] = {}
        #: Set while containers of such a pod run.
        self.ending = asyncio.Event()
        self._lists = 0
        self._held: dict[str, tuple[CardShare, ...]] = {}
        self._as_of = 0
        #: Counts the changes of `held`.
        self.held_version = 0
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self.reflector: Reflector[Pod] = Reflector(
            client, PODS, fields=f"spec.nodeName={node.name}", consumers=[self.on_pod]
        )

    def __iter__(self) -> Iterator[NodePod]:
        """The pods that are not over."""
        return (known for known in self._known.values() if not known.over)

    def get(self, uid: str) -> NodePod | None:
        """The pod with a UID."""
        return self._known.get(uid)

    def alive(self, uid: str) -> bool:
        """Whether there is a pod with a UID that is not over."""
        known = self._known.get(uid)
        return known is not None and not known.over

    def on_card(self, uuid: str) -> Iterator[NodePod]:
        """The pods that are not over and have a card in their allocation."""
        return (self._known[uid] for uid in self._on_card.get(uuid, ()))

    def resources_in_use(self) -> Iterator[str]:
        """The resources of containers that were created and can be started again."""
        return (resource for resource, uids in self._using.items() if uids)

    def hold_claim(self, uid: str, cards: Sequence[CardShare], partitions: Collection[str] = ()) -> None:
        """Count what a claim holds from now on: shares of cards, and MIG partitions by UUID."""
        self.totals.put(f"claim/{uid}", self.claims.put(uid, self.node.name, cards, partitions))
        self._claims_changed(uid)

    def release_claim(self, uid: str) -> None:
        """A claim holds nothing any more."""
        self.totals.put(f"claim/{uid}", None)
        self.claims.drop(uid)
        self._claims_changed(uid)

    def _claims_changed(self, uid: str) -> None:
        self.held_version += 1
        self._news.holders.add(uid)
        self._changed()

    def taken(self, uuid: str, *, but: str = "") -> Share:
        """What containers were given of a card and what claims hold of it, without the pod or claim of one UID."""
        pods = (one.holding.held()[uuid] for one in self.on_card(uuid) if one.given and one.uid != but)
        return sum(pods, self.claims.on_card(uuid, but=but))

    def used(self, *, but: str, counted: bool = True) -> dict[str, Share]:
        """What pods, given or only decided on, and claims hold of each card, without the pod of one UID.

        `counted` leaves out pods whose record cannot be used.
        """
        total = used(one.holding for one in self if one.uid != but and (one.counts or not counted))
        for uuid in self.claims.cards():
            total[uuid] = total.get(uuid, NO_SHARE) + self.claims.on_card(uuid)
        return total

    def news(self) -> PodChanges:
        """What has changed since this was asked last."""
        news, self._news = self._news, PodChanges()
        return news

    def not_done(self, news: PodChanges) -> None:
        """Changes that could not be acted on: `news` returns them again."""
        self._news.pods |= news.pods
        self._news.holders |= news.holders
        self._news.everything |= news.everything

    async def find(self, uid: str, seconds: float) -> NodePod:
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

    def serve_by_claims(self, names: frozenset[str]) -> None:
        """The node serves these resource names through claims from now on, and no others."""
        if names == self._by_claims:
            return
        self._by_claims = names
        for known in list(self._known.values()):
            self._take(known.pod)
        self._changed()

    def claimed_names(self) -> set[str]:
        """The names served through claims for which pods ask that are not over."""
        return {
            name
            for known in self
            for one in (*known.pod.spec.init_containers, *known.pod.spec.containers)
            for name in self._by_claims.intersection(one.resources.limits)
        }

    # What was given

    def give(self, known: NodePod) -> None:
        """Note that the pod's containers get the cards of its allocation.

        RefusedError if no file can be written, or if the pod was deleted meanwhile: nobody would take them back.
        """
        ending = self._ending.get(known.uid)
        if not self.alive(known.uid) or (ending is not None and ending.gone):
            raise RefusedError("the pod is over")
        allocation = known.holding.allocation
        if allocation is None or self._given.get(known.uid) == allocation:
            return
        self._files.write(Given(known.uid, *known.key, allocation))
        self._set_given(known.uid, allocation)
        self._take(known.pod)

    def take_back(self, uid: str) -> None:
        """Undo `give`: no container of the pod may start with its cards."""
        known, ending = self._known.get(uid), self._ending.get(uid)
        self._unset_given(uid)
        if known is None:
            return
        if ending is None:
            self._take(known.pod)
        else:  # its end was told before
            self._ending[uid] = ending
            self._put(uid, replace(known, given=False))

    def recall(self) -> None:
        """Read what was given before this process began. Deleted pods of which nothing runs are forgotten."""
        for given in self._files.read():
            if given.allocation.node != self.node.name:
                self._files.remove(given.uid)
                continue
            known = self._known.get(given.uid)
            self._set_given(given.uid, given.allocation)
            if known is not None:
                self._take(known.pod)
                continue
            meta = ObjectMeta(name=given.name, namespace=given.namespace, uid=given.uid)
            self._end(Pod(metadata=meta, spec=PodSpec(node_name=self.node.name)), 0, gone=True)
        self.look_for_ends()
        self._changed()

    def held(self) -> Held:
        """What the node's containers were given, as it is published for schedulers."""
        return Held(dict(self._held), self._as_of, self.claims.held())

    def look_for_ends(self) -> None:
        """Let go of pods that are over once none of their containers runs."""
        if self._lists != self.reflector.counters.lists:
            # The watch did not tell of pods that came and went before the list.
            self._lists = self.reflector.counters.lists
            self._look_at(self.reflector.resource_version)
            self._changed()
        for uid in list(self._ending):
            if not self._runs(uid):
                self._let_go(uid)
                self._changed()
        if not self._ending:
            self.ending.clear()

    def _set_given(self, uid: str, allocation: Allocation) -> None:
        self._given[uid] = allocation
        self._first.pop(uid, None)

    def _unset_given(self, uid: str) -> None:
        if self._given.pop(uid, None) is not None:
            self._files.remove(uid)
        self._ending.pop(uid, None)

    def _end(self, pod: Pod, version: int, *, gone: bool) -> None:
        """The pod is over by the API server. It holds its cards and devices while any container of it runs."""
        uid = pod.metadata.uid
        before = self._ending.get(uid, _Ending(0))
        self._ending[uid] = _Ending(max(version, before.version), gone or before.gone)
        given = uid in self._given
        self._put(uid, NodePod(pod, self._holding_given(pod) if given else self._holding(pod, again=False), given))
        if self._runs(uid):
            self.ending.set()
        else:
            self._let_go(uid)

    def _let_go(self, uid: str) -> None:
        end = self._ending[uid]
        known = self._known[uid]
        given = uid in self._given
        self._unset_given(uid)
        self._first.pop(uid, None)
        # A scheduler with a ledger entry for the pod waits for this. Neither annotations nor status can keep it away.
        if given or names_gpus(known.pod):
            self._look_at(str(end.version))
        self._put(uid, None if end.gone else replace(known, given=False, over=True))

    def _look_at(self, version: str) -> None:
        """Note that the pods are known as of this resource version."""
        if version.isascii() and version.isdigit() and int(version) > self._as_of:
            self._as_of = int(version)
            self.held_version += 1

    def _holding_given(self, pod: Pod) -> PodHolding:
        return given_holding(pod, on_cards(self._given[pod.metadata.uid], self.node))

    # What is written

    def assume(self, uid: str, allocation: Allocation | None) -> None:
        """Count a decision that is being written to the API server; None takes it back."""
        known = self._known.get(uid)
        if allocation is None or known is None:
            self._assumed.pop(uid, None)
        else:
            self._assumed[uid] = allocation
        if known is not None:
            self._take(known.pod)

    def written(self, pod: Pod) -> None:
        """Take over the API server's answer to a write of the agent, ahead of the watch."""
        assumed = self._assumed.pop(pod.metadata.uid, None)
        if assumed is not None and pod.metadata.uid in self._given:
            self._files.write(Given(pod.metadata.uid, pod.metadata.namespace, pod.metadata.name, assumed))
            self._given[pod.metadata.uid] = assumed
        elif assumed is not None:
            self._first[pod.metadata.uid] = assumed
        if pod.metadata.uid in self._known:
            self._take(pod)
            self._changed()

    def on_pod(self, change: Change[Pod]) -> None:
        """The watch tells of a change."""
        pod = change.object
        uid = pod.metadata.uid
        if change.new is None:
            self._assumed.pop(uid, None)
            self._end(pod, _number(change.version), gone=True)
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
        """Take over a version of a pod. What it holds is read anew if `again`, or if the pod says otherwise now."""
        uid = pod.metadata.uid
        known = self._known.get(uid)
        ending = self._ending.get(uid)
        # The last version of a deleted pod may say that it runs; it does not come back.
        if pod.status.phase not in kubernetes.FINISHED_PHASES and (ending is None or not ending.gone):
            self._ending.pop(uid, None)
            self._put(uid, NodePod(pod, self._holding(pod, again=again), given=uid in self._given))
        elif known is None or not known.over:
            self._end(pod, _number(pod.metadata.resource_version), gone=False)
        else:
            self._put(uid, replace(known, pod=pod))
        for future in self._waiting.pop(uid, ()):
            if not future.done():
                future.set_result(None)

    def _holding(self, pod: Pod, *, again: bool) -> PodHolding:
        uid = pod.metadata.uid
        before = self._known.get(uid)
        if before is not None and not again and (before.given or _same(before.pod, pod)) and uid not in self._assumed:
            return before.holding
        if uid in self._given and uid not in self._assumed:
            return self._holding_given(pod)
        first = self._first.get(uid)
        holding = holding_of(
            pod,
            node=self.node,
            unit=self._unit,
            slicing=self.slicing,
            decided=None if first is None else on_cards(first, self.node),
            by_claims=self._by_claims,
        )
        if uid in self._assumed:
            holding = replace(holding, allocation=self._assumed[uid], problem="")
        elif holding.allocation is not None and not holding.problem:
            self._first[uid] = holding.allocation
        return holding

    def _put(self, uid: str, known: NodePod | None) -> None:
        """Store what is known of a pod, and count what it holds."""
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
        used_before, used = _used(before), _used(known)
        for resource in used_before - used:
            self._using[resource].discard(uid)
        for resource in used - used_before:
            self._using.setdefault(resource, set()).add(uid)
        self.totals.put(uid, known.holding if known is not None and known.counts else None)
        self._show(uid, known)
        self._news.pods.add(uid)
        if _held(before) != _held(known):
            self._news.holders.add(uid)

    def _show(self, uid: str, known: NodePod | None) -> None:
        """Update what `held` tells of a pod."""
        cards: tuple[CardShare, ...] | None = None
        if known is not None and uid in self._ending and not known.given and not known.over and known.holding.resources:
            cards = ()  # kubelet has not released its devices, and it was given no card
        elif known is not None and known.given:
            names = {gpu.uuid: gpu.index for gpu in self.node.gpus}
            held = known.holding.held()
            cards = tuple([CardShare(uuid, names.get(uuid, 0), share) for uuid, share in held.items()])
        if self._held.get(uid) != cards:
            self.held_version += 1
            if cards is None:
                del self._held[uid]
            else:
                self._held[uid] = cards


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdigit() else 0


def _same(before: Pod, pod: Pod) -> bool:
    """Whether two versions of a pod must hold the same."""
    metas = (before.metadata, pod.metadata)
    return (
        before.spec == pod.spec and metas[0].annotations == metas[1].annotations and metas[0].labels == metas[1].labels
    )


def _held(known: NodePod | None) -> PodHolding | None:
    """What a pod that is not over holds."""
    return None if known is None or known.over else known.holding


def _used(known: NodePod | None) -> set[str]:
    """The resources of the containers of a pod that were created, unless it is over."""
    if known is None or known.over:
        return set()
    containers = (*known.pod.spec.init_containers, *known.pod.spec.containers)
    return {name for one in containers if known.begun(one.name) for name in one.resources.limits}


def _cards(known: NodePod | None) -> set[str]:
    holding = _held(known)
    return set() if holding is None else set(holding.held())
