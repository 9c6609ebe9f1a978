"""The port of a service that answers probes alone."""

from __future__ import annotations

import aiohttp

from shoal.http.probes import answering_probes


async def test_health_tells_and_readiness_fails_while_the_service_waits() -> None:
    waiting = "still reading the node"
    async with answering_probes("127.0.0.1", 0, lambda: waiting) as port, aiohttp.ClientSession() as session:

        async def ask(path: str, method: str = "GET") -> tuple[int, str]:
            async with session.request(method, f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        assert await ask("/healthz") == (200, waiting)
        assert await ask("/readyz") == (503, waiting)
        waiting = ""
        assert await ask("/healthz") == (200, "ok")
        assert await ask("/readyz") == (200, "ok")
        assert (await ask("/readyz", "POST"))[0] == 405
        assert (await ask("/metrics"))[0] == 404
