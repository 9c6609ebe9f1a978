"""What the API answers, on an embedded API server."""

from shoal.embedded.kinds import PODS as PODS_OF_API
from shoal.model.allocation import CardShare, Held
from shoal.model.contract import shoal
from shoal.model.request import Share
from tests.dashboard.site import Site
from tests.kube.waiting import until

NODES = {"n1": {"cards": {0: 10240, 1: 10240}}, "n2": {"cards": {0: 20480}}}
PODS = {
    "a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0},
    "b": {"namespace": "blue", "node": "n1", "mem": 2, "index": 0},
    "w": {"namespace": "red", "mem": 30, "why": "0/2 nodes are available"},
}


async def test_the_overview_counts(site: Site) -> None:
    site.put(NODES, PODS)
    await site.current()
    told = await site.get("/overview")
    assert told["nodes"] == {"total": 2, "ready": 2, "cordoned": 0}
    assert told["cards"] == {"total": 3, "broken": 0, "unknown": 0, "free": 2}
    assert told["pods"] == {"total": 3, "running": 2, "starting": 0, "waiting": 1, "ending": 0, "elsewhere": 0}
    assert told["memory"] == {"totalMiB": 40960, "requestedMiB": 6144, "usedMiB": None, "measuredMiB": 0}


async def test_a_pod_that_was_sent_to_another_cluster_does_not_wait(site: Site) -> None:
    sent = {"shoal.dev/dispatch": '{"attempt":1,"cluster":"west"}'}
    site.put(NODES, {**PODS, "s": {"namespace": "red", "mem": 3, "phase": "Running", "annotations": sent}})
    await site.current()
    counts = (await site.get("/overview"))["pods"]
    assert (counts["waiting"], counts["elsewhere"], counts["total"]) == (1, 1, 4)
    (pod,) = (await site.get("/pods", state="elsewhere"))["items"]
    assert (pod["name"], pod["cluster"], pod["node"], pod["askedMiB"]) == ("s", "west", None, 3072)
    told = await site.get("/inspect")
    assert [one["name"] for one in told["waiting"]] == ["w"]
    assert [(one["name"], one["cluster"]) for one in told["elsewhere"]] == [("s", "west")]
    assert (await site.get("/pods/red/s/why"))["state"] == "elsewhere"


async def test_the_map_has_every_card(site: Site) -> None:
    site.put(NODES, PODS)
    await site.current()
    told = await site.get("/map")
    assert [node[0] for node in told["nodes"]] == ["n1", "n2"]
    (first, second), (third,) = (node[5] for node in told["nodes"])
    assert [card[0] for card in (first, second, third)] == ["GPU-n1-0", "GPU-n1-1", "GPU-n2-0"]
    shares = {tuple(told["pods"][place][:2]): (asked, used) for place, asked, used in first[10]}
    assert shares == {("red", "a"): (4096, None), ("blue", "b"): (2048, None)}


async def test_lists_are_sorted_filtered_and_paged(site: Site) -> None:
    site.put({f"n{n}": {"cards": {0: 10240}} for n in range(12)}, {"a": {"node": "n3", "mem": 4, "index": 0}})
    await site.current()
    names, more, pages = [], "", 0
    while True:
        page = await site.get("/nodes", limit="5", **({"continue": more} if more else {}))
        names += [node["name"] for node in page["items"]]
        assert page["total"] == 12
        pages += 1
        if page["next"] is None:
            break
        more = page["next"]
    assert (names, pages) == ([f"n{n}" for n in range(12)], 3)
    page = await site.get("/cards", sort="-requested", limit="2")
    assert [(card["node"], card["requestedMiB"]) for card in page["items"]] == [("n3", 4096), ("n0", 0)]
    page = await site.get("/cards", sort="-requested", limit="500", **{"continue": page["next"]})
    assert len(page["items"]) == 10
    assert [pod["name"] for pod in (await site.get("/pods", search="DEFAULT/a"))["items"]] == ["a"]
    assert (await site.get("/cards", held="true"))["total"] == 1
    assert (await site.get("/cards", node="n3"))["items"][0]["holders"][0]["pod"] == "a"


async def test_what_is_not_known_of_a_question_is_named(site: Site) -> None:
    site.put(NODES, PODS)
    await site.current()
    for path, query, words in (
        ("/nodes", {"colour": "red"}, "'colour' is no parameter"),
        ("/nodes", {"limit": "0"}, "limit"),
        ("/nodes", {"limit": "many"}, "limit"),
        ("/cards", {"sort": "age"}, "sort"),
        ("/cards", {"search": "x" * 201}, "search"),
        ("/pods", {"continue": "AAAA"}, "continue"),
        ("/pods", {"continue": "WyJuYW1lIixmYWxzZSwxLDJd"}, "continue"),
        ("/overview", {"x": "1"}, "'x' is no parameter"),
    ):
        status, body = await site.ask(path, **query)
        assert (status, body["error"]["code"]) == (400, "bad-request"), (path, body)
        assert words in body["error"]["message"]
    for path in ("/nodes/none", "/cards/none", "/pods/a/b", "/nothing", "/pods/a"):
        status, body = await site.ask(path)
        assert (status, body["error"]["code"]) == (404, "not-found"), path


async def test_claims_are_shown_with_their_pods_to_those_who_may_see_these(site: Site) -> None:
    claims = site.api.registry.catalogue.find("resource.k8s.io", "v1", "resourceclaims")
    assert claims is not None
    site.namespace("red")
    request = {"name": "gpu", "exactly": {"deviceClassName": "x"}}
    claim = site.api.registry.create(
        claims, "red", {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
    )
    given = {claim["metadata"]["uid"]: (CardShare("GPU-n1-0", 0, Share(3072)),)}
    held = {shoal.ANNOTATION_HELD: shoal.encode_held(Held({}, 1, given))}
    node = {"cards": {0: 10240}, "mem": 10, "count": 1, "annotations": held}
    site.put({"n1": node}, {"user": {"namespace": "red", "node": "n1", "mem": [{}]}})
    pod = site.api.registry.get(PODS_OF_API, "red", "user")
    reserved = [{"resource": "pods", "name": "user", "uid": pod["metadata"]["uid"]}]
    there = site.api.registry.get(claims, "red", "c")
    status = {"allocation": {"devices": {}}, "reservedFor": reserved}
    site.api.registry.update(claims, "red", "c", {**there, "status": status}, subresource="status")
    await until(lambda: any(one.claims for one in site.serving.live.current.pods() if one.phase), "known")
    told = await site.get("/pods/red/user")
    assert (told["claims"], told["requestedMiB"], told["state"]) == (["c"], 3072, "running")
    blue = site.account("blue", namespaces=["blue"], nodes=True)
    assert (await site.ask("/pods/red/user", blue))[0] == 404
    assert (await site.get("/pods", blue))["items"] == []
