"""Anything on the watch, on the endpoints and on the socket before them: no crash, no hang, no wrong booking.

`SHOAL_FUZZ` sets how many mutants are tried, and `SHOAL_FUZZ_SEED` which; the default keeps `make test` short.
"""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from shoal.kube.codec import WatchEvent
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Store
from shoal.model.errors import RequestError
from shoal.placement.errors import PolicyError
from shoal.scheduler.diagnosis import diagnose
from shoal.scheduler.errors import UnknownPodError, WireError
from shoal.scheduler.extender.filtering import OFFER_ALL
from shoal.scheduler.extender.server import Address, Extender
from shoal.scheduler.feasibility.feasibility import Feasibility
from tests.scheduler.extender import requests
from tests.scheduler.extender.scene import Scene
from tests.testbed.fake_nodes import node as node_object

MUTANTS = int(os.environ.get("SHOAL_FUZZ", "4000"))
SEED = int(os.environ.get("SHOAL_FUZZ_SEED", "7"))
CALLERS = 20
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 1.5, float(10**300)),
    *("", " ", "0", "-1", "1e9", "10G", "3", "9" * 30, "\x00", "ü\u202e", "a" * 5000, "{", "{}", '{"version":1}'),
    *([], {}, [None], {"": ""}, {"a": {"b": [1, 2]}}),
)


def paths(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    if at:
        yield at
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield from paths(value, (*at, key))


def mutant(document: Any, rng: random.Random) -> Any:
    """A copy with one to three places changed, taken away, doubled or moved."""
    copy = json.loads(json.dumps(document))
    for _ in range(rng.randint(1, 3)):
        places = list(paths(copy))
        if not places:
            return copy
        *way, last = rng.choice(places)
        parent = copy
        for step in way:
            parent = parent[step]
        match rng.randrange(4):
            case 0:
                parent[last] = deepcopy(rng.choice(ODD))
            case 1:
                del parent[last]
            case 2 if isinstance(parent, list):
                parent.append(parent[last])
            case 2:
                parent[str(rng.choice(ODD))[:300]] = parent[last]
            case _:
                *other, end = rng.choice(list(paths(copy)) or [(last,)])
                donor = copy
                for step in other:
                    donor = donor[step]
                parent[last] = donor[end]
                copy = json.loads(json.dumps(copy, default=str)[:200_000]) if _finite(copy) else json.loads("{}")
    return copy


def _finite(document: Any) -> bool:
    try:
        json.dumps(document)
    except (ValueError, RecursionError):
        return False
    return True


def test_mutated_nodes_and_pods_on_the_watch() -> None:
    """The books never break, never book more than a card has by their own decision, and agree with the store."""
    rng = random.Random(SEED)
    scene = Scene(policy="fragmentation")
    state = scene.state
    feasibility = Feasibility(state.tables)
    nodes: Store[Node] = Store()
    pods: Store[Pod] = Store()
    decoded = refused = placed = 0
    for turn in range(MUTANTS // 2):
        name = f"n{rng.randrange(6)}"
        version = {"resourceVersion": str(turn), "uid": f"uid-{name}"}
        source: dict[str, Any] = node_object(name, rng.randrange(1, 5)) if turn % 3 == 0 else _pod(rng, turn)
        source["metadata"] |= version if turn % 3 == 0 else {"resourceVersion": str(turn)}
        made = source if rng.random() < 0.3 else mutant(source, rng)
        kind = rng.choice(("ADDED", "MODIFIED", "MODIFIED", "DELETED"))
        try:
            obj = _as(Node if turn % 3 == 0 else Pod, made)
        except msgspec.ValidationError:
            continue  # what cannot be decoded never reaches the state
        if not obj.metadata.name:
            continue  # no server stores such an object, or gives two the same UID
        uid = f"{obj.metadata.namespace}/{obj.metadata.name}"
        obj = msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, uid=uid))
        if isinstance(obj, Node):
            for node_change in nodes.apply(WatchEvent(type=kind, object=obj)):
                state.on_node(node_change)
        else:
            for pod_change in pods.apply(WatchEvent(type=kind, object=obj)):
                state.on_pod(pod_change)
        decoded += 1
        waiting = [pod for pod in pods if not pod.spec.node_name]
        pod = rng.choice(waiting) if waiting else None
        if pod is None or state.engine.ledger.booking(pod.metadata.uid) is not None:
            continue
        over = {(card.uuid, card.pods) for card in state.engine.ledger.over_booked()}
        try:
            verdict = feasibility.verdict(pod)
            allocation = state.place(pod, among=verdict.allowed, favour=verdict.favour)
        except (RequestError, PolicyError):
            refused += 1
            continue
        assert {(card.uuid, card.pods) for card in state.engine.ledger.over_booked()} == over
        if allocation is None:
            diagnose(state.engine, state.request(pod), verdict)
        else:
            placed += 1
            state.cancel(pod.metadata.uid)
    there = [pod for pod in pods if pod.status.phase not in ("Succeeded", "Failed")]
    booked = {booking.pod for booking in state.engine.ledger.bookings()}
    assert booked >= {pod.metadata.uid for pod in there if pod.spec.node_name}
    # A pod that has a node never loses it: who shows it without one is behind.
    assert booked <= {pod.metadata.uid for pod in there}
    assert decoded > MUTANTS // 20
    assert placed
    assert refused


@pytest.mark.parametrize("all_up_to", [OFFER_ALL, 0], ids=["all that fit", "the best alone"])
def test_mutated_requests_to_the_endpoints(all_up_to: int) -> None:
    """Every answer is JSON of the right form or a plain refusal; nothing stays booked."""
    rng = random.Random(SEED + 1)
    scene = Scene(all_up_to=all_up_to)
    names = [f"n{number}" for number in range(4)]
    for name in names:
        scene.add_node(name, 2)
    bodies = [
        (scene.verbs.filter, json.loads(requests.args(requests.pod("a"), names))),
        (scene.verbs.filter, json.loads(requests.args(requests.pod("b", gpu="1"), names, whole=True))),
        (scene.verbs.prioritize, json.loads(requests.args(requests.pod("c", mps="1"), names))),
        (scene.verbs.preempt, json.loads(requests.preemption(requests.pod("d", priority=9), {names[0]: ["uid-x"]}))),
    ]
    answered = 0
    for _ in range(MUTANTS // 5):
        verb, body = rng.choice(bodies)
        made = json.dumps(mutant(body, rng)).encode()
        if rng.random() < 0.1:
            made = damaged(made, rng)
        scene.shown(json.dumps(body).encode())
        try:
            answer = verb(made)
        except (WireError, UnknownPodError):
            continue
        json.loads(answer)
        answered += 1
        scene.now += 60  # whatever is held is over
        scene.verbs.holds.expire()
        assert not list(scene.state.engine.ledger.bookings())
    assert answered > MUTANTS // 25


async def test_mutated_bytes_on_connections() -> None:
    """Every connection comes to its end, and every answer on it is one of HTTP; nothing stays booked."""
    rng = random.Random(SEED + 2)
    scene = Scene()
    scene.add_node("n0", 2)
    extender = Extender(scene.verbs, scene.state, metrics=scene.metrics, not_ready=lambda: "", clock=lambda: scene.now)
    body = scene.shown(requests.args(requests.pod("a"), ["n0"]))
    whole = [
        b"POST /gpushare-scheduler/filter HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body),
        b"POST /gpushare-scheduler/prioritize HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
        b"POST /gpushare-scheduler/bind HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}",
        b"GET /gpushare-scheduler/inspect/n0 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /version HTTP/1.0\r\nExpect: 100-continue\r\n\r\n",
    ]
    answered = 0
    async with extender.serve(Address("127.0.0.1", 0, open_inspect=True)) as port:

        async def caller(count: int) -> None:
            nonlocal answered
            for _ in range(count):
                stream = b"".join(rng.choices(whole, k=rng.randint(1, 3)))
                got = await _ask(port, damaged(stream, rng))
                answered += got

        await asyncio.gather(*(caller(MUTANTS // 10 // CALLERS) for _ in range(CALLERS)))
        async with asyncio.timeout(30):
            assert await _ask(port, b"GET /version HTTP/1.1\r\nHost: h\r\n\r\n")
    scene.now += 60
    scene.verbs.holds.expire()
    assert not list(scene.state.engine.ledger.bookings())
    assert answered > MUTANTS // 20


async def _ask(port: int, content: bytes) -> bool:
    """Send, close the own side, and read to the end; whether there was an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        cut = len(content) // 2
        for part in (content[:cut], content[cut:]):
            writer.write(part)
            await writer.drain()
        writer.write_eof()
        answer = await reader.read()
    except ConnectionError:
        return False
    finally:
        writer.close()
    assert answer == b"" or answer.startswith(b"HTTP/")
    return bool(answer)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A copy with some bytes changed, taken away or doubled."""
    copy = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(copy))
        match rng.randrange(4):
            case 0 if len(copy) > 50:
                del copy[place : place + rng.randint(1, 40)]
            case 1:
                copy[place:place] = copy[place : place + rng.randint(1, 40)]
            case _:
                copy[place] = rng.randrange(256)
    return bytes(copy)


def _pod(rng: random.Random, turn: int) -> dict[str, Any]:
    resource, amount = rng.choice((("mem", "4"), ("mem", "9"), ("mps", "1"), ("gpu", "1"), ("cpu", "2")))
    limits: dict[str, Any] = {resource: amount}
    pod = requests.pod(f"p{rng.randrange(30)}", **limits)
    if rng.random() < 0.5:
        pod["spec"]["nodeName"] = f"n{rng.randrange(7)}"
        pod["metadata"]["annotations"] = {
            "ALIYUN_COM_GPU_MEM_IDX": str(rng.randrange(5)),
            "ALIYUN_COM_GPU_MEM_POD": amount,
            "UUID": f"GPU-n{rng.randrange(6)}-0",
            "shoal.dev/allocation": rng.choice(("", "{", '{"version":1,"node":"n0","containers":[]}')),
        }
    return pod


def _as(kind: type[Node] | type[Pod], document: Any) -> Node | Pod:
    return msgspec.convert(document, kind)
