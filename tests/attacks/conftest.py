"""The arenas."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.attacks.arena import Arena
from tests.attacks.embedded import EmbeddedArena
from tests.attacks.real import RealArena
from tests.gpu.conftest import nvml_library  # noqa: F401 - a fixture
from tests.kubelet.conftest import plugin_loop  # noqa: F401 - a fixture
from tests.kubelet.device_plugin import PluginLoop
from tests.suites.conftest import CLUSTERS
from tests.testbed.processes import Run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `arena` runs on each, unless `--cluster` names one."""
    if "arena" not in metafunc.fixturenames:
        return
    only = metafunc.config.getoption("--cluster")
    params = [pytest.param(name, marks=marks) for name, marks in CLUSTERS.items() if only in (None, name)]
    metafunc.parametrize("arena", params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def arena(request: pytest.FixtureRequest) -> Arena:
    """Where attacks are played."""
    return cast(Arena, request.getfixturevalue(f"{request.param}_arena"))


@pytest.fixture(scope="session")
def embedded_arena(plugin_loop: PluginLoop) -> Iterator[EmbeddedArena]:  # noqa: F811
    """The embedded cluster, one for all attacks of a worker."""
    arena = EmbeddedArena(plugin_loop)
    yield arena
    arena.stop()


@pytest.fixture(scope="session")
def real_arena(
    testbed_run: Run,
    nvml_library: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealArena]:
    """A real cluster of one node."""
    arena = RealArena(testbed_run, nvml_library, tmp_path_factory.mktemp("attacked"))
    yield arena
    arena.stop()
