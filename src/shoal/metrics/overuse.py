"""Who uses more of a card than was booked for it, for how long, and when an Event is due. Pure: no clock, no I/O.

An episode begins when a container uses more than its share. Once it has done so for the grace time, one Event is due.
The episode ends when the use has stayed clearly below the share for as long; a use that moves around the share goes on
being the same episode. Between two Events about one container and card there is a long time, whatever happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.metrics.snapshot import ContainerName
from shoal.model.bounded_cache import BoundedCache

#: Below this part of the share a container counts as back within it.
BACK_WITHIN: Final = 0.95
#: Seconds between two Events about one container on one card, and for which one that is not seen is remembered.
QUIET_SECONDS: Final = 600.0
#: Containers on cards that are followed; more than a node has.
MOST_FOLLOWED: Final = 4096


@dataclass(frozen=True, slots=True)
class Overuse:
    """An Event that is due: a container has used more of a card than was booked, for so many seconds."""

    container: ContainerName
    uuid: str
    requested_bytes: int
    used_bytes: int
    seconds: float


@dataclass(slots=True)
class _Followed:
    #: When it was seen last, and whether it was over then.
    seen: float
    over: bool = False
    #: Seconds over in this episode, and in all.
    episode: float = 0.0
    total: float = 0.0
    #: Since when it is back within its share.
    back: float | None = None
    told: bool = False
    #: When an Event was due last.
    last: float | None = None


class OveruseWatch:
    """The over-use of one node's containers. Times are those of a clock that nobody sets."""

    def __init__(self, *, grace: float, longest_gap: float) -> None:
        """`longest_gap` is the most that counts between two looks: nobody knows what happened in a longer one."""
        self._grace = grace
        self._longest_gap = longest_gap
        self._followed: BoundedCache[tuple[ContainerName, str], _Followed] = BoundedCache(MOST_FOLLOWED)

    def look(
        self, now: float, container: ContainerName, uuid: str, *, requested: int | None, used: int | None
    ) -> tuple[float, Overuse | None]:
        """What a container uses of a card now: the seconds it was over so far, and the Event if one is due.

        What is not known changes nothing.
        """
        key = (container, uuid)
        one = self._followed.get(key)
        if requested is None or used is None:
            return 0.0 if one is None else one.total, None
        if one is None:
            if used <= requested:
                return 0.0, None
            one = _Followed(now)
            self._followed.put(key, one)
        passed = min(max(0.0, now - one.seen), self._longest_gap)
        if now - one.seen > QUIET_SECONDS:
            one.over, one.told, one.episode, one.back = False, False, 0.0, None
        if used > requested:
            if one.over:
                one.episode += passed
                one.total += passed
            one.back = None
        elif used <= requested * BACK_WITHIN:
            one.back = now if one.back is None else min(one.back, now)
            if now - one.back >= self._grace:
                one.told, one.episode = False, 0.0
        else:
            one.back = None
        one.over, one.seen = used > requested, now
        if not self._is_due(one, now):
            return one.total, None
        one.told, one.last = True, now
        return one.total, Overuse(container, uuid, requested, used, one.episode)

    def _is_due(self, one: _Followed, now: float) -> bool:
        if one.told or not one.over or one.episode < self._grace:
            return False
        return one.last is None or now - one.last >= QUIET_SECONDS


def words(found: Overuse, index: int) -> str:
    """The message of the Event."""
    asked = f"{_size(found.requested_bytes)} were booked for it" if found.requested_bytes else "nothing was booked"
    return (
        f"container {found.container.container or '(not told yet)'} uses {_size(found.used_bytes)} of GPU{index} "
        f"({found.uuid}), {asked}, for {found.seconds:.0f} s: it may take memory that others have booked"
    )


def _size(amount: int) -> str:
    return f"{amount / 2**20:.0f} MiB"
