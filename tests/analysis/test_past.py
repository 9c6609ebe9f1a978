"""The past of cards from a Prometheus: values come into their steps, and no name changes what is asked."""

import json

import pytest
from aiohttp import web

from shoal.analysis.past import PastQuestion, PrometheusPast
from shoal.http.server import Bodies, Bounds, serving
from shoal.scheduler.errors import LoadSourceError

BOUNDS = Bounds()


class Prometheus:
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: object = {}
        self.asked: list[dict[str, str]] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        async with Bodies(BOUNDS).of(request) as body:
            self.asked.append({key: str(value) for key, value in (await _form(body)).items()})
        return web.Response(body=json.dumps(self.answer).encode(), content_type="application/json")


async def _form(body: bytes) -> dict[str, str]:
    from urllib.parse import parse_qsl

    return dict(parse_qsl(body.decode()))


def question(**more: object) -> PastQuestion:
    given: dict[str, object] = {"node": "n", "cards": ("GPU-1",), "series": "used", "until": 1000.0, "last": 50.0}
    return PastQuestion(**{**given, "step": 10.0, **more})  # type: ignore[arg-type]


async def test_values_come_into_their_steps() -> None:
    server = Prometheus()
    values = [[960.0, "1"], [970.0, "NaN"], [980.0, "3"], [1000.0, "5"], [5000.0, "9"]]
    found = [{"metric": {"UUID": "GPU-1"}, "values": values}, {"metric": {"UUID": "GPU-2"}, "values": values}]
    server.answer = {"status": "success", "data": {"resultType": "matrix", "result": found}}
    async with serving(server.handle, "127.0.0.1", 0, BOUNDS) as port:
        past = await PrometheusPast(f"http://127.0.0.1:{port}").ask(question())
    assert (past.since, past.step, past.source) == (950.0, 10.0, "prometheus")
    assert past.lines == {"GPU-1": [1.0, None, 3.0, None, 5.0]}
    (asked,) = server.asked
    assert asked["query"] == 'max by (UUID) (DCGM_FI_DEV_FB_USED{job="shoal-metrics",UUID=~"GPU-1"})'
    assert (asked["start"], asked["end"], asked["step"]) == ("960.000", "1000.000", "10")


@pytest.mark.parametrize("name", ['x"} or vector(1) #', ".*", "a|b", "back\\slash", "line\nbreak"])
async def test_names_stay_names(name: str) -> None:
    server = Prometheus()
    server.answer = {"status": "success", "data": {"result": []}}
    async with serving(server.handle, "127.0.0.1", 0, BOUNDS) as port:
        await PrometheusPast(f"http://127.0.0.1:{port}").ask(question(cards=(name,)))
        await PrometheusPast(f"http://127.0.0.1:{port}").ask(question(namespace=name, pod=name))
    for asked in server.asked:
        inside = asked["query"]
        for part in ("\\\\", '\\"', "\\n"):
            inside = inside.replace(part, "")
        assert inside.count('"') % 2 == 0
        assert "vector(1) #" not in inside.split('"')[-1]
        assert "\n" not in asked["query"]
    assert 'UUID=~".*"' not in server.asked[0]["query"]
    assert 'UUID=~"a|b"' not in server.asked[0]["query"]


async def test_what_is_no_answer_is_said() -> None:
    server = Prometheus()
    async with serving(server.handle, "127.0.0.1", 0, BOUNDS) as port:
        for answer, words in (({"status": "error", "error": "too many"}, "too many"), ([], "no answer of Prometheus")):
            server.answer = answer
            with pytest.raises(LoadSourceError, match=words):
                await PrometheusPast(f"http://127.0.0.1:{port}").ask(question())
