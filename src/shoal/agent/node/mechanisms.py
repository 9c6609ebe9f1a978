"""By which mechanism each resource name is served on this node: when a name changes over, and what that waits for.

A name changes when nobody holds it by the mechanism before: no pod with devices of it, or no claim made of it. From
the moment the node says that it is changing, schedulers send no more pods of that name; whoever is on the way by then
arrives within seconds, for which the change waits too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from shoal.model.contract.mechanisms import NAMES, Mechanism

#: How long nobody must have held a name, after the API server has shown that it is changing.
SETTLE_SECONDS: Final = 5.0


class NameMechanisms:
    """The mechanism of each name on one node."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: The names that are served by claims, also while they are about to change.
        self.by_claims: frozenset[str] = frozenset()
        self.states: dict[str, Mechanism] = {}
        #: By changing name, since when nobody holds it.
        self._free: dict[str, float] = {}

    @property
    def changing(self) -> bool:
        """Whether a name is about to change."""
        return any(one in (Mechanism.TO_CLAIMS, Mechanism.TO_DEVICES) for one in self.states.values())

    def recall(self, published: Mapping[str, Mechanism], *, devices: Collection[str], claims: Collection[str]) -> None:
        """Go on where an earlier agent was. Devices that pods have count more than what it wrote."""
        before = {name for name, one in published.items() if one in (Mechanism.CLAIMS, Mechanism.TO_DEVICES)}
        self.by_claims = frozenset(name for name in NAMES if name in {*before, *claims} and name not in devices)

    def look(
        self,
        wanted: Collection[str],
        published: Mapping[str, Mechanism],
        *,
        devices: Collection[str],
        claims: Collection[str],
    ) -> None:
        """Change what can be changed. `devices` and `claims` are the names that are held by them.

        `published` is what the API server shows of the node.
        """
        for name in NAMES:
            self.states[name] = self._state(name, name in wanted, published, claims if self._is(name) else devices)

    def _is(self, name: str) -> bool:
        return name in self.by_claims

    def _state(self, name: str, wanted: bool, published: Mapping[str, Mechanism], held: Collection[str]) -> Mechanism:
        if self._is(name) == wanted:
            self._free.pop(name, None)
            return Mechanism.CLAIMS if wanted else Mechanism.DEVICES
        changing = Mechanism.TO_CLAIMS if wanted else Mechanism.TO_DEVICES
        if name in held or published.get(name) is not changing:
            self._free.pop(name, None)
            return changing
        now = self._clock()
        if now - self._free.setdefault(name, now) < SETTLE_SECONDS:
            return changing
        del self._free[name]
        self.by_claims ^= {name}
        return Mechanism.CLAIMS if wanted else Mechanism.DEVICES
