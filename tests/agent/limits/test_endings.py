"""MPS clients of pods that are being deleted end in order, before kubelet kills them."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from shoal.agent.limits.endings import MARGIN_SECONDS, ClientEndings
from shoal.agent.limits.mps import Mps
from shoal.agent.node.cgroups import pod_of
from shoal.gpu.mps import MpsDaemon
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.pod import Pod, PodSpec
from tests.testbed.mps.daemons import mps_daemon, told

MINE, OTHER = (f"{digit * 8}-1111-2222-3333-444444444444" for digit in "ab")
#: An RFC 3339 time that is years away from the agent's clock: it does not count.
DELETED = "1999-01-01T00:00:00Z"


class Node:
    """A node's pods, its processes, its clock and its MPS daemon."""

    def __init__(self, folder: Path, daemon: MpsDaemon) -> None:
        self.daemon = daemon
        self.pods: list[Pod] = []
        self.now = 1000.0
        self.proc = folder / "proc"
        self.endings = ClientEndings(Mps(daemon), lambda: self.pods, self.proc, clock=lambda: self.now)

    def process(self, pid: int, cgroup: str) -> None:
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")

    def clients(self, *lines: str) -> None:
        (self.daemon.pipe_directory / "clients").write_text("".join(f"{line}\n" for line in lines))

    def left(self) -> list[int]:
        return [int(line.split()[0]) for line in (self.daemon.pipe_directory / "clients").read_text().splitlines()]

    async def look(self) -> list[str]:
        """The pods whose clients are ended now."""
        due = list(self.endings.due())
        for pod in due:
            await self.endings.end(pod)
        return [pod.metadata.name for pod in due]


def pod(uid: str, *, grace: int | None, name: str = "pod") -> Pod:
    """A pod that is being deleted, with a grace period; None: one that is not."""
    deleted = None if grace is None else DELETED
    meta = ObjectMeta(
        name=name, namespace="ns", uid=uid, deletion_timestamp=deleted, deletion_grace_period_seconds=grace
    )
    return Pod(metadata=meta, spec=PodSpec())


@pytest.fixture(params=[2, 3])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    protocol: Literal[2, 3] = request.param
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    daemon = mps_daemon(folder / "p", protocol, multi_user=protocol == 3)
    await daemon.start()
    made = Node(folder, daemon)
    made.process(101, f"/kubepods.slice/kubepods-pod{MINE.replace('-', '_')}.slice/cri-containerd-{'0' * 64}.scope")
    made.process(102, f"/kubepods/pod{MINE}/{'1' * 64}/pod{OTHER}")
    made.process(201, f"/kubepods/pod{OTHER}/{'2' * 64}")
    made.process(301, "/system.slice/sshd.service")
    made.clients(*(f"{pid} 4000 n_1 program" for pid in (101, 102, 201, 301, 999)))
    yield made
    await daemon.quit()
    shutil.rmtree(folder)


async def test_clients_of_a_deleted_pod_end_before_its_grace_period(node: Node) -> None:
    node.pods = [pod(MINE, grace=30, name="mine"), pod(OTHER, grace=None)]
    assert await node.look() == []
    node.now += 30 - MARGIN_SECONDS - 0.1
    assert await node.look() == []
    assert node.left() == [101, 102, 201, 301, 999], "it may still compute"
    node.now += 0.2
    assert await node.look() == ["mine"]
    assert node.left() == [201, 301, 999], "those of no other pod, whatever a container calls its own cgroups"
    node.now += 60
    assert await node.look() == [], "once"


async def test_short_and_shortened_grace_periods(node: Node) -> None:
    node.pods = [pod(MINE, grace=1, name="mine"), pod(OTHER, grace=3600, name="other")]
    assert await node.look() == []
    node.now += 0.6
    assert await node.look() == ["mine"]
    node.pods = [pod(OTHER, grace=2, name="other")]
    assert await node.look() == []
    node.now += 1.1
    assert await node.look() == ["other"]
    assert node.left() == [301, 999]


async def test_commands_of_the_protocol(node: Node) -> None:
    node.pods = [pod(OTHER, grace=0)]
    await node.look()
    ended = [line for line in told(node.daemon) if "terminate" in line]
    assert ended == (["terminate_client 4000 201"] if node.daemon.protocol == 2 else ["client terminate 201"])


async def test_daemon_that_is_away_or_refuses_holds_up_nothing(node: Node) -> None:
    (node.daemon.pipe_directory / "refuse").write_text("client terminate\nterminate_client\n")
    node.pods = [pod(MINE, grace=0, name="mine")]
    assert await node.look() == ["mine"]
    (node.daemon.pipe_directory / "refuse").unlink()
    await node.daemon.quit()
    node.pods = [pod(OTHER, grace=0, name="other")]
    assert await node.look() == ["other"]


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"12:pids:/kubepods/besteffort/pod{MINE}/c\n0::/\n", MINE),
        (f"0::/kubepods.slice/kubepods-pod{MINE.replace('-', '_')}.slice:cri-containerd:abc\n", MINE),
        ("0::/user.slice/podman-1.scope\n", ""),
        ("", ""),
    ],
)
def test_pod_of_a_process(text: str, uid: str) -> None:
    assert pod_of(text) == uid
