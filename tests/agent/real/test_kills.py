"""The agent killed at every step: a container gets the card that was chosen for it, or does not start."""

import random
import time

import pytest

from shoal.kubelet import constants
from shoal.model.request import Share
from tests.agent.lab import GIB, MEMORY, TELL, WHOLE, Lab, memory_pod
from tests.agent.real.conftest import NewLab
from tests.kubelet.pods import container, container_status, is_ready, pod
from tests.testbed.waiting import wait_for


def recorded(lab: Lab, name: str) -> bool:
    """Whether kubelet has recorded devices of a pod: Allocate is answered."""
    uid = lab.pods.get(name)["metadata"]["uid"]
    return any(entry["PodUID"] == uid for entry in lab.node.checkpoint()["PodDeviceEntries"] or ())


def test_killed_between_allocate_and_pre_start(new_lab: NewLab):
    lab = new_lab("2xT4")
    # The first container holds up the second, whose PreStartContainer comes when the agent is long dead.
    first = container("first", "until [ -e /go ]; do sleep 0.1; done")
    lab.place(
        pod("slow", [container("main", TELL, {MEMORY: 4})], [first]),
        lab.allocation({"main": [1]}, {"main": Share(4 * GIB)}),
    )
    wait_for(lambda: recorded(lab, "slow"), "with devices")
    lab.kill()
    assert lab.specs() == []
    lab.pods.wait("slow", lambda found: "running" in container_status(found, "first").get("state", {}), "waiting")
    lab.pods.apiserver.kubectl("-n", lab.pods.namespace, "exec", "slow", "-c", "first", "--", "touch", "/go")
    lab.pods.wait_event("slow", lambda event: "PreStartContainer" in event["message"], "of the missing agent")
    assert "containerID" not in container_status(lab.pods.get("slow"), "main")
    lab.start()
    lab.pods.wait_running("slow")
    assert lab.visible("slow") == [1]


def test_kubelet_writes_an_older_record_over_the_newest(new_lab: NewLab):
    """kubelet makes a record under a lock and writes it after: of two at one time the older may come last."""
    lab = new_lab("2xT4")
    lab.place(memory_pod("before", 4), lab.allocation({"main": [0]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running("before")
    path = lab.node.device_plugins / constants.CHECKPOINT
    older = path.read_bytes()
    first = container("first", "until [ -e /go ]; do sleep 0.1; done")
    lab.place(
        pod("slow", [container("main", TELL, {MEMORY: 4})], [first]),
        lab.allocation({"main": [1]}, {"main": Share(4 * GIB)}),
    )
    wait_for(lambda: recorded(lab, "slow"), "with devices")
    lab.pods.wait("slow", lambda found: "running" in container_status(found, "first").get("state", {}), "waiting")
    fresh = path.with_name("fresh")
    fresh.write_bytes(older)
    fresh.replace(path)
    assert not recorded(lab, "slow")
    lab.pods.apiserver.kubectl("-n", lab.pods.namespace, "exec", "slow", "-c", "first", "--", "touch", "/go")
    lab.pods.wait_running("slow")
    assert lab.visible("slow") == [1]
    assert recorded(lab, "slow"), "kubelet has written what it knows"


def test_killed_after_pre_start_and_the_container_starts_again(new_lab: NewLab):
    lab = new_lab("2xT4")
    script = f"trap 'exit 1' USR1; {TELL}"
    lab.place(memory_pod("again", 4, script, restart="Always"), lab.allocation({"main": [1]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running("again")
    lab.kill()
    lab.start()
    lab.pods.apiserver.kubectl("-n", lab.pods.namespace, "exec", "again", "--", "kill", "-USR1", "1")
    lab.pods.wait("again", lambda found: container_status(found, "main").get("restartCount") == 1, "restarted")
    lab.pods.wait_running("again")
    assert lab.visible("again") == [1]


@pytest.mark.parametrize("placed", [True, False], ids=["placed", "unplaced"])
def test_killed_over_and_over_while_pods_come(new_lab: NewLab, placed: bool):
    lab = new_lab("4xT4")
    rng = random.Random(7)
    chosen = {f"pod-{number}": number % 4 for number in range(16)}
    for name, index in chosen.items():
        if placed:
            lab.place(memory_pod(name, 3), lab.allocation({"main": [index]}, {"main": Share(3 * GIB)}))
        else:
            lab.bind(memory_pod(name, 3))
    for _ in range(4):
        time.sleep(rng.uniform(0.2, 1.5))  # at any moment of any of them
        lab.kill()
        lab.start(wait=False)
    wait_for(lambda: all(is_ready(found) or over(found) for found in lab.pods.all()), "settled", 300)
    running = [found["metadata"]["name"] for found in lab.pods.all() if is_ready(found)]
    assert running
    seen = {name: lab.visible(name) for name in running}
    assert seen == {name: lab.written(name) for name in running}, "what a container has is what its pod says"
    if placed:
        assert seen == {name: [chosen[name]] for name in running}
    per_card = [sum(cards == [index] for cards in seen.values()) for index in range(4)]
    assert max(per_card) <= 5, "5 pods of 3 GiB fit on a card of 15"


def over(found: dict) -> bool:
    """kubelet refuses a pod that comes while the plugin is away; its controller would make another one."""
    return bool(found["status"].get("phase") == "Failed")


def test_whole_card_survives_a_kill(new_lab: NewLab):
    lab = new_lab("2xT4")
    whole = pod("whole", [container("main", TELL, {WHOLE: 1})])
    lab.place(whole, lab.allocation({"main": [1]}, {"main": Share(exclusive=True)}))
    lab.pods.wait_running("whole")
    lab.kill()
    lab.start()
    wait_for(lambda: lab.allocatable(MEMORY) == 15, "without the memory of the whole card")
    lab.bind(memory_pod("foreign", 2))
    lab.pods.wait_running("foreign")
    assert lab.visible("foreign") == [0]


def test_reboot_gives_back_what_its_pods_had(new_lab: NewLab):
    lab = new_lab("2xT4")
    lab.place(memory_pod("before", 15, restart="Always"), lab.allocation({"main": [1]}, {"main": Share(15 * GIB)}))
    lab.pods.wait_running("before")
    assert lab.specs() != []
    lab.kill()
    lab.node.reboot()
    # kubelet admits the node's pods before any plugin can have registered, and refuses those with devices for good.
    lab.pods.wait_phase("before", "Failed")
    lab.start()
    wait_for(lambda: lab.specs() == [], "without files of pods that are over")
    lab.place(memory_pod("after", 15), lab.allocation({"main": [1]}, {"main": Share(15 * GIB)}))
    lab.pods.wait_running("after")
    assert lab.visible("after") == [1]
