"""What processes have used: CPU time and memory, as the kernel counts them."""

from __future__ import annotations

import os
import re
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int | str = "self") -> float:
    """Megabytes of a process that are in memory now."""
    return megabytes(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))


def most_resident(pid: int | str = "self") -> float:
    """Megabytes of a process that were in memory at the most."""
    return megabytes(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), "VmHWM")


def megabytes(status: str, name: str = "VmRSS") -> float:
    """A size out of a process's /proc/<pid>/status, in millions of bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise ValueError(f"no {name} in {status!r}")
    return int(found[1]) * 1024 / 1e6
