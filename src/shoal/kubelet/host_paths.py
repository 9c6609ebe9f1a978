"""Where things are on the host: the only place from which services of a node take a path.

Tests and simulated nodes have directories of their own, so that many agents can run in one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.kubelet import cdi, constants
from shoal.model.contract import node_files

_DEV: Final = Path("/dev")
_CALLS_SOCKET: Final = "dra.sock"


@dataclass(frozen=True, slots=True)
class DriverSockets:
    """Where a driver listens: for kubelet's registration and for its calls, and the latter as kubelet sees it."""

    registration: Path
    calls: Path
    endpoint: str


@dataclass(frozen=True, slots=True)
class HostPaths:
    """The folders and sockets of one node. Sockets have short paths: the kernel takes 107 bytes."""

    device_plugins: Path = Path(constants.DEVICE_PLUGIN_FOLDER)
    pod_resources: Path = Path(constants.POD_RESOURCES_SOCKET)
    #: Where CDI specs are looked for; the agent writes into the last.
    cdi: tuple[Path, ...] = cdi.FOLDERS
    #: Where the agent sees the host's device nodes, and where they are on the host.
    dev: Path = _DEV
    host_dev: Path = _DEV
    #: Where NVIDIA's toolkit has its configuration: as a package, and as the GPU operator installs it.
    toolkit: tuple[Path, ...] = (
        Path("/etc/nvidia-container-runtime/config.toml"),
        Path("/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"),
    )
    #: These are the same for the agent and for the host: of sockets, of programs that the host runs, of its cgroups.
    run: Path = Path("/run/shoal")
    programs: Path = Path("/var/lib/shoal")
    cgroups: Path = Path("/sys/fs/cgroup")
    #: Where the agent sees which pods have processes: the same folder on a real node.
    pod_cgroups: Path = Path("/sys/fs/cgroup")
    #: Where the agent sees the host's processes.
    proc: Path = Path("/proc")
    #: There if the host's cgroups are version 2.
    cgroup2: Path = Path("/sys/fs/cgroup/cgroup.controllers")
    #: Where DRA drivers register and have their folders, and where the latter are as kubelet sees them.
    plugins_registry: Path = Path(constants.PLUGINS_REGISTRY)
    plugins: Path = Path(constants.PLUGINS_FOLDER)
    host_plugins: Path = Path(constants.PLUGINS_FOLDER)

    @property
    def own_cdi(self) -> Path:
        """Where the agent's own specs go."""
        return self.cdi[-1]

    @property
    def limit_socket(self) -> Path:
        """Where hooks ask for memory limits."""
        return self.run / node_files.LIMIT_SOCKET

    @property
    def given(self) -> Path:
        """Where the agent remembers what containers have been given."""
        return self.run / node_files.GIVEN_FOLDER

    @property
    def claims(self) -> Path:
        """Where the agent remembers which claims are prepared, over a restart of the machine too."""
        return self.programs / node_files.CLAIMS_FOLDER

    @property
    def booted(self) -> Path:
        """There from the agent's first start until the machine restarts."""
        return self.run / node_files.BOOTED

    def driver(self, name: str) -> DriverSockets:
        """The sockets of a DRA driver."""
        return DriverSockets(
            registration=self.plugins_registry / f"{name}-reg.sock",
            calls=self.plugins / name / _CALLS_SOCKET,
            endpoint=str(self.host_plugins / name / _CALLS_SOCKET),
        )

    @property
    def registration(self) -> Path:
        """The socket on which plugins register."""
        return self.device_plugins / constants.REGISTRATION_SOCKET

    @property
    def checkpoint(self) -> Path:
        """kubelet's record of devices."""
        return self.device_plugins / constants.CHECKPOINT

    def device(self, name: str) -> tuple[str, str]:
        """A device node's path in containers, and on the host if that is another one."""
        inside = str(_DEV / name)
        there = str(self.host_dev / name)
        return inside, "" if there == inside else there
