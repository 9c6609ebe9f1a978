"""The agent gets another configuration, and another, while kubelet is slow: its plugins stay kubelet's plugins."""

import re
import time

from tests.agent.lab import MEMORY, SAY, WHOLE
from tests.agent.real.conftest import NewLab
from tests.kubelet.pods import container, pod
from tests.testbed.waiting import wait_for

RELOADS = 6
#: What kubelet says when it takes a plugin, and when it lets go of one.
TAKEN, LET_GO = "Device plugin connected", "Endpoint became unhealthy"


def test_kubelet_lets_go_of_a_plugin_before_it_takes_the_next_one(new_lab: NewLab):
    lab = new_lab("2xT4", resources=[MEMORY, WHOLE])
    wait_for(lambda: lab.allocatable(WHOLE) == 2, "counted")
    for _ in range(RELOADS):
        lab.node.kubelet.pause()
        lab.reload(**lab.settings)
        time.sleep(0.6)  # the end of one plugin and the beginning of the next wait for kubelet
        lab.node.kubelet.resume()
        wait_for(lambda: lab.asked("readyz")[0] == 200, "ready")
    said = lab.node.kubelet.log.read_text()
    for resource in (MEMORY, WHOLE):
        steps = re.findall(rf'"({TAKEN}|{LET_GO})" resourceName="{re.escape(resource)}"', said)
        assert steps == [TAKEN] + [LET_GO, TAKEN] * RELOADS
    lab.bind(pod("one", [container("main", f"{SAY}; sleep 1000", {WHOLE: 1})]))
    lab.pods.wait_running("one")
