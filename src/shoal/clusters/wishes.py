"""Which cluster a pod shall go to, and when it shall be taken back: asks those who know, and remembers refusals.

The ranking itself comes from whoever is passed in as `Choosing`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from shoal.clusters.choice import ClusterChoice, keti_lines
from shoal.clusters.copies import Reference, references
from shoal.clusters.errors import ChoiceError
from shoal.clusters.member import Member, MemberTable
from shoal.clusters.references import ReferenceCopies
from shoal.kube.errors import KubeError
from shoal.kube.resources import Key, RawObject
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract.clusters import ClusterSelector, selector_of
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, ModelError, shown
from shoal.model.manifest import read_pod
from shoal.model.pod import gpus_of

log = logging.getLogger(__name__)

#: Pods whose refusals are remembered, and objects that were looked for.
_REMEMBERED: Final = 20_000
_LOOKED_SECONDS: Final = 30.0
_MOST_NAMES: Final = 20

# Why a pod waits: the reason of its condition and of its Event
UNREADABLE: Final = "UnreadableRequest"
UNKNOWN_CLUSTER: Final = "UnknownCluster"
NO_CLUSTER: Final = "NoCluster"
NOT_ASKED: Final = "NotAsked"


class Choosing(Protocol):
    """Ranks the members for a pod. Raises ChoiceError or KubeError if it cannot tell now."""

    async def __call__(
        self, pod: RawObject, selector: ClusterSelector, members: Mapping[str, Member], siblings: Collection[str] = ()
    ) -> ClusterChoice:
        """The choice among these members, by name; none is a choice too. `siblings`: where pods of its group are."""
        ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """The member that a pod shall go to, or why there is none."""

    member: Member | None
    reason: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Refusal:
    until: float
    why: str


class Wishes:
    """What is wished for each pod."""

    def __init__(
        self,
        members: MemberTable,
        choosing: Choosing,
        siblings: Callable[[Key], Collection[str]],
        copies: ReferenceCopies,
        *,
        is_silent: Callable[[str], bool] = lambda cluster: False,
        refused_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """`siblings`: the identities of the clusters with pods of the same gang or controller.

        `is_silent`: whether the cluster of this identity is known not to answer.
        """
        self._is_silent = is_silent
        self._siblings = siblings
        self._members = members
        self._choosing = choosing
        self._copies = copies
        self._refused_seconds = refused_seconds
        self._clock = clock
        self._refusals: BoundedCache[str, dict[str, _Refusal]] = BoundedCache(_REMEMBERED)
        self._looked: BoundedCache[tuple[str, str, Reference], float] = BoundedCache(_REMEMBERED)

    def refused(self, uid: str, member: Member, why: str) -> None:
        """Do not try this member for the pod with this UID again so soon."""
        log.info("pod %s: cluster %s is ruled out: %s", uid, member.name, why)
        refusal = _Refusal(self._clock() + self._refused_seconds, why)
        self._refusals.of(uid, dict)[member.uid] = refusal

    def is_refused(self, uid: str, cluster: str) -> bool:
        """Whether a cluster is ruled out for a pod."""
        refusal = (self._refusals.get(uid) or {}).get(cluster)
        return refusal is not None and refusal.until > self._clock()

    async def choose(self, key: Key, pod: RawObject, *, without: str = "") -> Chosen:
        """The member for a pod, which has all that the pod names; not the one with the identity `without`."""
        try:
            selector = selector_of(pod["metadata"].get("annotations") or {})
        except CodecError as error:
            return Chosen(None, UNREADABLE, str(error))
        members, uid = self._members.members, str(pod["metadata"]["uid"])
        unknown = _unknown(selector, members, self._members.problems)
        if unknown:
            return Chosen(None, UNKNOWN_CLUSTER, unknown)
        needed = references(pod)
        for _ in range(len(members) + 1):
            open_to = {
                name: one
                for name, one in members.items()
                if one.uid != without and not self.is_refused(uid, one.uid) and not self._is_silent(one.uid)
            }
            if not open_to or (selector.pinned and selector.pinned not in open_to):
                return Chosen(None, NO_CLUSTER, self._all_refused(uid, members))
            there = self._siblings(key)
            beside = {name for name, one in open_to.items() if one.uid in there or name in there}
            try:
                choice = await self._choosing(pod, selector, open_to, beside)
            except (ChoiceError, KubeError) as error:
                return Chosen(None, NOT_ASKED, str(error))
            member = open_to.get(choice.cluster)
            if member is None:
                return Chosen(None, NO_CLUSTER, _why_none(choice) or self._all_refused(uid, members))
            try:
                missing = "" if member.own else await self._missing(member, key[0], needed)
            except KubeError as error:
                return Chosen(None, NOT_ASKED, str(error))
            if not missing:
                log.info("pod %s/%s: cluster %s: %s", *key, member.name, choice.why or "chosen")
                for line in keti_lines(choice, gpus=_gpus(pod)):
                    log.info("%s", line)
                return Chosen(member)
            self.refused(uid, member, missing)
        return Chosen(None, NO_CLUSTER, self._all_refused(uid, members))

    def _all_refused(self, uid: str, members: Mapping[str, Member]) -> str:
        refusals = self._refusals.get(uid) or {}
        said = [f"{one.name}: {refusals[one.uid].why}" for one in members.values() if one.uid in refusals]
        said += [f"{one.name}: it does not answer" for one in members.values() if self._is_silent(one.uid)]
        return "; ".join(said[:_MOST_NAMES]) or "no cluster is joined: join one with `shoal clusters join`"

    async def _missing(self, member: Member, namespace: str, needed: tuple[Reference, ...]) -> str:
        """What a pod names and may not or cannot use in the member, in words; empty if nothing, or nobody may look."""
        lacking = []
        for one in needed:
            place = (member.uid, namespace, one)
            looked = self._looked.get(place)
            if looked is not None and looked > self._clock():
                continue
            lack = await self._copies.lacks(member, namespace, one)
            if lack:
                # What is missing may come any moment: it is looked for each time.
                lacking.append(lack)
            else:
                self._looked.put(place, self._clock() + _LOOKED_SECONDS)
        if not lacking:
            return ""
        return f"in namespace {namespace}: {'; '.join(lacking[:_MOST_NAMES])}"


def _unknown(selector: ClusterSelector, members: Mapping[str, Member], problems: Mapping[str, str]) -> str:
    """The names a pod asks for that no joined cluster has, in words; empty if one of them can be had."""
    asked = {selector.pinned} if selector.pinned else set(selector.only)
    if not asked or asked & members.keys():
        return ""
    known = ", ".join(sorted(members)[:_MOST_NAMES]) or "none"
    troubled = [f"{name}: {problems[name]}" for name in sorted(asked & problems.keys())]
    named = ", ".join(shown(name) for name in sorted(asked)[:_MOST_NAMES])
    return "; ".join([f"no joined cluster is called {named}; known are: {known}", *troubled[:_MOST_NAMES]])


def _gpus(pod: RawObject) -> int:
    try:
        return sum(one.gpus for one in gpus_of(read_pod(pod), unit=MemoryUnit.GIB).containers)
    except ModelError:
        return 0


def _why_none(choice: ClusterChoice) -> str:
    ranked = "; ".join(f"{one.cluster}: {one.why}" for one in choice.ranking[:_MOST_NAMES])
    return "; ".join(part for part in (choice.why, ranked) if part)
