"""Asks the driver how its cards are, in a thread of its own, and tells the event loop what it heard.

The thread only reads: it waits for reports, and looks at every card now and then. Everything is decided in the event
loop. A driver that fails is asked again, ever more slowly.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.agent.health.state import CardHealth, Look
from shoal.gpu.errors import GpuError, LostCardError
from shoal.gpu.protocol import CardEvent, CardEvents, EventKind, Nvml, Survey
from shoal.model.backoff import Backoff

log = logging.getLogger(__name__)

THREAD: Final = "gpu-health"
#: Seconds between looks: while all cards are well, and while one waits to be well again.
CALM: Final = 30.0
ANXIOUS: Final = 5.0
_SHORTEST: Final = 0.1
_BACKOFF: Final = Backoff(first=1.0, longest=CALM)
_COMINGS_AND_GOINGS: Final = (EventKind.LOST, EventKind.BACK)


@dataclass(frozen=True, slots=True)
class Heard:
    """What the thread tells the event loop at once: a report, looks at cards, and a new survey of the cards."""

    event: CardEvent | None = None
    looks: Mapping[str, Look] = field(default_factory=dict)
    survey: Survey | None = None


def look_at(nvml: Nvml, uuid: str) -> Look:
    """Ask one card how it is."""
    try:
        sample = nvml.sample(uuid)
    except LostCardError:
        return Look(lost=True)
    except GpuError as error:
        return Look(silent=str(error))
    rows = sample.remapped
    return Look(
        energy_mj=sample.energy_mj,
        rows_pending=None if rows is None else rows.pending,
        rows_failed=rows is not None and rows.failed,
    )


class HealthWatch:
    """Keeps `health` up to date. `changed` is called in the event loop after whatever may have changed it."""

    def __init__(
        self,
        nvml: Nvml,
        health: CardHealth,
        survey: Survey,
        *,
        now: Callable[[], float],
        changed: Callable[[], None],
        surveyed: Callable[[Survey], None],
        hold: float,
    ) -> None:
        self._nvml = nvml
        self._health = health
        self._now = now
        self._changed = changed
        self._surveyed = surveyed
        self._anxious = min(ANXIOUS, max(_SHORTEST, hold / 4))
        # Written by the loop or the thread and read by the other, each a single value.
        self._interval = self._pause()
        self._uuids = tuple(card.uuid for card in survey.cards)
        self._events: CardEvents | None = None
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()

        def tell(heard: Heard) -> None:
            if not self._stop.is_set():
                loop.call_soon_threadsafe(self._take, heard)

        thread = threading.Thread(target=self._watch, args=(tell,), name=THREAD, daemon=True)
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._stop.set()
            await asyncio.shield(asyncio.to_thread(self._end, thread))

    # In the event loop

    def _take(self, heard: Heard) -> None:
        if self._stop.is_set():
            return
        now = self._now()
        if heard.survey is not None:
            self._uuids = tuple(card.uuid for card in heard.survey.cards)
            self._health.keep_only(self._uuids)
            self._surveyed(heard.survey)
        if heard.event is not None:
            self._health.report(heard.event, now, self._uuids)
        for uuid, look in heard.looks.items():
            self._health.look(uuid, look, now)
        self._interval = self._pause()
        self._changed()

    def _pause(self) -> float:
        return self._anxious if self._health.unhealthy else CALM

    # In the thread

    def _watch(self, tell: Callable[[Heard], None]) -> None:
        pause = _BACKOFF.first
        while not self._stop.is_set():
            try:
                events = self._nvml.watch()
                self._events = events
                pause = _BACKOFF.first
                self._follow(events, tell)
            except GpuError as error:
                log.warning("the driver reports nothing about its cards: %s", error)
                tell(self._around())
                self._stop.wait(pause)
                pause = _BACKOFF.longer(pause)
            finally:
                if self._events is not None:
                    self._events.close()
                self._events = None

    def _follow(self, events: CardEvents, tell: Callable[[Heard], None]) -> None:
        """Pass on reports until the set of cards changes."""
        heard = self._around()
        tell(heard)
        cards = _present(heard)
        event: CardEvent | None = None
        while not self._stop.is_set():
            # After a report look again soon: the loop has not decided yet whether it counts.
            event = events.wait(self._interval if event is None else self._anxious)
            if self._stop.is_set():
                return
            if event is not None and event.uuid is not None and event.kind not in _COMINGS_AND_GOINGS:
                tell(Heard(event, {event.uuid: look_at(self._nvml, event.uuid)}))
                continue
            heard = self._around()
            if _present(heard) != cards:
                # The new cards are told once the next watch is open, so that none of their reports is missed.
                tell(Heard(event))
                return
            tell(Heard(event, heard.looks, heard.survey))

    def _around(self) -> Heard:
        """A look at every card."""
        survey: Survey | None
        try:
            survey = self._nvml.survey()
            uuids = tuple(card.uuid for card in survey.cards)
        except GpuError as error:
            return Heard(looks=dict.fromkeys(self._uuids, Look(silent=str(error))))
        return Heard(looks={uuid: look_at(self._nvml, uuid) for uuid in uuids}, survey=survey)

    def _end(self, thread: threading.Thread) -> None:
        # Closing wakes a wait that is under way; one that begins just now ends with its time-out.
        while thread.is_alive():
            if (events := self._events) is not None:
                events.close()
            thread.join(_SHORTEST)


def _present(heard: Heard) -> frozenset[str]:
    return frozenset() if heard.survey is None else frozenset(card.uuid for card in heard.survey.cards)
