"""What pods name, on two embedded clusters, which evaluate the same rights and policies; see `referring.py`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.kube.access.credentials import Access
from shoal.kube.access.kubeconfig import load_access
from tests.clusters.referring import CASES, Referring, prepare_member, referring
from tests.suites.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Access]]:
    """Home and a member."""
    made = [EmbeddedServer(tmp_path_factory.mktemp(name), controllers=True) for name in ("home", "member")]
    accesses = [load_access(environ={}, home=Path("/"), kubeconfig=one.kubeconfig()) for one in made]
    asyncio.run(prepare_member(accesses[1]))
    home, member = (str(one.kubeconfig()) for one in made)
    both = ["--kubeconfig", member, "--home-kubeconfig", home, "-n", "default"]
    result = CliRunner().invoke(main, ["clusters", "join", "west", "--token-lifetime", "3600", *both])
    assert result.exit_code == 0, result.output
    yield accesses
    for one in made:
        one.stop()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_references(joined: list[Access], case: Callable[[Referring], Awaitable[None]]) -> None:
    async def play() -> None:
        async with referring(joined[0], joined[1], "default", on="embedded") as site:
            await case(site)

    asyncio.run(play())
