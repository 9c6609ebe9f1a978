"""Containers + unattributed = used, in every snapshot of the collector, whatever happens on the node meanwhile.

Processes start, end and come back under the same PIDs, containers restart under new IDs, pods come and go, cards fall
off the bus, clocks jump, and some of it happens between the driver's answer and the look into `/proc`.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Driver, Sample
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.metrics.collector import CardReader, Collector
from shoal.metrics.node_pods import NodeContainers
from shoal.metrics.processes import ContainerRef, HostProcesses
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from shoal.model.contract.gpushare import MemoryUnit
from tests.metrics.machine import OLDER
from tests.metrics.pods import NODE, container_id, pod, pod_uid
from tests.soak import times

MIB = 2**20
CARDS = 2
PODS = 4


class Moving(SimulatedNvml):
    """Cards on which something happens right after they have been read."""

    def __init__(self, driver: Driver, gone: set[str]) -> None:
        super().__init__(
            parse_cards(f"{CARDS}xA30-24G"),
            clock=lambda: 0.0,
            driver=driver,
            cgroup_exists=lambda path: path not in gone,
        )
        self.afterwards: list[Callable[[], None]] = []

    def sample(self, uuid: str) -> Sample:
        sample = super().sample(uuid)
        while self.afterwards:
            self.afterwards.pop()()
        return sample


@dataclass
class World:
    """A node: what runs on it, and what the API server shows of it."""

    proc: Path
    driver: Driver
    #: By PID: the container, the card and the memory.
    running: dict[int, tuple[ContainerRef | None, int, int]] = field(default_factory=dict)
    shown: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    starts: int = 0
    runs: Counter[int] = field(default_factory=Counter)
    now: float = 1e9
    monotonic: float = 1000.0

    def __post_init__(self) -> None:
        self.nvml = Moving(self.driver, self.gone)
        self.uuids = self.nvml.uuids()
        self.pods = NodeContainers(Client(Access("http://127.0.0.1:1", StoredCredential())), NODE, unit=MemoryUnit.GIB)
        self.pods.reflector.synced.set()
        self.reader = CardReader(lambda: self.nvml, HostProcesses(self.proc), self)
        self.collector = Collector(
            NODE,
            self.reader,
            self.pods,
            LatestSnapshot(),
            interval=5.0,
            grace=60.0,
            now=lambda: self.now,
            monotonic=lambda: self.monotonic,
        )

    # The cgroups of containers

    def begin(self) -> None:
        pass

    def folder(self, container: ContainerRef) -> str | None:
        return path_of(container)

    # What happens

    def container(self, number: int) -> ContainerRef:
        return ContainerRef(pod_uid(number), container_id(1000 * number + self.runs[number]))

    def start(self, pid: int, owner: int | None, card: int, mib: int) -> None:
        if pid in self.running or card in self.lost:
            return
        ref = None if owner is None else self.container(owner)
        used = sum(memory for _, place, memory in self.running.values() if place == card)
        if used + mib * MIB > 20 * 1024 * MIB:
            return
        self.running[pid] = (ref, card, mib * MIB)
        self.nvml.add_process(self.uuids[card], pid, mib * MIB, 0, cgroup=None if ref is None else path_of(ref))
        self.starts += 1
        folder = self.proc / str(pid)
        folder.mkdir()
        cgroup = "/system.slice/x.service" if ref is None else f"/../..{path_of(ref)}"
        (folder / "stat").write_text(f"{pid} (a) b) S {'0 ' * 18}{self.starts} 0")
        (folder / "cgroup").write_text(f"4:memory:{cgroup}\n0::{cgroup}\n")

    def end(self, pid: int) -> None:
        _, card, _ = self.running.pop(pid, (None, 0, 0))
        self.nvml.remove_process(self.uuids[card], pid)
        shutil.rmtree(self.proc / str(pid), ignore_errors=True)

    def reuse(self, pid: int, owner: int | None, card: int, mib: int) -> None:
        self.end(pid)
        self.start(pid, owner, card, mib)

    def restart(self, number: int) -> None:
        """A container ends with its processes, and runs again under another ID."""
        for pid, (ref, _, _) in list(self.running.items()):
            if ref == self.container(number):
                self.end(pid)
        self.gone.add(path_of(self.container(number)))
        self.runs[number] += 1
        if number in self.shown:
            self.show(number)

    def show(self, number: int) -> None:
        """The watch tells of a pod."""
        self.shown.add(number)
        self.pods.on_pod(Change(ChangeType.ADDED, None, self.pod(number)))

    def hide(self, number: int) -> None:
        self.shown.discard(number)
        self.pods.on_pod(Change(ChangeType.DELETED, self.pod(number), None))

    def pod(self, number: int) -> Pod:
        ids = {"main": self.container(number).container_id} if number % 2 else {}
        shares = {"main": [(self.uuids[number % CARDS], 1 + number)]}
        return pod(f"p{number}", uid=pod_uid(number), shares=shares, ids=ids)

    def lose(self, card: int) -> None:
        for pid, (_, place, _) in list(self.running.items()):
            if place == card:
                self.end(pid)
        self.lost.add(card)
        self.nvml.lose(self.uuids[card])

    def find(self, card: int) -> None:
        self.lost.discard(card)
        self.nvml.restore(self.uuids[card])

    def jump(self, seconds: float) -> None:
        self.now += seconds
        self.monotonic += seconds

    # What must be seen

    def check(self, snapshot: Snapshot, *, still: bool) -> None:
        for place, card in enumerate(snapshot.cards):
            parts = {one.name.pod_uid: 0 for one in card.containers}
            assert len({one.name for one in card.containers}) == len(card.containers)
            for one in card.containers:
                parts[one.name.pod_uid] += one.used_bytes or 0
            if card.used_bytes is None:
                assert card.unattributed_bytes is None
                continue
            assert card.unattributed_bytes is not None
            assert card.unattributed_bytes >= 0
            assert sum(parts.values()) + card.unattributed_bytes == card.used_bytes
            if still and place not in self.lost:
                truth = Counter[str]()
                for ref, on, memory in self.running.values():
                    if on == place and ref is not None and ref.pod_uid in {pod_uid(n) for n in self.shown}:
                        truth[ref.pod_uid] += memory
                assert {uid: amount for uid, amount in parts.items() if amount} == dict(truth)
                assert card.used_bytes == sum(memory for _, on, memory in self.running.values() if on == place)


def path_of(ref: ContainerRef) -> str:
    return f"/sys/fs/cgroup/kubepods/pod{ref.pod_uid}/{ref.container_id}"


pids = st.integers(1, 3)
numbers = st.integers(0, PODS - 1)
cards = st.integers(0, CARDS - 1)
owners = st.none() | numbers
moves = st.one_of(
    st.tuples(st.just("start"), pids, owners, cards, st.integers(1, 6000)),
    st.tuples(st.just("end"), pids),
    st.tuples(st.just("reuse"), pids, owners, cards, st.integers(1, 6000)),
    st.tuples(st.just("restart"), numbers),
    st.tuples(st.just("show"), numbers),
    st.tuples(st.just("hide"), numbers),
    st.tuples(st.just("lose"), cards),
    st.tuples(st.just("find"), cards),
    st.tuples(st.just("jump"), st.floats(-1e6, 1e6)),
)
#: What happens before a look, and what while the collector looks.
steps = st.lists(
    st.tuples(st.lists(moves, min_size=1, max_size=6), st.lists(moves, max_size=2)), min_size=2, max_size=10
)


@settings(max_examples=times(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.sampled_from([OLDER, NEWEST]))
def test_the_parts_add_up_whatever_happens(script: list, driver: Driver) -> None:
    with tempfile.TemporaryDirectory(prefix="proc-") as folder:
        asyncio.run(play(World(Path(folder), driver), script))


async def play(world: World, script: list) -> None:
    try:
        for number in range(PODS):
            world.show(number)
        for before, meanwhile in script:
            for name, *arguments in before:
                getattr(world, name)(*arguments)
            # The watch's thread is the event loop's: pods do not change while the cards are read.
            inside = [move for move in meanwhile if move[0] in ("start", "end", "reuse")]
            world.nvml.afterwards = [partial(getattr(world, name), *arguments) for name, *arguments in inside]
            world.check(await world.collector.collect(), still=not inside)
            world.nvml.afterwards.clear()
    finally:
        world.reader.close()
