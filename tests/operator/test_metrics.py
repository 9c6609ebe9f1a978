"""The ports of the operator."""

from __future__ import annotations

import time

import aiohttp

from shoal.operator.metrics import OperatorMetrics, serve_metrics, serve_probes


async def test_probes_and_metrics() -> None:
    metrics = OperatorMetrics(dict)
    metrics.writes.inc("Node")
    words = "still reading nodes"
    async with (
        serve_probes("127.0.0.1", 0, metrics, not_ready=lambda: words, clock=time.monotonic) as probes,
        serve_metrics("127.0.0.1", 0, metrics, clock=time.monotonic) as scraped,
        aiohttp.ClientSession() as session,
    ):

        async def get(port: int, path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        assert await get(probes, "/healthz") == (200, "ok")
        assert await get(probes, "/readyz") == (503, words)
        words = ""
        assert await get(probes, "/readyz") == (200, "ok")
        status, text = await get(scraped, "/metrics")
        assert status == 200
        assert 'shoal_operator_writes_total{kind="Node"} 1' in text
        assert (await get(probes, "/metrics"))[0] == 404
