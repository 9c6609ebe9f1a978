"""Gives up the capabilities of root that a process does not need.

A privileged container has them all with containerd, whatever its manifest drops: so the program drops them itself, for
good and for every process that it starts.
"""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

#: By the kernel's numbers (linux/capability.h).
SYS_CHROOT: Final = 18
_LAST: Final = Path("/proc/sys/kernel/cap_last_cap")
_DROP_FROM_BOUNDS: Final = 24
_NO_NEW_PRIVILEGES: Final = 38
_VERSION_3: Final = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def keep_only(capability: int) -> None:
    """Keep one capability, if this process has it, and none else. What the kernel refuses is told, and goes on."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        last = int(_LAST.read_text())
    except (OSError, ValueError) as error:
        log.warning("capabilities are kept: %s cannot be read (%s)", _LAST, error)
        return
    for number in range(last + 1):
        if number != capability:
            library.prctl(_DROP_FROM_BOUNDS, number, 0, 0, 0)  # refused to those that have none
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    if library.capget(ctypes.byref(header), data) == 0:
        for place, part in enumerate(data):
            mask = 1 << capability - 32 * place if 0 <= capability - 32 * place < 32 else 0
            part.permitted &= mask
            part.effective &= mask
            part.inheritable = 0
        if library.capset(ctypes.byref(header), data) == 0:
            return
    log.warning("capabilities are kept: %s", os.strerror(ctypes.get_errno()))
