"""What a node publishes of its cards: a survey of the driver turned into the model's words.

A number that no machine can mean (a driver that fails may answer anything) is left out, so that the rest can still be
published. The order is the driver's; an index may be missing where a card never told its UUID. Which faults make a card
unhealthy is for the agent to say, and comes in as `faults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shoal.gpu.protocol import Card, Survey
from shoal.model.gpu import DEFAULT_MPS_CLIENTS, Gpu, Link

LOST: Final = "lost from the bus: the driver gets no answer; reset the card or reboot the node"

#: Beyond these a number is a mistake: 2 PiB of memory, a million devices or NUMA nodes.
_MOST_MIB: Final = 2**31
_MOST: Final = 2**20


def gpus(
    survey: Survey,
    *,
    faults: Mapping[str, str] | None = None,
    mps_clients: int = DEFAULT_MPS_CLIENTS,
    without_reserved: bool = False,
) -> tuple[Gpu, ...]:
    """The cards of `shoal.dev/gpus`.

    A card's size is all its memory, as other stacks count it: a pod that asks for 24 GiB of a card sold with 24 GiB
    fits. Driver and firmware keep some of it; `without_reserved` takes that away. `faults` says by UUID why a card is
    unhealthy. A card serves `mps_clients` if it can serve as many.
    """
    known = {card.uuid for card in survey.cards}
    return tuple(
        Gpu(
            uuid=card.uuid,
            index=card.index,
            memory_mib=_size(card, without_reserved=without_reserved),
            model=card.model,
            minor=_possible(card.minor),
            numa=_possible(card.numa),
            links=tuple(Link(link.peer, link.lanes) for link in card.links if link.peer in known),
            healthy=not (fault := _fault(card, faults or {})),
            fault=fault,
            mig=bool(card.mig),
            mig_instances=tuple(
                replace(part, memory_mib=min(part.memory_mib, _MOST_MIB)) for part in card.mig_instances
            ),
            mps_clients=min(mps_clients, card.max_mps_clients),
        )
        for card in survey.cards
    )


def _size(card: Card, *, without_reserved: bool) -> int:
    reserved = card.reserved_bytes or 0 if without_reserved else 0
    size = max(0, card.memory_bytes - reserved) // 2**20
    return size if size <= _MOST_MIB else 0


def _possible(number: int | None) -> int | None:
    return number if number is not None and number <= _MOST else None


def _fault(card: Card, faults: Mapping[str, str]) -> str:
    return LOST if card.lost else faults.get(card.uuid, "")
