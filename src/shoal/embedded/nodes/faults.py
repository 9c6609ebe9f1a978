"""Faults of simulated cards on demand: an annotation of a Node breaks or mends one of its cards.

    kubectl annotate node node-1 shoal.dev/simulate.gpu0=xid=79      the card reports this XID error
    kubectl annotate node node-1 shoal.dev/simulate.gpu1=ecc=2       it finds so many errors that it cannot correct
    kubectl annotate node node-1 shoal.dev/simulate.gpu2=lost        it falls off the bus; `back` brings it again

It happens once, when the annotation is set or gets another value. Words that cannot be read become an event.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import NODES
from shoal.embedded.nodes.errors import FaultError
from shoal.embedded.recorder import EventWriter
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object
from shoal.gpu.errors import GpuError
from shoal.gpu.simulated import SimulatedNvml
from shoal.model.contract import shoal
from shoal.model.errors import shown

_CARD: Final = re.compile(r"gpu(\d{1,3})")
_NUMBERED: Final = re.compile(r"(xid|ecc)=(\d{1,4})")


class Faults:
    """Follows the annotations of nodes. `cards` finds the cards of a node; None if it is not simulated here."""

    def __init__(self, registry: Registry, recorder: EventWriter, cards: Callable[[str], SimulatedNvml | None]) -> None:
        self._registry = registry
        self._recorder = recorder
        self._cards = cards
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        store = self._registry.store
        version = store.version
        store.listen(NODES.key, self._changed.set)
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    changes = store.changes_after(NODES.key, version)
                except ApiStatus:  # too many at once: what was set in between is lost
                    changes = []
                version = store.version
                for change in changes:
                    if change.after is not None:
                        self._look_at(change.before, change.after)
        finally:
            store.unlisten(NODES.key, self._changed.set)

    def _look_at(self, before: Object | None, node: Object) -> None:
        old, new = _wishes(before), _wishes(node)
        for key, text in new.items():
            nvml = self._cards(node["metadata"]["name"]) if old.get(key) != text else None
            if nvml is None:
                continue
            try:
                play(nvml, key.removeprefix(shoal.ANNOTATION_SIMULATE_PREFIX), text)
            except (FaultError, GpuError) as error:
                self._recorder.tell(node, "SimulationFailed", f"annotation {key}: {error}", warning=True)


def play(nvml: SimulatedNvml, card: str, text: str) -> None:
    """Do to a card, named as `gpu0`, what the text says. FaultError if there is no such card or no such fault."""
    survey = nvml.survey()
    indices = sorted([*(one.index for one in survey.cards), *(one.index for one in survey.unreadable)])
    uuids = dict(zip(indices, nvml.uuids(), strict=True))
    match = _CARD.fullmatch(card)
    uuid = uuids.get(int(match[1])) if match else None
    if uuid is None:
        known = ", ".join(f"gpu{index}" for index in uuids) or "none"
        raise FaultError(f"the node has no card {shown(card)}: its cards are {known}")
    numbered = _NUMBERED.fullmatch(text)
    if text == "lost":
        nvml.lose(uuid)
    elif text == "back":
        nvml.restore(uuid)
    elif numbered and numbered[1] == "xid":
        nvml.raise_xid(uuid, int(numbered[2]))
    elif numbered:
        nvml.count_ecc(uuid, uncorrected=int(numbered[2]))
    else:
        raise FaultError(f"{shown(text)} cannot be done to a card: write xid=79, ecc=1, lost or back")


def _wishes(node: Object | None) -> Mapping[str, str]:
    annotations = ((node or {}).get("metadata") or {}).get("annotations") or {}
    return {key: text for key, text in annotations.items() if key.startswith(shoal.ANNOTATION_SIMULATE_PREFIX)}
