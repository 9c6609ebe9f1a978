"""What pods name, on two real clusters, with the rights of the manager's accounts; see `referring.py`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.clusters.joined import NAMESPACE, Joined, admin
from tests.clusters.referring import CASES, Referring, prepare_member, referring
from tests.testbed.apiserver import ApiServer
from tests.testbed.control_plane import own_control_plane
from tests.testbed.processes import Run


@pytest.fixture(scope="module")
def joined(testbed_run: Run) -> Iterator[Joined]:
    """Home and a member with controllers: its garbage collector removes what nothing uses."""
    home = ApiServer(testbed_run, "references-home")
    with own_control_plane(testbed_run, "references-member") as plane:
        made = Joined(home, plane.api)
        made.prepare()
        asyncio.run(prepare_member(admin(plane.api)))
        made.join("west")
        yield made
    home.stop()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_references(joined: Joined, case: Callable[[Referring], Awaitable[None]]) -> None:
    async def play() -> None:
        async with referring(admin(joined.home), admin(joined.member), NAMESPACE, on="real") as site:
            await case(site)

    asyncio.run(play())
