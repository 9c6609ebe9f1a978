"""Whose a process is: names of cgroups as kubelet and the runtimes write them, and `/proc` while it changes."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Sample
from shoal.gpu.simulated import SimulatedNvml
from shoal.metrics.collector import CardReader, processes_of
from shoal.metrics.processes import ContainerRef, HostProcesses, container_in, container_of, owners_of
from tests.metrics.machine import OLDER, Containers

UID = "1b2c3d4e-0000-4111-8222-0123456789ab"
SLICE = UID.replace("-", "_")
ID = "0123456789abcdef" * 4
FOUND = ContainerRef(UID, ID)
HASH = "00112233445566778899aabbccddeeff"


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/{ID}",
        f"/kubepods/besteffort/pod{UID}/{ID}",
        f"/kubepods/pod{UID}/{ID}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/docker-{ID}.scope",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/crio-{ID}.scope/container",
        f"/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
        f"/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
        f"/docker/{ID[::-1]}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        f"/../../kubepods/burstable/pod{UID}/{ID}",
        f"/kubepods/burstable/pod{UID}/{ID}/init.scope",
        # What a container makes below its own cgroup does not make it another.
        f"/kubepods/burstable/pod{UID}/{ID}/kubepods/burstable/pod{UID[::-1]}/{ID[::-1]}",
    ],
)
def test_containers(path: str) -> None:
    assert container_in(path) == FOUND
    assert container_of(f"12:cpuset:/\n4:memory:{path}\n1:name=systemd:/system.slice\n") == FOUND
    assert container_of(f"0::{path}\n") == FOUND


def test_a_static_pod_is_known_by_its_hash() -> None:
    assert container_in(f"/kubepods/burstable/pod{HASH}/{ID}") == ContainerRef(HASH, ID)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/system.slice/nvidia-persistenced.service",
        f"/docker/{ID}",
        f"/kubepods/burstable/pod{UID}",
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-conmon-{ID}.scope",
        f"/kubepods/burstable/pod{UID}/{ID[:-1]}",
        f"/kubepods/burstable/pod{UID}/../{ID}",
        f"/user.slice/user-1000.slice/{ID}",
        f"/kubepods/burstable/mypod{UID}x/{ID}",
        # The pod of the first part is the host's; no container of it is named.
        f"/kubepods/burstable/pod{UID}/other/pod{UID}/{ID}",
    ],
)
def test_no_containers(path: str) -> None:
    assert container_in(path) is None
    assert container_of(f"0::{path}\n") is None


@given(
    st.text()
    | st.lists(st.sampled_from(["kubepods", f"pod{UID}", ID, ":", "/", "\n", "0::", "-", ".slice"])).map("".join)
)
def test_any_text_is_read(text: str) -> None:
    found = container_of(text)
    assert found is None or (found.pod_uid in (UID, UID.replace("-", "_")) or len(found.pod_uid) in (32, 36))


class Proc:
    """A `/proc` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = HostProcesses(folder)

    def put(self, pid: int, start: int, path: str, name: str = "python") -> None:
        folder = self.folder / str(pid)
        folder.mkdir(exist_ok=True)
        rest = " ".join(["S", *["0"] * 18, str(start), *["0"] * 10])
        (folder / "stat").write_text(f"{pid} ({name}) {rest}\n")
        (folder / "cgroup").write_text(f"0::{path}\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.folder / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_number_that_comes_back_is_another_process(proc: Proc) -> None:
    proc.put(7, 100, f"/kubepods/pod{UID}/{ID}")
    assert proc.processes.owner(7) == FOUND
    proc.end(7)
    assert proc.processes.owner(7) is None
    proc.put(7, 200, "/system.slice/sshd.service")
    assert proc.processes.owner(7) is None
    proc.end(7)
    proc.put(7, 300, f"/kubepods/pod{HASH}/{ID}")
    assert proc.processes.owner(7) == ContainerRef(HASH, ID)


OTHER = "01234567-89ab-cdef-0123-456789abcdef"


class Swapping(SimulatedNvml):
    """Cards whose process ends as soon as it is listed, and whose number another process gets."""

    def __init__(self, swap: Callable[[], None]) -> None:
        super().__init__(parse_cards("1xA30-24G"), clock=time.monotonic, driver=OLDER)
        self._swap = swap

    def sample(self, uuid: str) -> Sample:
        found = super().sample(uuid)
        self._swap()
        return found


def ticks() -> int:
    """Now, as `/proc` tells when a process has started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 10**9


def test_use_of_a_process_is_never_booked_on_the_next_one_with_its_number(proc: Proc) -> None:
    """A tenant whose program ends right after the driver has listed it, and whose number somebody else's gets."""
    proc.put(7, 100, f"/kubepods/pod{UID}/{ID}")

    def swap() -> None:
        proc.end(7)
        proc.put(7, ticks(), f"/kubepods/pod{OTHER}/{ID}")

    nvml = Swapping(swap)
    (card,) = nvml.survey().cards
    nvml.add_process(card.uuid, 7, 20 << 30, 90)
    reader = CardReader(lambda: nvml, proc.processes, Containers())
    try:
        readings = reader.read({})
        assert [process.pid for process in processes_of(readings.sampled.cards[0].sample)] == [7]
        assert readings.owners == {}, "nobody's: the process that was listed is gone"
        # By the next reading the other one has been there for a while, and what it uses is its own.
        nvml._swap = lambda: None
        while ticks() <= int((proc.folder / "7" / "stat").read_text().split()[21]):
            os.sched_yield()
        assert reader.read({}).owners == {7: ContainerRef(OTHER, ID)}
    finally:
        reader.close()


def test_a_process_that_starts_while_cards_are_read_is_known_in_the_next_reading(proc: Proc) -> None:
    proc.put(7, ticks() + 1000, f"/kubepods/pod{UID}/{ID}")
    proc.processes.begin()
    assert proc.processes.owner(7) is None
    # Also one that was known before under that number.
    proc.put(7, 100, f"/kubepods/pod{UID}/{ID}")
    assert proc.processes.owner(7) == FOUND
    proc.put(7, ticks() + 1000, f"/kubepods/pod{UID}/{ID}")
    assert proc.processes.owner(7) is None


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_names_of_cgroups_begin_no_line(separator: str) -> None:
    """A container that may make cgroups below its own names one so that a line seems to begin in it."""
    inner = f"x{separator}1::/kubepods/pod{OTHER}/{ID}"
    assert container_of(f"0::/kubepods/pod{UID}/{ID}/{inner}\n") == FOUND
    assert container_of(f"1:a:/\n0::/kubepods/pod{UID}/{ID}/{inner}\n") == FOUND


def test_a_known_process_is_asked_for_its_start_alone(proc: Proc) -> None:
    proc.put(7, 100, f"/kubepods/pod{UID}/{ID}")
    assert proc.processes.owner(7) == FOUND
    (proc.folder / "7" / "cgroup").unlink()
    assert proc.processes.owner(7) == FOUND


@pytest.mark.parametrize(
    "name", ["a) S 1 2 3", "(((", "x y z", ") 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21"]
)
def test_names_of_processes_say_nothing(proc: Proc, name: str) -> None:
    proc.put(7, 100, f"/kubepods/pod{UID}/{ID}", name=name)
    assert proc.processes.owner(7) == FOUND
    proc.put(7, 101, "/", name=name)
    assert proc.processes.owner(7) is None, "by its own start"


def test_a_process_that_ends_while_it_is_read_is_nobodys(proc: Proc) -> None:
    """Its number is another's by the time its cgroup is told."""
    proc.put(7, 100, "/")
    cgroup = proc.folder / "7" / "cgroup"
    cgroup.unlink()
    os.mkfifo(cgroup)

    def come_back() -> None:
        with cgroup.open("w") as told:  # waits until somebody reads
            stat = proc.folder / "7" / "stat"
            stat.write_text(stat.read_text().replace(" 100 ", " 200 "))
            told.write(f"0::/kubepods/pod{UID}/{ID}\n")

    other = threading.Thread(target=come_back)
    other.start()
    assert proc.processes.owner(7) is None
    other.join()


@pytest.mark.parametrize("damage", ["", "7", "7 (x)", "7 (x) S 1 2"])
def test_a_torn_stat_is_no_process(proc: Proc, damage: str) -> None:
    proc.put(7, 100, f"/kubepods/pod{UID}/{ID}")
    (proc.folder / "7" / "stat").write_text(damage)
    assert proc.processes.owner(7) is None


def test_this_process_is_read() -> None:
    """A real `/proc`: whatever it says, it is read without an error."""
    processes = HostProcesses()
    assert processes.owner(os.getpid()) == container_of(Path("/proc/self/cgroup").read_text())
    assert processes.owner(2**22 + 1) is None


def test_owners_of_many(proc: Proc) -> None:
    proc.put(7, 1, f"/kubepods/pod{UID}/{ID}")
    proc.put(8, 1, "/")
    assert owners_of([7, 8, 9], proc.processes) == {7: FOUND}
