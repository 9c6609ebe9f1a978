"""Gangs: pods of one group are placed all or not at all.

Nothing is held while members are missing. Once enough are there, counting those that have a place already, the loop
books all it takes in one go and gives everything back if one does not fit. A group that has its minimum takes further
members one by one. A Binding that fails after others of the gang were bound cannot be undone: the member counts as
waiting again and comes back alone.

No I/O and no clock; placing is the loop's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from shoal.model.contract.groups import NAME_MINIMUM, PodGroup

#: Namespace and name of a group.
GangKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Gang:
    """A group and its members as they are now."""

    key: GangKey
    #: The largest size a member asks for.
    minimum: int
    #: Members without a place, in the order in which they are to be placed.
    waiting: tuple[str, ...]
    #: Members that have a place.
    bound: tuple[str, ...]

    @property
    def missing(self) -> int:
        """Members that must still be created, or freed of their gates, before any can be placed."""
        return max(0, self.minimum - len(self.bound) - len(self.waiting))

    @property
    def together(self) -> tuple[str, ...]:
        """Who is to be placed in one go, all or none: empty while members are missing, and once the group stands."""
        return () if self.missing else self.waiting[: max(0, self.minimum - len(self.bound))]

    @property
    def stands(self) -> bool:
        """The minimum has a place: each further member is placed for itself."""
        return len(self.bound) >= self.minimum


@dataclass(frozen=True, slots=True)
class Late:
    """A group that has lacked members for longer than it said: what to tell, and about whom."""

    key: GangKey
    pods: tuple[str, ...]
    message: str


class Gangs:
    """All groups. Tell of a pod while it waits, when it is bound, and when it is gone."""

    def __init__(self) -> None:
        self._groups: dict[GangKey, _Group] = {}
        self._keys: dict[str, GangKey] = {}
        #: Since when groups with pods waiting have lacked members.
        self._incomplete: dict[GangKey, float] = {}
        self._told: set[GangKey] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def wait(self, uid: str, namespace: str, group: PodGroup, now: float) -> GangKey:
        """A member waits for a place, its gates gone. Who came first goes first."""
        return self._enter(_Member(uid, group, bound=False), namespace, now)

    def bound(self, uid: str, namespace: str, group: PodGroup, now: float) -> GangKey:
        """A member has a node. One that has succeeded counts for as long as its pod exists; one that failed is gone."""
        return self._enter(_Member(uid, group, bound=True), namespace, now)

    def remove(self, uid: str, now: float) -> None:
        """A member is gone, or is a member no more."""
        key = self._keys.pop(uid, None)
        if key is not None:
            self._groups[key].leave(uid)
            self._review(key, now)

    def of(self, uid: str) -> Gang | None:
        """The group of a pod."""
        key = self._keys.get(uid)
        return None if key is None else self.gang(key)

    def standing(self, uid: str) -> Hashable:
        """A value that changes whenever the group of a pod changes by this pod; quick also for large groups."""
        key = self._keys.get(uid)
        if key is None:
            return None
        group = self._groups[key]
        return key, max(group.sizes), len(group.members), group.bound, group.members[uid].bound

    def gang(self, key: GangKey) -> Gang | None:
        group = self._groups.get(key)
        if group is None:
            return None
        members = group.members.values()
        return Gang(
            key,
            max(group.sizes),
            tuple(member.uid for member in members if not member.bound),
            tuple(member.uid for member in members if member.bound),
        )

    def late(self, now: float) -> list[Late]:
        """Groups that have lacked members for too long; each is returned once until it has been complete again."""
        found = []
        for key, since in self._incomplete.items():
            if key not in self._told and now >= since + self._timeout(key):
                self._told.add(key)
                found.append(self._late(key))
        return found

    def next_time(self) -> float | None:
        """When `late` may have something to tell."""
        times = (since + self._timeout(key) for key, since in self._incomplete.items() if key not in self._told)
        return min(times, default=None)

    # Parts

    def _enter(self, member: _Member, namespace: str, now: float) -> GangKey:
        key = namespace, member.group.name
        known = self._keys.get(member.uid)
        if known is not None and known != key:
            self.remove(member.uid, now)
        self._keys[member.uid] = key
        self._groups.setdefault(key, _Group()).enter(member)
        self._review(key, now)
        return key

    def _review(self, key: GangKey, now: float) -> None:
        group = self._groups[key]
        if not group.members:
            del self._groups[key]
        if group.lacks_members():
            self._incomplete.setdefault(key, now)
        else:
            self._incomplete.pop(key, None)
            self._told.discard(key)

    def _timeout(self, key: GangKey) -> int:
        """The longest a member asks for."""
        return max(self._groups[key].timeouts)

    def _late(self, key: GangKey) -> Late:
        gang = self.gang(key)
        assert gang is not None
        there = len(gang.bound) + len(gang.waiting)
        message = (
            f"pod group {_named(key)} has lacked members for {self._timeout(key)} s: {there} of {gang.minimum} are "
            f"there ({len(gang.waiting)} waiting, {len(gang.bound)} with a node), none is placed before {gang.missing} "
            f"more are created and free of gates. Create them, or lower {NAME_MINIMUM}"
        )
        return Late(key, gang.waiting, message)


@dataclass(frozen=True, slots=True)
class _Member:
    uid: str
    group: PodGroup
    bound: bool


@dataclass(slots=True)
class _Group:
    members: dict[str, _Member] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    timeouts: Counter[int] = field(default_factory=Counter)
    bound: int = 0

    def enter(self, member: _Member) -> None:
        """Add a member; one that is known keeps its place in the order."""
        self._count(self.members.get(member.uid), -1)
        self.members[member.uid] = member
        self._count(member, +1)

    def leave(self, uid: str) -> None:
        self._count(self.members.pop(uid), -1)

    def lacks_members(self) -> bool:
        """Whether members wait that cannot be placed because others are missing."""
        return self.bound < len(self.members) < max(self.sizes, default=0)

    def _count(self, member: _Member | None, sign: int) -> None:
        if member is None:
            return
        self.bound += sign * member.bound
        for counter, value in ((self.sizes, member.group.minimum), (self.timeouts, member.group.timeout)):
            counter[value] += sign
            if not counter[value]:
                del counter[value]


def _named(key: GangKey) -> str:
    return "/".join(key)
