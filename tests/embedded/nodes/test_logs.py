"""Logs by the second, and their end with the server; with a clock of the test's own."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import PODS
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import NodeDescription
from tests.embedded.nodes.manual_clock import ManualClock
from tests.kube.waiting import until

PATH = "/api/v1/namespaces/default/pods/p/log"


class World:
    """A server, a node and a client, on a manual clock."""

    def __init__(self, api: EmbeddedApi, nodes: Nodes, clock: ManualClock, session: aiohttp.ClientSession) -> None:
        self.api = api
        self.nodes = nodes
        self.clock = clock
        self.session = session

    async def read(self, query: str = "") -> str:
        async with self.session.get(f"{PATH}{query}") as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = ManualClock()
    async with EmbeddedApi(tmp_path / "api", clock=clock.now) as api:
        nodes = Nodes(api, [NodeDescription("n", device_plugins=False)], tmp_path / "n", clock=clock)
        await nodes.start()
        script = "echo one; sleep 10; echo two; sleep 10; echo three; sleep 10; exit 0"
        spec = {
            "nodeName": "n",
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "x", "command": ["sh", "-c", script]}],
        }
        api.registry.create(PODS, "default", {"metadata": {"name": "p"}, "spec": spec})
        await clock.settle()
        tls = ssl.create_default_context(cafile=str(api.ca))
        headers = {"Authorization": f"Bearer {api.token}"}
        async with aiohttp.ClientSession(api.url, headers=headers, connector=aiohttp.TCPConnector(ssl=tls)) as session:
            yield World(api, nodes, clock, session)
        await nodes.stop()


async def test_lines_come_with_time(world: World) -> None:
    assert await world.read() == "one\n"
    await world.clock.advance(10)
    assert await world.read() == "one\ntwo\n"
    await world.clock.advance(15)
    assert await world.read() == "one\ntwo\nthree\n"
    assert await world.read("?tailLines=1") == "three\n"
    assert await world.read("?sinceSeconds=6") == "three\n"
    assert await world.read("?sinceSeconds=20") == "two\nthree\n"
    assert await world.read("?sinceTime=2026-01-01T00:00:10Z") == "two\nthree\n"
    assert await world.read("?timestamps=true&tailLines=1") == "2026-01-01T00:00:20.000000000Z three\n"
    assert await world.read("?limitBytes=6") == "one\ntw"


async def test_followers_get_each_line_and_the_end(world: World) -> None:
    async with world.session.get(f"{PATH}?follow=true") as answer:
        assert await answer.content.readline() == b"one\n"
        await world.clock.advance(10)
        assert await answer.content.readline() == b"two\n"
        await world.clock.advance(20)
        assert await answer.content.read() == b"three\n"


async def test_a_follower_that_leaves_is_let_go(world: World) -> None:
    (run,) = world.nodes["n"].host.runs.values()
    log = run.containers["c"].log
    answer = await world.session.get(f"{PATH}?follow=true")
    assert await answer.content.readline() == b"one\n"
    await until(lambda: len(log.moved) == 1, "it waits for more")
    answer.close()
    await until(lambda: not log.moved, "nobody waits any more")


async def test_options_that_make_no_sense(world: World) -> None:
    for query, status, words in (
        ("?tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("?limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
        ("?sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ("?sinceSeconds=5&sinceTime=2026-01-01T00:00:10Z", 422, "at most one of `sinceTime` or `sinceSeconds`"),
        ("?tailLines=many", 400, 'parsing "many": invalid syntax'),
        ("?sinceTime=soon", 400, 'parsing time "soon"'),
    ):
        async with world.session.get(f"{PATH}{query}") as answer:
            assert answer.status == status
            assert words in (await answer.json())["message"]
    async with world.session.post(PATH) as answer:
        assert answer.status == 405


async def test_a_node_that_is_nobodys(world: World) -> None:
    spec = {"nodeName": "elsewhere", "containers": [{"name": "c", "image": "x"}]}
    world.api.registry.create(PODS, "default", {"metadata": {"name": "far"}, "spec": spec})
    async with world.session.get(PATH.replace("/p/", "/far/")) as answer:
        assert answer.status == 500
        assert "connection refused" in (await answer.json())["message"]


async def test_the_server_ends_while_somebody_follows(tmp_path: Path) -> None:
    api = EmbeddedApi(tmp_path / "api")
    nodes = Nodes(api, [NodeDescription("n", device_plugins=False)], tmp_path / "n")
    async with api:
        await nodes.start()
        spec = {
            "nodeName": "n",
            "containers": [{"name": "c", "image": "x", "command": ["sh", "-c", "echo a; sleep inf"]}],
        }
        api.registry.create(PODS, "default", {"metadata": {"name": "p"}, "spec": spec})
        tls = ssl.create_default_context(cafile=str(api.ca))
        headers = {"Authorization": f"Bearer {api.token}"}
        session = aiohttp.ClientSession(api.url, headers=headers, connector=aiohttp.TCPConnector(ssl=tls))
        await until(lambda: _phase(api) == "Running", "the pod runs")
        answer = await session.get(f"{PATH}?follow=true")
        assert await answer.content.readline() == b"a\n"
    # Leaving the block waits for the stream: it must have been ended by the server.
    with contextlib.suppress(aiohttp.ClientPayloadError):
        assert await answer.content.read() == b""
    answer.close()
    await session.close()
    await nodes.stop()


def _phase(api: EmbeddedApi) -> str:
    return str(api.registry.get(PODS, "default", "p")["status"]["phase"])
