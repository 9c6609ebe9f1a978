"""Who may be connected. When all places are taken, a newcomer gets that of whoever has the most and waits the longest.

So one caller cannot keep the others out by holding connections open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class Place:
    """One connection, from its first packet on. `close` ends it, in whatever state it is."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        #: Being answered: not to be taken away.
        self.busy = False
        self.close: Callable[[], object] = lambda: None


class Places:
    """All places, the oldest first."""

    def __init__(self, total: int, per_peer: int) -> None:
        self._total = total
        self._per_peer = per_peer
        self._places: dict[Place, None] = {}
        self._peers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def take(self, peer: str) -> Place | None:
        """A place for a newcomer; None when it gets none."""
        if self._peers[peer] >= self._per_peer:
            return None
        if len(self._places) >= self._total and not self._make_room(peer):
            return None
        place = Place(peer)
        self._places[place] = None
        self._peers[peer] += 1
        return place

    def leave(self, place: Place) -> None:
        """The connection is over; told more than once is no matter."""
        if place in self._places:
            del self._places[place]
            self._peers[place.peer] -= 1
            if not self._peers[place.peer]:
                del self._peers[place.peer]

    def _make_room(self, peer: str) -> bool:
        crowd, count = self._peers.most_common(1)[0]
        if count <= self._peers[peer] + 1:
            return False
        victim = next((place for place in self._places if place.peer == crowd and not place.busy), None)
        if victim is None:
            return False
        self.leave(victim)
        victim.close()
        return True
