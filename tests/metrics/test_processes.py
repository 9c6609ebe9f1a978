"""Whose a process is: names of cgroups as kubelet and the runtimes write them, and `/proc` while it changes."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.metrics.processes import ContainerRef, HostProcesses, container_in, container_of, owners_of

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
