"""What keeps containers with claims to their shares: the same walls as for shares by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.agent.claims.records import ClaimRecord
from shoal.agent.claims.results import ClaimResult
from shoal.agent.claims.specs import ClaimSpecs, answer_for
from shoal.agent.device_plugin.specs import CdiSpecs
from shoal.agent.limits.node_limits import NodeLimits
from shoal.agent.limits.tiers import IsolationSetting, Means
from shoal.gpu.describe import parse_cards
from shoal.gpu.inventory import gpus
from shoal.gpu.protocol import Driver
from shoal.gpu.simulated import SimulatedNvml
from shoal.kubelet import cdi
from shoal.kubelet.cdi import ContainerEdits
from shoal.kubelet.dra import ClaimRef
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import dra, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus
from shoal.model.request import Share

NEWEST = Driver("615.10", (13, 4))
MIB = 2**20


class Node:
    """A node whose driver limits cgroups."""

    def __init__(self, folder: Path) -> None:
        nvml = SimulatedNvml(parse_cards("2xA100-80G"), clock=lambda: 0.0)
        self.node = NodeGpus("n", gpus(nvml.survey()))
        limits = NodeLimits(
            nvml,
            nvml.survey(),
            Means(NEWEST, cgroup2=True, hook=True),
            IsolationSetting.AUTO,
            program=folder / "hook",
            socket_path=folder / "door",
            cgroups=folder,
            mps=None,
            exclusive=False,
            isolated=lambda: True,
        )
        self.folder = folder / "cdi"
        paths = HostPaths(cdi=(self.folder,), dev=folder)
        self.specs = ClaimSpecs(self.folder, CdiSpecs(paths), limits, lambda: self.node, unit=MemoryUnit.GIB)

    def result(self, request: str, card: int, share: Share) -> ClaimResult:
        uuid = self.node.gpus[card].uuid
        return ClaimResult(request, dra.device_name(uuid), uuid, share, "s")

    def edits(self, *results: ClaimResult, request: str = "") -> ContainerEdits:
        """What a container gets that uses a request of a claim, or all of it."""
        record = ClaimRecord(ClaimRef("d", "c", "uid"), "n", results, {})
        self.specs.write(record)
        devices = [one for one in answer_for(record) if not request or request in one.requests]
        names = [name for one in devices for name in one.cdi_devices]
        return cdi.resolve(names, cdi.load([self.folder]))

    def limit(self, edits: ContainerEdits) -> dict[int, int]:
        """By card, the MiB that stand when all hooks have run, one after another."""
        found: dict[str, int] = {}
        for hook in edits.hooks:
            assert hook.hook_name == "createRuntime"
            for word in hook.args[2:]:
                uuid, _, amount = word.partition("=")
                found[uuid] = int(amount) // MIB
        return {gpu.index: found[gpu.uuid] for gpu in self.node.gpus if gpu.uuid in found}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_share_has_a_limit(node: Node):
    edits = node.edits(node.result("gpu", 0, Share(3072)))
    assert node.limit(edits) == {0: 3072}
    assert edits.environment({})[shoal.ENV_ISOLATION] == "cgroup"


def test_a_whole_card_has_none(node: Node):
    edits = node.edits(node.result("gpu", 0, Share(exclusive=True)))
    assert node.limit(edits) == {}
    assert shoal.ENV_ISOLATION not in edits.environment({})


def test_each_card_of_a_request_has_its_own(node: Node):
    results = [node.result("gpu", 0, Share(3072)), node.result("gpu", 1, Share(1024))]
    assert node.limit(node.edits(*results)) == {0: 3072, 1: 1024}


def test_requests_on_one_card_add_up_where_they_meet(node: Node):
    """The hook of the last device sets the limits of all: each of them sets a card's limit anew."""
    results = [node.result("a", 0, Share(3072)), node.result("b", 0, Share(5120)), node.result("c", 1, Share(1024))]
    assert node.limit(node.edits(*results)) == {0: 8192, 1: 1024}
    assert node.limit(node.edits(*results, request="a")) == {0: 3072}
    assert node.limit(node.edits(*results, request="b")) == {0: 5120}
    seen = node.edits(*results, request="c").environment({})[nvidia.ENV_VISIBLE_DEVICES]
    assert seen == node.node.gpus[1].uuid
