"""Runtimes without CDI: the answer to Allocate must hold the cards, and the call does not name the container.

So the answer is matched by amount, in the order pods were bound, and verified at PreStartContainer: kubelet's record
then tells which container got it. If two pods with equal requests got each other's answers, their annotations are
swapped too. A container whose allocation cannot be made to agree with its answer does not start.

Without CDI NVIDIA's runtime reads a container's environment, and there the pod's own words win over the plugin's. So a
container whose environment names cards does not start. What the image or an `envFrom` says cannot be seen here: for
those the toolkit has a setting, which `shoal doctor` looks at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shoal.agent.device_plugin.decisions import Decisions, is_inherited
from shoal.agent.device_plugin.edits import answer, given_cards
from shoal.agent.device_plugin.start_check import StartCheck
from shoal.agent.errors import RefusedError
from shoal.agent.node.checkpoint import DeviceRecord, KubeletCheckpoint
from shoal.agent.node.pods import NodePod, NodePods
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.resources import PODS, RawObject
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, nvidia, shoal
from shoal.model.errors import CodecError, shown
from shoal.model.gpu import NodeGpus
from shoal.model.request import NO_SHARE, fits

log = logging.getLogger(__name__)

#: How long kubelet may be ahead of the watch.
_WAIT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
#: kubelet has recorded an answer by then, unless it refused the pod.
_RECORDED_SECONDS: Final = 10.0
#: Values of NVIDIA_VISIBLE_DEVICES that name no card.
_NO_CARDS: Final = ("", "none", "void")
_LISTS: Final = ("containers", "initContainers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A container that can be given its cards; one with an equal request may get them instead."""

    uid: str
    container: str
    cards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnsweredCards:
    """The cards of an answer, and the container that kubelet recorded it for; empty before that."""

    cards: tuple[str, ...]
    uid: str = ""
    container: str = ""


def still_open(waiting: Iterable[Candidate], given: Iterable[AnsweredCards]) -> list[Candidate]:
    """The candidates whose cards no answer has given, in their order.

    An answer counts for its own container if it gave that one's cards.
    """
    left = list(waiting)
    strays = []
    for one in given:
        own = Candidate(one.uid, one.container, one.cards)
        if own in left:
            left.remove(own)
        else:
            strays.append(one)
    for one in strays:
        taken = next((candidate for candidate in left if candidate.cards == one.cards), None)
        if taken is not None:
            left.remove(taken)
    return left


def candidates(pods: Iterable[NodePod], resource: str, count: int) -> Iterator[Candidate]:
    """The containers that ask for so many units of a resource, in the order their pods were bound."""
    for known in sorted(pods, key=_bound):
        for name, asked in known.holding.resources.items():
            entry = known.holding.entry(name)
            units = 1 if resource == shoal.RESOURCE_SLOT else known.holding.counts.get(name)
            if entry is not None and not known.holding.problem and serves(resource, asked) and units == count:
                yield Candidate(known.uid, name, tuple(card.uuid for card in entry.cards))


def serves(resource: str, asked: str) -> bool:
    """Whether a container that asks for one resource gets devices of another: slots stand for memory."""
    return asked == (gpushare.RESOURCE_MEMORY if resource == shoal.RESOURCE_SLOT else resource)


def _bound(known: NodePod) -> tuple[int, str, str]:
    meta = known.pod.metadata
    try:
        state = gpushare.decode_state(meta.annotations)
    except CodecError:
        state = None  # the time of its creation decides
    return (0 if state is None else state.assume_time_ns, meta.creation_timestamp or "", meta.uid)


def unplaced(pods: Iterable[NodePod], resource: str, count: int) -> Iterator[NodePod]:
    """The pods without an allocation that have a container with so many units of a resource, the oldest first."""
    for known in sorted(pods, key=_bound):
        holding = known.holding
        if holding.allocation is None and not holding.problem and holding.request.containers:
            asked = holding.resources.items()
            if any(serves(resource, one) and holding.counts.get(name) == count for name, one in asked):
                yield known


def swapped(mine: NodePod, container: str, other: NodePod, other_container: str) -> tuple[Allocation, Allocation]:
    """The allocations of two pods with the cards of two of their containers exchanged."""
    if mine.uid == other.uid or mine.holding.allocation is None or other.holding.allocation is None:
        raise RefusedError("its cards were given to another container of the pod: delete the pod")
    a, b = mine.holding.entry(container), other.holding.entry(other_container)
    if a is None or b is None or not equal(a, b):
        raise RefusedError("its cards were given to a pod that asks for something else: delete the pod")
    return (
        _with(mine.holding.allocation, replace(a, cards=b.cards)),
        _with(other.holding.allocation, replace(b, cards=a.cards)),
    )


def moved(known: NodePod, container: str, cards: tuple[str, ...], node: NodeGpus) -> Allocation | None:
    """A pod's allocation with these cards for a container; None if they do not fit its request."""
    indices = {gpu.uuid: gpu.index for gpu in node.gpus}
    entry = known.holding.entry(container)
    if known.holding.allocation is None or entry is None or len(entry.cards) != len(cards) or set(cards) - set(indices):
        return None
    shares = tuple(CardShare(uuid, indices[uuid], card.share) for uuid, card in zip(cards, entry.cards, strict=True))
    return _with(known.holding.allocation, replace(entry, cards=shares))


def equal(a: ContainerAllocation, b: ContainerAllocation) -> bool:
    """Whether two containers ask for the same."""
    shares_a, shares_b = ([card.share for card in entry.cards] for entry in (a, b))
    return shares_a == shares_b and a.memory_limit_mib == b.memory_limit_mib


def _with(allocation: Allocation, entry: ContainerAllocation) -> Allocation:
    return replace(
        allocation, containers=tuple(entry if one.name == entry.name else one for one in allocation.containers)
    )


@dataclass(frozen=True, slots=True)
class _Pending:
    """An answer that kubelet has not recorded yet."""

    resource: str
    ids: frozenset[str]
    given: AnsweredCards
    until: float


class MatchByAmount:
    """Answers Allocate with the cards of the container that is most likely meant, and verifies it later."""

    def __init__(
        self,
        client: Client,
        pods: NodePods,
        checkpoint: KubeletCheckpoint,
        check: StartCheck,
        decisions: Decisions,
        *,
        by_mounts: bool,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._pods = pods
        self._checkpoint = checkpoint
        self._check = check
        self._decisions = decisions
        self._by_mounts = by_mounts
        self._clock = clock
        self._pending: list[_Pending] = []
        self._one_at_a_time = asyncio.Lock()

    async def allocate(self, resource: str, ids: Sequence[str]) -> api.ContainerAllocateResponse:
        """The cards of the pod that has waited longest for so many devices. RefusedError if none waits."""
        async with self._one_at_a_time:
            end = self._clock() + _WAIT_SECONDS
            while (candidate := await self._next(resource, len(ids))) is None:
                if self._clock() > end:
                    raise RefusedError(f"no pod on this node waits for {len(ids)} of {resource} with cards chosen")
                await asyncio.sleep(_LOOK_SECONDS)
            known = self._pods.get(candidate.uid)
            entry = None if known is None else known.holding.entry(candidate.container)
            if known is None or entry is None:
                raise RefusedError("the pod that waited is gone")
            response = answer(entry, self._check.edits(known, entry), by_mounts=self._by_mounts)
            until = self._clock() + _RECORDED_SECONDS
            self._pending.append(_Pending(resource, frozenset(ids), AnsweredCards(candidate.cards), until))
            return response

    async def _next(self, resource: str, count: int) -> Candidate | None:
        """The container that is next. For pods that came without an allocation one is made."""
        waiting = still_open(candidates(self._pods, resource, count), self._given(resource))
        if waiting or not self._decisions.chooses:
            return waiting[0] if waiting else None
        for known in unplaced(self._pods, resource, count):
            await self._decisions.decided(known)
            waiting = still_open(candidates(self._pods, resource, count), self._given(resource))
            if waiting:
                return waiting[0]
        return None

    def _given(self, resource: str) -> list[AnsweredCards]:
        """The answers so far: those that kubelet recorded for pods that are not over, and those not recorded yet."""
        alive = {known.uid for known in self._pods}
        records = [one for one in self._checkpoint.records() if one.resource == resource and one.pod_uid in alive]
        given = [AnsweredCards(self._cards(one), one.pod_uid, one.container) for one in records]
        recorded = [(one.ids, found.cards) for one, found in zip(records, given, strict=True)]
        now = self._clock()
        self._pending = [
            one
            for one in self._pending
            if one.until > now and (one.resource != resource or (one.ids, one.given.cards) not in recorded)
        ]
        return given + [one.given for one in self._pending if one.resource == resource]

    def _cards(self, record: DeviceRecord) -> tuple[str, ...]:
        return given_cards(record.response(), self._pods.node)

    async def refuse_own_choice(self, known: NodePod, container: str) -> None:
        """RefusedError for a container whose environment names cards. The pod is read in full: nobody else needs it."""
        namespace, name = known.key
        try:
            found = await self._client.list(PODS.raw, namespace=namespace, fields=f"metadata.name={name}")
        except KubeError as error:
            raise RefusedError(f"the environment of container {shown(container)} cannot be read: {error}") from error
        if any(chooses(pod, container) for pod in found.items if pod["metadata"].get("uid") == known.uid):
            raise RefusedError(
                f"container {shown(container)} sets {nvidia.ENV_VISIBLE_DEVICES}, and so would choose cards itself: "
                "remove it, and ask for GPUs by resources"
            )

    async def verify(self, known: NodePod, record: DeviceRecord) -> None:
        """Make the pod's allocation agree with the recorded answer. RefusedError if that is not possible."""
        async with self._one_at_a_time:
            known = self._pods.get(known.uid) or known
            entry = known.holding.entry(record.container)
            response = record.response()
            cards = self._cards(record)
            if entry is not None and cards != tuple(card.uuid for card in entry.cards):
                await self._swap(known, record, cards)
                known = self._pods.get(known.uid) or known
            entry = self._check.entry(known, record.container)
            if is_inherited(record):
                return  # another plugin made its environment; the cards agree
            wanted = answer(entry, self._check.edits(known, entry), by_mounts=self._by_mounts)
            if not cards or any(response.envs.get(name) != value for name, value in wanted.envs.items()):
                raise RefusedError(
                    f"container {shown(record.container)} would get another environment than its allocation says: "
                    "delete the pod"
                )

    async def _swap(self, known: NodePod, record: DeviceRecord, cards: tuple[str, ...]) -> None:
        """Exchange allocations with the container whose cards this one got."""
        resource = record.resource
        count = len(record.ids)
        mine = [one for one in self._checkpoint.records() if one.resource == resource]
        true = {(one.pod_uid, one.container): self._cards(one) for one in mine if one is not record}
        for candidate in candidates(self._pods, resource, count):
            if (
                candidate.uid == known.uid
                or candidate.cards != cards
                or true.get((candidate.uid, candidate.container)) == candidate.cards
            ):
                continue  # itself, other cards, or a container whose answer agrees with its allocation
            other = self._pods.get(candidate.uid)
            if other is None:
                continue
            own, others = swapped(known, record.container, other, candidate.container)
            await self._decisions.write_down(other, others)
            await self._decisions.write_down(known, own)
            log.info("pods %s and %s got each other's cards: swapped", "/".join(known.key), "/".join(other.key))
            return
        # After an interrupted swap the cards belong to no allocation.
        corrected = moved(known, record.container, cards, self._pods.node)
        taken = self._pods.used(but=known.uid, counted=False)
        held = Allocation("", () if corrected is None else corrected.containers).held()
        room = all(
            fits(gpu, taken.get(gpu.uuid, NO_SHARE), held[gpu.uuid]) for gpu in self._pods.node.gpus if gpu.uuid in held
        )
        if corrected is None or not room:
            raise RefusedError(
                f"container {shown(record.container)} got cards {', '.join(cards) or 'of another plugin'}, which are "
                "not those of its allocation: delete the pod"
            )
        await self._decisions.write_down(known, corrected)


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
