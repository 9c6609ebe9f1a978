"""The columns of `shoal top` that tell what is used; none while nothing is measured. `-` is not known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shoal.analysis.inspect.use import NodeUse, PodUse
from shoal.analysis.inspect.used import UsedCard, UsedPicture, total
from shoal.cli.inspect.used_tables import card_measures, measure, memory
from shoal.cli.top.view import Subject
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu

#: From idle to busy, and where a terminal shows no such letters.
BLOCKS: Final = "▁▂▃▄▅▆▇█"
LETTERS: Final = "_.:-=+*#"
_HEADS: Final = {
    Subject.NODES: ("USED", "CPU"),
    Subject.CARDS: ("USED", "UTIL", "10 MIN", "TEMP", "POWER"),
    Subject.PODS: ("USED", "UTIL"),
}


@dataclass(frozen=True, slots=True)
class UsedColumns:
    """What is used, None while nothing is known, and then why."""

    picture: UsedPicture | None
    why: str = ""
    marks: str = BLOCKS

    def head(self, subject: Subject) -> tuple[str, ...]:
        """The names of the columns."""
        return () if self.picture is None else _HEADS[subject]

    def of_node(self, use: NodeUse, unit: MemoryUnit) -> tuple[str, ...]:
        """Memory of the cards, and CPU."""
        if self.picture is None:
            return ()
        node = self.picture.nodes.get(use.node.name)
        load = node.reading.load if node is not None and node.reading is not None else None
        return memory(node.used_bytes if node else None, unit), measure(load.cpu_used_milli if load else None, "m")

    def of_card(self, use: NodeUse, gpu: Gpu, unit: MemoryUnit) -> tuple[str, ...]:
        """Memory, utilisation now and before, temperature, power."""
        if self.picture is None:
            return ()
        card = self._card(use, gpu)
        reading = card.reading if card else None
        used, _, _, load, heat, power = card_measures(reading, unit, total="")
        return used, load, trend(self.picture.trends.get(reading.uuid if reading else "", ()), self.marks), heat, power

    def of_pod(self, use: NodeUse, pod: PodUse, unit: MemoryUnit) -> tuple[str, ...]:
        """Memory and utilisation, on all its cards together."""
        if self.picture is None:
            return ()
        cards = [self._card(use, gpu) for gpu in use.node.gpus if gpu.uuid in pod.held]
        parts = [
            next((one for one in card.pods if (one.namespace, one.name) == (pod.namespace, pod.name)), None)
            for card in cards
            if card is not None
        ]
        return (
            memory(total(part.used_bytes if part else None for part in parts), unit),
            measure(total(part.utilisation if part else None for part in parts), "%"),
        )

    def _card(self, use: NodeUse, gpu: Gpu) -> UsedCard | None:
        node = self.picture.nodes.get(use.node.name) if self.picture is not None else None
        return next((card for card in node.cards if card.gpu.uuid == gpu.uuid), None) if node is not None else None


def trend(values: Sequence[float | None], marks: str) -> str:
    """Percents as a line of marks; a blank where nothing was measured."""
    if not any(value is not None for value in values):
        return "-"
    most = len(marks) - 1
    return "".join(" " if one is None else marks[max(0, min(most, int(one * len(marks) / 100)))] for one in values)
