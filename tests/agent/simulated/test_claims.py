"""What an agent does with claims, on the simulated kubelet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.claims_behaviour import *  # noqa: F403 - the tests themselves
from tests.agent.simulated.claims import SimulatedClaimsLab, simulated_claims
from tests.kubelet.device_plugin import PluginLoop


@pytest.fixture(scope="module")
def node_with_claims(plugin_loop: PluginLoop, short_folder: Path) -> Iterator[SimulatedClaimsLab]:
    folder = short_folder / "c"
    folder.mkdir()
    with simulated_claims(plugin_loop, folder, recoverySeconds=0) as made:
        yield made


@pytest.fixture
def lab(node_with_claims: SimulatedClaimsLab) -> Iterator[SimulatedClaimsLab]:
    yield node_with_claims
    node_with_claims.sweep()
