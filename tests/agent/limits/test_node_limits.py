"""What limits a container: its edits by the means of the node."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from shoal.agent.limits import ContainerStart
from shoal.agent.limits.mps import Mps
from shoal.agent.limits.node_limits import NodeLimits
from shoal.agent.limits.tiers import IsolationSetting, Means
from shoal.gpu.describe import parse_cards
from shoal.gpu.inventory import gpus
from shoal.gpu.protocol import Driver
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from shoal.kubelet.cdi import ContainerEdits
from shoal.model.allocation import CardShare, ContainerAllocation
from shoal.model.contract import nvidia, shoal
from shoal.model.request import Share
from tests.testbed.mps.daemons import mps_daemon

#: No daemon runs there: edits do not need one.
PIPE = Path("/tmp/no-mps")


class Node:
    """A node with two GPUs and an MPS daemon."""

    def __init__(
        self, folder: Path, protocol: Literal[2, 3] = 3, *, cgroup: bool = False, exclusive: bool = False
    ) -> None:
        nvml = SimulatedNvml(parse_cards("2xA30"), clock=lambda: 0.0)
        self.gpus = gpus(nvml.survey())
        self.limits = NodeLimits(
            nvml,
            nvml.survey(),
            Means(
                NEWEST if protocol == 3 else Driver("550.54", (12, 4)),
                cgroup2=cgroup,
                hook=cgroup,
                mps=True,
                namespaces=protocol == 3,
            ),
            IsolationSetting.AUTO,
            program=folder / "hook",
            socket_path=folder / "door",
            cgroups=folder,
            mps=Mps(mps_daemon(PIPE, protocol, multi_user=protocol == 3)),
            exclusive=exclusive,
            isolated=lambda: True,
        )

    def start(self, *shares: Share, limit_mib: int | None = None) -> ContainerStart:
        """A container with these shares, one of each GPU."""
        cards = tuple(CardShare(self.gpus[index].uuid, index, share) for index, share in enumerate(shares))
        container = ContainerAllocation("main", cards, memory_limit_mib=limit_mib)
        return ContainerStart("ns", "pod", "uid", container, self.gpus[: len(shares)])

    def edits(self, *shares: Share, limit_mib: int | None = None) -> ContainerEdits:
        return self.limits.edits(self.start(*shares, limit_mib=limit_mib))


def isolation(edits: ContainerEdits) -> str:
    return edits.environment({})[shoal.ENV_ISOLATION]


def test_the_driver_limits_memory_and_a_namespace_limits_compute(tmp_path: Path) -> None:
    node = Node(tmp_path, cgroup=True)
    assert [str(node.limits.isolation(gpu.uuid)) for gpu in node.gpus] == ["cgroup+mps-namespace"] * 2
    edits = node.edits(Share(3072, compute=25))
    assert isolation(edits) == "cgroup+mps-namespace"
    assert [hook.args[-1] for hook in edits.hooks] == [f"{node.gpus[0].uuid}={3072 * 2**20}"]
    assert nvidia.ENV_MPS_PIPE_DIRECTORY in edits.environment({})
    (client,) = node.limits._clients([node.start(Share(3072, compute=25))])
    assert (client.limits.memory_mib, client.limits.threads) == ({}, 25), "memory is the driver's"


TWO = (Share(3072), Share(3072))


def test_mps_limits_memory_of_one_gpu(tmp_path: Path) -> None:
    assert Node(tmp_path, 2).edits(Share(3072)).environment({})[nvidia.ENV_MPS_MEMORY_LIMIT] == "0=3072M"
    node = Node(tmp_path)
    assert isolation(node.edits(Share(3072))) == "mps-namespace"
    (client,) = node.limits._clients([node.start(Share(3072))])
    assert client.limits.memory_mib == {node.gpus[0].uuid: 3072}


def test_mps_limits_no_memory_of_several_gpus_and_says_so(tmp_path: Path) -> None:
    """A worker that narrows CUDA_VISIBLE_DEVICES would drop all limits, so none is set that looks as if it held."""
    older = Node(tmp_path, 2)
    env = older.edits(*TWO).environment({})
    assert nvidia.ENV_MPS_MEMORY_LIMIT not in env
    assert env[shoal.ENV_ISOLATION] == "none"
    assert isolation(older.edits(Share(3072, compute=25), Share(3072, compute=25))) == "none+mps"
    node = Node(tmp_path)
    assert isolation(node.edits(*TWO)) == "none"
    assert isolation(node.edits(Share(3072, compute=25), Share(1024, compute=25))) == "none+mps-namespace"
    (client,) = node.limits._clients([node.start(*TWO)])
    assert client.limits.memory_mib == {}
    assert client.gpus == {gpu.uuid for gpu in node.gpus}


def test_the_driver_limits_memory_of_several_gpus(tmp_path: Path) -> None:
    edits = Node(tmp_path, cgroup=True).edits(Share(3072, compute=25), Share(1024, compute=25))
    assert isolation(edits) == "cgroup+mps-namespace"
    assert len(edits.hooks[0].args) == 4, "program, socket and a limit of each GPU"


def test_a_whole_gpu_beside_the_share_counts_too(tmp_path: Path) -> None:
    env = Node(tmp_path, 2).edits(Share(3072), Share(exclusive=True)).environment({})
    assert nvidia.ENV_MPS_MEMORY_LIMIT not in env


def test_gpus_of_other_requests_of_a_claim_count_too(tmp_path: Path) -> None:
    """A container that uses all of a claim gets the variables of each of its requests."""
    node = Node(tmp_path, 2)
    beside = frozenset(gpu.uuid for gpu in node.gpus)
    edits = node.limits.edits(replace(node.start(Share(3072)), beside=beside))
    assert nvidia.ENV_MPS_MEMORY_LIMIT not in edits.environment({})


def test_memory_alone_needs_no_mps_where_the_driver_limits_it(tmp_path: Path) -> None:
    edits = Node(tmp_path, cgroup=True).edits(Share(3072))
    assert isolation(edits) == "cgroup"
    assert nvidia.ENV_MPS_PIPE_DIRECTORY not in edits.environment({})


def test_gpus_of_a_stopped_server_are_not_healthy_and_others_are(tmp_path: Path) -> None:
    node = Node(tmp_path)
    first, second = (gpu.uuid for gpu in node.gpus)
    assert node.limits.faults() == {}
    assert node.limits._mps is not None
    node.limits._mps.faulted = {frozenset({first}): "stopped"}
    assert node.limits.faults() == {first: "stopped"}
    node.limits._mps.faulted = {frozenset(): "stopped"}
    assert node.limits.faults() == {first: "stopped", second: "stopped"}
    beside = Node(tmp_path, cgroup=True)
    assert beside.limits._mps is not None
    beside.limits._mps.faulted = {frozenset({first}): "stopped"}
    assert beside.limits.faults() == {}, "shares of memory alone need no MPS"


@pytest.mark.parametrize(
    ("protocol", "cgroup", "exclusive", "lost", "restarted"),
    [
        (3, False, False, True, True),
        (2, False, False, True, False),
        (3, False, True, False, False),
        (3, True, True, True, True),
    ],
)
def test_what_a_dead_daemon_means_for_programs_that_start(
    tmp_path: Path, protocol: Literal[2, 3], cgroup: bool, exclusive: bool, lost: bool, restarted: bool
) -> None:
    """On GPUs in exclusive mode they cannot compute; with protocol 2 they find the next daemon in the same place.

    Where the driver limits memory no GPU is in exclusive mode, since some containers need no MPS there.
    """
    node = Node(tmp_path, protocol, cgroup=cgroup, exclusive=exclusive)
    mps = node.limits._mps
    assert mps is not None
    assert (node.limits.lost(), node.limits.restarted()[0]) == ("", 0)
    mps.failing, mps.fault, mps.started = True, "away", 1
    assert bool(node.limits.lost()) is lost
    assert bool(node.limits.restarted()[1]) is restarted
