"""No data, old data and 0 are different things: collectors that fall silent, an API server that goes and returns."""

import asyncio
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest

from shoal.analysis.collectors import Measured
from shoal.dashboard import picture
from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import PODS
from tests.cli.inspect import cluster as shorthand
from tests.dashboard.site import Readings, Site, dashboard
from tests.dashboard.sse import Reader
from tests.kube.waiting import until

NODES = {"n1": {"cards": {0: 10240}}, "n2": {"cards": {0: 10240}}}


async def test_collectors_missing_fresh_and_silent(site: Site) -> None:
    site.put(NODES, {"a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0}})
    site.readings.use("n1", {"red/a": 0})
    await site.current()

    async def states() -> dict[str, tuple[str, int | None]]:
        page = await site.get("/nodes")
        return {node["name"]: (node["collector"]["state"], node["usedMiB"]) for node in page["items"]}

    while (await states())["n1"][0] != "measured":
        await site.current()
    assert await states() == {"n1": ("measured", 0), "n2": ("missing", None)}
    (one, _) = (await site.get("/nodes"))["items"]
    assert one["collector"]["why"] is None
    told = await site.get("/overview")
    assert told["memory"]["usedMiB"] == 0
    assert told["memory"]["measuredMiB"] == 10240
    measured_at = one["collector"]["since"]
    site.readings.use("n1", {"red/a": 700})
    while (await states())["n1"][1] != 700:
        await site.current()
    site.readings.nodes.clear()
    site.readings.silent["n1"] = "no answer within 10 s"
    while (await states())["n1"][0] != "stale":
        await site.current()
    assert await states() == {"n1": ("stale", 700), "n2": ("missing", None)}
    (one, _) = (await site.get("/nodes"))["items"]
    assert one["collector"]["why"] == "no answer within 10 s"
    assert one["collector"]["since"] >= measured_at
    node = (await site.get("/map"))["nodes"][0]
    assert (node[3], node[4]) == (2, one["collector"]["since"])
    told = await site.get("/overview")
    assert told["collectors"] == {"measured": 0, "stale": 1, "missing": 1, "why": None}
    assert told["memory"]["usedMiB"] is None


async def test_an_api_server_goes_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_PROBE", 0.5)
    api = EmbeddedApi(tmp_path / "api")
    await api.__aenter__()
    async with dashboard(api, Readings()) as site:
        site.put(NODES, {"a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0}})
        await site.current()
        async with Reader(site) as reader:
            await reader.hears(lambda r: ("red", "a", "running") in r.pods, "the map")
            assert reader.map["oldSince"] is None
            await api.__aexit__(None, None, None)
            await reader.hears(lambda r: r.map["oldSince"] is not None, "that it is old")
            told = await site.get("/overview")
            assert told["oldSince"] == reader.map["oldSince"]
            assert told["trouble"]
            assert told["pods"]["total"] == 1  # what was known stays
            status, body = await site.ask("/overview", "another-token")
            assert (status, body["error"]["code"]) == (503, "unavailable")
            made = shorthand.pod("b", {"namespace": "red", "node": "n2", "mem": 3, "index": 0})
            api.registry.create(PODS, "red", made)
            await api.__aenter__()
            await reader.hears(lambda r: r.map["oldSince"] is None, "that it is back")
            await reader.hears(lambda r: any(pod[1] == "b" for pod in r.pods), "what came in between")
    await api.__aexit__(None, None, None)


async def test_a_collector_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    asked: list[list[str]] = []
    hanging = asyncio.Event()

    class Hanging(Readings):
        async def measure(self, names: Collection[str]) -> Measured:
            asked.append(sorted(names))
            if list(names) == ["n2"]:
                hanging.set()
                await asyncio.get_running_loop().create_future()
            return await super().measure(names)

    readings = Hanging()
    readings.use("n1", {})
    async with EmbeddedApi(tmp_path / "api") as api, dashboard(api, readings) as site:
        site.put(NODES, {})
        await site.get("/overview")  # they are asked often while somebody looks
        async with asyncio.timeout(300):
            await hanging.wait()  # n2 did not answer in the first round, and is asked alone from then on
        for used in (100, 200):
            readings.use("n1", {"red/a": used})
            await site.get("/overview")
            await until(partial(uses, site, "n1", used), "a new reading of the other")
        assert asked.count(["n2"]) == 1


def uses(site: Site, name: str, used: int) -> bool:
    reading = site.serving.live.current.nodes[name].measurement.reading
    return reading is not None and reading.cards[0].used_bytes == used << 20
