"""Looks at everything at each moment, where that costs nothing: what containers have, and what the scheduler counts."""

from tests.attacks import truth
from tests.attacks.arena import Given, Tenant
from tests.attacks.embedded import EmbeddedArena
from tests.attacks.play import Play


class Watched(Play):
    """An attack of which nothing may be seen to succeed for a moment."""

    def __init__(self, arena: EmbeddedArena, tenant: Tenant, neighbour: Tenant) -> None:
        super().__init__(arena, tenant, neighbour)
        self._embedded = arena
        #: What the scheduler has chosen for pods before anybody else wrote on them, in MiB by UID and card.
        self.placed: dict[str, dict[str, int]] = {}
        #: Those of them that are about to start.
        self.starting: set[str] = set()
        #: Containers that the scheduler has counted on their cards, by UID.
        self._counted: set[tuple[str, str]] = set()

    def look(self) -> None:
        before = self.arena.given()
        booked = self.booked()
        after = {(one.uid, one.container): one for one in self.arena.given()}
        assert not (found := truth.thefts(before, self.allowed)), found
        for one in before:
            assert set(one.limits) == set(self.placed.get(one.uid, one.limits)), f"{one} has other cards than chosen"
        stayed = [one for one in before if after.get((one.uid, one.container)) == one]
        self._look_at_books(stayed, booked)

    def booked(self) -> dict[str, int]:
        """What the scheduler counts as used of each card, in MiB by UUID."""
        return {self.cards(node)[index]: amount for (node, index), amount in self._embedded.booked().items()}

    def _look_at_books(self, stayed: list[Given], booked: dict[str, int]) -> None:
        """What the scheduler has once counted it counts while it runs."""
        for card, amount in booked.items():
            holders = {one.uid: _amount(one, card) for one in stayed if card in one.limits}
            counted = {uid: held for uid, held in holders.items() if (uid, card) in self._counted}
            counted |= {uid: self.placed[uid][card] for uid in self.starting if card in self.placed[uid]}
            assert sum(counted.values()) <= amount, f"{counted} run on card {card}, and {amount} MiB are counted"
            if sum(holders.values()) <= amount:
                self._counted |= {(uid, card) for uid in holders}

    def all_counted(self) -> bool:
        """Whether the scheduler counts all that run."""
        running, booked = self.arena.given(), self.booked()
        return all(
            sum(_amount(one, card) for one in running if card in one.limits) <= amount
            for card, amount in booked.items()
        )


def _amount(one: Given, card: str) -> int:
    limit = one.limits[card]
    return truth.CARD if limit is None else limit
