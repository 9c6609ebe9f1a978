"""A container that has a replica or a partition starts again after the configuration has changed, with what it had."""

from pathlib import Path

import pytest

from shoal.model.contract import nvidia
from tests.agent.lab import MEMORY, SAY, WHOLE
from tests.agent.real.conftest import NewLab
from tests.agent.sharing import CUT, SHARED, SMALL, device_ids, file, replicas
from tests.kubelet.pods import container, container_status, pod
from tests.testbed.waiting import wait_for

#: Says what it has, and ends when it is told to.
ONCE = f"{SAY}; trap 'exit 1' TERM; while true; do sleep 1; done"
MIXED = "{version: v1, flags: {migStrategy: mixed}}"


@pytest.mark.parametrize(
    ("resource", "text"),
    [(WHOLE, replicas(4)), (SHARED, replicas(4, renameByDefault=True)), (SMALL, MIXED)],
    ids=["slices", "renamed", "MIG"],
)
def test_container_starts_again_with_what_it_had(new_lab: NewLab, tmp_path: Path, resource: str, text: str):
    cards = [CUT, {"model": "A30"}] if resource == SMALL else "2xT4"
    lab = new_lab(cards, nvidiaConfig=file(tmp_path, text), resources=[MEMORY, WHOLE])
    wait_for(lambda: lab.allocatable(resource) > 0, "counted")
    lab.bind(pod("again", [container("main", ONCE, {resource: 1})], restart="Always"))
    lab.pods.wait_running("again")
    before = lab.env("again")[nvidia.ENV_VISIBLE_DEVICES]
    ids = device_ids(lab, "again")
    file(tmp_path, "version: v1")
    lab.reload(**lab.settings)
    wait_for(lambda: lab.asked("readyz")[0] == 200, "ready")
    if resource != WHOLE:
        wait_for(lambda: lab.allocatable(resource) == 1, "with what is in use")
    lab.pods.apiserver.kubectl("-n", lab.pods.namespace, "exec", "again", "--", "sh", "-c", "kill -TERM 1")
    lab.pods.wait("again", lambda found: container_status(found, "main").get("restartCount") == 1, "restarted")
    lab.pods.wait_running("again")
    assert (lab.env("again")[nvidia.ENV_VISIBLE_DEVICES], device_ids(lab, "again")) == (before, ids)
