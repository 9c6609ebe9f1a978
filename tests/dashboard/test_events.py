"""Events are kept in bounds: others' go first, then the oldest, and no namespace takes another's place."""

import uuid
from collections import Counter

import pytest

from shoal.dashboard import events
from shoal.dashboard.events import BoundedEvents, EventTarget, SeenEvent
from shoal.embedded.kinds import EVENTS
from shoal.kube.codec import WatchEvent
from shoal.kube.objects.meta import ObjectMeta
from tests.dashboard.site import Site
from tests.dashboard.site import site as made
from tests.kube.waiting import until


def event(namespace: str, number: int, *, pod: str = "asks", when: str = "") -> SeenEvent:
    return SeenEvent(
        metadata=ObjectMeta(
            name=f"{pod}-{number}", namespace=namespace, uid=f"{namespace}-{pod}-{number}", resource_version=str(number)
        ),
        involved_object=EventTarget(kind="Pod", namespace=namespace, name=pod),
        last_timestamp=when or f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z",
    )


def kept(store: BoundedEvents) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for one in store:
        found.setdefault(one.metadata.namespace, set()).add(int(one.metadata.name.rpartition("-")[2]))
    return found


def store() -> BoundedEvents:
    return BoundedEvents(100, lambda target: target.name == "asks")


@pytest.mark.parametrize("by_list", [True, False])
def test_the_oldest_go_first_and_others_before_them(by_list: bool) -> None:
    one = store()
    some = [*(event("red", number) for number in range(90)), *(event("red", n, pod="other") for n in range(500, 600))]
    if by_list:
        list(one.replace(some))
    else:
        for each in some:
            list(one.apply(WatchEvent(type="ADDED", object=each)))
    assert len(one) <= 100
    assert {each for each in kept(one)["red"] if each < 500} == set(range(90))
    assert one.left_out == 0
    for number in range(90, 200):
        list(one.apply(WatchEvent(type="ADDED", object=event("red", number))))
    assert len(one) <= 100
    assert min(kept(one)["red"]) >= 90
    assert max(kept(one)["red"]) == 199
    assert one.left_out == 200 - len(one)


def test_a_namespace_with_many_takes_no_others_place() -> None:
    one = store()
    list(one.replace([event("quiet", number) for number in range(20)]))
    for number in range(1000):
        # Who writes Events may date them as they like.
        list(one.apply(WatchEvent(type="ADDED", object=event("loud", number, when="2999-01-01T00:00:00Z"))))
    assert kept(one)["quiet"] == set(range(20))
    assert len(one) <= 100
    list(one.replace([each for each in one if each.metadata.namespace == "quiet"]))
    assert (len(one), one.left_out) == (20, 0)


async def test_the_view_says_that_there_were_more(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_KINDS", {"Pod": 20, "Node": 5})
    async with made(tmp_path_factory.mktemp("events")) as site:
        site.put({"n1": {"cards": {0: 10240}}}, {"a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0}})
        await site.current()
        for number in range(15):
            write(site, "red", "a", number)
        await until(lambda: len(site_events(site).all()) == 15, "the first ones")
        assert (await site.get("/events"))["complete"] is True
        assert "oldest are left out" not in await page(site)
        for number in range(15, 60):
            write(site, "red", "a", number)
        await until(lambda: "said 59" in {one.message for one in site_events(site).all()}, "the last one")
        found = await site.get("/events")
        assert (found["complete"], found["items"][0]["message"]) == (False, "said 59")
        assert found["total"] <= 20
        assert "oldest are left out" in await page(site)
        assert Counter(one["namespace"] for one in found["items"]).keys() == {"red"}


def site_events(site: Site) -> events.LiveEvents:
    return site.serving.events


def write(site: Site, namespace: str, pod: str, number: int) -> None:
    told = {
        "metadata": {"name": f"e-{uuid.uuid4().hex[:8]}"},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "uid": "x"},
        "reason": "Said",
        "message": f"said {number}",
        "lastTimestamp": f"2026-01-01T00:00:{number:02}Z",
    }
    site.api.registry.create(EVENTS, namespace, told)


async def page(site: Site) -> str:
    headers = {"Authorization": f"Bearer {site.admin}"}
    async with site.session.get(f"{site.url}/events", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()
