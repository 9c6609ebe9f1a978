"""`shoal metrics-scores` as a process of its own, asked as KETI's scheduler asks it."""

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.metrics.keti_grpc import KetiCollector
from shoal.metrics.keti_settings import KetiGrpcSettings
from shoal.metrics.snapshot import LatestSnapshot
from tests.metrics.keti_wire import KETI
from tests.metrics.measured import MeasuredNode
from tests.testbed.reservations import Reservations


async def test_it_answers_until_it_is_ended() -> None:
    snapshot = MeasuredNode().snapshot()
    latest = LatestSnapshot()
    latest.put(snapshot)
    reservations = Reservations()
    theirs, ours = reservations.port(), reservations.port()
    settings = KetiGrpcSettings(host="127.0.0.1", port=theirs, v1_port=None)
    collector = asyncio.create_task(KetiCollector(settings, clock=lambda: snapshot.monotonic).run(latest))
    command = ["metrics-scores", "--collector", f"localhost:{theirs}", "--host", "127.0.0.1", "--port", str(ours)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from shoal.cli.main import main; main()", *command
    )
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ours}") as channel:
            ask: Any = channel.unary_unary(
                "/score.MetricGRPC/GetScore", response_deserializer=KETI["score.AnalysisScore"].FromString
            )
            async with asyncio.timeout(300):
                answer = await ask(b"", wait_for_ready=True)
        assert set(answer.scores) == {"node-1"}
        assert set(answer.scores["node-1"].gpu_scores) == {card.card.uuid for card in snapshot.cards}
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        collector.cancel()
        await asyncio.wait([collector])
        reservations.release()


def test_without_collectors_it_says_what_to_write() -> None:
    told = CliRunner().invoke(main, ["metrics-scores"])
    assert told.exit_code == 1
    assert "collectors" in told.output
