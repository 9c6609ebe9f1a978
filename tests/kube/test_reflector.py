"""The reflector on the real server, one behaviour at a time; the storm is in test_storm."""

import asyncio
import contextlib
import logging
from dataclasses import replace

import pytest

from shoal.kube.client import Client
from shoal.kube.objects.others import ConfigMap
from shoal.kube.reflector import Pace, Reflector
from shoal.kube.resources import CONFIG_MAPS, LEASES, NAMESPACES, NODES, PODS, SECRETS, Resource
from shoal.kube.store import Change, ChangeType
from shoal.model.backoff import Backoff
from tests.kube.conftest import access_of
from tests.kube.objects import config_map, node, pod
from tests.kube.relay import Relay
from tests.kube.waiting import until
from tests.logs import own_records
from tests.testbed.apiserver import ApiServer

PACE = Pace(watch=20, silence=60, reconnect=0.1, backoff=Backoff(0.05, 0.5))


def names(reflector: Reflector) -> list[str]:
    return sorted(name for _, name in reflector.store.keys())  # noqa: SIM118 - a store gives objects


async def synced(reflector: Reflector) -> None:
    async with asyncio.timeout(60):
        await reflector.wait_synced()


async def test_list_then_watch(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("a", namespace, v="1"))
    changes: list[tuple[ChangeType, str | None, str | None]] = []

    def note(change: Change[ConfigMap]) -> None:
        old, new = (None if obj is None else obj.data.get("v") for obj in (change.old, change.new))
        changes.append((change.kind, old, new))

    reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, consumers=[note], pace=PACE)
    async with reflector:
        await synced(reflector)
        assert names(reflector) == ["a"]
        await client.create(CONFIG_MAPS, config_map("b", namespace, v="2"))
        await client.patch(CONFIG_MAPS, "a", {"data": {"v": "3"}}, namespace=namespace)
        await client.delete(CONFIG_MAPS, "b", namespace=namespace)
        await until(lambda: len(changes) == 4, "four changes")
    assert changes == [
        (ChangeType.ADDED, None, "1"),
        (ChangeType.ADDED, None, "2"),
        (ChangeType.MODIFIED, "1", "3"),
        (ChangeType.DELETED, "2", None),
    ]
    found = reflector.store.get("a", namespace)
    assert found is not None
    assert found.data == {"v": "3"}
    assert reflector.store.get("b", namespace) is None
    assert (reflector.counters.lists, reflector.counters.watches, reflector.counters.relists) == (1, 1, 0)


async def test_a_watch_of_what_nobody_writes_is_opened_again_without_a_warning(
    client: Client, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server sends no bookmarks of a kind that nobody has written since it started."""
    reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, pace=replace(PACE, silence=0.5))
    with caplog.at_level(logging.INFO):
        async with reflector:
            await synced(reflector)
            await until(lambda: reflector.counters.watches >= 3, "opened again")
            await client.create(CONFIG_MAPS, config_map("late", namespace))
            await until(lambda: "late" in names(reflector), "told after a silence")
    told = [one for one in own_records(caplog) if one.name == "shoal.kube.reflector"]
    assert {one.levelno for one in told} == {logging.INFO}
    assert all("nothing was told for 0.5 s" in one.getMessage() for one in told)
    assert reflector.counters.lists == 1


async def test_selectors(client: Client, namespace: str) -> None:
    """An object that no longer matches is gone from the store, one that begins to is added."""
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y"})):
        await client.create(CONFIG_MAPS, config_map(name, namespace, labels=labels))
    reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, labels="app=x", pace=PACE)
    async with reflector:
        await synced(reflector)
        assert names(reflector) == ["a"]
        for name, app in (("a", "y"), ("b", "x")):
            await client.patch(CONFIG_MAPS, name, {"metadata": {"labels": {"app": app}}}, namespace=namespace)
        await until(lambda: names(reflector) == ["b"], "labels decide")


async def test_pods_of_one_node(client: Client, namespace: str) -> None:
    made = [await client.create(PODS, pod(name, namespace)) for name in ("p", "q")]
    reflector = Reflector(client, PODS, namespace=namespace, fields="spec.nodeName=n1", pace=PACE)
    async with reflector:
        await synced(reflector)
        assert names(reflector) == []
        await client.bind(made[1], "n1", annotations={"a": "b"})
        await until(lambda: names(reflector) == ["q"], "the bound pod appears")
    bound = reflector.store.get("q", namespace)
    assert bound is not None
    assert bound.metadata.annotations == {"a": "b"}


async def test_untyped_objects(client: Client, namespace: str) -> None:
    reflector = Reflector(client, CONFIG_MAPS.raw, namespace=namespace, pace=PACE)
    async with reflector:
        await synced(reflector)
        await client.create(CONFIG_MAPS, config_map("a", namespace, v="1"))
        await until(lambda: names(reflector) == ["a"], "it appears")
    found = reflector.store.get("a", namespace)
    assert found is not None
    assert found["metadata"]["managedFields"]


async def test_made_anew_in_a_gap(client: Client, namespace: str) -> None:
    """Same name, other object: a delete and an add, in this order, although no event told of the delete."""
    await client.create(CONFIG_MAPS, config_map("a", namespace, v="old"))
    changes: list[Change[ConfigMap]] = []
    reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, consumers=[changes.append], pace=PACE)
    async with reflector:
        await synced(reflector)
    await client.delete(CONFIG_MAPS, "a", namespace=namespace)
    await client.create(CONFIG_MAPS, config_map("a", namespace, v="new"))
    reflector.resource_version = ""  # as after a 410
    async with reflector:
        await until(lambda: len(changes) == 3, "three changes")
    assert [(c.kind, c.object.data["v"]) for c in changes] == [
        (ChangeType.ADDED, "old"),
        (ChangeType.DELETED, "old"),
        (ChangeType.ADDED, "new"),
    ]
    assert reflector.counters.relists == 1


async def test_a_consumer_that_raises_is_reported(
    client: Client, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def picky(change: Change[ConfigMap]) -> None:
        if change.object.metadata.name == "bad":
            raise ValueError("not this one")

    def note(change: Change[ConfigMap]) -> None:
        seen.append(change.object.metadata.name)

    reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, consumers=[picky, note], pace=PACE)
    with caplog.at_level(logging.ERROR):
        async with reflector:
            await synced(reflector)
            for name in ("bad", "good"):
                await client.create(CONFIG_MAPS, config_map(name, namespace))
            await until(lambda: seen == ["bad", "good"], "the loop goes on")
    assert reflector.counters.consumer_errors == 1
    assert f"{namespace}/bad" in caplog.text
    assert "not this one" in caplog.text


async def test_resumes_at_a_bookmark(client: Client, namespace: str) -> None:
    """The server ends each stream with a bookmark; the version of it counts, though no object changed."""
    reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, pace=replace(PACE, watch=4))
    async with reflector:
        await synced(reflector)
        first = reflector.resource_version
        await client.create(CONFIG_MAPS, config_map("elsewhere", "default", n=namespace))
        await client.delete(CONFIG_MAPS, "elsewhere", namespace="default")
        await until(lambda: reflector.counters.bookmarks > 0, "a bookmark")
        await until(lambda: reflector.counters.watches > 2, "streams end and begin")
    assert int(reflector.resource_version) > int(first)
    counters = reflector.counters
    assert (counters.lists, counters.events, counters.errors) == (1, 0, 0)


async def test_bookmarks_of_every_kind_are_understood(client: Client, namespace: str) -> None:
    """Their objects are empty and may break the rules of their kind: a pod in a bookmark has null for containers."""
    kinds: list[Resource] = [PODS, PODS.raw, NODES, NAMESPACES, CONFIG_MAPS, SECRETS, LEASES]  # events get none
    reflectors = [Reflector(client, kind, pace=replace(PACE, watch=4)) for kind in kinds]
    async with contextlib.AsyncExitStack() as stack:
        for reflector in reflectors:
            await stack.enter_async_context(reflector)
            await synced(reflector)
        # The server has nothing to tell of a kind that nobody writes to.
        meta = {"name": "one", "namespace": namespace}
        for kind in (SECRETS, LEASES, CONFIG_MAPS):
            await client.create(kind, {"metadata": meta})
        await client.create(PODS, pod("one", namespace))
        await client.create(NODES, node(f"node-of-{namespace}"))
        await client.create(NAMESPACES, {"metadata": {"name": f"beside-{namespace}"}})
        await until(lambda: all(reflector.counters.bookmarks for reflector in reflectors), "bookmarks of all")
    assert [reflector.counters.errors for reflector in reflectors] == [0] * len(kinds)


async def test_clean_reconnects_keep_their_distance(client: Client, namespace: str) -> None:
    pace = Pace(watch=0.4, reconnect=3.0)
    reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, pace=pace)
    loop = asyncio.get_running_loop()
    async with reflector:
        await synced(reflector)
        started = loop.time()
        await until(lambda: reflector.counters.watches == 3, "three streams")
        # The streams themselves last 1 s; were there no pause, they would be over after 2 s.
        assert loop.time() - started >= 2 * 0.75 * (pace.reconnect - 1)


async def test_outlasts_a_server_that_is_away(apiserver: ApiServer, namespace: str, client: Client) -> None:
    """Begun without a server, it is in step when there is one."""
    await client.create(CONFIG_MAPS, config_map("a", namespace))
    async with Relay(apiserver.port) as relay:
        await relay.block()
        access = replace(access_of(apiserver.kubeconfig()), server=f"https://127.0.0.1:{relay.port}")
        async with Client(access) as far:
            reflector = Reflector(far, CONFIG_MAPS, namespace=namespace, pace=PACE)
            async with reflector:
                await until(lambda: reflector.counters.errors >= 2, "it fails")
                assert not reflector.synced.is_set()
                assert reflector.last_error is not None
                relay.unblock()
                await synced(reflector)
                assert names(reflector) == ["a"]
                assert reflector.last_error is None


async def test_a_server_that_is_back_with_no_news_is_no_failure(
    apiserver: ApiServer, namespace: str, client: Client
) -> None:
    await client.create(CONFIG_MAPS, config_map("a", namespace))
    async with Relay(apiserver.port) as relay:
        access = replace(access_of(apiserver.kubeconfig()), server=f"https://127.0.0.1:{relay.port}")
        async with Client(access) as far:
            # A watch that nobody ends and in which nothing is said.
            pace = replace(PACE, watch=3000, silence=3000)
            async with Reflector(far, CONFIG_MAPS, namespace=namespace, pace=pace) as reflector:
                await synced(reflector)
                await relay.block()
                await until(lambda: reflector.counters.errors >= 2, "it fails")
                assert reflector.last_error is not None
                relay.unblock()
                bookmarks = reflector.counters.bookmarks
                await until(lambda: reflector.last_error is None, "the watch is taken")
                counters = reflector.counters
                assert (counters.events, counters.bookmarks, counters.lists) == (0, bookmarks, 1)


async def test_outlasts_missing_rights(apiserver: ApiServer, namespace: str) -> None:
    user = f"user-{namespace}"
    async with Client(access_of(apiserver.kubeconfig(user))) as client:
        reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, pace=PACE)
        async with reflector:
            await until(lambda: reflector.counters.errors >= 2, "it is refused")
            assert "403" in str(reflector.last_error)
            rule = (
                "create",
                "rolebinding",
                "r",
                "--clusterrole=system:aggregate-to-view",
                f"--user={user}",
                f"--namespace={namespace}",
            )
            await asyncio.to_thread(apiserver.kubectl, *rule)
            await synced(reflector)


async def test_stops_at_once_in_every_state(apiserver: ApiServer, client: Client, namespace: str) -> None:
    for wait in (0, 1):
        reflector: Reflector = Reflector(client, NODES.raw, pace=PACE)
        async with reflector:
            if wait:
                await synced(reflector)
        assert not [task for task in asyncio.all_tasks() if "reflector" in task.get_name()]


async def test_objects_that_cannot_be_decoded_are_a_failure(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("a", namespace))
    broken: Resource = Resource("", "v1", "configmaps", "ConfigMap", list)
    async with Reflector(client, broken, namespace=namespace, pace=PACE) as reflector:
        await until(lambda: reflector.counters.errors >= 2, "the kind cannot be decoded")
        assert "cannot be read" in str(reflector.last_error)
        assert not reflector.synced.is_set()


def test_changes_know_their_object() -> None:
    old, new = config_map("a", "n", v="1"), config_map("a", "n", v="2")
    assert Change(ChangeType.MODIFIED, old, new).object is new
    assert Change(ChangeType.DELETED, old, None).object is old
