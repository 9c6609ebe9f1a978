"""The driver of this machine, behind `shoal.gpu.protocol.Nvml`.

It remembers the cards it has seen, so that one that falls off the bus is still listed, as lost. Nothing here was run on
hardware yet: tests meet a library of their own that answers as NVML's header says.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.errors import GpuError, LostCardError, NoCgroupError, NoDriverError, NotSupportedError, UnknownCardError
from shoal.gpu.nvml import library
from shoal.gpu.nvml.cards import Ends, linked, read_card
from shoal.gpu.nvml.events import NvmlEvents
from shoal.gpu.nvml.library import ask, reading
from shoal.gpu.nvml.samples import read_sample
from shoal.gpu.protocol import (
    NO_LIMIT,
    Card,
    CgroupMemory,
    ComputeMode,
    Driver,
    MemoryLimit,
    Sample,
    Survey,
    Unreadable,
    checked_cgroup,
)
from shoal.model.errors import shown

_MODES: Final = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: ComputeMode.DEFAULT,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: ComputeMode.EXCLUSIVE_PROCESS,
    pynvml.NVML_COMPUTEMODE_PROHIBITED: ComputeMode.PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: ComputeMode.EXCLUSIVE_PROCESS,
}
_MODE_NUMBERS: Final = {mode: number for number, mode in _MODES.items()}
_MOST_CARDS: Final = 256


def open_nvml(path: Path | None = None) -> NvmlDriver:
    """The driver of this machine; NoDriverError when there is none, which may be tried again later.

    The library is found by the system's loader unless `path` names it. One at a time a process: close it first.
    """
    library.load(path)
    return NvmlDriver()


class NvmlDriver:
    """NVIDIA's driver. Made by `open_nvml`."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Card, Any]] = {}
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
        read: list[tuple[Card, Ends]] = []
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
        handle = self._handle(uuid)
        return read_sample(handle, uuid)

    def watch(self) -> NvmlEvents:
        """The reports of all cards, from now on."""
        cards = self.survey().cards
        with self._lock:
            handles = {card.uuid: self._known[card.uuid][1] for card in cards}
        return NvmlEvents(handles, lost={card.uuid for card in cards if card.lost})

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
            if library.code_of(error) != pynvml.NVML_ERROR_NOT_FOUND:
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
