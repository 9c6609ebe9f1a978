"""The node's cards, from its driver. While the driver or its cards are missing the agent waits, and says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from shoal.agent.config import AgentConfig
from shoal.gpu import inventory
from shoal.gpu.errors import GpuError
from shoal.gpu.protocol import Nvml, Survey
from shoal.model.backoff import Backoff
from shoal.model.gpu import Gpu

log = logging.getLogger(__name__)

#: Opens the driver; NoDriverError while there is none.
OpenDriver = Callable[[], Nvml]

_BACKOFF: Final = Backoff(first=1.0, longest=15.0)


class NodeCards:
    """The driver of a node and its cards."""

    def __init__(self, open_driver: OpenDriver) -> None:
        self._open = open_driver
        self._nvml: Nvml | None = None
        self.survey = Survey()
        #: What the agent waits for, in words; empty once there are cards.
        self.waiting = "still asking the driver for cards"

    @property
    def driver(self) -> Nvml:
        """The open driver. Use it only once there are cards."""
        assert self._nvml is not None
        return self._nvml

    async def wait(self, told: Callable[[], None]) -> None:
        """Return when there are cards. `told` is called each time there is another reason to wait."""
        pause = _BACKOFF.first
        while True:
            before = self.waiting
            try:
                self.survey = await asyncio.to_thread(self._look)
                self.waiting = "" if self.survey.cards else _without_cards(self.survey)
            except GpuError as error:
                self.waiting = f"no GPU driver: {error}"
            if not self.waiting:
                return
            if self.waiting != before:
                log.warning("waiting: %s", self.waiting)
                told()
            await asyncio.sleep(pause)
            pause = _BACKOFF.longer(pause)

    def open(self) -> None:
        """Open the driver and look at its cards, once; GpuError if there is none."""
        self.survey = self._look()

    def _look(self) -> Survey:
        if self._nvml is None:
            self._nvml = self._open()
        return self._nvml.survey()

    def gpus(self, config: AgentConfig, faults: Mapping[str, str]) -> tuple[Gpu, ...]:
        """The cards as the node publishes them. `faults` says by UUID why a card is unhealthy."""
        return inventory.gpus(
            self.survey, faults=faults, mps_clients=config.mps_clients, without_reserved=config.without_reserved
        )


def _without_cards(survey: Survey) -> str:
    if not survey.unreadable:
        return "the driver has no card: it is looked for again"
    first = survey.unreadable[0]
    return f"the driver has {len(survey.unreadable)} cards and none can be read: card {first.index}: {first.reason}"
