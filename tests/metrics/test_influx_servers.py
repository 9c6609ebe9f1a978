"""The writer on real servers: Debian's InfluxDB 1.6 by user and password, InfluxDB 1.8 by token."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.metrics.influx_writer import InfluxSettings, InfluxWriter
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from shoal.model.backoff import Backoff
from tests.logs import own_records
from tests.metrics.measured import LOAD, MIB, MeasuredNode
from tests.testbed import influxdb
from tests.testbed.influxdb import PASSWORD, USER, InfluxServer
from tests.testbed.processes import Run

# Asked for by name: the fixtures of the servers are not.
pytestmark = pytest.mark.usefixtures("testbed_run")

SOON = Backoff(first=0.05, longest=0.5)
#: Far more than any server needs.
PATIENCE = 300
COUNT = 300
_databases = itertools.count(1)


@pytest.fixture(scope="module")
def debian(testbed_run: Run) -> Iterator[InfluxServer]:
    """Debian's server, which asks for a password."""
    server = InfluxServer(testbed_run, influxdb.debian(), "influxdb-debian", auth=True)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def tokens(testbed_run: Run) -> Iterator[InfluxServer]:
    """The server that takes tokens."""
    server = InfluxServer(testbed_run, influxdb.with_tokens(), "influxdb-tokens", auth=True)
    yield server
    server.kill()


class Target:
    """A database of a server, and how the writer gets there."""

    def __init__(self, server: InfluxServer, api: str, folder: Path) -> None:
        self.server = server
        self.api = api
        self.database = f"db{next(_databases)}"
        self.secret = folder / "secret"
        self.give_secret(PASSWORD)

    def give_secret(self, password: str) -> None:
        self.secret.write_text(password if self.api == "v1" else f"{USER}:{password}")

    def settings(self, **more: object) -> InfluxSettings:
        ways: dict[str, dict[str, object]] = {
            "v1": {"database": self.database, "username": USER, "passwordFile": str(self.secret)},
            "v2": {"org": "any", "bucket": f"{self.database}/autogen", "tokenFile": str(self.secret)},
        }
        return msgspec.convert({"url": self.server.url, "api": self.api, **ways[self.api], **more}, InfluxSettings)

    def rows(self, query: str) -> list[dict[str, Any]]:
        return self.server.query(query, self.database)


@pytest.fixture(params=["v1", "v2"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """A fresh database, by both ways."""
    server: InfluxServer = request.getfixturevalue("debian" if request.param == "v1" else "tokens")
    made = Target(server, request.param, tmp_path)
    server.query(f"CREATE DATABASE {made.database}")
    return made


@asynccontextmanager
async def running(settings: InfluxSettings) -> AsyncIterator[tuple[InfluxWriter, LatestSnapshot]]:
    """A writer at work."""
    latest = LatestSnapshot()
    writer = InfluxWriter(settings, backoff=SOON)
    task = asyncio.create_task(writer.run(latest))
    try:
        yield writer, latest
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not ready():  # noqa: ASYNC110 - what is waited for is outside
            await asyncio.sleep(0.01)


async def put(writer: InfluxWriter, latest: LatestSnapshot, snapshot: Snapshot) -> None:
    """Show a snapshot, and wait until its points have been taken: a snapshot that comes too soon replaces it."""

    def taken() -> int:
        counts = writer.counts()
        return counts.buffered + counts.dropped + counts.refused + counts.written

    before = taken()
    latest.put(snapshot)
    await until(lambda: taken() > before)


async def write(settings: InfluxSettings, *snapshots: Snapshot) -> InfluxWriter:
    """Write snapshots one after another."""
    async with running(settings) as (writer, latest):
        for snapshot in snapshots:
            await put(writer, latest, snapshot)
            await until(lambda: writer.counts().buffered == 0)
    return writer


def busy_node(name: str = "node-1") -> MeasuredNode:
    node = MeasuredNode(name=name)
    node.run(0, "train", mib=3000, percent=40)
    node.run(0, "serve", mib=500, percent=10)
    node.run(1, "train", mib=7000, percent=90)
    node.run(1, None, mib=250)
    return node


async def test_the_numbers_are_those_of_the_cards(target: Target) -> None:
    node = busy_node()
    snapshots = [node.snapshot(), node.snapshot(60)]
    writer = await write(target.settings(), *snapshots)
    assert writer.counts().written == 2 * 6
    last = snapshots[-1]
    (row,) = target.rows("select * from nodemetric where NodeName='node-1' order by time desc limit 1")
    assert row["time"] == round(last.time * 1e9)
    assert row["NodeCPU"] == LOAD.cpu_used_milli
    assert row["NodeNetworkRX"] == LOAD.network_received_bytes
    assert (row["Count"], row["totalpod"], row["node"]) == (2, 3, "node-1")
    assert row["uuid"].strip("[]").split() == [card.card.uuid for card in last.cards]
    for card in last.cards:
        sample = card.sample
        assert sample is not None
        # KETI's own query
        (row,) = target.rows(f"select * from gpumetric where UUID='{card.card.uuid}' order by time desc limit 1")
        assert row == {
            "time": round(last.time * 1e9),
            "node": "node-1",
            "UUID": card.card.uuid,
            "gpu": str(card.card.index),
            "Index": card.card.index,
            "GPUName": card.card.model,
            "memory(total)": sample.memory_total_bytes,
            "memory(free)": sample.memory_free_bytes,
            "memory(used)": card.used_bytes,
            "utilization": sample.utilisation,
            "Power": sample.power_mw,
            "temperature": sample.temperature_c,
            "Podnum": 2 if card.card.index == 0 else 1,
        }
        (older,) = target.rows(f"SELECT last(*) FROM gpumetric where UUID='{card.card.uuid}'")
        assert older["last_Power"] == sample.power_mw
    rows = target.rows(
        "select * from podmetric where gpu_mps_pod = 'train' and gpu_mps_cpu != 0 and gpu_mps_nodememory != 0 "
        "order by time desc limit 2"
    )
    used = {row["UUID"]: row["gpu_mps_memory"] for row in rows}
    assert used == {last.cards[0].card.uuid: 3000 * MIB, last.cards[1].card.uuid: 7000 * MIB}
    assert {(row["namespace"], row["pod"], row["container"]) for row in rows} == {("userpod", "train", "main")}


async def test_two_nodes_of_one_second_stay_apart(target: Target) -> None:
    for name in ("node-1", "node-2"):
        await write(target.settings(), busy_node(name).snapshot())
    assert len(target.rows("select * from nodemetric")) == 2
    assert len(target.rows("select * from podmetric")) == 6


async def test_a_server_killed_under_load_loses_nothing(target: Target) -> None:
    node = busy_node()
    async with running(target.settings()) as (writer, latest):
        for number in range(COUNT):
            if number in (60, 140, 220):
                target.server.kill()
            await put(writer, latest, node.snapshot())
            if number in (100, 180, 280):
                await until(lambda: bool(writer.trouble))
                assert writer.counts().buffered > 0
                target.server.process.start()
        await until(lambda: writer.counts().buffered == 0)
        counts = writer.counts()
    assert (counts.dropped, counts.refused) == (0, 0)
    assert counts.written == COUNT * 6
    (row,) = target.rows("select count(Count) from nodemetric")
    assert row["count"] == COUNT
    (row,) = target.rows("select count(gpu_mps_memory) from podmetric")
    assert row["count"] == COUNT * 3


async def test_beyond_the_bound_the_oldest_are_lost_and_counted(target: Target) -> None:
    node = busy_node()
    target.server.kill()
    async with running(target.settings(bufferBytes=64 << 10)) as (writer, latest):
        for _ in range(COUNT):
            await put(writer, latest, node.snapshot())
        await until(lambda: bool(writer.trouble))
        dropped = writer.counts().dropped
        assert dropped > 0
        target.server.process.start()
        await until(lambda: writer.counts().buffered == 0)
        counts = writer.counts()
    assert counts.written + counts.dropped == COUNT * 6
    rows = target.rows("select Count from nodemetric")
    assert 0 < len(rows) < COUNT
    assert rows[-1]["time"] == round(node.now * 1e9)


async def test_a_wrong_secret_is_told_and_tried_later(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    target.give_secret("wr0ng-s3cret")
    with caplog.at_level(logging.INFO):
        async with running(target.settings()) as (writer, latest):
            latest.put(busy_node().snapshot())
            await until(lambda: bool(writer.trouble))
            assert "401" in writer.trouble
            assert writer.counts().buffered == 6
            target.give_secret(PASSWORD)
            await until(lambda: writer.counts().written == 6)
            await until(lambda: not writer.trouble)
    assert "takes no points now" in caplog.text
    assert "takes points again" in caplog.text
    assert len([record for record in own_records(caplog) if record.levelno >= logging.WARNING]) == 1
    for secret in ("wr0ng", PASSWORD):
        assert secret not in caplog.text


async def test_a_bad_point_does_not_hold_up_the_others(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    # Someone has written a field of ours with another type: KETI's own collector wrote the temperature as text.
    target.server.query(f"CREATE DATABASE {target.database}")
    node = busy_node()
    uuid = node.cards[0].uuid
    first = node.snapshot()
    clash = replace(first, cards=(first.cards[0],), pods=())
    await write(target.settings(), clash)
    target.server.query("DROP MEASUREMENT gpumetric", target.database)
    line = f'gpumetric,UUID={uuid} temperature="{{35 90 95 0}}" {round(first.time * 1e9)}'
    target.server.write(line, target.database)
    with caplog.at_level(logging.WARNING):
        writer = await write(target.settings(), node.snapshot(), node.snapshot(), node.snapshot())
    assert len(own_records(caplog)) == 1
    assert "field type conflict" in caplog.text
    counts = writer.counts()
    assert counts.written + counts.refused == 18
    assert counts.refused == 6
    assert len(target.rows("select Count from nodemetric")) == 4
    (row,) = target.rows('select count(gpu_mps_memory) from podmetric where time > 0 and "UUID" = \'' + uuid + "'")
    assert row["count"] >= 6


async def test_hostile_names_are_data(target: Target) -> None:
    node = MeasuredNode("1xA30")
    forged = "\ngpumetric,UUID=forged Index=9i 1\n"
    names = [
        *('a b,c=d"e\\', "x\ny", "ü" * 300, "z" * 65536, "# comment", f'"{forged}', f'\\"{forged}', "a\u2028b\r\x85c"),
        *("\\ ", "\\,x=1", " y=2i 1\n#"),
    ]
    for name in names:
        node.run(0, name, mib=10)
    # Text of fields goes another way than tags: the driver's name of a GPU, and the names of the node and of pods.
    snapshot = node.snapshot()
    cards = tuple(replace(one, card=replace(one.card, model="".join(names))) for one in snapshot.cards)
    writer = await write(target.settings(), replace(snapshot, cards=cards))
    assert writer.counts().refused == 0
    assert len(target.rows("select * from podmetric")) == len(names)
    (card,) = target.rows("select * from gpumetric")
    assert card["UUID"] != "forged"
    assert card["GPUName"] == "".join(names)[: 16 << 10]
    assert len(target.rows("show series")) == len(names) + 2


async def test_a_database_that_is_missing_is_made_with_its_retention(debian: InfluxServer, tmp_path: Path) -> None:
    target = Target(debian, "v1", tmp_path)
    node = MeasuredNode(started=4_000_000_000.0)
    await write(target.settings(retention="26w"), node.snapshot())
    assert len(target.rows("select * from nodemetric")) == 1
    (policy,) = debian.query(f"SHOW RETENTION POLICIES ON {target.database}")
    assert policy["duration"] == "4368h0m0s"


async def test_a_database_that_is_there_keeps_its_retention(debian: InfluxServer, tmp_path: Path) -> None:
    target = Target(debian, "v1", tmp_path)
    debian.query(f"CREATE DATABASE {target.database} WITH DURATION 520w NAME mine")
    node = MeasuredNode(started=4_000_000_000.0)
    await write(target.settings(retention="2w"), node.snapshot(), node.snapshot())
    await write(target.settings(retention="3w"), node.snapshot())
    (policy,) = debian.query(f"SHOW RETENTION POLICIES ON {target.database}")
    assert (policy["name"], policy["duration"]) == ("mine", "87360h0m0s")
    assert len(target.rows("select * from nodemetric")) == 3


async def test_a_bucket_that_is_missing_is_told(tokens: InfluxServer, tmp_path: Path) -> None:
    target = Target(tokens, "v2", tmp_path)
    async with running(target.settings()) as (writer, latest):
        latest.put(busy_node().snapshot())
        await until(lambda: bool(writer.trouble))
        assert "404" in writer.trouble
        tokens.query(f"CREATE DATABASE {target.database}")
        await until(lambda: writer.counts().written == 6)
