"""Asks the cards of a node how they are, and listens to what they report.

A call of the driver may never return, when a card hangs. So every question goes to a thread that nobody has to wait
for: a card that does not answer in time has no sample in this interval and is not asked again until it has answered,
and the other cards are asked all the same. While all is well one such thread asks a card after the other, which costs
least. The bus is measured beside the samples, a third of the cards each time, since that takes 40 ms a card.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from shoal.gpu.errors import GpuError, LostCardError
from shoal.gpu.protocol import Card, CardEvent, CardEvents, Driver, EventKind, Nvml, PcieTraffic, Sample, Survey
from shoal.model.backoff import Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds a card may take for a sample. A sample of the node takes at most a few times as long.
PATIENCE: Final = 1.0
#: Seconds of DCGM's window, in which it counts XID errors and reasons of low clocks.
WINDOW: Final = 300.0
#: Seconds between two surveys of cards that do not seem to change.
SURVEY_EVERY: Final = 60.0
#: A card's bus is measured in one of so many samples, and the result shown for so many seconds.
PCIE_SAMPLES: Final = 3
PCIE_FRESH: Final = 60.0
#: What is counted where a card, or a survey of all, did not answer in time.
HUNG: Final = "hung"
#: Kept of a card for one window. A card that reports more is not counted exactly.
_MOST_REPORTS: Final = 4096
#: Different XID numbers of a card; NVIDIA knows fewer than 200.
_MOST_XIDS: Final = 256
#: Seconds between looks whether the watch is to be made anew.
_LISTEN: Final = 5.0
_BACKOFF: Final = Backoff(first=1.0, longest=60.0)


@dataclass(frozen=True, slots=True)
class SampledCard:
    """A card and what it measures (None: it did not answer); the rest is as `CardSnapshot` has it."""

    card: Card
    sample: Sample | None = None
    xids: Mapping[int, int] = field(default_factory=dict)
    recent_xids: Mapping[int, int] = field(default_factory=dict)
    last_xid: int | None = None
    recent_clock_events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampled:
    """All cards of the node at one moment, by index. `failures` are counted since the start, by the call's name."""

    driver: Driver | None = None
    cards: tuple[SampledCard, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)


class Sampler:
    """Samples the cards. `sample` blocks: call it in a thread, one at a time."""

    def __init__(self, nvml: Nvml, *, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE) -> None:
        self._nvml = nvml
        self._clock = clock
        self._patience = patience
        self._hands = _Hands("gpu-sample")
        self._surveying: _Question[tuple[Driver, Survey]] = _Question(self._hands, self._look_around)
        self._questions: dict[str, _CardQuestions] = {}
        self._driver: Driver | None = None
        self._cards: tuple[Card, ...] | None = None
        self._surveyed = 0.0
        self._number = 0
        self._told: dict[str, str] = {}
        # Shared with the thread that listens.
        self._lock = threading.Lock()
        self._records: dict[str, _CardRecord] = {}
        self._failures: Counter[str] = Counter()
        self._survey_due = True
        self._listener: threading.Thread | None = None
        self._listening = threading.Event()
        self._renew = threading.Event()
        self._stop = threading.Event()
        self._events: CardEvents | None = None

    def sample(self) -> Sampled:
        """Ask every card. Ends within a few times `patience`, whatever the driver does."""
        self._listen()
        self._survey()
        cards = self._cards or ()
        samples = self._ask(cards)
        self._measure_buses(cards)
        now = self._clock()
        with self._lock:
            return Sampled(
                driver=self._driver,
                cards=tuple(self._records[card.uuid].shown(card, samples.get(card.uuid), now) for card in cards),
                failures=dict(self._failures),
            )

    def close(self) -> None:
        """End the threads; one that hangs in the driver is left behind. Close the driver afterwards."""
        self._stop.set()
        self._renew.set()
        if (events := self._events) is not None:
            self._hands.start(events.close)
        if self._listener is not None:
            self._listener.join(self._patience)
        self._hands.close()

    # Cards

    def _look_around(self) -> tuple[Driver, Survey]:
        return self._nvml.driver(), self._nvml.survey()

    def _survey(self) -> None:
        """Look which cards there are, when something tells that they changed, and every minute."""
        now = self._clock()
        with self._lock:
            due = self._survey_due or now - self._surveyed >= SURVEY_EVERY
            self._survey_due = False
        if not due and not self._surveying.open:
            return
        try:
            driver, survey = self._surveying.ask(self._patience)
        except TimeoutError:
            self._fail(HUNG)
            return
        except GpuError as error:
            self._fail("survey")
            self._tell("", f"the cards were not surveyed: {error}")
            self._ask_for_survey()
            return
        self._tell("", "")
        self._surveyed = now
        self._driver = driver
        self._take(survey.cards)

    def _take(self, cards: tuple[Card, ...]) -> None:
        if self._cards is not None and _present(self._cards) != _present(cards):
            self._renew.set()
        self._cards = cards
        uuids = [card.uuid for card in cards]
        self._questions = {uuid: self._questions.get(uuid) or self._questions_of(uuid) for uuid in uuids}
        with self._lock:
            self._records = {uuid: self._records.get(uuid) or _CardRecord() for uuid in uuids}

    def _questions_of(self, uuid: str) -> _CardQuestions:
        return _CardQuestions(
            sample=_Question(self._hands, lambda: self._nvml.sample(uuid)),
            pcie=_Question(self._hands, lambda: (self._clock(), self._nvml.pcie_traffic(uuid))),
        )

    # Samples

    def _ask(self, cards: tuple[Card, ...]) -> dict[str, Sample]:
        """One card after the other, until one hangs: then all the rest at once."""
        found: dict[str, Sample] = {}
        slow = False
        rest: list[Card] = []
        for card in cards:
            question = self._questions[card.uuid].sample
            if question.open and not question.answered:
                self._fail(HUNG)
                continue
            question.drop()  # an answer that came too late is of another interval
            if slow:
                question.begin()
                rest.append(card)
            else:
                slow = not self._answer(card, self._patience, found)
        end = time.monotonic() + self._patience
        for card in rest:
            self._answer(card, max(0.0, end - time.monotonic()), found)
        return found

    def _answer(self, card: Card, seconds: float, found: dict[str, Sample]) -> bool:
        """Whether the card answered in time, with whatever."""
        try:
            sample = self._questions[card.uuid].sample.ask(seconds)
        except TimeoutError:
            self._fail(HUNG)
            self._tell(card.uuid, f"card {card.index} hangs: no answer within {self._patience:g} s")
            return False
        except LostCardError:
            if not card.lost:
                self._ask_for_survey()
            return True
        except GpuError as error:
            self._fail("sample")
            self._tell(card.uuid, f"card {card.index} gives no sample: {error}")
            return True
        self._tell(card.uuid, "")
        if card.lost:
            self._ask_for_survey()
        self._fail(*sample.failed_calls)
        found[card.uuid] = sample
        with self._lock:
            self._records[card.uuid].clocks(sample.clock_event_reasons, self._clock())
        return True

    def _measure_buses(self, cards: tuple[Card, ...]) -> None:
        """Take what was measured since the last sample, and have some more measured until the next."""
        self._number += 1
        for place, card in enumerate(cards):
            question = self._questions[card.uuid].pcie
            if question.open:
                if not question.answered:
                    continue
                try:
                    measured = question.ask(0.0)
                except GpuError:
                    continue  # the card's sample tells that it is lost
                self._fail(*measured[1].failed_calls)
                with self._lock:
                    self._records[card.uuid].traffic = measured
            if (self._number + place) % PCIE_SAMPLES == 0:
                question.begin()

    def _ask_for_survey(self) -> None:
        with self._lock:
            self._survey_due = True

    def _fail(self, *calls: str) -> None:
        with self._lock:
            self._failures.update(calls)

    def _tell(self, about: str, trouble: str) -> None:
        """Log what is wrong with a card, once for as long as it lasts."""
        if trouble and self._told.get(about) != trouble:
            log.warning("%s", trouble)
        self._told[about] = trouble

    # Reports

    def _listen(self) -> None:
        """Begin to listen, once. What happens before is not heard, so the first sample waits for it."""
        if self._listener is None:
            self._listener = threading.Thread(target=self._watch, name="gpu-events", daemon=True)
            self._listener.start()
            self._listening.wait(self._patience)

    def _watch(self) -> None:
        pause = 0.0
        while not self._stop.is_set():
            self._renew.clear()
            try:
                # The samples are the sign of life. Asking for one here would hang with a card that hangs.
                events = self._nvml.watch(signs_of_life=False)
            except GpuError as error:
                pause = self._unheard(error, pause)
                continue
            self._events = events
            self._listening.set()
            try:
                while not self._renew.is_set():
                    event = events.wait(_LISTEN)
                    pause = 0.0
                    if event is not None:
                        self._hear(event)
            except GpuError as error:
                pause = self._unheard(error, pause)
            finally:
                self._events = None
                events.close()

    def _unheard(self, error: GpuError, pause: float) -> float:
        self._fail("watch")
        pause = _BACKOFF.longer(pause)
        log.warning("the cards' reports are not heard, tried again in %g s: %s", pause, error)
        self._listening.set()
        self._stop.wait(pause)
        return pause

    def _hear(self, event: CardEvent) -> None:
        with self._lock:
            if event.kind in (EventKind.LOST, EventKind.BACK):
                self._survey_due = True
            if event.kind is EventKind.XID and event.xid is not None:
                # One that names no card may be of any.
                named = self._records.values() if event.uuid is None else (self._record(event.uuid),)
                for record in named:
                    record.xid(event.xid, self._clock())

    def _record(self, uuid: str) -> _CardRecord:
        """A card may report before the first survey."""
        return self._records.setdefault(uuid, _CardRecord())


def _present(cards: tuple[Card, ...]) -> frozenset[str]:
    return frozenset(card.uuid for card in cards if not card.lost)


class _CardRecord:
    """What is remembered of a card between samples."""

    def __init__(self) -> None:
        self.traffic: tuple[float, PcieTraffic] | None = None
        self._xids: Counter[int] = Counter()
        self._recent_xids: deque[tuple[float, int]] = deque(maxlen=_MOST_REPORTS)
        self._last_xid: int | None = None
        self._clocks: deque[tuple[float, frozenset[str]]] = deque(maxlen=_MOST_REPORTS)

    def xid(self, number: int, now: float) -> None:
        if number in self._xids or len(self._xids) < _MOST_XIDS:
            self._xids[number] += 1
            self._recent_xids.append((now, number))
        self._last_xid = number

    def clocks(self, reasons: frozenset[str] | None, now: float) -> None:
        if reasons:
            self._clocks.append((now, reasons))

    def shown(self, card: Card, sample: Sample | None, now: float) -> SampledCard:
        for recent in (self._recent_xids, self._clocks):
            while recent and now - recent[0][0] > WINDOW:
                recent.popleft()
        if sample is not None and self.traffic is not None and now - self.traffic[0] <= PCIE_FRESH:
            traffic = self.traffic[1]
            sample = replace(sample, pcie_sent=traffic.sent, pcie_received=traffic.received)
        return SampledCard(
            card=card,
            sample=sample,
            xids=dict(self._xids),
            recent_xids=dict(Counter(number for _, number in self._recent_xids)),
            last_xid=self._last_xid,
            recent_clock_events=dict(Counter(reason for _, reasons in self._clocks for reason in reasons)),
        )


# Questions that may never be answered


class _Hands:
    """Threads that make calls nobody has to wait for. A call that never returns keeps its thread, and no other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def start(self, call: Callable[[], T]) -> Future[T]:
        """Have a thread make the call: one that has nothing to do, or a new one."""
        future: Future[T] = Future()
        with self._lock:
            fresh = not self._idle
            if fresh:
                self._threads += 1
            else:
                self._idle -= 1
            number = self._threads
        self._jobs.put((future, call))
        if fresh:
            threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let the threads end when they have nothing to do any more."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 - it is raised where the answer is taken
                error = raised
            # Idle before the answer is known: who asks again at once shall find this thread.
            with self._lock:
                self._idle += 1
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


class _Question(Generic[T]):
    """A call that is made again only once it has returned."""

    def __init__(self, hands: _Hands, call: Callable[[], T]) -> None:
        self._hands = hands
        self._call = call
        self._future: Future[T] | None = None
        self._waited = False

    @property
    def open(self) -> bool:
        """Whether it was asked and its answer not taken."""
        return self._future is not None

    @property
    def answered(self) -> bool:
        """Whether there is an answer to be taken."""
        return self._future is not None and self._future.done()

    def begin(self) -> None:
        """Ask, unless it is asked already."""
        if self._future is None:
            self._future = self._hands.start(self._call)
            self._waited = False

    def ask(self, seconds: float) -> T:
        """The answer. TimeoutError when it does not come in time; then nobody waits for it a second time."""
        self.begin()
        assert self._future is not None
        future = self._future
        try:
            future.exception(0.0 if self._waited else seconds)
        except TimeoutError:
            self._waited = True
            raise
        self._future = None
        return future.result()

    def drop(self) -> None:
        """Forget an answer."""
        self._future = None


@dataclass(frozen=True, slots=True)
class _CardQuestions:
    sample: _Question[Sample]
    pcie: _Question[tuple[float, PcieTraffic]]
