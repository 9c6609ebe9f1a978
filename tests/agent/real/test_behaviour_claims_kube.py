"""Which container gets exactly which card, by claims: the tests of shares by number, with claims in their place.

Those alone in which the two could differ and which `test_claims_kube` does not have. Each claim is allocated on the
cards that the test chooses, as a scheduler would.
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.model.allocation import Allocation
from shoal.model.contract import dra
from tests.agent.behaviour import (
    test_forty_equal_pods_at_once,
    test_init_container_sidecar_and_two_apps_each_get_their_own,
)
from tests.agent.lab import MEMORY, Lab
from tests.agent.real.claims import ClaimsLab, asking, claims_lab
from tests.gpu.conftest import nvml_library
from tests.testbed.processes import Run

__all__ = [
    "nvml_library",
    "test_forty_equal_pods_at_once",
    "test_init_container_sidecar_and_two_apps_each_get_their_own",
]

pytestmark = pytest.mark.min_kube("1.36")


class LabByClaims(ClaimsLab):
    """Pods that would ask for memory by number get a claim, with one request for each of their containers."""

    def place(self, manifest: dict, allocation: Allocation) -> None:
        name = manifest["metadata"]["name"]
        spec = {**manifest["spec"], "schedulerName": "nobody", "tolerations": [{"operator": "Exists"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        for kind in ("initContainers", "containers"):
            spec[kind] = [_by_claim(one) for one in spec.get(kind, ())]
        results = []
        requests = []
        for entry in allocation.containers:
            (memory,) = {f"{card.share.memory_mib}Mi" for card in entry.cards}
            requests.append(asking(entry.name, memory, count=len(entry.cards)))
            results += [
                {
                    "request": entry.name,
                    "device": dra.device_name(card.uuid),
                    "shareID": str(uuid.uuid4()),
                    "consumedCapacity": {"memory": memory, "compute": "0"},
                }
                for card in entry.cards
            ]
        self.make_claim(name, *requests)
        self.create({**manifest, "spec": spec})
        self.allocate(name, *results, pods=[name])
        self.bind_to(name)


def _by_claim(container: dict) -> dict:
    assert list(container["resources"]["limits"]) == [MEMORY]
    return {**container, "resources": {"claims": [{"name": "gpu", "request": container["name"]}]}}


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
