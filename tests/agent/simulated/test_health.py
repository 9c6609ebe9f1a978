"""Cards that fail under the agent: what the scheduler, kubelet and people get to know of it."""

from shoal.model.contract import shoal
from shoal.model.request import Share
from tests.agent.lab import GIB, MEMORY, WHOLE, Lab, memory_pod
from tests.agent.simulated.conftest import NewLab
from tests.testbed.waiting import wait_for


def cards(lab: Lab):
    return lab.node.inner.host.nvml


def node_events(lab: Lab) -> list[tuple[str, str]]:
    """Reason and message of events about the node."""
    found = lab.pods.apiserver.request("GET", "/api/v1/namespaces/default/events")["items"]
    return [
        (one["reason"], one["message"])
        for one in found
        if one["involvedObject"].get("kind") == "Node" and one["involvedObject"]["name"] == lab.node.name
    ]


def told(lab: Lab, reason: str, words: str) -> bool:
    return any(found == reason and words in message for found, message in node_events(lab))


def test_failed_card_is_withdrawn_at_once_and_comes_back(new_lab: NewLab):
    lab = new_lab("2xT4", recoverySeconds=1)
    card = lab.card(1).uuid
    cards(lab).raise_xid(card, 94)
    wait_for(lambda: not lab.card(1).healthy, "unhealthy in the inventory")
    assert lab.card(1).fault == "XID 94, a contained memory error: see the kernel's log"
    assert lab.card(0).healthy
    wait_for(lambda: (lab.allocatable(MEMORY), lab.allocatable(WHOLE)) == (15, 1), "withdrawn from kubelet")
    wait_for(lambda: told(lab, "GPUUnhealthy", f"card 1 ({card}) is unhealthy: XID 94"), "told")
    wait_for(lambda: lab.card(1).healthy, "well again")
    wait_for(lambda: (lab.allocatable(MEMORY), lab.allocatable(WHOLE)) == (30, 2), "with kubelet again")
    wait_for(lambda: told(lab, "GPURecovered", f"card 1 ({card}) is healthy again; it was: XID 94"), "told")
    wait_for(lambda: shoal.ANNOTATION_FAULTS not in lab.object["metadata"]["annotations"], "forgotten")


def test_no_container_starts_on_a_failed_card_and_those_that_run_stay(new_lab: NewLab):
    lab = new_lab("2xT4", recoverySeconds=1)
    lab.place(memory_pod("before", 4), lab.allocation({"main": [1]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running("before")
    allocation = lab.allocation({"main": [1]}, {"main": Share(4 * GIB)})
    cards(lab).raise_xid(lab.card(1).uuid, 48)
    wait_for(lambda: not lab.card(1).healthy, "unhealthy")
    lab.place(memory_pod("after", 4), allocation)
    event = lab.pods.wait_event("after", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert "is not healthy: XID 48" in event["message"]
    assert lab.pods.get("before")["status"]["phase"] == "Running"


def test_lost_card_and_its_return(new_lab: NewLab):
    lab = new_lab("2xA30", recoverySeconds=0.5)
    card = lab.card(0).uuid
    cards(lab).lose(card)
    wait_for(lambda: "lost from the bus" in lab.card(0).fault, "lost")
    wait_for(lambda: lab.allocatable(MEMORY) == 24, "withdrawn")
    cards(lab).restore(card)
    wait_for(lambda: lab.card(0).healthy, "well again")
    wait_for(lambda: lab.allocatable(MEMORY) == 48, "with kubelet again")


def test_fault_outlives_the_agent(new_lab: NewLab):
    lab = new_lab("2xT4", recoverySeconds=0)
    card = lab.card(0).uuid
    cards(lab).raise_xid(card, 48)
    wait_for(lambda: "XID 48" in lab.card(0).fault, "unhealthy")
    wait_for(lambda: '"energy"' in lab.object["metadata"]["annotations"].get(shoal.ANNOTATION_FAULTS, ""), "kept")
    lab.kill()
    lab.start(wait=False, recoverySeconds=0)
    wait_for(lambda: lab.asked("readyz")[0] == 200, "ready")
    wait_for(lambda: lab.allocatable(MEMORY) == 15, "counted by kubelet")
    assert "XID 48" in lab.card(0).fault, "no reset was seen"
    assert lab.card(1).healthy


def test_checks_can_be_left_out(new_lab: NewLab):
    lab = new_lab("2xT4", disableHealthChecks="48", enableHealthChecks="31", recoverySeconds=600)
    first, second = (lab.card(index).uuid for index in range(2))
    cards(lab).raise_xid(first, 48)
    cards(lab).raise_xid(second, 31)
    wait_for(lambda: "XID 31" in lab.card(1).fault, "unhealthy")
    assert lab.card(0).healthy
