"""Which reports of a card make it unhealthy, and how long it must be quiet before it is trusted again. Pure.

Two lists adjust what NVIDIA's plugin does, in its own words: numbers of XID errors, `xids` for all of them, or `all`
for every check. What is enabled wins over what is disabled, and over the errors that applications cause themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.agent.errors import ConfigError
from shoal.gpu.protocol import CardEvent, EventKind
from shoal.model.contract import nvidia
from shoal.model.errors import shown

#: After these a card needs a reset; by NVIDIA's list of XID errors, not tried on hardware.
RESET_XIDS: Final = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140})
_ALL: Final = "all"
_XIDS: Final = "xids"
_MOST_XID: Final = 2**20
_MAX_LENGTH: Final = 4096


@dataclass(frozen=True, slots=True)
class Rules:
    """What counts as a fault. `hold` is in seconds; each return of a fault doubles it, up to `longest_hold`."""

    ignored: frozenset[int] = nvidia.IGNORED_XIDS
    #: Errors that count whatever else is said.
    enforced: frozenset[int] = frozenset()
    xids: bool = True
    #: Memory errors, lost cards and cards that do not answer.
    others: bool = True
    hold: float = 60.0
    longest_hold: float = 3600.0

    def counts(self, event: CardEvent) -> bool:
        """Whether an event makes its card unhealthy."""
        if event.kind is EventKind.XID:
            number = -1 if event.xid is None else event.xid
            return number in self.enforced or (self.xids and number not in self.ignored)
        return self.others and event.kind in (EventKind.ECC_UNCORRECTED, EventKind.LOST)

    @property
    def any(self) -> bool:
        """Whether there is anything to watch for."""
        return self.xids or self.others or bool(self.enforced)


def rules(*, disable: str = "", enable: str = "", hold: float = 60.0) -> Rules:
    """The rules of two lists such as `31,43`, `xids` or `all`."""
    off, off_words = _listed(disable, "what is disabled")
    on, on_words = _listed(enable, "what is enabled")
    every = _ALL in on_words
    all_xids = every or _XIDS in on_words
    return Rules(
        ignored=frozenset() if all_xids else nvidia.IGNORED_XIDS | off,
        enforced=on,
        xids=all_xids or not off_words & {_ALL, _XIDS},
        others=every or _ALL not in off_words,
        hold=hold,
        longest_hold=max(hold, Rules().longest_hold),
    )


def _listed(text: str, what: str) -> tuple[frozenset[int], frozenset[str]]:
    if len(text) > _MAX_LENGTH:
        raise ConfigError(f"the list of {what} has more than {_MAX_LENGTH} characters: write a few numbers")
    numbers, words = set(), set()
    for item in (one.strip().lower() for one in text.split(",")):
        if item in (_ALL, _XIDS):
            words.add(item)
        elif item.isascii() and item.isdigit() and len(item) < 8 and int(item) <= _MOST_XID:
            numbers.add(int(item))
        elif item:
            raise ConfigError(
                f"{shown(item)} in the list of {what} is no health check: "
                f"write numbers of XID errors, {_XIDS} or {_ALL}"
            )
    return frozenset(numbers), frozenset(words)
