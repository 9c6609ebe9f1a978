"""Who sees what, and what those get who are nobody: nothing leaks into any answer."""

import json
import logging

import pytest

from shoal.dashboard import viewers
from shoal.embedded.kinds import EVENTS
from tests.dashboard.site import Site

SECRET = "secretive"
NODES = {"n1": {"cards": {0: 10240, 1: 10240}}, "n2": {"cards": {0: 20480}}}
PODS = {
    "mine": {"namespace": "red", "node": "n1", "mem": 4, "index": 0},
    f"{SECRET}-a": {"namespace": f"ns-{SECRET}", "node": "n1", "mem": 2, "index": 0},
    f"{SECRET}-b": {"namespace": f"ns-{SECRET}", "node": "n2", "mem": 9, "index": 0},
    f"{SECRET}-w": {"namespace": f"ns-{SECRET}", "mem": 30, "why": f"waits for {SECRET}"},
    "waiting": {"namespace": "red", "mem": 18, "why": "0/2 nodes are available"},
}
PATHS = (
    "/overview",
    "/inspect",
    "/nodes",
    "/nodes/n1",
    "/cards",
    "/cards/GPU-n1-0",
    "/pods",
    "/pods/red/mine",
    "/pods/red/waiting/why",
    "/events",
    "/waste",
    "/map",
)


def event(site: Site, namespace: str, kind: str, name: str, message: str) -> None:
    target = {"kind": kind, "name": name, "namespace": namespace if kind == "Pod" else "", "uid": f"uid-{name}"}
    made = {
        "metadata": {"name": f"{name}.1", "namespace": namespace},
        "involvedObject": target,
        "reason": "Tested",
        "message": message,
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    site.api.registry.create(EVENTS, namespace, made)


@pytest.fixture
async def full(site: Site) -> Site:
    site.put(NODES, PODS)
    site.readings.use("n1", {"red/mine": 1000, f"ns-{SECRET}/{SECRET}-a": 500}, {f"ns-{SECRET}/{SECRET}-b": 70})
    site.readings.use("n2", {f"ns-{SECRET}/{SECRET}-b": 900})
    for name in ("mine", "waiting"):
        event(site, "red", "Pod", name, "of mine")
    event(site, f"ns-{SECRET}", "Pod", f"{SECRET}-a", f"about {SECRET}")
    event(site, "default", "Node", "n1", "node event")
    await site.current()
    while not any(node.measurement.reading for node in site.serving.live.current.nodes.values()):
        await site.current()
    return site


async def test_names_of_others_are_nowhere(full: Site) -> None:
    everywhere = full.account("nodes", namespaces=["red"], nodes=True)
    own = full.account("own", namespaces=["red"])
    for token in (everywhere, own):
        for path in PATHS:
            status, body = await full.ask(path, token)
            assert status == 200, (path, body)
            assert SECRET not in json.dumps(body), path
        for path in (f"/pods/ns-{SECRET}/{SECRET}-a", f"/pods/ns-{SECRET}/{SECRET}-a/why"):
            assert (await full.ask(path, token))[0] == 404
        for query in ({"search": SECRET}, {"namespace": f"ns-{SECRET}"}):
            for path in ("/pods", "/events"):
                assert (await full.get(path, token, **query))["total"] == 0
        assert (await full.get("/cards", token, search=SECRET))["total"] == 0
        status, body = await full.ask("/history", token, of="pod", name=f"ns-{SECRET}/{SECRET}-a")
        assert status == 404
    assert SECRET in json.dumps(await full.get("/pods"))
    assert (await full.get("/events"))["total"] == 4
    assert (await full.ask("/nodes/n2", own))[0] == 404
    assert (await full.ask("/cards/GPU-n1-1", own))[0] == 404
    assert (await full.ask("/setup", own))[0] == 403
    assert (await full.ask("/clusters", own))[0] == 403


async def test_cards_stay_true(full: Site) -> None:
    token = full.account("nodes", namespaces=["red"], nodes=True)
    all_cards, some = await full.get("/cards"), await full.get("/cards", token)
    for whole, part in zip(all_cards["items"], some["items"], strict=True):
        for key in ("uuid", "requestedMiB", "usedMiB", "totalMiB", "utilisation", "unattributedMiB"):
            assert whole[key] == part[key]
        for key in ("requestedMiB", "usedMiB"):
            assert sum(one[key] for one in whole["holders"]) == sum(one[key] for one in part["holders"])
    first = some["items"][0]["holders"]
    assert [(one["namespace"], one["pod"], one["requestedMiB"], one["usedMiB"]) for one in first] == [
        ("red", "mine", 4096, 1000),
        (None, None, 2048, 500),
    ]
    told = await full.get("/map", token)
    assert told["nodes"][0][5][0][10] == [[0, 4096, 1000], [-1, 2048, 500]]
    own = full.account("own", namespaces=["red"])
    told = await full.get("/map", own)
    assert [(node[0], len(node[5])) for node in told["nodes"]] == [("n1", 1)]
    counted = await full.get("/overview", own)
    assert (counted["nodes"]["total"], counted["cards"]["total"], counted["pods"]["total"]) == (1, 1, 2)


async def test_events_need_a_right_of_their_own(full: Site) -> None:
    token = full.account("pods-only", namespaces=["red"], nodes=True)
    assert (await full.get("/events", token))["total"] == 0
    assert "events" not in await full.get("/pods/red/waiting/why", token)


async def test_nobody_gets_nothing(full: Site) -> None:
    for path in (*PATHS, "/stream", "/history", "/setup", "/clusters"):
        for token in ("nobody", "a.b.c", "x" * 3900, "é"):
            headers = {"Authorization": f"Bearer {token}"}
            async with full.session.get(f"{full.url}/api/v1{path}", headers=headers) as answer:
                assert answer.status in (401, 429), (path, token)
                assert set(json.loads(await answer.read())) == {"error"}
        async with full.session.get(f"{full.url}/api/v1{path}") as answer:
            assert (answer.status, json.loads(await answer.read())["error"]["code"]) == (401, "not-signed-in")
    stranger = full.account("stranger")
    told = await full.get("/map", stranger)
    assert (told["nodes"], told["pods"]) == ([], [])


async def test_tokens_that_are_not_known_are_bounded(site: Site) -> None:
    assert (await site.ask("/overview"))[0] == 200
    statuses = [(await site.ask("/overview", f"guess-{n}"))[0] for n in range(40)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert (await site.ask("/overview"))[0] == 200  # who was known before is not kept out


async def test_a_session_and_its_cookie(full: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    form = {"token": f" {full.admin}\n", "next": "/cards?sort=used"}
    async with full.session.post(f"{full.url}/sign-in", data=form, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/cards?sort=used")
        set_cookie = answer.headers["Set-Cookie"]
    name, _, rest = set_cookie.partition("=")
    assert name == f"shoal-{full.serving.port}"
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(rest.split("; "))
    assert full.admin not in set_cookie
    cookie = set_cookie.partition(";")[0]
    assert await status(full, "/api/v1/overview", Cookie=cookie) == 200
    for forged in (f"{name}=", f"{name}=x", cookie[:-1], cookie + "A", f"{name}={full.admin}", "other=1"):
        assert await status(full, "/api/v1/overview", Cookie=forged) == 401, forged
    async with full.session.post(f"{full.url}/sign-out", headers={"Cookie": cookie}, allow_redirects=False) as answer:
        assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert await status(full, "/api/v1/overview", Cookie=cookie) == 401
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert full.admin not in said
    assert cookie.partition("=")[2] not in said


async def status(site: Site, path: str, method: str = "GET", **headers: str) -> int:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with site.session.request(method, f"{site.url}{path}", headers=given, allow_redirects=False) as answer:
        await answer.read()
        return answer.status


async def test_requests_of_other_sites_are_refused(site: Site) -> None:
    token = f"Bearer {site.admin}"
    for headers in (
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
    ):
        assert await status(site, "/api/v1/overview", Authorization=token, **headers) == 403, headers
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        assert await status(site, "/sign-in", "POST", **form, **headers) == 403
        assert await status(site, "/sign-out", "POST", **headers) == 403
    for headers in ({"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "none"}, {"Origin": site.url}):
        assert await status(site, "/api/v1/overview", Authorization=token, **headers) == 200, headers


async def test_a_link_from_elsewhere_is_loaded_again_by_the_page_itself(site: Site) -> None:
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    path = '/?search="><script>'
    async with site.session.get(f"{site.url}{path}", headers=followed, allow_redirects=False) as answer:
        text = await answer.text()
    assert answer.status == 200
    assert 'http-equiv="refresh"' in text
    assert "<script>" not in text
    assert "Set-Cookie" not in answer.headers
    for path in ("/api/v1/overview", "/api/v1/map"):
        async with site.session.get(f"{site.url}{path}", headers=followed) as answer:
            assert answer.status == 403


async def test_a_form_goes_to_paths_of_this_server_alone(site: Site) -> None:
    for following in ("https://evil.example", "//evil.example", "/\\evil.example", "evil", "/a\r\nX: y", "/" * 3000):
        form = {"token": site.admin, "next": following}
        async with site.session.post(f"{site.url}/sign-in", data=form, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/"), following
    for body in (b"x" * 20_000, b"\xff\xfe", b"&".join([b"a=1"] * 50)):
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        async with site.session.post(f"{site.url}/sign-in", data=body, headers=headers) as answer:
            assert answer.status in (400, 413)


async def test_a_link_signs_in_once(site: Site) -> None:
    link = site.serving.link(site.admin)
    async with site.session.get(link, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        assert "Set-Cookie" in answer.headers
    async with site.session.get(link, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/sign-in?refused=used-link")
        assert "Set-Cookie" not in answer.headers


async def test_sessions_are_bounded(site: Site) -> None:
    most = viewers._SESSIONS_OF_ONE
    made = [await site.serving.viewers.sign_in(site.admin, "test") for _ in range(most + 3)]
    assert len(site.serving.viewers) == viewers._SESSIONS_OF_ONE
    assert [bool(session.over) for session, _ in made[:4]] == [True, True, True, False]


async def test_every_answer_is_fenced(site: Site) -> None:
    for path in ("/api/v1/overview", "/sign-in", "/nothing/here", "/static/../../etc/passwd", "/api/v1/openapi.json"):
        async with site.session.get(f"{site.url}{path}", allow_redirects=False) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"], path
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert "aiohttp" not in answer.headers["Server"]


async def test_methods_that_write_are_not_there(site: Site) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert await status(site, "/api/v1/pods", method, Authorization=f"Bearer {site.admin}") == 405
