"""Which container gets exactly which card, by claims: the tests of shares by number, with claims in their place.

Those alone in which the two could differ and which `test_claims_kube` does not have. Each claim is allocated on the
cards that the test chooses, as a scheduler would.
"""

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
from tests.agent.real.claims import ClaimsLab, claims_lab
from tests.gpu.conftest import nvml_library
from tests.testbed.processes import Run

__all__ = [
    "nvml_library",
    "test_forty_equal_pods_at_once",
    "test_init_container_sidecar_and_two_apps_each_get_their_own",
]

pytestmark = pytest.mark.min_kube("1.36")


class LabByClaims(ByClaims, ClaimsLab):
    """On a real kubelet."""


@pytest.fixture(scope="module")
def machine(testbed_run: Run, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimsLab]:
    folder = tmp_path_factory.mktemp("machine")
    with claims_lab(testbed_run, nvml_library, folder, "4xA30", between=False, kind=LabByClaims) as lab:
        yield lab


@pytest.fixture
def new_lab(machine: ClaimsLab) -> Iterator[Callable[..., Lab]]:
    """The one node, whatever four cards a test asks for."""

    def make(cards: str, **settings: Any) -> Lab:
        assert cards.startswith("4x")
        assert not settings
        return machine

    yield make
    machine.sweep()
