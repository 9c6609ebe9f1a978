"""Which container gets exactly which card, by claims: the tests of shares by number, on the simulated kubelet."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.behaviour import (
    test_forty_equal_pods_at_once,
    test_init_container_sidecar_and_two_apps_each_get_their_own,
)
from tests.agent.claiming import ByClaims
from tests.agent.lab import Lab
from tests.agent.simulated.claims import SimulatedClaimsLab, simulated_claims
from tests.kubelet.device_plugin import PluginLoop

__all__ = ["test_forty_equal_pods_at_once", "test_init_container_sidecar_and_two_apps_each_get_their_own"]


class LabByClaims(ByClaims, SimulatedClaimsLab):
    """On a simulated kubelet."""


@pytest.fixture(scope="module")
def machine(plugin_loop: PluginLoop, short_folder: Path) -> Iterator[SimulatedClaimsLab]:
    folder = short_folder / "b"
    folder.mkdir()
    with simulated_claims(plugin_loop, folder, "4xA30", kind=LabByClaims) as lab:
        yield lab


@pytest.fixture
def new_lab(machine: SimulatedClaimsLab) -> Iterator[Callable[..., Lab]]:
    """The one node, whatever four cards a test asks for."""

    def make(cards: str, **settings: Any) -> Lab:
        assert cards.startswith("4x")
        assert not settings
        return machine

    yield make
    machine.sweep()
