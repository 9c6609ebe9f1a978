"""The agent takes the place of another device plugin while pods run with cards from that one."""

from collections.abc import Callable, Iterator

import pytest

from shoal.gpu.describe import parse_cards
from shoal.gpu.simulated import SimulatedNvml
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model.contract import gpushare, nvidia
from tests.agent.lab import MEMORY, TELL, WHOLE, memory_pod
from tests.agent.real.conftest import NewLab, RealLab
from tests.kubelet.device_plugin import DevicePlugin, PluginLoop
from tests.kubelet.pods import Pods, container, container_status, is_ready, pod
from tests.testbed.waiting import wait_for

CARDS = "2xT4"
UUIDS = [card.uuid for card in SimulatedNvml(parse_cards(CARDS), clock=lambda: 1000.0).survey().cards]


class OtherPlugin(DevicePlugin):
    """Answers with the environment that it is told, and writes no CDI specs, as plugins of old do."""

    def environment(self, ids: list[str]) -> dict[str, str]:
        raise NotImplementedError

    async def Allocate(self, request: api.AllocateRequest, context: object) -> api.AllocateResponse:  # noqa: N802
        answer = api.AllocateResponse()
        for one in request.container_requests:
            self.allocated.append(sorted(one.devices_ids))
            answer.container_responses.add(envs=self.environment(self.allocated[-1]))
        return answer

    async def PreStartContainer(self, request: object, context: object) -> api.PreStartContainerResponse:  # noqa: N802
        return api.PreStartContainerResponse()


class Gpusharing(OtherPlugin):
    """As Aliyun's: the card that the pod's annotation names, by its index. Here it is always card 1."""

    def environment(self, ids: list[str]) -> dict[str, str]:
        return {nvidia.ENV_VISIBLE_DEVICES: "1", gpushare.NAME_INDEX: "1", gpushare.ENV_CONTAINER: str(len(ids))}


class Whole(OtherPlugin):
    """As NVIDIA's: the cards that kubelet picked, by UUID."""

    def environment(self, ids: list[str]) -> dict[str, str]:
        return {nvidia.ENV_VISIBLE_DEVICES: ",".join(ids)}


async def no_edits(ids: object) -> dict:
    raise NotImplementedError


@pytest.fixture
def served_by(plugin_loop: PluginLoop) -> Iterator[Callable[..., OtherPlugin]]:
    """Another plugin that runs on a node."""
    made: list[OtherPlugin] = []

    def make(kind: type[OtherPlugin], lab: RealLab, resource: str, ids: list[str]) -> OtherPlugin:
        plugin = kind(plugin_loop, lab.node, resource, ids, no_edits)
        made.append(plugin)
        plugin.start()
        wait_for(lambda: lab.allocatable(resource) == len(ids), "counted")
        return plugin

    yield make
    for plugin in made:
        plugin.stop()


def take_over(lab: RealLab, plugin: OtherPlugin) -> None:
    """As an administrator does: the other one goes, the agent comes."""
    plugin.stop()
    lab.start(wait=False)
    wait_for(lambda: lab.asked("readyz")[0] == 200, "ready", 120)


def restart(lab: RealLab, pods: Pods, name: str) -> dict[str, str]:
    """Have the container of a pod end and start again; the environment it has then."""
    pods.apiserver.kubectl("-n", pods.namespace, "exec", name, "--", "kill", "-TERM", "1", check=False)
    wait_for(lambda: container_status(pods.get(name), "main")["restartCount"] == 1, "started again", 120)
    wait_for(lambda: is_ready(pods.get(name)), "running again")
    return lab.env(name)


def test_pods_of_gpushares_plugin_stay_on_their_cards(
    new_lab: NewLab, pods: Pods, served_by: Callable[..., OtherPlugin]
) -> None:
    lab = new_lab(CARDS, start=False)
    assert isinstance(lab, RealLab)
    plugin = served_by(Gpusharing, lab, MEMORY, [f"{uuid}-_-{number}" for uuid in UUIDS for number in range(15)])
    state = {gpushare.ANNOTATION_ASSIGNED: "true", gpushare.ANNOTATION_ASSUME_TIME: "1"}
    amounts = {gpushare.NAME_INDEX: "1", gpushare.NAME_CARD: "15", gpushare.NAME_POD: "10"}
    lab.bind(memory_pod("before", 10, restart="Always"), {**amounts, **state})
    pods.wait_running("before")

    take_over(lab, plugin)
    wait_for(lambda: lab.allocatable(WHOLE) == 1, "told that a card is shared")
    assert lab.allocatable(MEMORY) == 30
    lab.bind(memory_pod("next", 8))
    pods.wait_running("next")
    assert lab.visible("next") == [0], "card 1 has no room beside the pod that was there before"
    env = restart(lab, pods, "before")
    assert (env[nvidia.ENV_VISIBLE_DEVICES], env[gpushare.ENV_CONTAINER]) == ("1", "10")


def test_pods_of_nvidias_plugin_keep_their_cards_and_are_known(
    new_lab: NewLab, pods: Pods, served_by: Callable[..., OtherPlugin]
) -> None:
    lab = new_lab(CARDS, start=False)
    assert isinstance(lab, RealLab)
    plugin = served_by(Whole, lab, WHOLE, UUIDS)
    lab.bind(pod("before", [container("main", TELL, {WHOLE: 1})], restart="Always"))
    pods.wait_running("before")
    ((uuid,),) = plugin.allocated
    index = UUIDS.index(uuid)

    take_over(lab, plugin)
    wait_for(lambda: lab.allocatable(MEMORY) == 15, "told that a card is taken whole")
    assert lab.written("before") == [index], "schedulers are told"
    lab.bind(memory_pod("next", 8))
    pods.wait_running("next")
    assert lab.visible("next") == [1 - index]
    assert restart(lab, pods, "before")[nvidia.ENV_VISIBLE_DEVICES] == uuid
