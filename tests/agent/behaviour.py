"""What an agent does for pods, whatever kubelet it meets. The tests of the folders `simulated` and `real` run these."""

from collections.abc import Callable

import pytest

from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.request import Share
from tests.agent.lab import CLIENTS, GIB, MEMORY, SAY, TELL, WHOLE, Lab, memory_pod
from tests.kubelet.pods import container, is_ready, pod
from tests.testbed.waiting import wait_for

NewLab = Callable[..., Lab]


def test_every_family_gets_the_card_that_was_chosen(new_lab: NewLab):
    lab = new_lab("4xT4", resources=[MEMORY, CLIENTS, WHOLE])
    assert (lab.allocatable(MEMORY), lab.allocatable(CLIENTS), lab.allocatable(WHOLE)) == (60, 40, 4)
    lab.place(memory_pod("memory", 5), lab.allocation({"main": [2]}, {"main": Share(5 * GIB)}))
    client = pod("client", [container("main", TELL, {CLIENTS: 2})])
    client["metadata"]["annotations"] = {keti.ANNOTATION_MEMORY_LIMIT: "4Gi"}
    cards = lab.allocation({"main": [1, 2]}, {"main": Share(4 * GIB, clients=1)})
    lab.bind(client, {**keti.encode(cards)})
    whole = pod("whole", [container("main", TELL, {WHOLE: 1})])
    lab.place(whole, lab.allocation({"main": [3]}, {"main": Share(exclusive=True)}))
    for name in ("memory", "client", "whole"):
        lab.pods.wait_running(name)
    assert lab.visible("memory") == [2]
    env = lab.env("memory")
    assert env[gpushare.NAME_INDEX] == "2"
    assert env[gpushare.NAME_CARD] == "15"
    assert env[gpushare.NAME_POD] == env[gpushare.ENV_CONTAINER] == "5"
    assert lab.visible("client") == [1, 2]
    assert keti.ENV_MEMORY_LIMIT not in lab.env("client"), "of several GPUs a worker could drop it"
    assert lab.visible("whole") == [3]
    wait_for(
        lambda: lab.pods.get("memory")["metadata"]["annotations"][gpushare.ANNOTATION_ASSIGNED] == "true",
        "marked as assigned",
    )


def test_forty_equal_pods_at_once(new_lab: NewLab):
    lab = new_lab("4xA30")
    chosen = {f"equal-{number}": (number * 7) % 4 for number in range(40)}
    for name, index in chosen.items():
        lab.place(memory_pod(name, 2), lab.allocation({"main": [index]}, {"main": Share(2 * GIB)}))
    wait_for(lambda: all(map(is_ready, lab.pods.all())), "forty running pods", 300)
    assert {name: lab.visible(name) for name in chosen} == {name: [index] for name, index in chosen.items()}


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
def test_equal_pods_without_cdi_get_cards_and_the_annotations_follow(new_lab: NewLab, strategy: str):
    lab = new_lab("4xA30", deviceListStrategy=strategy)
    chosen = {f"equal-{number}": (number * 7) % 4 for number in range(20)}
    for name, index in chosen.items():
        lab.place(memory_pod(name, 2), lab.allocation({"main": [index]}, {"main": Share(2 * GIB)}))
    wait_for(lambda: all(map(is_ready, lab.pods.all())), "twenty running pods", 300)
    given = {name: lab.given(name) for name in chosen}
    assert sorted(given.values()) == sorted([index] for index in chosen.values()), "as many on each card as were chosen"
    assert {name: lab.written(name) for name in chosen} == given, "the annotations say what the containers have"
    assert lab.specs() == []


def test_without_cdi_pods_that_got_each_others_cards_are_swapped(new_lab: NewLab):
    """The first pod has the agent wait; behind it kubelet and the agent look at the others in opposite order."""
    lab = new_lab("4xT4", deviceListStrategy="envvar", withoutAllocation="refuse")
    lab.bind(memory_pod("nobodys", 3))
    chosen = {f"equal-{number}": number % 4 for number in range(8)}
    for place, (name, index) in enumerate(chosen.items()):
        cards = lab.allocation({"main": [index]}, {"main": Share(2 * GIB)})
        lab.bind(memory_pod(name, 2), lab.annotations(memory_pod(name, 2), cards, assume_time_ns=100 - place))
    for name in chosen:
        lab.pods.wait_running(name)
    given = {name: lab.given(name) for name in chosen}
    assert given != {name: [index] for name, index in chosen.items()}, "otherwise this test shows nothing"
    assert {name: lab.written(name) for name in chosen} == given
    assert sorted(given.values()) == sorted([index] for index in chosen.values())
    refused = lab.pods.wait_phase("nobodys", "Failed")
    assert "no pod on this node waits for 3" in refused["status"]["message"]


def test_without_cdi_a_pod_without_an_allocation_gets_a_card(new_lab: NewLab):
    lab = new_lab("2xT4", deviceListStrategy="envvar")
    lab.place(memory_pod("placed", 10), lab.allocation({"main": [0]}, {"main": Share(10 * GIB)}))
    lab.pods.wait_running("placed")
    lab.bind(memory_pod("foreign", 8))
    lab.pods.wait_running("foreign")
    assert (lab.given("foreign"), lab.written("foreign")) == ([1], [1])


def test_without_cdi_a_container_that_names_cards_does_not_start(new_lab: NewLab):
    lab = new_lab("2xT4", deviceListStrategy="envvar")
    for name, value in (("greedy", "all"), ("modest", "none")):
        manifest = memory_pod(name, 2)
        manifest["spec"]["containers"][0]["env"] = [{"name": nvidia.ENV_VISIBLE_DEVICES, "value": value}]
        lab.bind(manifest)
    words = "container 'main' sets NVIDIA_VISIBLE_DEVICES, and so would choose cards itself: remove it"
    lab.pods.wait_event("greedy", lambda event: event["message"].startswith(words), "of its refusal")
    lab.pods.wait_running("modest")
    assert not is_ready(lab.pods.get("greedy"))


def test_init_container_sidecar_and_two_apps_each_get_their_own(new_lab: NewLab):
    """All four ask for the same amount, so that kubelet lets them share devices; each is on another card."""
    lab = new_lab("4xT4")
    init = [
        container("first", SAY, {MEMORY: 2}),
        container("beside", TELL, {MEMORY: 2}, restartPolicy="Always"),
        container("second", SAY, {MEMORY: 2}),
    ]
    apps = [container("left", TELL, {MEMORY: 2}), container("right", TELL, {MEMORY: 2})]
    shares = dict.fromkeys(("first", "beside", "second", "left", "right"), Share(2 * GIB))
    cards = {"first": [3], "beside": [0], "second": [2], "left": [1], "right": [2]}
    chosen = lab.allocation(cards, shares, first="init", beside="sidecar", second="init")
    lab.place(pod("mixed", apps, init), chosen)
    lab.pods.wait_running("mixed")
    assert {name: lab.visible("mixed", name) for name in cards} == cards


def test_four_cards_of_three_gibibytes(new_lab: NewLab):
    lab = new_lab([{"model": "T4", "memory": "3Gi", "count": 4}])
    assert lab.allocatable(MEMORY) == 12
    for index in (2, 0, 3, 1):
        lab.place(memory_pod(f"on-{index}", 3), lab.allocation({"main": [index]}, {"main": Share(3 * GIB)}))
    for index in range(4):
        lab.pods.wait_running(f"on-{index}")
        assert lab.visible(f"on-{index}") == [index]


def test_mixed_sizes(new_lab: NewLab):
    lab = new_lab("1xT4,1xA30")
    assert [(gpu.index, gpu.memory_mib) for gpu in lab.gpus] == [(0, 15360), (1, 24576)]
    assert lab.object["status"]["capacity"][gpushare.RESOURCE_COUNT] == "2"
    assert lab.allocatable(MEMORY) == 15 + 24
    lab.place(memory_pod("large", 20), lab.allocation({"main": [1]}, {"main": Share(20 * GIB)}))
    lab.pods.wait_running("large")
    assert lab.visible("large") == [1]
    assert lab.env("large")[gpushare.NAME_CARD] == "24"


def test_pod_without_an_allocation_gets_a_card_and_a_record(new_lab: NewLab):
    lab = new_lab("2xT4")
    lab.place(memory_pod("placed", 10), lab.allocation({"main": [0]}, {"main": Share(10 * GIB)}))
    lab.pods.wait_running("placed")
    lab.bind(memory_pod("foreign", 8))
    lab.pods.wait_running("foreign")
    assert lab.visible("foreign") == [1], "card 0 has 5 GiB left"
    found = lab.pods.get("foreign")["metadata"]["annotations"]
    written = shoal.decode_allocation(found[shoal.ANNOTATION_ALLOCATION])
    assert [(card.index, card.share) for card in written.containers[0].cards] == [(1, Share(8 * GIB))]
    assert found[gpushare.NAME_INDEX] == "1"


def test_pod_without_an_allocation_that_fits_on_no_card_is_told_so(new_lab: NewLab):
    lab = new_lab("2xT4")
    for index in range(2):
        lab.place(memory_pod(f"on-{index}", 8), lab.allocation({"main": [index]}, {"main": Share(8 * GIB)}))
        lab.pods.wait_running(f"on-{index}")
    lab.bind(memory_pod("late", 10))  # 14 units are left, 7 on each card
    event = lab.pods.wait_event("late", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert "asks for 1 cards with 10240 MiB free, 0 of 2 cards" in event["message"]
    lab.pods.delete("on-1")
    lab.pods.wait_running("late")
    assert lab.visible("late") == [1]


def test_pod_without_an_allocation_is_refused_if_so_configured(new_lab: NewLab):
    lab = new_lab("2xT4", withoutAllocation="refuse")
    lab.bind(memory_pod("foreign", 3))
    event = lab.pods.wait_event("foreign", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert "nobody has chosen cards for this pod" in event["message"]
    assert lab.specs() == []


def test_pod_bound_by_aliyuns_extender(new_lab: NewLab):
    lab = new_lab("3xT4")
    annotations = {
        gpushare.NAME_INDEX: "2",
        gpushare.NAME_CARD: "15",
        gpushare.NAME_POD: "6",
        gpushare.ANNOTATION_ASSIGNED: "false",
        gpushare.ANNOTATION_ASSUME_TIME: "1700000000000000000",
    }
    lab.bind(memory_pod("aliyun", 6), annotations)
    lab.pods.wait_running("aliyun")
    assert lab.visible("aliyun") == [2]
    wait_for(
        lambda: lab.pods.get("aliyun")["metadata"]["annotations"][gpushare.ANNOTATION_ASSIGNED] == "true",
        "marked as assigned",
    )
    found = lab.pods.get("aliyun")["metadata"]["annotations"]
    assert {**annotations, gpushare.ANNOTATION_ASSIGNED: "true"} == {
        key: value for key, value in found.items() if "aliyun" in key.lower() or "gpushare" in key
    }


def test_allocation_that_is_not_the_pods_is_refused(new_lab: NewLab):
    lab = new_lab("2xT4")
    forged = lab.allocation({"main": [0]}, {"main": Share(12 * GIB)})
    lab.bind(memory_pod("greedy", 2), {shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(forged)})
    event = lab.pods.wait_event("greedy", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert "another amount than it asks for" in event["message"]
    assert lab.specs() == []


def test_card_is_not_given_twice_whoever_decides(new_lab: NewLab):
    lab = new_lab("2xT4")
    whole = pod("whole", [container("main", TELL, {WHOLE: 1})])
    lab.place(whole, lab.allocation({"main": [1]}, {"main": Share(exclusive=True)}))
    lab.pods.wait_running("whole")
    wait_for(lambda: lab.allocatable(MEMORY) == 15, "without the memory of the whole card")
    assert lab.allocatable(WHOLE) == 2
    lab.place(memory_pod("second", 2), lab.allocation({"main": [1]}, {"main": Share(2 * GIB)}))
    event = lab.pods.wait_event("second", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert "is in use as a whole" in event["message"]
    lab.place(memory_pod("beside", 2), lab.allocation({"main": [0]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("beside")
    wait_for(lambda: lab.allocatable(WHOLE) == 1, "without the shared card as a whole one")
    lab.pods.delete("whole")
    lab.pods.wait_running("second")
    assert lab.visible("second") == [1]
    wait_for(lambda: (lab.allocatable(MEMORY), lab.allocatable(WHOLE)) == (30, 0), "with all memory back")


def test_kubelet_restart(new_lab: NewLab):
    lab = new_lab("2xT4")
    lab.place(memory_pod("before", 4), lab.allocation({"main": [1]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running("before")
    lab.node.kubelet.stop()
    lab.node.kubelet.start()
    lab.wait_ready()
    lab.place(memory_pod("after", 15), lab.allocation({"main": [0]}, {"main": Share(15 * GIB)}))
    lab.pods.wait_running("after")
    assert (lab.visible("before"), lab.visible("after")) == ([1], [0])


def test_agent_away_while_pods_come(new_lab: NewLab):
    """Containers wait for the agent, and then get what was chosen: nothing is lost with it."""
    lab = new_lab("2xT4")
    lab.place(memory_pod("before", 4), lab.allocation({"main": [1]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running("before")
    lab.kill()
    lab.start()
    lab.place(memory_pod("after", 12), lab.allocation({"main": [0]}, {"main": Share(12 * GIB)}))
    lab.pods.wait_running("after")
    assert (lab.visible("before"), lab.visible("after")) == ([1], [0])


def test_reload_keeps_what_pods_have(new_lab: NewLab):
    lab = new_lab("2xT4")
    lab.place(memory_pod("before", 4), lab.allocation({"main": [1]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running("before")
    lab.reload(mpsClients=5, resources=[MEMORY, CLIENTS, WHOLE])
    wait_for(lambda: lab.allocatable(CLIENTS) == 10, "with half the clients")
    lab.wait_ready()
    lab.place(memory_pod("after", 11), lab.allocation({"main": [1]}, {"main": Share(11 * GIB)}))
    lab.pods.wait_running("after")
    assert lab.visible("after") == [1]
    assert is_ready(lab.pods.get("before"))


def test_nothing_is_left(new_lab: NewLab):
    lab = new_lab("2xT4")
    for index in range(2):
        lab.place(memory_pod(f"on-{index}", 4), lab.allocation({"main": [index]}, {"main": Share(4 * GIB)}))
        lab.pods.wait_running(f"on-{index}")
    assert len(lab.specs()) == 2
    lab.pods.delete("on-0")
    wait_for(lambda: len(lab.specs()) == 1, "rid of the file of the pod that is gone")
    lab.stop()
    assert len(lab.specs()) == 1, "what runs keeps its file"
    lab.clean()
    assert lab.specs() == []
    assert [path.name for path in lab.node.device_plugins.iterdir() if path.is_socket()] == ["kubelet.sock"]
    node = lab.object
    assert shoal.ANNOTATION_GPUS not in node["metadata"]["annotations"]
    assert gpushare.RESOURCE_COUNT not in node["status"]["capacity"]


def test_memory_in_node_status_when_devices_would_be_too_many(new_lab: NewLab):
    lab = new_lab("8xA100-80G", memoryUnit="MiB", resources=[MEMORY, WHOLE], start=False)
    lab.start(memoryUnit="MiB", resources=[MEMORY, WHOLE])
    assert lab.allocatable(MEMORY) == 8 * 80 * 1024
    wait_for(lambda: lab.allocatable(shoal.RESOURCE_SLOT) == 512, "with slots")
    main = container("main", TELL, {MEMORY: 30_000, shoal.RESOURCE_SLOT: 1})
    lab.place(pod("large", [main]), lab.allocation({"main": [6]}, {"main": Share(30_000)}))
    lab.pods.wait_running("large")
    assert lab.visible("large") == [6]
    assert lab.env("large")[gpushare.ENV_CONTAINER] == "30000"


def test_device_ids_name_no_card(new_lab: NewLab):
    lab = new_lab("2xT4")
    lab.place(memory_pod("one", 2), lab.allocation({"main": [1]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("one")
    ids = [
        one for entry in lab.node.checkpoint()["PodDeviceEntries"] for ids in entry["DeviceIDs"].values() for one in ids
    ]
    assert len(ids) == 2
    assert not any(one.isdigit() or gpu.uuid in one for one in ids for gpu in lab.gpus)
    assert nvidia.ENV_VISIBLE_DEVICES not in str(lab.node.checkpoint())
