import asyncio
import ssl
from typing import Any

import aiohttp
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, ConflictError, GoneError, NotFoundError
from shoal.kube.reflector import Pace, Reflector
from shoal.kube.resources import CONFIG_MAPS, LEASES, NAMESPACES, NODES, PODS
from shoal.model.backoff import Backoff
from tests.kube.objects import config_map, node, pod
from tests.kube.waiting import until


async def test_objects_live_and_end(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("one", "default", k="v"))
    with pytest.raises(AlreadyExistsError):
        await client.create(CONFIG_MAPS, config_map("one", "default"))
    changed = await client.patch(CONFIG_MAPS, "one", {"data": {"k": "w"}}, namespace="default")
    assert changed.data == {"k": "w"}
    assert int(changed.metadata.resource_version) > int(made.metadata.resource_version)
    with pytest.raises(ConflictError):
        await client.replace(CONFIG_MAPS, made)
    await client.delete(CONFIG_MAPS, "one", namespace="default", uid=made.metadata.uid)
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, "one", namespace="default")


async def test_a_write_that_changes_nothing_makes_no_version(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("one", "default", k="v"))
    again = await client.patch(CONFIG_MAPS, "one", {"data": {"k": "v"}}, namespace="default")
    assert again.metadata.resource_version == made.metadata.resource_version


async def test_pages_are_one_version(client: Client) -> None:
    for number in range(5):
        await client.create(CONFIG_MAPS, config_map(f"c{number}", "default"))
    first = await client.page(CONFIG_MAPS, namespace="default", limit=2)
    await client.delete(CONFIG_MAPS, "c3", namespace="default")
    await client.create(CONFIG_MAPS, config_map("c9", "default"))
    second = await client.page(CONFIG_MAPS, namespace="default", limit=9, continue_=first.metadata.continue_ or "")
    assert [item.metadata.name for item in (*(first.items or ()), *(second.items or ()))] == [
        "c0",
        "c1",
        "c2",
        "c3",
        "c4",
    ]
    assert second.metadata.resource_version == first.metadata.resource_version


async def test_pages_expire_with_the_history(client: Client, api: EmbeddedApi) -> None:
    for number in range(3):
        await client.create(CONFIG_MAPS, config_map(f"c{number}", "default"))
    page = await client.page(CONFIG_MAPS, namespace="default", limit=1)
    await client.create(CONFIG_MAPS, config_map("later", "default"))
    api.registry.store.forget(("", "configmaps"))
    with pytest.raises(GoneError):
        await client.page(CONFIG_MAPS, namespace="default", limit=1, continue_=page.metadata.continue_ or "")


async def test_a_pod_is_bound_and_leaves_with_its_node_s_word(client: Client) -> None:
    await client.create(NODES.raw, node("n1"))
    made = await client.create(PODS, pod("p", "default"))
    await client.bind(made, "n1", annotations={"a": "b"}, labels={"c": "d"})
    bound = await client.get(PODS, "p", namespace="default")
    assert bound.spec.node_name == "n1"
    assert bound.metadata.annotations == {"a": "b"}
    assert bound.metadata.labels == {"c": "d"}
    assert int(bound.metadata.resource_version) == int(made.metadata.resource_version) + 1
    with pytest.raises(ConflictError, match='pod p is already assigned to node "n1"'):
        await client.bind(made, "n2")
    await client.delete(PODS, "p", namespace="default")
    leaving = await client.get(PODS.raw, "p", namespace="default")
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 30
    await client.delete(PODS, "p", namespace="default", grace_seconds=0)
    with pytest.raises(NotFoundError):
        await client.get(PODS, "p", namespace="default")


async def test_a_namespace_goes_with_what_is_in_it(client: Client) -> None:
    await client.create(NAMESPACES.raw, {"metadata": {"name": "busy"}})
    held = {"metadata": {"name": "held", "namespace": "busy", "finalizers": ["example.com/wait"]}}
    await client.create(CONFIG_MAPS.raw, held)
    await client.create(CONFIG_MAPS, config_map("plain", "busy"))
    await client.delete(NAMESPACES, "busy")
    left = await client.list(CONFIG_MAPS, namespace="busy")
    assert [item.metadata.name for item in left.items] == ["held"]
    assert (await client.get(NAMESPACES.raw, "busy"))["status"]["phase"] == "Terminating"
    await client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace="busy")
    with pytest.raises(NotFoundError):
        await client.get(NAMESPACES, "busy")


async def test_what_is_owned_goes_with_its_owner(client: Client) -> None:
    owner = await client.create(CONFIG_MAPS.raw, {"metadata": {"name": "owner", "namespace": "default"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    for name in ("first", "second"):
        owned = {"metadata": {"name": name, "namespace": "default", "ownerReferences": [reference]}}
        await client.create(CONFIG_MAPS.raw, owned)
    await client.delete(CONFIG_MAPS, "owner", namespace="default")
    assert (await client.list(CONFIG_MAPS, namespace="default")).items == []


async def test_a_lease_is_made_by_an_update_and_needs_a_version_after_that(client: Client) -> None:
    lease = {"metadata": {"name": "l", "namespace": "default"}, "spec": {"holderIdentity": "me"}}
    made = await client.replace(LEASES.raw, lease)
    assert made["spec"] == {"holderIdentity": "me"}
    await client.replace(LEASES.raw, made)


async def test_a_reflector_follows_through_expired_versions(client: Client, api: EmbeddedApi) -> None:
    kind = next(kind for kind in api.registry.catalogue.all() if kind.kind == "ConfigMap")
    pace = Pace(watch=1.0, reconnect=0.01, backoff=Backoff(0.01, 10.0))
    async with Reflector(client, CONFIG_MAPS, namespace="default", labels="keep", pace=pace, page_size=2) as reflector:
        await reflector.wait_synced()
        for number in range(20):
            # Written and forgotten before any watcher has its turn.
            api.registry.create(kind, "default", {"metadata": {"name": f"c{number}", "labels": {"keep": ""}}})
            api.registry.store.forget(kind.key)
            await asyncio.sleep(0)
        await until(lambda: len(reflector.store) == 20, "the reflector has them all")
        assert reflector.counters.relists > 0
        await client.patch(CONFIG_MAPS, "c0", {"metadata": {"labels": {"keep": None}}}, namespace="default")
        await client.delete(CONFIG_MAPS, "c1", namespace="default")
        expected = {("default", f"c{number}") for number in range(2, 20)}
        await until(lambda: set(reflector.store.keys()) == expected, "the reflector's store is equal")


async def test_many_watchers_see_every_write_once_and_in_order(client: Client) -> None:
    start = (await client.list(CONFIG_MAPS, namespace="default")).resource_version
    writes = 100

    async def follow() -> list[int]:
        seen: list[int] = []
        async for event in client.watch(CONFIG_MAPS, namespace="default", resource_version=start, seconds=60):
            if event.type != "BOOKMARK":
                seen.append(int(event.object.metadata.resource_version))
            if len(seen) == writes:
                break
        return seen

    watchers = [asyncio.create_task(follow()) for _ in range(5)]
    await asyncio.gather(*(client.create(CONFIG_MAPS, config_map(f"c{number}", "default")) for number in range(writes)))
    streams = await asyncio.gather(*watchers)
    assert all(stream == sorted(set(stream)) for stream in streams)
    assert all(stream == streams[0] for stream in streams)


async def test_a_watch_of_one_node_sleeps_through_what_happens_to_others(client: Client, api: EmbeddedApi) -> None:
    await client.create(NODES.raw, node("mine"))
    await client.create(NODES.raw, node("other"))
    start = (await client.list(NODES)).resource_version
    seen: list[str] = []

    async def follow() -> None:
        async for event in client.watch(NODES, fields="metadata.name=mine", resource_version=start, seconds=60):
            if event.type != "BOOKMARK":
                seen.append(event.object.metadata.labels["turn"])
            if len(seen) == 2:
                break

    watching = asyncio.create_task(follow())
    await client.patch(NODES, "mine", {"metadata": {"labels": {"turn": "1"}}})
    await until(lambda: seen == ["1"], "the watch is open")
    await client.patch(NODES, "other", {"metadata": {"labels": {"turn": "x"}}})
    # Forgotten before the watch has looked at it: that would be 410 if it were any business of this watch.
    api.registry.store.forget(("", "nodes"))
    await client.patch(NODES, "mine", {"metadata": {"labels": {"turn": "2"}}})
    await watching
    assert seen == ["1", "2"]
    with pytest.raises(GoneError):
        async for _ in client.watch(NODES, fields="metadata.name=mine", resource_version=start, seconds=60):
            pass


async def test_only_the_token_opens_it(api: EmbeddedApi) -> None:
    tls = ssl.create_default_context(cafile=str(api.ca))
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(api.url, connector=connector) as session:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with session.get("/api/v1/pods", headers=headers) as answer:
                assert answer.status == 401
                assert (await answer.json())["reason"] == "Unauthorized"
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok")


async def test_a_watch_without_bookmarks_sleeps_to_its_end(api: EmbeddedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked again and again once a bookmark would have been due."""
    looks = 0
    changes_after = api.registry.store.changes_after

    def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return changes_after(*args)

    monkeypatch.setattr(api.registry.store, "changes_after", counted)
    tls = ssl.create_default_context(cafile=str(api.ca))
    headers = {"Authorization": f"Bearer {api.token}"}
    connector = aiohttp.TCPConnector(ssl=tls)
    async with (
        aiohttp.ClientSession(api.url, headers=headers, connector=connector) as session,
        session.get("/api/v1/services?watch=1&timeoutSeconds=3") as answer,
    ):
        await answer.read()
    assert 1 <= looks < 5


async def test_it_ends_while_somebody_watches(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with EmbeddedApi(tmp_path_factory.mktemp("embedded")) as api:
        tls = ssl.create_default_context(cafile=str(api.ca))
        headers = {"Authorization": f"Bearer {api.token}"}
        session = aiohttp.ClientSession(api.url, headers=headers, connector=aiohttp.TCPConnector(ssl=tls))
        answer = await session.get("/api/v1/configmaps?watch=1")
        assert answer.status == 200
    # Leaving the block waits for the stream: it must have been ended by the server.
    assert await answer.content.read() == b""
    await session.close()
