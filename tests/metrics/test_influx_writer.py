"""The writer's settings, and what it says of itself. What servers answer is in test_influx_servers.py."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from shoal.metrics.influx_writer import InfluxApi, InfluxSettings, InfluxWriter
from shoal.model.backoff import Backoff
from tests.logs import own_records
from tests.metrics.measured import MeasuredNode

SOON = Backoff(first=0.01, longest=0.05)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "missing required field `url`"),
        ({"url": "influxdb:8086"}, "influx url cannot be read"),
        ({"url": "ftp://influxdb:8086"}, "influx url cannot be read"),
        ({"url": "http://influxdb:99999"}, "influx url cannot be read"),
        ({"url": "http://keti:s3cret@influxdb:8086"}, "passwordFile"),
        ({"url": "http://influxdb:8086?u=keti&p=s3cret"}, "leave out what stands behind"),
        ({"url": "http://i", "database": 'x"; DROP DATABASE y'}, "cannot be used"),
        ({"url": "http://i", "retention": "30 days"}, "such as 30d"),
        ({"url": "http://i", "username": "keti"}, "set both or none"),
        ({"url": "http://i", "username": "a:b", "passwordFile": "/p"}, "without a colon"),
        ({"url": "http://i", "bucket": "b"}, "set api to v2"),
        ({"url": "http://i", "api": "v2", "tokenFile": "/t"}, "write the bucket's name"),
        ({"url": "http://i", "api": "v2", "bucket": "b"}, "tokenFile"),
        ({"url": "http://i", "api": "v2", "bucket": "b", "tokenFile": "/t", "username": "u"}, "set api to v1"),
        ({"url": "http://i", "api": "v3"}, "Invalid enum value"),
        ({"url": "http://i", "password": "s3cret"}, "unknown field `password`"),
        ({"url": "http://i", "bufferBytes": 10}, ">= 65536"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(settings: Mapping[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(settings, InfluxSettings)
    assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_good_settings() -> None:
    for settings in (
        {"url": "http://influxdb:8086/", "retention": "30d"},
        {"url": "https://[::1]:8086/base", "username": "keti", "passwordFile": "/p"},
        {"url": "http://influxdb", "api": "v2", "org": "o", "bucket": "multimetric/autogen", "tokenFile": "/t"},
    ):
        msgspec.convert(settings, InfluxSettings)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"two\nlines", b"\xff\xfe", b"x" * 20_000])
async def test_a_file_without_a_secret_is_told_and_points_wait(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "token"
    if content is not None:
        secret.write_bytes(content)
    settings = InfluxSettings(url="http://127.0.0.1:1", api=InfluxApi.V2, bucket="b", token_file=str(secret))
    writer = InfluxWriter(settings, backoff=SOON)
    writer.add(MeasuredNode().snapshot())
    with caplog.at_level(logging.WARNING):
        await run_until(writer, lambda: bool(writer.trouble))
    assert "tokenFile" in writer.trouble
    assert len(own_records(caplog)) == 1
    assert writer.counts().buffered == 3
    for piece in (b"two", b"lines", b"xxx"):
        assert piece.decode() not in caplog.text


async def run_until(writer: InfluxWriter, ready: Callable[[], bool]) -> None:
    """Let the writer send until a condition holds."""
    task = asyncio.create_task(writer.send())
    try:
        async with asyncio.timeout(300):
            while not ready():
                assert not task.done()
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def answering(**paths: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """A server that answers as no InfluxDB here does; gives its URL."""
    app = web.Application()
    for name, answer in paths.items():
        app.router.add_post(f"/{name.replace('_', '/')}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_redirect_does_not_carry_the_token_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=204)

    async def away(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Token s3cret"
        return web.Response(status=307, headers={"Location": "/elsewhere"}, text="go\nERROR forged")

    (tmp_path / "token").write_text("s3cret\n")
    async with answering(api_v2_write=away, elsewhere=elsewhere) as url:
        settings = InfluxSettings(url=url, api=InfluxApi.V2, bucket="b", token_file=str(tmp_path / "token"))
        writer = InfluxWriter(settings, backoff=SOON)
        writer.add(MeasuredNode().snapshot())
        with caplog.at_level(logging.INFO):
            await run_until(writer, lambda: bool(writer.trouble))
    assert seen == []
    assert writer.trouble == "it answers 307 go ERROR forged"
    assert "s3cret" not in caplog.text


async def test_a_server_that_never_answers_is_left_after_a_while() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    async with answering(write=hang) as url:
        writer = InfluxWriter(InfluxSettings(url=url, timeout_seconds=0.1), backoff=SOON)
        writer.add(MeasuredNode().snapshot())
        await run_until(writer, lambda: bool(writer.trouble))
    assert writer.trouble == "no answer within 0.1 s"
    assert writer.counts().buffered == 3


async def test_a_server_that_takes_a_batch_whole_or_not_at_all(caplog: pytest.LogCaptureFixture) -> None:
    """It refuses every batch with one certain point in it: that one is lost, and all others are taken, in order."""
    taken: list[bytes] = []

    async def strict(request: web.Request) -> web.Response:
        lines = (await request.read()).splitlines()
        if any(b"pod-13" in line for line in lines):
            return web.Response(status=400, text='{"code":"invalid","message":"unable to parse \'pod-13\'"}')
        taken.extend(lines)
        return web.Response(status=204)

    node = MeasuredNode()
    for number in range(40):
        node.run(0, f"pod-{number}", mib=10)
    async with answering(write=strict) as url:
        writer = InfluxWriter(InfluxSettings(url=url), backoff=SOON)
        writer.add(node.snapshot())
        with caplog.at_level(logging.WARNING):
            await run_until(writer, lambda: writer.counts().buffered == 0)
    counts = writer.counts()
    assert (counts.written, counts.refused, counts.dropped) == (42, 1, 0)
    assert len(taken) == len(set(taken)) == 42
    assert len(own_records(caplog)) == 1


async def test_a_server_that_is_away_costs_bounded_memory(caplog: pytest.LogCaptureFixture) -> None:
    settings = msgspec.convert({"url": "http://127.0.0.1:1", "bufferBytes": 64 << 10}, InfluxSettings)
    writer = InfluxWriter(settings, backoff=SOON)
    node = MeasuredNode("8xA100-40G")
    for card in range(8):
        node.run(card, f"pod-{card}", mib=100)
    added = 0
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            writer.add(node.snapshot())
            added += 17
        await run_until(writer, lambda: bool(writer.trouble))
    counts = writer.counts()
    assert counts.buffered + counts.dropped == added
    assert 0 < counts.buffered < 400
    assert (counts.written, counts.refused) == (0, 0)
    assert len(own_records(caplog)) == 1
    assert "takes no points now" in caplog.text
