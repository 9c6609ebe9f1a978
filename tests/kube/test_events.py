"""Events on the real server, as `kubectl describe` shows them."""

import asyncio
import re
from dataclasses import replace

from shoal.kube.client import Client
from shoal.kube.events import MAX_MESSAGE, Recorder, reference_to
from shoal.kube.objects.meta import ObjectReference
from shoal.kube.objects.others import Event
from shoal.kube.resources import EVENTS, NODES, PODS
from tests.kube.conftest import access_of
from tests.kube.objects import node, pod
from tests.kube.relay import Relay
from tests.kube.waiting import until
from tests.testbed.apiserver import ApiServer


async def events_about(client: Client, about: ObjectReference) -> list[Event]:
    listing = await client.list(
        EVENTS, namespace=about.namespace or "default", fields=f"involvedObject.uid={about.uid}"
    )
    return listing.items


async def test_kubectl_describe_shows_them_in_order(apiserver: ApiServer, client: Client, namespace: str) -> None:
    about = reference_to(PODS, await client.create(PODS, pod("p", namespace)))
    async with Recorder(client, "gpu-scheduler", host="host-1", repeat_seconds=0.1) as recorder:
        recorder.record(about, "Warning", "FailedScheduling", "0/3 nodes have 4 GiB of GPU memory")
        await until(lambda: recorder.counters.writes == 1, "the first is written")
        for _ in range(4):
            recorder.record(about, "Warning", "FailedScheduling", "0/3 nodes have 4 GiB of GPU memory")
        await until(lambda: recorder.counters.writes >= 2, "the count is written")
        await asyncio.sleep(1.1)  # describe orders by whole seconds
        recorder.record(about, "Normal", "Scheduled", "bound to n1, card 0")
    shown = await asyncio.to_thread(apiserver.kubectl, "describe", "pod", "p", f"--namespace={namespace}")
    lines = [
        re.sub(r"\s+", " ", line).strip() for line in shown.partition("Events:")[2].splitlines()[3:] if line.strip()
    ]
    assert len(lines) == 2
    assert re.fullmatch(
        r"Warning FailedScheduling \S+ \(x5 over \S+\) gpu-scheduler 0/3 nodes have 4 GiB of GPU memory", lines[0]
    )
    assert re.fullmatch(r"Normal Scheduled \S+ gpu-scheduler bound to n1, card 0", lines[1])


async def test_equal_ones_are_folded_without_waiting(client: Client, namespace: str) -> None:
    about = reference_to(PODS, await client.create(PODS, pod("p", namespace)))
    async with Recorder(client, "c") as recorder:
        for _ in range(1000):
            recorder.record(about, "Normal", "Same", "again")
    assert recorder.counters.recorded == 1000
    assert recorder.counters.writes <= 2
    assert recorder.counters.dropped == 0
    found = await events_about(client, about)
    assert [(event.reason, event.count) for event in found] == [("Same", 1000)]


async def test_an_event_that_has_expired_is_written_anew(client: Client, namespace: str) -> None:
    about = reference_to(PODS, await client.create(PODS, pod("p", namespace)))
    async with Recorder(client, "c", repeat_seconds=0) as recorder:
        recorder.record(about, "Normal", "Same", "again")
        await until(lambda: recorder.counters.writes == 1, "it is written")
        found: list[Event] = []
        async with asyncio.timeout(60):
            while not found:
                found = await events_about(client, about)
        await client.delete(EVENTS, found[0].metadata.name, namespace=namespace)
        recorder.record(about, "Normal", "Same", "again")
    again = await events_about(client, about)
    assert [event.count for event in again] == [1]
    assert again[0].metadata.name != found[0].metadata.name


async def test_things_without_a_namespace(apiserver: ApiServer, client: Client, namespace: str) -> None:
    name = f"n-{namespace}"
    about = reference_to(NODES, await client.create(NODES, node(name)))
    async with Recorder(client, "agent") as recorder:
        recorder.record(about, "Warning", "CardLost", "card 3 fell off the bus")
    assert "card 3 fell off the bus" in await asyncio.to_thread(apiserver.kubectl, "describe", "node", name)
    await client.delete(NODES, name)


async def test_a_server_that_is_away_costs_events_and_nothing_else(apiserver: ApiServer, namespace: str) -> None:
    about = ObjectReference(kind="Pod", api_version="v1", name="p", namespace=namespace, uid="u")
    async with Relay(apiserver.port) as relay:
        relay.hang()
        access = replace(access_of(apiserver.kubeconfig()), server=f"https://127.0.0.1:{relay.port}")
        async with Client(access) as far:
            async with Recorder(far, "c", queue=10, flush_seconds=0.5) as recorder:
                await asyncio.sleep(0)
                for number in range(50):
                    recorder.record(about, "Normal", "Reason", f"message {number}")
            recorder.record(about, "Normal", "Reason", "after the end")
    assert recorder.counters.recorded == 51
    assert recorder.counters.dropped == 51


async def test_a_pace_is_kept_and_loses_nothing(client: Client, namespace: str) -> None:
    about = reference_to(PODS, await client.create(PODS, pod("p", namespace)))
    clock = asyncio.get_running_loop().time
    begun = clock()
    async with Recorder(client, "c", per_second=40, queue=100) as recorder:
        for number in range(100):
            recorder.record(about, "Normal", "Reason", f"message {number}")
        await until(lambda: recorder.counters.writes == 100, "all are written")
        # 40 go out at once, each of the others a fortieth of a second after the one before.
        assert clock() - begun >= 59 / 40
    assert len(await events_about(client, about)) == 100
    assert recorder.counters.dropped == 0


async def test_refusals_are_counted(client: Client) -> None:
    about = ObjectReference(kind="Pod", api_version="v1", name="p", namespace="no-such-namespace", uid="u")
    async with Recorder(client, "c") as recorder:
        recorder.record(about, "Normal", "Reason", "message")
    assert (recorder.counters.errors, recorder.counters.dropped) == (1, 1)


async def test_long_texts_are_cut(client: Client, namespace: str) -> None:
    about = reference_to(PODS, await client.create(PODS, pod("p" * 253, namespace)))
    async with Recorder(client, "c") as recorder:
        recorder.record(about, "Normal", "Long", "x" * 5000)
    (event,) = await events_about(client, about)
    assert len(event.message) == MAX_MESSAGE
    assert recorder.counters.errors == 0
