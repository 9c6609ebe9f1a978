"""The health of one node's cards: remembered from the node's object, watched, and told in events about the node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from shoal.agent.health import memory
from shoal.agent.health.rules import Rules
from shoal.agent.health.state import Health
from shoal.agent.health.watch import HealthWatch
from shoal.agent.node.cards import Cards
from shoal.agent.node.object import NodeObject
from shoal.gpu.protocol import Survey
from shoal.kube.events import EventType, Recorder, reference_to
from shoal.kube.resources import NODES
from shoal.model.contract import shoal

log = logging.getLogger(__name__)

UNHEALTHY: Final = "GPUUnhealthy"
RECOVERED: Final = "GPURecovered"


class NodeHealth:
    """Which cards of the node are not to be used. `changed` is called when that, or the cards, are others."""

    def __init__(
        self,
        cards: Cards,
        node: NodeObject,
        recorder: Recorder,
        rules: Rules,
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
        self._health = Health(rules)
        self._survey_changed = False
        self.faults: dict[str, str] = {}
        self._told: str | None = None

    @property
    def remembered(self) -> str | None:
        """What the node's annotation shall hold for the next process."""
        return memory.written(self._health.unhealthy)

    def recall(self) -> None:
        """Begin with the faults an earlier process left. Call it once the node has been read and cards are there."""
        node = self._node.node
        value = None if node is None else node.metadata.annotations.get(shoal.ANNOTATION_FAULTS)
        known = memory.recalled(value, self._now()) if self._rules.any else {}
        self._health = Health(self._rules, known)
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
