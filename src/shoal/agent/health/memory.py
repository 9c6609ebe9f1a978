"""How faults outlive the agent: a document in an annotation of the node, read again at the next start.

What is remembered are the faults that a look alone cannot find again, and what tells whether a reset came since. A card
for which the driver had no answer is looked at anew instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from shoal.agent.health.state import MAX_FAULTS, MAX_STRIKES, CardFaults, Cause, Fault
from shoal.model.contract import shoal

log = logging.getLogger(__name__)

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


def written(unhealthy: Mapping[str, CardFaults]) -> str | None:
    """The value of the annotation; None when there is nothing to remember."""
    cards = {
        uuid: _Card(card.strikes, kept)
        for uuid, card in sorted(unhealthy.items())
        if (kept := tuple(_kept(fault) for fault in card.faults if fault.cause in _KEPT))
    }
    return msgspec.json.encode(cards).decode() if cards else None


def _kept(fault: Fault) -> _Fault:
    # A lost card is found lost at every look: its moment would have the node written again and again.
    seen = 0.0 if fault.cause is Cause.LOST else round(fault.seen, 3)
    return _Fault(fault.cause, seen, fault.xid, fault.energy_mj, fault.reset_seen)


def recalled(value: str | None, now: float) -> dict[str, CardFaults]:
    """The faults of an earlier process. What cannot be read is said and forgotten: a look finds most of it again."""
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
