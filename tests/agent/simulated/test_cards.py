"""Cards as only a simulated driver can have them: missing indices, a driver that comes late."""

import pytest

from shoal.gpu.errors import NoDriverError
from shoal.gpu.nvml import open_nvml
from shoal.gpu.protocol import Nvml
from shoal.model.contract import gpushare
from shoal.model.request import Share
from tests.agent.lab import GIB, MEMORY, memory_pod
from tests.agent.simulated.conftest import NewLab
from tests.testbed.nvidia import SERIES, parts_or_skip
from tests.testbed.waiting import wait_for


def test_missing_index(new_lab: NewLab):
    lab = new_lab([{"model": "T4"}, {"model": "A30", "index": 5}])
    assert [(gpu.index, gpu.memory_mib) for gpu in lab.gpus] == [(0, 15360), (5, 24576)]
    lab.place(memory_pod("large", 20), lab.allocation({"main": [5]}, {"main": Share(20 * GIB)}))
    lab.pods.wait_running("large")
    assert lab.visible("large") == [5]
    assert lab.env("large")[gpushare.NAME_INDEX] == "5"


def test_driver_that_comes_late(new_lab: NewLab):
    lab = new_lab("2xT4", start=False)
    real = lab.open_driver
    tries = []

    def late() -> Nvml:
        tries.append(1)
        if len(tries) < 3:
            raise NoDriverError("libnvidia-ml.so.1 is not here: install the driver")
        return real()

    lab.open_driver = late
    lab.start(wait=False)
    wait_for(lambda: "install the driver" in lab.asked("readyz")[1], "telling what it waits for")
    assert lab.asked("healthz") == (200, lab.asked("readyz")[1]), "which is no reason to restart it"
    assert lab.gpus == ()
    lab.wait_ready()
    assert len(tries) == 3
    assert lab.allocatable(MEMORY) == 30


@pytest.mark.kube
@pytest.mark.parametrize("series", SERIES)
def test_nvidias_library_without_a_driver(new_lab: NewLab, series: str):
    """NVIDIA's own library is there, and the kernel module is not."""
    parts = parts_or_skip(series)
    lab = new_lab("2xT4")
    lab.stop()
    lab.open_driver = lambda: open_nvml(parts.libraries / "libnvidia-ml.so.1")
    lab.start(wait=False)
    words = "no GPU driver: NVIDIA's driver is not loaded: load the kernel module nvidia"
    wait_for(lambda: words in lab.asked("readyz")[1], "telling what the library answers")
    wait_for(lambda: lab.gpus == (), "an inventory without cards")


def test_node_without_cards_does_not_show_those_of_yesterday(new_lab: NewLab):
    lab = new_lab("2xT4")
    lab.stop()

    def gone() -> Nvml:
        raise NoDriverError("unloaded")

    lab.open_driver = gone
    lab.start(wait=False)
    wait_for(lambda: lab.gpus == (), "showing no cards")
    assert lab.object["status"]["allocatable"][gpushare.RESOURCE_COUNT] == "0"
