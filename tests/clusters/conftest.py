"""Three control planes for the tests of the cluster manager, and each test's own view of them."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.clusters.site import Planes, Site, planes_of
from tests.testbed.processes import Run


@pytest.fixture(scope="session")
def planes(testbed_run: Run) -> Iterator[Planes]:
    """Home and two members, shared by the tests of a run."""
    with planes_of(testbed_run) as planes:
        yield planes


@pytest.fixture
async def site(planes: Planes) -> AsyncIterator[Site]:
    """The planes, with a namespace of the test's own in each."""
    await planes.start()
    async with contextlib.AsyncExitStack() as stack:
        site = Site(planes, stack)
        await site.set_up()
        yield site
