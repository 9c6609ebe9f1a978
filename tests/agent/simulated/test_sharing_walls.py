"""Replicas behind walls, on the simulated node: a time slice has all memory of its card, a share of MPS its part."""

from pathlib import Path

import pytest
import yaml

from shoal.model.contract import nvidia, shoal
from tests.agent.lab import WHOLE
from tests.agent.sharing import asks
from tests.agent.simulated.test_limits import walled  # noqa: F401 - fixture
from tests.testbed.waiting import wait_for


@pytest.mark.parametrize(("section", "phase"), [("timeSlicing", "Running"), ("mps", "Failed")])
def test_more_than_the_part_of_a_replica(walled, tmp_path: Path, section: str, phase: str):  # noqa: F811
    path = tmp_path / "nvidia.yaml"
    resources = [{"name": nvidia.RESOURCE_GPU, "replicas": 4}]
    path.write_text(yaml.safe_dump({"version": "v1", "sharing": {section: {"resources": resources}}}))
    lab = walled("1xA30", nvidiaConfig=str(path))
    greedy = asks("greedy", WHOLE)
    greedy["metadata"]["annotations"] = {shoal.ANNOTATION_SIMULATE: "duration=forever memory=10Gi"}
    lab.bind(greedy)
    wait_for(lambda: lab.pods.get("greedy")["status"].get("phase") == phase, phase)
    assert ("CUDA out of memory" in lab.pods.log("greedy", "main")) is (phase == "Failed")
