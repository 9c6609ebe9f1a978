"""Machines with cards, without cards."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.gpu.protocol import Driver
from shoal.gpu.simulated import NEWEST
from tests.gpu.machines import Machine, ShimMachine, SimulatedMachine
from tests.testbed.nvml.shim import Shim, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in library, compiled."""
    try:
        return build(tmp_path_factory.mktemp("nvml"))
    except FileNotFoundError as missing:
        pytest.skip(
            f"{missing} is not here to build the stand-in for NVIDIA's library: `make test` as root installs it"
        )


@pytest.fixture
def shim(nvml_library: Path, tmp_path: Path) -> Shim:
    """A library of the test's own, without cards yet."""
    return Shim(nvml_library, tmp_path)


@pytest.fixture(params=["simulated", "nvml"])
def machine(request: pytest.FixtureRequest) -> Iterator[Callable[..., Machine]]:
    """Makes the machine of a test from a description of its cards; the test runs once on each backend."""
    made: list[Machine] = []

    def make(cards: object, driver: Driver = NEWEST) -> Machine:
        if request.param == "simulated":
            made.append(SimulatedMachine(cards, driver))
        else:
            made.append(ShimMachine(request.getfixturevalue("shim"), cards, driver))
        return made[-1]

    yield make
    for each in made:
        each.close()
