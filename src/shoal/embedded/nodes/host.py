"""The machine under a simulated kubelet: its folders, its cards, and the containers its runtime has.

It outlives a restart of kubelet. What a restart of the machine does to it is `reboot`.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.embedded.logs import Line
from shoal.embedded.nodes.cdi_files import CdiFiles
from shoal.embedded.nodes.clock import Clock
from shoal.embedded.nodes.cluster import NodeDescription
from shoal.embedded.nodes.gpus import Programs
from shoal.embedded.nodes.pods.machine import PodRun
from shoal.embedded.nodes.pods.states import Log
from shoal.gpu.simulated import SimulatedNvml
from shoal.kubelet import constants
from shoal.kubelet.cdi import ContainerEdits, Hook

_POD_ADDRESSES = 253
_PROCESSES = "cgroup.procs"


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of a node that kubelet and its plugins share, as under `/var/lib/kubelet` and `/var/run/cdi`."""

    root: Path

    @property
    def device_plugins(self) -> Path:
        """Where plugins put their sockets, and kubelet its own and its checkpoint."""
        return self.root / constants.DEVICE_PLUGIN_FOLDER.name

    @property
    def pod_resources(self) -> Path:
        """The socket of PodResources."""
        return self.root / "pod-resources" / constants.POD_RESOURCES_SOCKET.name

    @property
    def plugins_registry(self) -> Path:
        """Where DRA drivers put the sockets by which kubelet finds them."""
        return self.root / constants.PLUGINS_REGISTRY.name

    @property
    def plugins(self) -> Path:
        """Where they have their other files."""
        return self.root / constants.PLUGINS_FOLDER.name

    @property
    def cdi(self) -> tuple[Path, Path]:
        """Where CDI specs are looked for: those that stay, and those made while the node runs."""
        return self.root / "etc-cdi", self.root / "cdi"

    @property
    def run(self) -> Path:
        """What does not outlive a restart of the machine, as under `/run`."""
        return self.root / "run"

    @property
    def cgroups(self) -> Path:
        """The cgroups, as under `/sys/fs/cgroup`: those of pods, each with one below it for each container."""
        return self.root / "cgroups"


@dataclass(frozen=True, slots=True)
class Creation:
    """What a container was created with: what its program sees, and what CDI did to it."""

    env: Mapping[str, str]
    #: The variables whose values are not shown.
    secret: frozenset[str]
    edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class HookCall:
    """A CDI hook that a runtime would run now, with the state it would tell it, and the container's own cgroup."""

    hook: Hook
    state: Mapping[str, Any]
    cgroup: str


#: Does in this process what the hook's program would do; HookError keeps the container from starting.
HookRunner = Callable[[HookCall], Awaitable[None]]


@dataclass(slots=True)
class Host:
    """One machine. `number` tells its addresses apart from those of others."""

    spec: NodeDescription
    number: int
    folders: Folders
    clock: Clock
    runs: dict[str, PodRun] = field(default_factory=dict)
    #: By pod UID and container.
    creations: dict[tuple[str, str], Creation] = field(default_factory=dict)
    #: Stands in for the programs of CDI hooks. None: hooks are recorded and nobody runs them.
    run_hook: HookRunner | None = None
    cdi_files: CdiFiles = field(init=False)
    nvml: SimulatedNvml = field(init=False)
    programs: Programs = field(init=False)
    _last_address: int = 0

    def __post_init__(self) -> None:
        self.cdi_files = CdiFiles(self.folders.cdi)
        self.nvml = SimulatedNvml(self.spec.cards, clock=lambda: self.clock.now().timestamp(), seed=self.spec.name)
        self.programs = Programs(self.nvml)

    @property
    def address(self) -> str:
        """The node's own address."""
        return f"172.{16 + self.number // 62500}.{self.number // 250 % 250}.{self.number % 250 + 1}"

    def pod_address(self) -> str:
        """An address for one more pod. More pods than addresses share some."""
        self._last_address = self._last_address % _POD_ADDRESSES + 1
        used = {run.address for run in self.runs.values() if not run.over}
        for _ in range(_POD_ADDRESSES):
            if self._pod_address(self._last_address) not in used:
                break
            self._last_address = self._last_address % _POD_ADDRESSES + 1
        return self._pod_address(self._last_address)

    def _pod_address(self, last: int) -> str:
        return f"10.{64 + self.number // 256}.{self.number % 256}.{last + 1}"

    def container_id(self, pod_uid: str, container: str, run: int) -> str:
        """The ID of one run of a container: the same for the same run."""
        digest = hashlib.sha256(f"{self.spec.name}/{pod_uid}/{container}/{run}".encode()).hexdigest()
        return f"containerd://{digest}"

    def begin_cgroup(self, name: str) -> None:
        """A pod has a cgroup, with its sandbox in it."""
        folder = self.folders.cgroups / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _PROCESSES).write_text("1\n")

    def end_cgroup(self, name: str) -> None:
        """Nothing runs in a pod's cgroup any more."""
        shutil.rmtree(self.folders.cgroups / name, ignore_errors=True)

    def forget(self, pod_uid: str) -> None:
        """A pod is gone, and all that was kept of it."""
        self.runs.pop(pod_uid, None)
        for key in [key for key in self.creations if key[0] == pod_uid]:
            del self.creations[key]

    def reboot(self) -> None:
        """Every container ends with the machine; its disks stay."""
        now = self.clock.now()
        for run in self.runs.values():
            run.step(now)
            run.crash(now)
        self.programs.keep_only(())
        for folder in (self.folders.cgroups, self.folders.run):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in self.folders.cdi[1:]:
            for path in folder.glob("*"):
                path.unlink()

    def reader(self, pod_uid: str, container: str, *, previous: bool) -> LogView | None:
        """The log of a container, or of its run before."""
        run = self.runs.get(pod_uid)
        one = run.containers.get(container) if run is not None else None
        if one is None or run is None:
            return None
        log = one.previous_log if previous else one.log
        return None if log is None else LogView(log, self.clock)


class LogView:
    """A log as the API server reads it."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._seen: datetime | None = None

    def written(self) -> list[Line]:
        """All lines so far."""
        self._seen = self._clock.now()
        return self._log.until(self._seen)

    async def more(self) -> bool:
        """Wait for the next line or the end."""
        seen = self._seen or self._clock.now()
        if self._log.closed is not None and self._log.closed <= seen:
            return False
        await self._log.wait(self._clock, seen)
        return True
