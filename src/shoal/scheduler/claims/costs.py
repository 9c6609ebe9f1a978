"""What claims may cost the scheduler: per pod and decision, and per namespace over time.

Costs are counted in the units of `evaluation`, roughly 0.2 µs each, and never timed, so the same
claims on the same devices are refused everywhere. A namespace pays for its pods. What it spends is a debt that is
forgiven at a fixed rate; while the debt is as large as the limit of one decision, its pods with claims wait. The clock
is monotonic time in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.model.bounded_cache import BoundedCache
from shoal.scheduler.claims.errors import NamespaceCostError, PodCostError

#: Units that deciding on one pod may cost, and more of them for each device that nodes publish.
POD_LIMIT: Final = 200_000
POD_LIMIT_PER_DEVICE: Final = 50
#: Units a second that a namespace may spend in the long run: some hundredths of the scheduler's time.
NAMESPACE_RATE: Final = 60_000
#: Namespaces remembered; the one that spent nothing for longest is forgotten beyond it.
_NAMESPACES: Final = 10_000


class _Account:
    """The debt of one namespace."""

    __slots__ = ("debt", "time")

    def __init__(self, time: float) -> None:
        self.debt = 0.0
        self.time = time

    def at(self, time: float) -> float:
        self.debt = max(0.0, self.debt - NAMESPACE_RATE * max(0.0, time - self.time))
        self.time = time
        return self.debt


class Meter:
    """The units that one decision may still cost."""

    __slots__ = ("_account", "left", "limit")

    def __init__(self, limit: int = POD_LIMIT, account: _Account | None = None) -> None:
        self.limit = self.left = limit
        self._account = account

    def spend(self, cost: int) -> None:
        """Charge the pod and its namespace. Raises PodCostError."""
        self.left -= cost
        if self._account is not None:
            self._account.debt += cost
        if self.left < 0:
            raise PodCostError(
                f"deciding on its claims costs more than {self.limit} units: make their selectors simpler, or ask for "
                "fewer requests and alternatives"
            )

    @property
    def spent(self) -> int:
        """Units spent so far."""
        return self.limit - self.left


class ClaimCosts:
    """Starts decisions, and counts what namespaces spend on them, where there is a clock."""

    def __init__(self, clock: Callable[[], float] | None, devices: Callable[[], int]) -> None:
        self._clock = clock
        self._devices = devices
        self._accounts: BoundedCache[str, _Account] = BoundedCache(_NAMESPACES)

    def begin(self, namespace: str) -> Meter:
        """A meter for one decision on a pod of the namespace. Raises NamespaceCostError while it has to wait."""
        return Meter(self._limit(), self.check(namespace))

    def check(self, namespace: str) -> _Account | None:
        """The account of a namespace that need not wait; None without a clock. Raises NamespaceCostError."""
        if self._clock is None:
            return None
        now = self._clock()
        account = self._accounts.of(namespace, lambda: _Account(now))
        if account.at(now) >= self._limit():
            raise NamespaceCostError(
                f"deciding on claims of namespace {namespace} has cost more than {NAMESPACE_RATE} units a second: "
                "the pod is tried again later; make selectors of claims there simpler, or create fewer different ones"
            )
        return account

    def _limit(self) -> int:
        return POD_LIMIT + POD_LIMIT_PER_DEVICE * self._devices()

    def forgive(self) -> None:
        """Forget all debts."""
        self._accounts.clear()
