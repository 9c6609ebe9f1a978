"""A node's cards and processes as a test tells them."""

from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Driver
from shoal.gpu.simulated import SimulatedNvml
from shoal.metrics.processes import ContainerRef

OLDER = Driver(version="570.1", cuda=(12, 8))


class Containers:
    """The containers of simulated PIDs, and their cgroups."""

    def __init__(self) -> None:
        self.of: dict[int, ContainerRef] = {}
        self.folders: dict[ContainerRef, str] = {}

    def owner(self, pid: int) -> ContainerRef | None:
        return self.of.get(pid)

    def begin(self) -> None:
        pass

    def folder(self, container: ContainerRef) -> str | None:
        return self.folders.get(container)


class Machine:
    """Simulated cards. A program is added with its container."""

    def __init__(self, cards: object = "2xA30-24G", *, driver: Driver = OLDER) -> None:
        self.now = 1000.0
        self.cgroups_gone: set[str] = set()
        self.nvml = SimulatedNvml(
            parse_cards(cards),
            clock=lambda: self.now,
            driver=driver,
            cgroup_exists=lambda path: path not in self.cgroups_gone,
        )
        self.containers = Containers()
        self.uuids = self.nvml.uuids()

    def run(
        self,
        pid: int,
        memory: int,
        *,
        card: int = 0,
        container: ContainerRef | None = None,
        load: int = 0,
        mps: bool = False,
    ) -> None:
        """A program that runs, of a container or of nobody."""
        path = None if container is None else f"/sys/fs/cgroup/kubepods/pod{container.pod_uid}/{container.container_id}"
        self.nvml.add_process(self.uuids[card], pid, memory, load, cgroup=path, mps=mps)
        self.containers.of.pop(pid, None)
        if container is not None and path is not None:
            self.containers.of[pid] = container
            self.containers.folders[container] = path

    def end(self, pid: int) -> None:
        """It ends on all cards."""
        for uuid in self.uuids:
            self.nvml.remove_process(uuid, pid)
        self.containers.of.pop(pid, None)
