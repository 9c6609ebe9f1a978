"""What cards report through NVML, and the cards that go silent.

NVML delivers XID and ECC events of the cards it was told to watch. That a card is gone it says only without naming the
card, or not at all; so every card is asked for a sign of life now and then while nothing happens. A lost card leaves
the set of watched ones, since NVML would go on reporting it, and joins again when it answers.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.errors import GpuError, LostCardError
from shoal.gpu.nvml.library import ask, code_of, reading
from shoal.gpu.protocol import Event, EventKind

log = logging.getLogger(__name__)

#: NVML cannot be woken from a wait: this is how long `close` may have to wait for one to end.
SLICE_S: Final = 0.5
#: How often the cards are asked for a sign of life while nothing happens.
LOOK_S: Final = 2.0
_KINDS: Final = {
    pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
    pynvml.nvmlEventTypeSingleBitEccError: EventKind.ECC_CORRECTED,
    pynvml.nvmlEventTypeDoubleBitEccError: EventKind.ECC_UNCORRECTED,
}


class NvmlEvents:
    """The reports of all cards since its making."""

    def __init__(
        self, handles: Mapping[str, Any], *, lost: Iterable[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._handles = dict(handles)
        self._by_address = {_address(handle): uuid for uuid, handle in handles.items()}
        self._clock = clock
        self._lost = set(lost)
        self._next_look = clock()
        self._pending: deque[Event] = deque()
        self._busy = threading.Lock()
        self._closed = threading.Event()
        self._set: Any = None
        self._renew()

    def wait(self, timeout: float) -> Event | None:
        """The next event; None when `timeout` seconds passed without one, or on `close`."""
        end = self._clock() + timeout
        while not self._closed.is_set():
            left = end - self._clock()
            with self._busy:
                if not self._pending and not self._closed.is_set():
                    self._collect(min(SLICE_S, max(0.0, left)))
                if self._pending:
                    return self._pending.popleft()
            if left <= 0:
                return None
        return None

    def close(self) -> None:
        """End the watch, and with it a wait of another thread."""
        self._closed.set()
        with self._busy:
            self._free()

    def _collect(self, timeout: float) -> None:
        try:
            data = ask("the cards", pynvml.nvmlEventSetWait_v2, self._set, round(timeout * 1000))
        except LostCardError:
            if not self._look_around():
                # NVML says that a card is gone, and all of them answer: do not ask again at full speed.
                self._closed.wait(timeout)
            return
        except GpuError as error:
            if code_of(error) != pynvml.NVML_ERROR_TIMEOUT:
                raise
            if self._clock() >= self._next_look:
                self._look_around()
            return
        kind = _KINDS.get(data.eventType)
        if kind is not None:
            xid = int(data.eventData) if kind is EventKind.XID else None
            # By its handle: a card that has just been lost does not tell its UUID any more.
            self._pending.append(Event(kind, self._by_address.get(_address(data.device)), xid))

    def _look_around(self) -> bool:
        """Whether a card was lost or came back; its event is pending then."""
        self._next_look = self._clock() + LOOK_S
        silent = {uuid for uuid, handle in self._handles.items() if not _answers(handle)}
        if silent == self._lost:
            return False
        self._pending.extend(Event(EventKind.LOST, uuid) for uuid in sorted(silent - self._lost))
        self._pending.extend(Event(EventKind.BACK, uuid) for uuid in sorted(self._lost - silent))
        self._lost = silent
        self._renew()
        return True

    def _renew(self) -> None:
        fresh = ask("the cards", pynvml.nvmlEventSetCreate)
        for uuid, handle in self._handles.items():
            if uuid in self._lost:
                continue
            try:
                offered = ask(uuid, pynvml.nvmlDeviceGetSupportedEventTypes, handle)
                wanted = offered & sum(_KINDS)
                if wanted:
                    ask(uuid, pynvml.nvmlDeviceRegisterEvents, handle, wanted, fresh)
            except GpuError as error:
                log.info("%s reports no events: %s", uuid, error)
        self._free()
        self._set = fresh

    def _free(self) -> None:
        if self._set is not None:
            try:
                ask("the cards", pynvml.nvmlEventSetFree, self._set)
            except GpuError as error:
                log.debug("an event set was not freed: %s", error)
            self._set = None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _answers(handle: Any) -> bool:
    try:
        reading("a card", pynvml.nvmlDeviceGetMemoryInfo, handle)
        reading("a card", pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    except LostCardError:
        return False
    return True
