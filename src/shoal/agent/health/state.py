"""Which cards are unhealthy and why: rules, and a state machine over reports and looks. Pure; times are in seconds.

A fault begins with a report that counts, or with a look at a card that does not answer. It ends at a look at which the
card answers and has been quiet for the hold-off, never by time alone. Where the driver asks for a reset, that must have
been seen too: the card was away and is back, or its energy counter, which only grows, began anew.

Two lists adjust which reports count, in the words of NVIDIA's plugin: numbers of XID errors, `xids` for all of them, or
`all` for every check. What is enabled wins over what is disabled, and over the errors that applications cause
themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from shoal.agent.errors import AgentConfigError
from shoal.gpu.inventory import LOST
from shoal.gpu.protocol import CardEvent, EventKind
from shoal.model.backoff import Backoff
from shoal.model.contract import nvidia
from shoal.model.errors import shown

#: After these a card needs a reset; by NVIDIA's list of XID errors, not tried on hardware.
RESET_XIDS: Final = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140})
_ALL: Final = "all"
_XIDS: Final = "xids"
_MOST_XID: Final = 2**20
_MAX_LENGTH: Final = 4096


@dataclass(frozen=True, slots=True)
class HealthRules:
    """What counts as a fault. `hold` is in seconds; each return of a fault doubles it, up to `longest_hold`."""

    ignored: frozenset[int] = nvidia.IGNORED_XIDS
    #: Errors that always count.
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


def rules(*, disable: str = "", enable: str = "", hold: float = 60.0) -> HealthRules:
    """The rules of two lists such as `31,43`, `xids` or `all`."""
    off, off_words = _listed(disable, "what is disabled")
    on, on_words = _listed(enable, "what is enabled")
    every = _ALL in on_words
    all_xids = every or _XIDS in on_words
    return HealthRules(
        ignored=frozenset() if all_xids else nvidia.IGNORED_XIDS | off,
        enforced=on,
        xids=all_xids or not off_words & {_ALL, _XIDS},
        others=every or _ALL not in off_words,
        hold=hold,
        longest_hold=max(hold, HealthRules().longest_hold),
    )


def _listed(text: str, what: str) -> tuple[frozenset[int], frozenset[str]]:
    if len(text) > _MAX_LENGTH:
        raise AgentConfigError(f"the list of {what} has more than {_MAX_LENGTH} characters: write a few numbers")
    numbers, words = set(), set()
    for item in (one.strip().lower() for one in text.split(",")):
        if item in (_ALL, _XIDS):
            words.add(item)
        elif item.isascii() and item.isdigit() and len(item) < 8 and int(item) <= _MOST_XID:
            numbers.add(int(item))
        elif item:
            raise AgentConfigError(
                f"{shown(item)} in the list of {what} is no health check: "
                f"write numbers of XID errors, {_XIDS} or {_ALL}"
            )
    return frozenset(numbers), frozenset(words)


MAX_WORDS: Final = 512
#: The most faults that are kept of one card.
MAX_FAULTS: Final = 8
MAX_STRIKES: Final = 16
_XID_WORDS: Final = {
    48: "an uncorrectable memory error",
    62: "the card's controller halted",
    63: "memory rows are to be replaced",
    64: "memory rows could not be replaced",
    74: "an NVLink failed",
    79: "the card has fallen off the bus",
    92: "many corrected memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the card's system processor does not answer",
    120: "the card's system processor failed",
}


class Cause(StrEnum):
    """Why a card is unhealthy."""

    XID = "xid"
    ECC = "ecc"
    LOST = "lost"
    #: The driver has no answer about the card.
    SILENT = "silent"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a card."""

    cause: Cause
    #: When it was last reported or found.
    seen: float
    xid: int | None = None
    detail: str = ""
    #: The energy counter at the first look after the fault; a smaller value later shows a reset.
    energy_mj: int | None = None
    reset_seen: bool = False
    #: From before the present process.
    recalled: bool = False

    @property
    def key(self) -> tuple[Cause, int | None]:
        """Equal for repetitions of one fault."""
        return self.cause, self.xid

    @property
    def words(self) -> str:
        """The fault for a person."""
        if self.cause is Cause.XID:
            fix = "reset the card or reboot the node" if self.xid in RESET_XIDS else "see the kernel's log"
            known = _XID_WORDS.get(self.xid or 0)
            return f"XID {self.xid}{f', {known}' if known else ''}: {fix}"
        return {
            Cause.ECC: "uncorrectable memory errors: reset the card or reboot the node",
            Cause.LOST: LOST,
            Cause.SILENT: f"the driver does not answer for it: {self.detail}",
            Cause.ROWS: "the card has no spare memory rows left: replace it",
        }[self.cause]


@dataclass(frozen=True, slots=True)
class CardFaults:
    """The faults of a card; `strikes` counts how often it failed recently, also while it is healthy."""

    faults: tuple[Fault, ...] = ()
    strikes: int = 0
    #: When it was last unhealthy.
    last: float = 0.0

    @property
    def words(self) -> str:
        """The faults for a person."""
        text = "; ".join(fault.words for fault in self.faults)
        return text if len(text) <= MAX_WORDS else text[: MAX_WORDS - 1] + "…"


@dataclass(frozen=True, slots=True)
class Look:
    """What a card shows when it is asked. `silent` says why it did not answer; empty if it did."""

    silent: str = ""
    lost: bool = False
    energy_mj: int | None = None
    #: None: the card cannot replace rows of its memory.
    rows_pending: bool | None = None
    rows_failed: bool = False

    @property
    def answers(self) -> bool:
        """Whether the card can be asked."""
        return not self.silent and not self.lost


class CardHealth:
    """The cards of one node."""

    def __init__(self, rules: HealthRules, recalled: Mapping[str, CardFaults] | None = None) -> None:
        self._rules = rules
        self._cards = dict(recalled or {})

    @property
    def unhealthy(self) -> dict[str, CardFaults]:
        """The cards with faults, by UUID."""
        return {uuid: card for uuid, card in self._cards.items() if card.faults}

    @property
    def faults(self) -> dict[str, str]:
        """Why cards are unhealthy, by UUID."""
        return {uuid: card.words for uuid, card in self.unhealthy.items()}

    def report(self, event: CardEvent, now: float, cards: Iterable[str]) -> None:
        """Something was reported; without naming its card it concerns all of `cards`."""
        if not self._rules.counts(event):
            return
        cause = {EventKind.XID: Cause.XID, EventKind.LOST: Cause.LOST}.get(event.kind, Cause.ECC)
        for uuid in (event.uuid,) if event.uuid is not None else tuple(cards):
            self._add(uuid, Fault(cause, now, event.xid if cause is Cause.XID else None))

    def look(self, uuid: str, look: Look, now: float) -> None:
        """A card was asked how it is."""
        if not look.answers:
            if self._rules.others:
                self._add(uuid, Fault(Cause.LOST if look.lost else Cause.SILENT, now, detail=look.silent))
            return
        if look.rows_failed and self._rules.others:
            self._add(uuid, Fault(Cause.ROWS, now))
        card = self._cards.get(uuid)
        if card is None or not card.faults:
            return
        away = any(fault.cause is Cause.LOST for fault in card.faults)
        seen = [_looked_at(fault, look, away=away) for fault in card.faults]
        hold = self._hold(card.strikes)
        left = tuple(fault for fault in seen if not _over(fault, look, now, hold))
        self._cards[uuid] = replace(card, faults=left, last=now)

    def keep_only(self, uuids: Iterable[str]) -> None:
        """Forget cards that the machine does not have any more."""
        kept = set(uuids)
        self._cards = {uuid: card for uuid, card in self._cards.items() if uuid in kept}

    def _add(self, uuid: str, fault: Fault) -> None:
        card = self._cards.get(uuid, CardFaults())
        if not card.faults:
            recent = card.strikes and fault.seen - card.last < self._rules.longest_hold
            strikes = min(MAX_STRIKES, card.strikes + 1) if recent else 1
            card = CardFaults((), strikes, fault.seen)
        same = next((one for one in card.faults if one.key == fault.key), None)
        if same is not None:
            # A reset that was seen came before this report: another one is needed.
            again = replace(fault, energy_mj=same.energy_mj)
            faults = tuple(again if one is same else one for one in card.faults)
        else:
            faults = (*card.faults, fault)[-MAX_FAULTS:]
        self._cards[uuid] = replace(card, faults=faults, last=fault.seen)

    def _hold(self, strikes: int) -> float:
        return Backoff(self._rules.hold, self._rules.longest_hold).after(max(1, strikes))


def _looked_at(fault: Fault, look: Look, *, away: bool) -> Fault:
    """A fault with what a look at its card, which answers, tells about it."""
    anew = fault.energy_mj is not None and look.energy_mj is not None and look.energy_mj < fault.energy_mj
    # Without an energy counter no reset can be seen: a new process trusts the card, as NVIDIA's plugin does.
    unknowable = fault.recalled and fault.energy_mj is None and look.energy_mj is None
    base = look.energy_mj if fault.energy_mj is None or anew else fault.energy_mj
    return replace(fault, energy_mj=base, reset_seen=fault.reset_seen or away or anew or unknowable)


def _over(fault: Fault, look: Look, now: float, hold: float) -> bool:
    quiet = now - fault.seen >= hold
    return quiet and (fault.reset_seen or not _asks_for_reset(fault, look))


def _asks_for_reset(fault: Fault, look: Look) -> bool:
    if fault.cause is Cause.ECC:
        # The card can replace rows and none is pending: the error was contained.
        return look.rows_pending is not False
    return fault.cause is Cause.XID and fault.xid in RESET_XIDS
