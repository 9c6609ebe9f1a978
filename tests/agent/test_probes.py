"""The agent's port for probes and Prometheus."""

import aiohttp

from shoal.agent.app import serve_probes
from shoal.observe.prometheus import CONTENT_TYPE


async def test_the_port_tells_whether_the_agent_serves() -> None:
    waiting = "kubelet has not asked yet"
    async with serve_probes("127.0.0.1", 0, lambda: waiting) as port, aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, str, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text(), answer.headers["Content-Type"]

        assert (await get("/readyz"))[:2] == (503, waiting)
        status, text, kind = await get("/metrics")
        assert (status, kind) == (200, CONTENT_TYPE)
        assert text.splitlines()[-1] == "shoal_agent_ready 0"
        waiting = ""
        assert (await get("/metrics"))[1].splitlines()[-1] == "shoal_agent_ready 1"
        assert (await get("/readyz"))[0] == 200
