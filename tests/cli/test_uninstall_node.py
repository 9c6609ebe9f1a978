"""`shoal uninstall --node` on real files: all of Shoal's go, nothing of anybody else's, whatever lies in the way."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.agent.claims.records import ClaimRecord, ClaimRecords
from shoal.agent.device_plugin.serving import SOCKETS, socket_of
from shoal.agent.device_plugin.specs import CdiSpecs
from shoal.agent.limits import cgroup
from shoal.agent.node.given import Given, GivenFiles
from shoal.kubelet import cdi
from shoal.kubelet.cdi import ContainerEdits, Device, Spec
from shoal.kubelet.dra import ClaimRef
from shoal.kubelet.host_paths import HostPaths
from shoal.metrics.history import HistoryWriter, Series
from shoal.model.allocation import Allocation
from shoal.model.contract import dra, nvidia, shoal
from shoal.operator.node_removal import NodeRemoval, NodeRemovalReport
from shoal.validator.files import OF_THE_DRIVER, ValidationFiles

MAIN = "from shoal.cli.main import main; main()"
PLUGINS = "var/lib/kubelet/device-plugins"
DRIVERS = "var/lib/kubelet/plugins"
REGISTRY = "var/lib/kubelet/plugins_registry"


class Host:
    """A node's file system in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (PLUGINS, DRIVERS, REGISTRY, "run", "var/lib", "var/log", "tmp", "etc"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "var/run").symlink_to("../run")
        self._sockets: list[socket.socket] = []
        self.paths = HostPaths(
            device_plugins=root / PLUGINS,
            cdi=(root / "etc/cdi", root / "run/cdi"),
            run=root / "run/shoal",
            programs=root / "var/lib/shoal",
        )

    def listen(self, name: str, *, dead: bool = False, kind: int = socket.SOCK_STREAM) -> None:
        """A socket on which somebody answers, or nobody any more."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, kind)
        # The path may be longer than a socket's may be.
        with contextlib.chdir(path.parent):
            listener.bind(path.name)
        if dead:
            listener.close()
        else:
            listener.listen()
            self._sockets.append(listener)

    def write(self, name: str, content: str = "x") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def close(self) -> None:
        for listener in self._sockets:
            listener.close()

    def entries(self) -> set[str]:
        found = set()
        for folder, folders, files in os.walk(self.root):
            found |= {str((Path(folder) / name).relative_to(self.root)) for name in (*folders, *files)}
        return found

    def remove(self, **more: bool) -> NodeRemovalReport:
        return NodeRemoval(self.root, **more).run(patience=0)

    def serve(self) -> None:
        """What agent, collector, validator and MPS daemon leave, by their own code where that is ours."""
        specs = CdiSpecs(self.paths)
        for number in range(3):
            specs.write(f"{number}-a", ContainerEdits(env=("A=b",)))
        self.write("run/cdi/.shoal.dev-share-9-a.json.17", '{"cdiVer')
        given = GivenFiles(self.paths.given)
        given.write(Given("uid-1", "team", "pod", Allocation("n1", ())))
        self.write("run/shoal/given/.uid-2.json.17", "{")
        self.listen("run/shoal/limit.sock", dead=True)
        self.write("run/shoal/shm/cuda.shm.0.1")
        self.write("run/shoal/shm/deeper/one")
        claim = ClaimRef("team", "claim", "uid-3")
        ClaimRecords(self.paths.claims, "n1").write(ClaimRecord(claim, "n1", (), {}))
        self.write("var/lib/shoal/claims/.uid-4.json.17", "{")
        spec = Spec(
            cdi_version=cdi.VERSION, kind=dra.CDI_KIND, devices=(Device("uid-3-gpu", ContainerEdits(env=("A=b",))),)
        )
        cdi.write(self.paths.own_cdi, spec, claim.uid)
        self.write("run/shoal/booted")
        self.listen(f"{REGISTRY}/gpu.shoal.dev-reg.sock", dead=True)
        self.listen(f"{DRIVERS}/gpu.shoal.dev/dra.sock", dead=True)
        cgroup.install(self.write("hook"), self.paths.programs)
        (self.root / "hook").unlink()
        self.write("var/lib/shoal/.shoal-limit.17")
        history = HistoryWriter(self._made("var/lib/shoal/history"))
        history.write(1_800_000_000.0, {Series("used"): 1.0})
        history.close()
        for resource in (*SOCKETS, nvidia.RESOURCE_GPU_SHARED, nvidia.mig_resource("1g.10gb")):
            self.listen(f"{PLUGINS}/{socket_of(resource)}", dead=True)
        validations = ValidationFiles(self.root / "run/nvidia/validations")
        for name in (*OF_THE_DRIVER, nvidia.VALIDATION_DRIVER_CONTAINER):
            validations.write(name, b"x")
        self.write("run/nvidia/validations/.driver-ready.17")
        self.write("run/nvidia/validations/..shoal-runtime.17")
        self.listen("tmp/nvidia-mps/control", dead=True, kind=socket.SOCK_SEQPACKET)
        self.write("tmp/nvidia-mps/nvidia-cuda-mps-control.pid")
        os.mkfifo(self.root / "tmp/nvidia-mps/log")
        self.write("tmp/nvidia-mps/shoal/n_1/control_lock")
        for name in ("control.log", "server.log"):
            self.write(f"var/log/nvidia-mps/{name}")

    def _made(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(parents=True)
        return path


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "host")
    yield host
    host.close()


def test_all_of_it_goes_and_again(host: Host) -> None:
    (host.root / "etc/cdi").mkdir()
    (host.root / "run/cdi").mkdir()
    before = host.entries()
    host.serve()
    assert len(host.entries()) > len(before) + 30
    report = host.remove()
    assert host.entries() == before
    assert not report.kept
    assert not report.failed
    assert "/run/cdi/shoal.dev-share-0-a.json" in report.removed
    assert host.remove() == NodeRemovalReport()


def test_what_is_others_stays(host: Host) -> None:
    host.serve()
    theirs = [
        host.write("run/cdi/nvidia.yaml", "cdiVersion: 0.6.0"),
        host.write("etc/cdi/nvidia.json", "{}"),
        host.write("run/cdi/shoal.dev-share-mine.yaml"),
        cdi.write(host.root / "run/cdi", Spec(cdi_version="0.6.0", kind="a.b/c", devices=(_device(),)), "x"),
        host.write("run/shoal/given/notes.txt"),
        host.write("run/shoal/other"),
        host.write("var/lib/shoal/history/readme"),
        host.write("var/lib/shoal/history/raw-1.history.bak"),
        host.write("run/nvidia/validations/workload-type"),
        host.write("run/nvidia/driver/x"),
        host.write("var/log/nvidia-mps/old.log.gz"),
        host.write(f"{PLUGINS}/kubelet_internal_checkpoint"),
        host.write(f"{PLUGINS}/other.sock"),
    ]
    host.listen(f"{PLUGINS}/kubelet.sock")
    host.listen(f"{PLUGINS}/example.sock", dead=True)
    host.listen(f"{REGISTRY}/gpu.example.com-reg.sock", dead=True)
    report = host.remove()
    assert all(path.exists() for path in theirs)
    assert [path.name for path in (host.root / REGISTRY).iterdir()] == ["gpu.example.com-reg.sock"]
    assert {path.name for path in (host.root / PLUGINS).iterdir()} == {
        *("kubelet_internal_checkpoint", "other.sock", "kubelet.sock", "example.sock")
    }
    assert not report.failed
    assert {line.partition(":")[0] for line in report.kept} == {
        *("/run/shoal", "/run/shoal/given", "/var/lib/shoal", "/var/lib/shoal/history"),
        *("/run/nvidia/validations", "/var/log/nvidia-mps"),
    }


def test_a_file_with_our_name_and_other_content_stays_and_is_told(host: Host) -> None:
    other = {"cdiVersion": "0.6.0", "kind": "vendor.com/gpu", "devices": []}
    host.write("run/cdi/shoal.dev-share-1.json", json.dumps(other))
    host.write("run/cdi/shoal.dev-share-2.json", "not json")
    host.write("run/cdi/shoal.dev-share-3.json", json.dumps({**other, "kind": shoal.CDI_KIND}))
    report = host.remove()
    assert report.removed == ["/run/cdi/shoal.dev-share-3.json"]
    assert [line.partition(": ") for line in report.kept] == [
        ("/run/cdi/shoal.dev-share-1.json", ": ", "it is a CDI spec of 'vendor.com/gpu'"),
        ("/run/cdi/shoal.dev-share-2.json", ": ", "it is no CDI spec that can be read"),
    ]


def test_another_plugin_under_the_same_name_keeps_its_socket(host: Host) -> None:
    """NVIDIA's own plugin, or gpushare's, that came before the clean-up."""
    host.listen(f"{PLUGINS}/{nvidia.DEVICE_PLUGIN_SOCKET}")
    host.listen(f"{PLUGINS}/{socket_of(shoal.RESOURCE_SLOT)}", dead=True)
    report = host.remove()
    assert (host.root / PLUGINS / nvidia.DEVICE_PLUGIN_SOCKET).exists()
    assert report.removed == [f"/{PLUGINS}/{socket_of(shoal.RESOURCE_SLOT)}"]
    assert report.kept == [f"/{PLUGINS}/{nvidia.DEVICE_PLUGIN_SOCKET}: another device plugin answers there"]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_an_mps_daemon_that_answers_keeps_its_folder(host: Host, kind: int) -> None:
    """NVIDIA's has a socket of packets."""
    host.listen("tmp/nvidia-mps/control", kind=kind)
    host.write("tmp/nvidia-mps/pid")
    host.write("var/log/nvidia-mps/control.log")
    before = host.entries()
    report = host.remove()
    assert host.entries() == before
    assert report.kept == ["/tmp/nvidia-mps: an MPS daemon answers there"]


def test_nothing_is_touched_while_an_agent_serves(host: Host) -> None:
    host.serve()
    before = host.entries()
    descriptor = os.open(host.root / PLUGINS, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        report = host.remove()
    finally:
        os.close(descriptor)
    assert host.entries() == before
    assert "an agent still serves this node" in report.failed[0]
    assert not host.remove().failed


def test_nvidias_operator_keeps_its_validations(host: Host) -> None:
    host.serve()
    host.remove(keep_validations=True)
    assert len(list((host.root / "run/nvidia/validations").iterdir())) == 8
    assert not (host.root / "run/shoal").exists()


@pytest.mark.parametrize(
    "link",
    [
        *("run/shoal", "run/shoal/given", "run/shoal/shm", "var/lib/shoal", "var/lib/shoal/history"),
        *("run/cdi", "etc/cdi", "tmp/nvidia-mps", "var/log/nvidia-mps", "run/nvidia", "run/nvidia/validations"),
        PLUGINS,
    ],
)
def test_folders_that_are_links_lead_nowhere(host: Host, tmp_path: Path, link: str) -> None:
    """A folder outside holds files with names of ours."""
    outside = Host(tmp_path / "outside")
    outside.serve()
    for sub in ("shm", "given", "history", "validations"):
        outside.write(f"{link}/{sub}/uid.json")
    before = outside.entries()
    place = host.root / link
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        place.rmdir()
    place.symlink_to(outside.root / link)
    host.remove()
    outside.close()
    assert outside.entries() == before
    assert place.is_symlink()


def test_files_that_are_links_are_not_followed(host: Host, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": shoal.CDI_KIND, "devices": []}))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "kept").write_text("x")
    links = {
        "run/cdi/shoal.dev-share-1.json": secret,
        "run/shoal/given/uid.json": secret,
        "run/shoal/limit.sock": secret,
        "run/shoal/shm/file": secret,
        "run/shoal/shm/folder": folder,
        "tmp/nvidia-mps/control": secret,
        "tmp/nvidia-mps/folder": folder,
        "var/lib/shoal/shoal-limit": secret,
        "var/lib/shoal/history/raw-000000000001.history": secret,
        "run/nvidia/validations/driver-ready": secret,
        f"{PLUGINS}/shoal-gpu.sock": secret,
    }
    for name, target in links.items():
        (host.root / name).parent.mkdir(parents=True, exist_ok=True)
        (host.root / name).symlink_to(target)
    report = host.remove()
    assert secret.exists()
    assert (folder / "kept").exists()
    # In folders that clients of MPS write to, a link is something to remove; elsewhere it is nothing that we made.
    assert not (host.root / "run/shoal/shm").exists()
    assert not (host.root / "tmp/nvidia-mps").exists()
    assert (host.root / "run/cdi/shoal.dev-share-1.json").is_symlink()
    assert len([line for line in report.kept if "it is" in line and "holds" not in line]) == 7


def test_a_pipe_and_names_made_to_deceive(host: Host) -> None:
    (host.root / "run/cdi").mkdir()
    os.mkfifo(host.root / "run/cdi/shoal.dev-share-1.json")
    host.write("run/shoal/shm/a\nremoved everything\x1b[2J")
    deep = "/".join(["d"] * 12)
    host.write(f"run/shoal/shm/{deep}/x")
    report = host.remove()
    assert any("it is no regular file" in line for line in report.kept)
    assert any("folders deep" in line for line in report.failed)
    assert all(line.isprintable() for line in (*report.removed, *report.kept, *report.failed))


def test_the_command(host: Host) -> None:
    host.serve()

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", MAIN, "uninstall", "--node", f"--root={host.root}", *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run()
    assert done.returncode == 0, done.stderr
    assert "removed /run/shoal\n" in done.stdout
    assert not (host.root / "run/shoal").exists()
    again = run()
    assert (again.returncode, again.stdout) == (0, "nothing of Shoal is on this node\n")
    host.serve()
    descriptor = os.open(host.root / PLUGINS, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        busy = run("--wait=0")
    finally:
        os.close(descriptor)
    assert busy.returncode == 1
    assert "an agent still serves this node" in busy.stderr


def _device() -> Device:
    return Device("d", ContainerEdits(env=("A=b",)))
