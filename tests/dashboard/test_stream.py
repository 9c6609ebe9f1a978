"""The stream of the map: what readers make of deltas is the map, whatever happens to them in between."""

import asyncio
import random

import pytest

from shoal.analysis.inspect.use import ClusterUse
from shoal.dashboard.picture import Picture
from shoal.dashboard.stream import MapOfView
from shoal.dashboard.views import ALL
from tests.dashboard.site import Site
from tests.dashboard.sse import Reader

NODES = {f"n{n}": {"cards": {0: 10240, 1: 10240}} for n in range(3)}


def running(name: str) -> tuple[str, str, str]:
    return ("red", name, "running")


@pytest.mark.parametrize("gzip", [True, False])
async def test_pods_come_and_go(site: Site, gzip: bool) -> None:
    site.put(NODES, {"a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0}})
    await site.current()
    async with Reader(site, gzip=gzip) as reader:
        await reader.hears(lambda r: running("a") in r.pods, "the pod that was there")
        site.put({}, {"b": {"namespace": "red", "node": "n2", "mem": 3, "index": 1}})
        await reader.hears(lambda r: running("b") in r.pods, "a new pod")
        site.remove_pod("red", "a")
        await reader.hears(lambda r: running("a") not in r.pods, "a pod that is gone")
        assert reader.map["nodes"]["n1"][5][0][10] == []
        assert [kind for kind, _ in reader.events] == ["snapshot", *["delta"] * (len(reader.events) - 1)]
        changed = [set(content["nodes"]) for kind, content in reader.events if kind == "delta"]
        assert {name for names in changed for name in names} == {"n1", "n2"}
        told = await site.get("/map")
        assert told["nodes"] == list(reader.map["nodes"].values())
        assert told["pods"] == reader.map["pods"]


async def test_deltas_make_the_map_under_random_changes(site: Site) -> None:
    chance = random.Random(7)
    site.put(NODES, {})
    there: set[str] = set()
    async with Reader(site) as reader:
        for step in range(60):
            if there and chance.random() < 0.4:
                gone = chance.choice(sorted(there))
                there.discard(gone)
                site.remove_pod("red", gone)
            else:
                name = f"p{step}"
                there.add(name)
                where = {"node": f"n{chance.randrange(3)}", "index": chance.randrange(2)} if step % 5 else {}
                site.put({}, {name: {"namespace": "red", "mem": 1, **where}})
            if step % 7 == 0:
                node = f"n{chance.randrange(3)}"
                site.readings.use(node, {f"red/{one}": chance.randrange(500) for one in sorted(there)[:3]}, {})
            await asyncio.sleep(0.05)
        await site.current()
        site.readings.nodes.clear()
        await reader.hears(lambda r: all(node[3] == 2 for node in r.map["nodes"].values()), "stale readings")
        told = await site.get("/map")
        await reader.hears(lambda r: list(r.map["nodes"].values()) == told["nodes"], "the same nodes")
        assert {pod[1] for pod in reader.pods if pod[2] != "unrequested"} == there
        assert told["pods"] == reader.map["pods"]


async def test_a_reader_goes_on_where_it_was(site: Site) -> None:
    site.put(NODES, {"a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0}})
    await site.current()
    async with Reader(site) as reader:
        await reader.hears(lambda r: running("a") in r.pods, "the first pod")
    site.put({}, {"b": {"namespace": "red", "node": "n2", "mem": 3, "index": 1}})
    await site.current()
    async with Reader(site, last=reader.last) as again:
        again.map = reader.map
        await again.hears(lambda r: running("b") in r.pods, "what came in between")
        assert {kind for kind, _ in again.events} == {"delta"}
    for wrong in ("1.1", "999999999999999999.1", "x", "-1.1", f"{reader.last}9", "9" * 5000):
        if len(wrong) < 4000:
            async with Reader(site, last=wrong) as anew:
                await anew.hears(lambda r: r.events, "something")
                assert anew.events[0][0] == "snapshot", wrong


async def test_a_reader_far_behind_gets_a_snapshot() -> None:
    before = Picture(1000, 1.0, ClusterUse(()), trouble="x")
    shown = MapOfView(ALL, 1, before, lambda: 0.0)
    for number in range(1001, 1200):
        shown.follow(Picture(number, 1.0, ClusterUse(()), old_since=float(number), trouble="x"))
    assert [event.number for event in shown.after(1198)] == [1199]
    assert shown.after(1199) == []
    (snapshot,) = shown.after(1150)
    assert snapshot.plain.startswith(b"id: 1199.1\nevent: snapshot\n")
    (snapshot,) = shown.after(1010)
    assert b"event: snapshot" in snapshot.plain


async def test_the_stream_ends_with_the_server_and_the_session(site: Site) -> None:
    site.put(NODES, {})
    await site.current()
    form = {"token": site.admin}
    async with site.session.post(f"{site.url}/sign-in", data=form, allow_redirects=False) as answer:
        assert answer.status == 303
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
    async with Reader(site, cookie=cookie) as reader:
        await reader.hears(lambda r: r.map, "the map")
        async with site.session.post(
            f"{site.url}/sign-out", headers={"Cookie": cookie}, allow_redirects=False
        ) as answer:
            assert answer.status == 303
        await reader.over.wait()
        assert reader.events[-1] == ("end", {"reason": "signed-out"})


async def test_the_stream_ends_when_the_token_does(site: Site) -> None:
    site.put(NODES, {"a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0}})
    token = site.account("ann", namespaces=["red"])
    await site.current()
    async with site.session.post(f"{site.url}/sign-in", data={"token": token}, allow_redirects=False) as answer:
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
    async with Reader(site, cookie=cookie) as reader:
        await reader.hears(lambda r: running("a") in r.pods, "the map")
        session = site.serving.viewers.session(cookie.partition("=")[2])
        session.until = 0.0  # as if its time were over
        await reader.over.wait()
        assert reader.events[-1] == ("end", {"reason": "expired"})
    assert (await site.ask("/overview", "x"))[0] == 401


async def test_a_stream_follows_the_rights_of_its_viewer(site: Site) -> None:
    site.put(NODES, {"a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0}})
    token = site.account("ann", namespaces=["blue"], nodes=True)
    await site.current()
    async with Reader(site, token) as reader:
        await reader.hears(lambda r: r.map, "the map")
        assert reader.map["pods"] == []
        assert reader.map["nodes"]["n1"][5][0][10] == [[-1, 4096, None]]
        site.put({}, {"b": {"namespace": "blue", "node": "n1", "mem": 2, "index": 0}})
        await reader.hears(lambda r: ("blue", "b", "running") in r.pods, "a pod of a namespace that was empty")
        place = next(n for n, pod in enumerate(reader.map["pods"]) if pod)
        assert sorted(reader.map["nodes"]["n1"][5][0][10]) == [[-1, 4096, None], [place, 2048, None]]
    assert b"red" not in repr(reader.events).encode()
