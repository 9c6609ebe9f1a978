"""The cgroup of a test node: one folder of the same name in every hierarchy the machine has, v1 or v2."""

import contextlib
from pathlib import Path

from tests.testbed.janitor import remove_cgroup
from tests.testbed.processes import Run, TestbedError

_MOUNTS = Path("/proc/self/mounts")
# v1: a new cpuset is empty, and no process may enter it before it has processors and memory.
_INHERITED = ("cpuset.cpus", "cpuset.mems")
_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma")


class NodeCgroup:
    """A cgroup of the run that holds all containers of one node."""

    def __init__(self, run: Run, name: str) -> None:
        self.path = f"/{run.directory.name}-{name}"
        self.folders = [mount / self.path[1:] for mount in hierarchies()]
        for folder in self.folders:
            run.register_cgroup(folder)

    def make(self) -> None:
        """Make it, able to hold processes and to pass its controllers on."""
        for folder in self.folders:
            if (folder.parent / "cgroup.subtree_control").exists():
                _pass_controllers_on(folder.parent)
            folder.mkdir(exist_ok=True)
            for name in _INHERITED:
                if (folder / name).exists() and (folder.parent / name).exists():
                    (folder / name).write_text((folder.parent / name).read_text())
            if (folder / "cgroup.subtree_control").exists():
                _pass_controllers_on(folder)

    def remove(self) -> None:
        """Remove it in every hierarchy."""
        for folder in self.folders:
            remove_cgroup(folder)
        if left := [folder for folder in self.folders if folder.exists()]:
            raise TestbedError(f"cgroups cannot be removed: {left}")


def hierarchies() -> list[Path]:
    """Where the machine's cgroup hierarchies are mounted."""
    rows = [line.split() for line in _MOUNTS.read_text().splitlines()]
    return sorted({Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")})


def _pass_controllers_on(folder: Path) -> None:
    there = (folder / "cgroup.controllers").read_text().split()
    for controller in _V2_CONTROLLERS:
        if controller in there:
            with contextlib.suppress(OSError):  # not every controller can be passed on everywhere
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
