"""Resource names that a node serves by claims, on the simulated kubelet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.names_behaviour import NamesLab, test_there_and_back
from tests.agent.simulated.claims import simulated_claims
from tests.kubelet.device_plugin import PluginLoop

__all__ = ["test_there_and_back"]


@pytest.fixture
def names(plugin_loop: PluginLoop, short_folder: Path) -> Iterator[NamesLab]:
    folder = short_folder / "m"
    folder.mkdir()
    with simulated_claims(plugin_loop, folder, recoverySeconds=0) as lab:
        yield NamesLab(lab, lab.inspect)
        lab.sweep()
