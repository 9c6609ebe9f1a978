"""The health of one node's cards: remembered from the node's object, watched, and told in events about the node.

Faults outlive the agent in an annotation of the node, read again at the next start. What is remembered are the faults
that a look alone cannot find again, and what tells whether a reset came since. A card for which the driver had no
answer is looked at anew instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec

from shoal.agent.health.state import MAX_FAULTS, MAX_STRIKES, CardFaults, CardHealth, Cause, Fault, HealthRules
from shoal.agent.health.watch import HealthWatch
from shoal.agent.node.cards import NodeCards
from shoal.agent.node.object import NodeObject
from shoal.gpu.protocol import Survey
from shoal.kube.events import EventType, Recorder, reference_to
from shoal.kube.resources import NODES
from shoal.model.contract import shoal

log = logging.getLogger(__name__)

UNHEALTHY: Final = "GPUUnhealthy"
RECOVERED: Final = "GPURecovered"


class NodeHealth:
    """The unhealthy cards of the node. `changed` is called when they, or the cards themselves, change."""

    def __init__(
        self,
        cards: NodeCards,
        node: NodeObject,
        recorder: Recorder,
        rules: HealthRules,
        *,
        now: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._cards = cards
        self._node = node
        self._recorder = recorder
        self._rules = rules
        self._now = now
        self._changed = changed
        self._health = CardHealth(rules)
        self._survey_changed = False
        self.faults: dict[str, str] = {}
        self._told: str | None = None

    @property
    def remembered(self) -> str | None:
        """The value of the node's annotation, for the next process."""
        return encode_faults(self._health.unhealthy)

    def recall(self) -> None:
        """Begin with the faults of an earlier process. Call it once, after the node and its cards have been read."""
        node = self._node.node
        value = None if node is None else node.metadata.annotations.get(shoal.ANNOTATION_FAULTS)
        known = decode_faults(value, self._now()) if self._rules.any else {}
        self._health = CardHealth(self._rules, known)
        self._health.keep_only(card.uuid for card in self._cards.survey.cards)
        self.faults, self._told = self._health.faults, self.remembered
        for uuid, words in self.faults.items():
            log.warning("card %s was unhealthy before: %s", uuid, words)

    async def run(self) -> None:
        """Watch until cancelled."""
        if not self._rules.any:
            log.warning("health checks are switched off: a card that fails stays in use")
            return
        watch = HealthWatch(
            self._cards.driver,
            self._health,
            self._cards.survey,
            now=self._now,
            changed=self._settle,
            surveyed=self._surveyed,
            hold=self._rules.hold,
        )
        await watch.run()

    def _surveyed(self, survey: Survey) -> None:
        if survey != self._cards.survey:
            self._cards.survey = survey
            self._survey_changed = True

    def _settle(self) -> None:
        before, self.faults = self.faults, self._health.faults
        for uuid in self.faults.keys() - before.keys():
            log.warning("card %s is unhealthy: %s", uuid, self.faults[uuid])
            self._tell(uuid, "Warning", UNHEALTHY, f"is unhealthy: {self.faults[uuid]}")
        for uuid in before.keys() - self.faults.keys():
            log.info("card %s is healthy again", uuid)
            self._tell(uuid, "Normal", RECOVERED, f"is healthy again; it was: {before[uuid]}")
        told, self._told = self._told, self.remembered
        if before != self.faults or told != self._told or self._survey_changed:
            self._survey_changed = False
            self._changed()

    def _tell(self, uuid: str, kind: EventType, reason: str, words: str) -> None:
        node = self._node.node
        if node is not None:
            index = next((str(card.index) for card in self._cards.survey.cards if card.uuid == uuid), "?")
            self._recorder.record(reference_to(NODES, node), kind, reason, f"card {index} ({uuid}) {words}")


_Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Fault(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    cause: Cause
    seen: _Moment
    xid: _Count | None = None
    energy: _Count | None = None
    reset: bool = False


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    strikes: Annotated[int, msgspec.Meta(ge=1, le=MAX_STRIKES)]
    faults: Annotated[tuple[_Fault, ...], msgspec.Meta(max_length=MAX_FAULTS)]


_DECODER: Final = msgspec.json.Decoder(dict[str, _Card])
_KEPT: Final = (Cause.XID, Cause.ECC, Cause.LOST)


def encode_faults(unhealthy: Mapping[str, CardFaults]) -> str | None:
    """The value of the annotation; None when there is nothing to remember."""
    cards = {
        uuid: _Card(card.strikes, kept)
        for uuid, card in sorted(unhealthy.items())
        if (kept := tuple(_kept(fault) for fault in card.faults if fault.cause in _KEPT))
    }
    return msgspec.json.encode(cards).decode() if cards else None


def _kept(fault: Fault) -> _Fault:
    # A lost card is found at every look: with its time the node would be written each time.
    seen = 0.0 if fault.cause is Cause.LOST else round(fault.seen, 3)
    return _Fault(fault.cause, seen, fault.xid, fault.energy_mj, fault.reset_seen)


def decode_faults(value: str | None, now: float) -> dict[str, CardFaults]:
    """The faults of an earlier process. What cannot be read is logged and dropped: most is found again."""
    if not value:
        return {}
    try:
        if len(value) > shoal.MAX_LENGTH:
            raise msgspec.ValidationError(f"it is longer than {shoal.MAX_LENGTH} bytes")
        cards = _DECODER.decode(value)
    except msgspec.MsgspecError as error:
        log.warning("earlier faults of cards are forgotten: annotation %s: %s", shoal.ANNOTATION_FAULTS, error)
        return {}
    return {
        uuid: CardFaults(tuple(_recalled(fault, now) for fault in card.faults), card.strikes, now)
        for uuid, card in cards.items()
    }


def _recalled(fault: _Fault, now: float) -> Fault:
    # A clock that was set back must not make a fault last for years.
    return Fault(
        fault.cause,
        now if fault.cause is Cause.LOST else min(fault.seen, now),
        fault.xid,
        energy_mj=fault.energy,
        reset_seen=fault.reset,
        recalled=True,
    )
