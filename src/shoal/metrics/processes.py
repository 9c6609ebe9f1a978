"""Which container a process belongs to, by the name of its cgroup.

Both versions of cgroups, kubelet's two ways of naming (cgroupfs and systemd), and the runtimes' own prefixes are known.
The first pod in a path counts: what a container makes below its own cgroup, whatever its name, stays the container's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from shoal.model.bounded_cache import BoundedCache

#: A pod's UID, or the hash that stands for a static pod's, as kubelet writes it into names of cgroups.
_POD: Final = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$"
)
#: A container, with its runtime's prefix if it has one. CRI-O's monitors (`crio-conmon-…`) are none.
_CONTAINER: Final = re.compile(r"^(?:(?:cri-containerd|crio|docker|libpod)-)?([0-9a-f]{64})(?:\.scope)?$")
#: containerd whose own driver differs from kubelet writes one name for all: `<slice>:cri-containerd:<id>`.
_JOINED: Final = re.compile(r"^(.+\.slice):(?:cri-containerd|crio|docker):([0-9a-f]{64})$")
#: Processes remembered; more than a node has on its cards.
_REMEMBERED: Final = 2048
#: `/proc/PID/stat` and `/proc/PID/cgroup` are shorter.
_MOST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container as the node knows it. A static pod's `pod_uid` is the hash of its file."""

    pod_uid: str
    container_id: str


class ProcessOwners(Protocol):
    """Looks up whose a process is."""

    def begin(self) -> None:
        """The driver is about to list processes: one that starts later is not in its list."""
        ...

    def owner(self, pid: int) -> ContainerRef | None:
        """The container of a process; None when it belongs to none, or is gone."""
        ...


def container_in(path: str) -> ContainerRef | None:
    """The container that a cgroup's path names; None when it names none."""
    pod = ""
    for part in path.split("/"):
        joined = _JOINED.match(part)
        if joined and not pod:
            inside = _POD.search(joined[1])
            return ContainerRef(_uid(inside[1]), joined[2]) if inside else None
        if pod:
            container = _CONTAINER.match(part)
            return ContainerRef(pod, container[1]) if container else None
        found = _POD.search(part)
        if found:
            pod = _uid(found[1])
    return None


def container_of(cgroups: str) -> ContainerRef | None:
    """The container that `/proc/PID/cgroup` names: the first of its lines that names one.

    All hierarchies of version 1 agree, but a hybrid host may have some in which kubelet puts nobody.
    """
    # The kernel ends lines with "\n" and lets no name hold it; names may hold what else Python takes for an end.
    paths = (line.split(":", 2)[2] for line in cgroups.split("\n") if line.count(":") >= 2)
    return next((found for found in map(container_in, paths) if found is not None), None)


class HostProcesses:
    """Asks the host's `/proc`. A PID is known together with its start, since numbers come back.

    The driver lists PIDs, and `/proc` is asked later: by then a PID may be that of another process. That one has
    started after `begin`, and has no owner in this reading.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: BoundedCache[tuple[int, int], ContainerRef] = BoundedCache(_REMEMBERED)
        self._begun = _ticks()

    def begin(self) -> None:
        """The driver is about to list processes."""
        self._begun = _ticks()

    def owner(self, pid: int) -> ContainerRef | None:
        """The container of a process that was there at the last `begin`, as long as that very process is there."""
        start = self._start(pid)
        # One of the same tick may have started before or after.
        if start is None or start >= self._begun:
            return None
        known = self._known.get((pid, start))
        if known is not None:
            return known
        cgroups = self._read(pid, "cgroup")
        if cgroups is None or self._start(pid) != start:
            return None  # it ended while it was read: the number may be another's already
        found = container_of(cgroups)
        if found is not None:
            self._known.put((pid, start), found)
        return found

    def _start(self, pid: int) -> int | None:
        """The moment of the start in ticks: the 22nd field, counted behind the name, which may hold anything."""
        text = self._read(pid, "stat")
        fields = [] if text is None else text.rpartition(")")[2].split()
        return int(fields[19]) if len(fields) > 19 and fields[19].isdecimal() else None

    def _read(self, pid: int, name: str) -> str | None:
        # Without pathlib, which costs more than the kernel does, for 200 processes in every interval.
        try:
            file = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(file, _MOST).decode(errors="replace")
        except OSError:
            return None
        finally:
            os.close(file)


def _ticks() -> int:
    """Now, as `/proc/PID/stat` tells when a process has started: in clock ticks since boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 1_000_000_000


def _uid(written: str) -> str:
    return written.replace("_", "-")


def owners_of(pids: Iterable[int], processes: ProcessOwners) -> dict[int, ContainerRef]:
    """Those of the processes that belong to containers."""
    found = {pid: processes.owner(pid) for pid in pids}
    return {pid: owner for pid, owner in found.items() if owner is not None}
