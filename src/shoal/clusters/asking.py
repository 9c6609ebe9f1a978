"""The choice for a pod by asking: all clusters at once, then the best one for a hold of some seconds.

Pods of one template are of one class, and share a round of answers: clusters are asked how many such pods fit, and what
they said is used up pod by pod. A round is asked anew when a second has passed, when a member's room changes, or when
what was asked for is used up and more may fit; then with a larger count, so that 500 pods take some ten rounds and not
500. Every pod is held for at the one cluster that it goes to. A cluster that no longer holds for it is left out and the
next best is asked, so the answers need not be true for long: the holds are.

A cluster that has room and holds no more for this manager is taken all the same; what is sent there so counts against
its answers for as long as a hold would have lasted. A pod that is opened in its own cluster cannot be taken back: it
counts against that one's answers, also after its hold, for as long as it has no node.

Pods of one owner or gang stay together also when they come at the same moment: the first one decides, the others follow
it until `siblings` tells where it was sent. A gang goes only where as many as its minimum fit.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from shoal.clusters.choice import ClusterCandidate, ClusterChoice, Unasked, allowed_clusters, choose
from shoal.clusters.member import Member
from shoal.clusters.offers import Answer, OfferClient, asked_pod
from shoal.clusters.rooms import Need, Rooms, need_of, too_small
from shoal.clusters.siblings import gang_of, group_of
from shoal.kube.resources import Key, RawObject
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract.clusters import ClusterSelector, Offer, OfferRequest
from shoal.model.contract.gpushare import MemoryUnit

#: Seconds for which a cluster keeps the cards of a pod that was chosen to go there.
HOLD_SECONDS: Final = 10
#: Answers are used for so long.
FRESH_SECONDS: Final = 1.0
#: How the count grows that one round asks for, and up to where: finer, and scores follow what was sent.
_GROWTH: Final = 4
_MOST: Final = 64
#: The most that can be asked for at once.
_MOST_ASKED: Final = 1000
_CLASSES: Final = 1000
#: A pod that has no node in its own cluster after so long waits for something else than its turn.
_LATE_SECONDS: Final = 300.0
_OWNERS: Final = 10_000
#: A cluster has dropped a hold so long after its time.
_LAPSE_SECONDS: Final = 0.5

_NO_HOLD: Final = "has room, but holds no more offers for this manager now"


@dataclass
class _Round:
    """What the clusters said of a class of pods, and what is left of it."""

    count: int
    asked_at: float
    answers: dict[str, Answer]
    #: Clusters that had room: they may have more than they said.
    offering: set[str] = field(default_factory=set)

    def spent(self, needed: int, sent: Callable[[str], int]) -> bool:
        """Whether what a cluster offered is used up, so that it must be asked for more."""
        return any(_fits(self.answers[name]) - sent(name) < needed for name in self.offering)

    def take(self, cluster: str) -> None:
        """One of those that fit is going there."""
        answer = self.answers.get(cluster)
        if isinstance(answer, Offer):
            self.answers[cluster] = msgspec.structs.replace(answer, fits=max(0, answer.fits - 1))

    def close(self, cluster: str, answer: Answer) -> None:
        """It is full by now, or silent."""
        self.answers[cluster] = answer
        self.offering.discard(cluster)


@dataclass
class _Class:
    """Pods of one template: their latest round, and the count of the next."""

    count: int = 1
    round: _Round | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class _Together:
    """Pods of one owner or gang: where the last one was sent, and when."""

    cluster: str = ""
    at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True, order=True)
class _SentPod:
    """A pod that was told to go to a cluster, and may not have arrived."""

    #: When a hold was asked for: the cluster's own time of it begins later, so it never ends before this one.
    at: float
    cluster: str
    own: bool
    held: bool
    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class _Question:
    """A pod, and all that its choice depends on."""

    key: Key
    uid: str
    #: As clusters are shown it.
    pod: RawObject
    need: Need
    selector: ClusterSelector
    members: Mapping[str, Member]
    problems: Mapping[str, str]
    siblings: frozenset[str]
    tried: frozenset[str]
    #: The minimum of its gang.
    minimum: int

    @property
    def needed(self) -> int:
        """How many must fit: all that its gang needs, unless they are there already."""
        return 1 if self.siblings else self.minimum

    def asked(self) -> list[Member]:
        """Those that are asked."""
        allowed = allowed_clusters(self.selector, {*self.members, *self.problems}, siblings=self.siblings)
        return [self.members[name] for name in sorted(allowed & self.members.keys())]

    def choice(self, answers: Mapping[str, Answer]) -> ClusterChoice:
        """The choice by these answers."""
        found = [
            ClusterCandidate(name, answers.get(name, "not asked"), one.own, one.cost, one.preference)
            for name, one in self.members.items()
        ]
        silent = [ClusterCandidate(name, why) for name, why in self.problems.items() if name not in self.members]
        return choose(self.selector, [*found, *silent], siblings=self.siblings, needed=self.needed)


class AskingChoice:
    """Chooses clusters for pods by asking them. Use it within its `OfferClient`'s `async with`."""

    def __init__(
        self,
        offers: OfferClient,
        *,
        rooms: Rooms | None = None,
        problems: Callable[[], Mapping[str, str]] = dict,
        unit: MemoryUnit = MemoryUnit.GIB,
        hold_seconds: int = HOLD_SECONDS,
        fresh_seconds: float = FRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`problems`: clusters that do not answer now. `unit`: of `aliyun.com/gpu-mem`, the same in all clusters."""
        self._offers = offers
        self._rooms = rooms
        self._problems = problems
        self._unit = unit
        self._hold_seconds = hold_seconds
        self._fresh_seconds = fresh_seconds
        self._clock = clock
        self._classes: BoundedCache[bytes, _Class] = BoundedCache(_CLASSES)
        self._owners: BoundedCache[Hashable, _Together] = BoundedCache(_OWNERS)
        #: Whether a pod that was left at home still has no node there.
        self.waits_at_home: Callable[[Key, str], bool] = lambda key, uid: False
        #: Called when a pod that was refused may fit: what was on its way then has arrived, or is held for no more.
        self.on_lapse: Callable[[], None] = lambda: None
        self._lapse: asyncio.TimerHandle | None = None
        #: What was sent of late (a heap, the oldest first), and how much of it to clusters that did not hold for it.
        self._recently: list[_SentPod] = []
        self._unheld: Counter[str] = Counter()
        #: What was left at home, is held for no more and still waits, by UID.
        self._late: dict[str, _SentPod] = {}
        if rooms is not None:
            rooms.on_change(self._room_changed)

    async def __call__(
        self,
        pod: RawObject,
        selector: ClusterSelector,
        members: Mapping[str, Member],
        siblings: Collection[str] = (),
        *,
        tried: Collection[str] = (),
    ) -> ClusterChoice:
        """The choice. `siblings`: where pods of its owner or gang are; `tried`: where it found no node of late."""
        question = self._question(pod, selector, members, siblings, tried)
        group = None if selector.spread else group_of(pod.get("metadata") or {})
        if group is None:
            return await self._decide(question)
        together = self._owners.of(group, _Together)
        if question.siblings or self._recent(together):
            return await self._follow(together, question)
        async with together.lock:
            return await self._follow(together, question)

    async def look(
        self,
        pod: RawObject,
        selector: ClusterSelector,
        members: Mapping[str, Member],
        siblings: Collection[str] = (),
        *,
        tried: Collection[str] = (),
    ) -> ClusterChoice:
        """What would be chosen now. Nothing is held, and nothing of it counts for other choices."""
        question = self._question(pod, selector, members, siblings, tried)
        round_ = await self._round(self._classes.of(_key(question), _Class), question)
        return question.choice({name: self._counted(name, answer) for name, answer in round_.answers.items()})

    def _question(
        self,
        pod: RawObject,
        selector: ClusterSelector,
        members: Mapping[str, Member],
        siblings: Collection[str],
        tried: Collection[str],
    ) -> _Question:
        meta = pod.get("metadata") or {}
        gang = gang_of(meta)
        return _Question(
            key=(str(meta.get("namespace", "")), str(meta.get("name", ""))),
            uid=str(meta.get("uid", "")),
            pod=asked_pod(pod),
            need=need_of(pod, unit=self._unit),
            selector=selector,
            members=members,
            problems=self._problems(),
            siblings=frozenset(siblings),
            tried=frozenset(tried),
            minimum=1 if gang is None else min(gang.minimum, _MOST_ASKED),
        )

    async def _follow(self, together: _Together, question: _Question) -> ClusterChoice:
        """The choice of a pod with siblings, which go where the one before went."""
        recent = self._recent(together)
        # Where it was tried in vain nothing keeps it.
        if not question.siblings and recent and recent not in question.tried:
            question = replace(question, siblings=frozenset({recent}))
        choice = await self._decide(question)
        if choice.cluster:
            together.cluster, together.at = choice.cluster, self._clock()
        return choice

    def _recent(self, together: _Together) -> str:
        fresh = together.cluster and self._clock() - together.at <= self._hold_seconds
        return together.cluster if fresh else ""

    async def _decide(self, question: _Question) -> ClusterChoice:
        """Choose and hold, until a cluster holds; each time round one cluster falls out."""
        of_class = self._classes.of(_key(question), _Class)
        refused: dict[str, Answer] = {}
        while True:
            round_ = await self._round(of_class, question)
            said = {name: self._counted(name, answer) for name, answer in round_.answers.items()}
            choice = question.choice({**said, **refused})
            if not choice.cluster:
                self._expect_lapse()
            if not isinstance(said.get(choice.cluster), Offer):
                return choice  # none, or a trial
            round_.take(choice.cluster)
            asked_at = self._clock()
            answer = await self._hold(question.members[choice.cluster], question)
            if isinstance(answer, Offer) and answer.fits:
                if await self._is_sure(choice.cluster, question, held=answer.held):
                    self._note(choice.cluster, question, at=asked_at, held=answer.held)
                    return choice
                refused[choice.cluster] = Offer(0, why=_NO_HOLD)
            else:
                refused[choice.cluster] = answer
                round_.close(choice.cluster, answer)

    async def _is_sure(self, cluster: str, question: _Question, *, held: bool) -> bool:
        """Whether a cluster has room for the pod beside all that is on its way there without a hold.

        Where the pod has a hold there is something without one only if a hold of others has lapsed meanwhile.
        """
        member, sent = question.members[cluster], self._sent(cluster)
        if held and not sent:
            return True
        count = min(_MOST_ASKED, 2 * sent + _MOST)
        fits = _fits(await self._offers.ask(member, OfferRequest(question.pod, count=count)))
        sure = fits + held > self._sent(cluster)
        if held and not sure:
            await self._offers.ask(member, OfferRequest(question.pod, origin=question.uid))  # ends the hold
        return sure

    def _note(self, cluster: str, question: _Question, *, at: float, held: bool) -> None:
        own = question.members[cluster].own
        heapq.heappush(self._recently, _SentPod(at, cluster, own, held, question.key, question.uid))
        self._unheld[cluster] += not held

    def _expect_lapse(self) -> None:
        """Have `on_lapse` called when the last pod that is on its way now counts no more."""
        if self._recently and self._lapse is None:
            seconds = max(one.at for one in self._recently) + self._hold_seconds - self._clock()
            self._lapse = asyncio.get_running_loop().call_later(max(0.0, seconds) + _LAPSE_SECONDS, self._lapsed)

    def _lapsed(self) -> None:
        self._lapse = None
        self.on_lapse()

    def _sent(self, cluster: str) -> int:
        """How many were sent there for which nothing is held, and that may not have arrived."""
        now = self._clock()
        while self._recently and now - self._recently[0].at > self._hold_seconds:
            one = heapq.heappop(self._recently)
            self._unheld[one.cluster] -= not one.held
            if one.own:
                self._late[one.uid] = one
        for uid, one in list(self._late.items()):
            if now - one.at > _LATE_SECONDS or not self.waits_at_home(one.key, uid):
                del self._late[uid]
        return self._unheld[cluster] + sum(one.cluster == cluster for one in self._late.values())

    def _counted(self, cluster: str, answer: Answer) -> Answer:
        """An offer less what is on its way there."""
        sent = self._sent(cluster)
        if not sent or not isinstance(answer, Offer):
            return answer
        return msgspec.structs.replace(answer, fits=max(0, answer.fits - sent))

    async def _hold(self, member: Member, question: _Question) -> Answer:
        return await self._offers.ask(
            member, OfferRequest(question.pod, origin=question.uid, hold=self._hold_seconds if question.uid else 0)
        )

    async def _round(self, of_class: _Class, question: _Question) -> _Round:
        """The answers of the moment, asked now if need be; whoever comes meanwhile waits for the same answers."""
        async with of_class.lock:
            found = of_class.round
            if found is not None and self._clock() - found.asked_at <= self._fresh_seconds:
                if not found.spent(question.needed, self._sent):
                    return found
                of_class.count = min(_MOST, of_class.count * _GROWTH)
            else:
                of_class.count = max(1, of_class.count // _GROWTH)
            of_class.round = await self._ask_all(question, max(of_class.count, question.needed))
            return of_class.round

    async def _ask_all(self, question: _Question, count: int) -> _Round:
        asked_at = self._clock()
        members = question.asked()
        on_the_way = max((self._sent(member.name) for member in members), default=0)
        request = OfferRequest(question.pod, count=min(_MOST_ASKED, count + on_the_way))

        async def answer_of(member: Member) -> Answer:
            why = self._sieved(member, question.need)
            return Offer(0, why=why) if why else await self._offers.ask(member, request)

        answers = await asyncio.gather(*map(answer_of, members))
        said = {member.name: _tried(answer, member, question) for member, answer in zip(members, answers, strict=True)}
        offering = {name for name, answer in said.items() if _fits(self._counted(name, answer)) >= question.needed}
        return _Round(request.count, asked_at, said, offering)

    def _sieved(self, member: Member, need: Need) -> str:
        room = None if self._rooms is None else self._rooms.room_of(member.name)
        return "" if room is None else too_small(room, need)

    def _room_changed(self, cluster: str) -> None:
        """Answers in which that cluster is are not used any more: there may be more room now."""
        for of_class in self._classes.values():
            if of_class.round is not None and (
                cluster not in of_class.round.answers or not _fits(of_class.round.answers[cluster])
            ):
                of_class.round = None


def _fits(answer: Answer | None) -> int:
    return answer.fits if isinstance(answer, Offer) else 0


def _tried(answer: Answer, member: Member, question: _Question) -> Answer:
    return Unasked.TRIED if answer is Unasked.TRIAL and member.name in question.tried else answer


def _key(question: _Question) -> bytes:
    """The class of a pod: all that its answers depend on."""
    asked = [member.name for member in question.asked()]
    return msgspec.json.encode([question.pod, asked, sorted(question.tried), question.needed], order="deterministic")
