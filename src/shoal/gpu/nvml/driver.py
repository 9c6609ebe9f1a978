"""The driver of this machine, behind `shoal.gpu.protocol.Nvml`.

It remembers the cards it has seen, so that one that falls off the bus is still listed, as lost. NVML delivers XID and
ECC events of the cards it was told to watch. That a card is gone it says only without naming the card, or not at all;
so every card is asked for a sign of life now and then while nothing happens. A lost card leaves the set of watched
ones, since NVML would go on reporting it, and joins again when it answers.

Nothing here was run on hardware yet: tests meet a library of their own, compiled against NVML's header.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.errors import GpuError, LostCardError, NoCgroupError, NoDriverError, NotSupportedError, UnknownCardError
from shoal.gpu.nvml import library
from shoal.gpu.nvml.cards import LinkEnds, linked, read_card
from shoal.gpu.nvml.library import ask, code_of, reading
from shoal.gpu.nvml.samples import CardMeter, read_pcie
from shoal.gpu.protocol import (
    NO_LIMIT,
    Card,
    CardEvent,
    CgroupMemory,
    ComputeMode,
    Driver,
    EventKind,
    MemoryLimit,
    PcieTraffic,
    Sample,
    Survey,
    Unreadable,
    checked_cgroup,
)
from shoal.model.errors import shown

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
_MODES: Final = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: ComputeMode.DEFAULT,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: ComputeMode.EXCLUSIVE_PROCESS,
    pynvml.NVML_COMPUTEMODE_PROHIBITED: ComputeMode.PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: ComputeMode.EXCLUSIVE_PROCESS,
}
_MODE_NUMBERS: Final = {mode: number for number, mode in _MODES.items()}
_MOST_CARDS: Final = 256
#: What limits of a cgroup that cannot be opened, or has none, are answered with.
_NO_CGROUP: Final = (pynvml.NVML_ERROR_OPERATING_SYSTEM, pynvml.NVML_ERROR_NOT_FOUND)


def open_nvml(path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> NvmlDriver:
    """The driver of this machine; NoDriverError when there is none, which may be tried again later.

    The library is found by the system's loader unless `path` names it. One at a time a process: close it first.
    """
    library.load(path)
    return NvmlDriver(clock)


class NvmlDriver:
    """NVIDIA's driver. Made by `open_nvml`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[Card, Any]] = {}
        self._meters: dict[str, CardMeter] = {}
        self._absent: set[str] = set()
        self._lock = threading.Lock()

    def driver(self) -> Driver:
        """The driver's versions."""
        number = reading("the driver", pynvml.nvmlSystemGetCudaDriverVersion_v2)
        cuda = None if number is None else (number // 1000, number % 1000 // 10)
        return Driver(version=ask("the driver", pynvml.nvmlSystemGetDriverVersion), cuda=cuda)

    def survey(self) -> Survey:
        """All cards. A card that was there before and is lost now is still listed, as lost."""
        count = min(_MOST_CARDS, ask("the driver", pynvml.nvmlDeviceGetCount))
        read: list[tuple[Card, LinkEnds]] = []
        handles: dict[str, Any] = {}
        failed: dict[int, str] = {}
        for index in range(count):
            try:
                handle = ask(f"card {index}", pynvml.nvmlDeviceGetHandleByIndex, index)
                card, ends = read_card(handle, index)
                if card.uuid in handles:
                    raise GpuError(f"card {index} has the UUID of another, {card.uuid}")
            except GpuError as error:
                failed[index] = str(error)
                continue
            handles[card.uuid] = handle
            read.append((card, ends))
        with self._lock:
            self._known.update({card.uuid: (card, handles[card.uuid]) for card in linked(read)})
            self._absent = set(self._known) - set(handles)
            known = [card for card, _ in self._known.values()]
        return _survey(known, present=set(handles), failed=failed)

    def sample(self, uuid: str) -> Sample:
        """What a card measures now."""
        try:
            handle = self._handle(uuid)
            with self._lock:
                meter = self._meters.setdefault(uuid, CardMeter(uuid, self._clock))
            return meter.read(handle)
        except LostCardError:
            with self._lock:
                gone = self._meters.get(uuid)
            if gone is not None:
                gone.forget()
            raise

    def pcie_traffic(self, uuid: str) -> PcieTraffic:
        """What passes over a card's bus. The driver measures for about 20 ms in each direction."""
        return read_pcie(self._handle(uuid), uuid)

    def watch(self, *, signs_of_life: bool = True) -> NvmlEvents:
        """The reports of all cards, from now on."""
        cards = self.survey().cards
        with self._lock:
            handles = {card.uuid: self._known[card.uuid][1] for card in cards}
        lost = {card.uuid for card in cards if card.lost}
        return NvmlEvents(handles, lost=lost, look_every=LOOK_S if signs_of_life else math.inf)

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Who may compute on the card."""
        number = ask(uuid, pynvml.nvmlDeviceGetComputeMode, self._handle(uuid))
        if number not in _MODES:
            raise GpuError(f"{uuid} is in compute mode {number}, which is not known here: set it again")
        return _MODES[number]

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Change who may compute on the card. Needs root; holds until the driver is unloaded."""
        ask(uuid, pynvml.nvmlDeviceSetComputeMode, self._handle(uuid), _MODE_NUMBERS[mode])

    def cgroup_memory(self, uuid: str, cgroup: str) -> CgroupMemory:
        """A cgroup's limit and use of the card's memory. `cgroup` is the full path of its directory."""
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=_path(cgroup))
        self._limits(uuid, cgroup, pynvml.nvmlDeviceGetMemoryLimits_v1, limits)
        hard = None if limits.hardLimit == NO_LIMIT else limits.hardLimit
        return CgroupMemory(MemoryLimit(hard, limits.softLimit), limits.currentUsed)

    def set_memory_limit(self, uuid: str, cgroup: str, limit: MemoryLimit) -> None:
        """Limit a cgroup's use of the card's memory; `MemoryLimit()` takes every limit away. Needs root."""
        hard = NO_LIMIT if limit.hard_bytes is None else limit.hard_bytes
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=_path(cgroup), softLimit=limit.soft_bytes, hardLimit=hard)
        self._limits(uuid, cgroup, pynvml.nvmlDeviceSetMemoryLimits_v1, limits)

    def close(self) -> None:
        """Let the driver go. Close the watches first."""
        with self._lock:
            meters, self._meters = self._meters, {}
        for meter in meters.values():
            meter.close()
        library.unload()

    def _limits(self, uuid: str, cgroup: str, call: Any, limits: Any) -> None:
        try:
            ask(uuid, call, self._handle(uuid), limits)
        except NotSupportedError as error:
            raise NotSupportedError(
                f"the memory of cgroups cannot be limited on {uuid}: that needs driver R615 (CUDA 13.4), cgroup v2 and "
                "MIG mode off"
            ) from error
        except GpuError as error:
            if code_of(error) not in _NO_CGROUP:
                raise
            raise NoCgroupError(f"there is no cgroup {shown(cgroup)}: give the full path of its directory") from error

    def _handle(self, uuid: str) -> Any:
        with self._lock:
            known = self._known.get(uuid)
            # What is behind the handle of a card that the last survey missed is not certain: look it up again.
            if known is not None and uuid not in self._absent:
                return known[1]
        try:
            return ask(uuid, pynvml.nvmlDeviceGetHandleByUUID, uuid.encode())
        except (LostCardError, NoDriverError):
            raise
        except (GpuError, UnicodeEncodeError) as error:
            if known is not None:
                raise LostCardError(f"{uuid} is not on the bus any more: reset the card or reboot the node") from error
            raise UnknownCardError(f"no card has the UUID {shown(uuid)}: survey the cards again") from error


def _path(cgroup: str) -> bytes:
    return os.fsencode(checked_cgroup(cgroup))


def _survey(known: list[Card], *, present: set[str], failed: dict[int, str]) -> Survey:
    """Present cards keep their index. A lost one keeps it too unless a present one has it now."""
    cards = [card for card in known if card.uuid in present]
    taken = {card.index for card in cards}
    for card in known:
        if card.uuid in present:
            continue
        index = card.index if card.index not in taken else max(taken) + 1
        taken.add(index)
        failed.pop(card.index, None)
        cards.append(replace(card, index=index, lost=True))
    return Survey(
        cards=tuple(sorted(cards, key=lambda card: card.index)),
        unreadable=tuple(Unreadable(index, reason) for index, reason in sorted(failed.items()) if index not in taken),
    )


class NvmlEvents:
    """The reports of all cards since its making."""

    def __init__(
        self,
        handles: Mapping[str, Any],
        *,
        lost: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        look_every: float = LOOK_S,
    ) -> None:
        self._handles = dict(handles)
        self._by_address = {_address(handle): uuid for uuid, handle in handles.items()}
        self._clock = clock
        self._lost = set(lost)
        self._look_every = look_every
        self._next_look = clock() if math.isfinite(look_every) else math.inf
        self._pending: deque[CardEvent] = deque()
        self._busy = threading.Lock()
        self._closed = threading.Event()
        self._set: Any = None
        self._renew()

    def wait(self, timeout: float) -> CardEvent | None:
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
            self._pending.append(CardEvent(kind, self._by_address.get(_address(data.device)), xid))

    def _look_around(self) -> bool:
        """Whether a card was lost or came back; its event is pending then."""
        self._next_look = self._clock() + self._look_every
        silent = {uuid for uuid, handle in self._handles.items() if not _answers(handle)}
        if silent == self._lost:
            return False
        self._pending.extend(CardEvent(EventKind.LOST, uuid) for uuid in sorted(silent - self._lost))
        self._pending.extend(CardEvent(EventKind.BACK, uuid) for uuid in sorted(self._lost - silent))
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
