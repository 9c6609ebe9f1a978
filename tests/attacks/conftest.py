"""The arenas."""

from collections.abc import Iterator

import pytest

from tests.attacks.embedded import EmbeddedArena
from tests.kubelet.conftest import plugin_loop  # noqa: F401 - a fixture
from tests.kubelet.device_plugin import PluginLoop


@pytest.fixture(scope="session")
def embedded_arena(plugin_loop: PluginLoop) -> Iterator[EmbeddedArena]:  # noqa: F811
    """The embedded cluster, one for all attacks of a worker."""
    arena = EmbeddedArena(plugin_loop)
    yield arena
    arena.stop()
