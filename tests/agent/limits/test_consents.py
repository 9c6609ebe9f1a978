"""Who may be a client of an MPS daemon that cannot keep its clients apart."""

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from shoal.agent.config import AgentConfig
from shoal.agent.errors import RefusedError
from shoal.agent.limits import ContainerStart
from shoal.agent.limits.mps import Mps
from shoal.agent.limits.node_limits import MpsConsents, NodeLimits, asks_consent
from shoal.agent.limits.tiers import IsolationSetting, Means
from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Driver
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from shoal.kube.client import Client
from shoal.kube.resources import NAMESPACES
from shoal.model.allocation import CardShare, ContainerAllocation
from shoal.model.contract import nvidia, shoal
from shoal.model.gpu import Gpu
from shoal.model.request import Share
from tests.embedded.conftest import api, client  # noqa: F401 - fixtures
from tests.kube.waiting import until
from tests.testbed.mps.daemons import mps_daemon

OLD = Driver("550.54", (12, 4))
#: Nobody is there: what a container gets is said without the daemon.
PIPE = Path("/tmp/no-mps")
FRIEND, STRANGER = "friend", "stranger"
MEMORY, CLIENT = Share(3072), Share(3072, clients=1)


def limits(
    tmp_path: Path, *, protocol: Literal[2, 3] = 2, wanted: IsolationSetting = IsolationSetting.AUTO
) -> NodeLimits:
    nvml = SimulatedNvml(parse_cards("1xA30"), clock=lambda: 0.0)
    means = Means(OLD if protocol == 2 else NEWEST, cdi=True, mps=True, namespaces=protocol == 3)
    return NodeLimits(
        nvml,
        nvml.survey(),
        means,
        wanted,
        program=tmp_path / "hook",
        socket_path=tmp_path / "door",
        cgroups=tmp_path,
        mps=Mps(mps_daemon(PIPE, protocol, multi_user=protocol == 3)),
        exclusive=False,
        isolated=lambda: True,
        may_share=lambda namespace: namespace == FRIEND,
    )


def start(node: NodeLimits, namespace: str, share: Share) -> ContainerStart:
    (uuid,) = node._modes
    container = ContainerAllocation("main", (CardShare(uuid, 0, share),))
    return ContainerStart(namespace, "pod", "uid", container, [Gpu(uuid, 0, 24576)])


def env_of(node: NodeLimits, namespace: str, share: Share) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in node.edits(start(node, namespace, share)).env)


@pytest.mark.parametrize("share", [MEMORY, CLIENT])
def test_who_opted_in_is_a_client(tmp_path: Path, share: Share) -> None:
    node = limits(tmp_path)
    edits = node.edits(start(node, FRIEND, share))
    assert [mount.host_path for mount in edits.mounts] == [str(PIPE)]
    assert env_of(node, FRIEND, share)[shoal.ENV_ISOLATION] == "mps"
    assert env_of(node, FRIEND, share)[nvidia.ENV_MPS_MEMORY_LIMIT] == "0=3072M"


def test_shares_of_others_are_counted_and_do_not_reach_mps_daemon(tmp_path: Path) -> None:
    node = limits(tmp_path)
    edits = node.edits(start(node, STRANGER, MEMORY))
    assert edits.mounts == ()
    assert edits.env == (f"{shoal.ENV_ISOLATION}=none",)


async def test_whom_the_daemon_does_not_serve_it_need_not_answer(tmp_path: Path) -> None:
    node = limits(tmp_path)
    async with asyncio.timeout(30):
        await node.prepare(start(node, STRANGER, MEMORY))


def test_clients_of_others_are_refused_in_words_that_name_the_label(tmp_path: Path) -> None:
    node = limits(tmp_path)
    with pytest.raises(RefusedError, match=r"namespace 'stranger' has not opted in to MPS.*shoal.dev/mps=allow"):
        node.edits(start(node, STRANGER, CLIENT))


def test_where_mps_is_asked_for_nothing_less_is_given(tmp_path: Path) -> None:
    node = limits(tmp_path, wanted=IsolationSetting.MPS)
    with pytest.raises(RefusedError, match=r"shoal.dev/mps=allow"):
        node.edits(start(node, STRANGER, MEMORY))


@pytest.mark.parametrize("share", [MEMORY, CLIENT])
def test_namespaces_of_mps_keep_strangers_apart(tmp_path: Path, share: Share) -> None:
    node = limits(tmp_path, protocol=3)
    assert env_of(node, STRANGER, share)[shoal.ENV_ISOLATION] == "mps-namespace"


def test_which_nodes_ask() -> None:
    config = AgentConfig(node_name="n", mps_program="nvidia-cuda-mps-control")
    assert asks_consent(config, OLD)
    assert not asks_consent(config, NEWEST)
    assert asks_consent(AgentConfig(node_name="n", mps_program="x", isolation=IsolationSetting.MPS), NEWEST)
    assert not asks_consent(AgentConfig(node_name="n", mps_program="x", mps_for_all=True), OLD)
    assert not asks_consent(AgentConfig(node_name="n"), OLD)


async def test_a_namespace_opts_in_and_out(client: Client) -> None:  # noqa: F811
    consents = MpsConsents(client)
    with pytest.raises(RefusedError, match="still being read"):
        consents.given(FRIEND)
    for name, labels in ((FRIEND, {shoal.LABEL_MPS: shoal.MPS_ALLOW}), (STRANGER, {shoal.LABEL_MPS: "deny"})):
        await client.create(NAMESPACES.raw, {"metadata": {"name": name, "labels": labels}})
    async with consents.reflector, asyncio.timeout(60):
        await consents.reflector.wait_synced()
        assert consents.given(FRIEND)
        assert not consents.given(STRANGER)
        assert not consents.given("nowhere")
        await client.patch(NAMESPACES, FRIEND, {"metadata": {"labels": {shoal.LABEL_MPS: None}}})
        await client.patch(NAMESPACES, STRANGER, {"metadata": {"labels": {shoal.LABEL_MPS: shoal.MPS_ALLOW}}})
        await until(lambda: consents.given(STRANGER) and not consents.given(FRIEND), "changed places")
