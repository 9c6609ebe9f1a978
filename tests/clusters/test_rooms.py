"""`shoal-room` of members: a sieve that is never trusted, and what wakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.clusters.asking import AskingChoice
from shoal.clusters.member import Member
from shoal.clusters.offers import OfferClient
from shoal.clusters.rooms import Need, Rooms, need_of, too_small
from shoal.kube.client import Client
from shoal.kube.resources import CONFIG_MAPS
from shoal.model.contract.clusters import ClusterRoom, ClusterSelector, RoomOfModel
from shoal.model.contract.gpushare import MemoryUnit
from tests.clusters.peer import Peer
from tests.clusters.table import Table
from tests.clusters.test_asking import pod
from tests.kube.conftest import access_of
from tests.kube.waiting import until
from tests.suites.embedded import EmbeddedServer


def room(largest: int, *, free: int = 1, serial: int = 1) -> ClusterRoom:
    return ClusterRoom(1, serial, 1, 0, [RoomOfModel("A100", 8, free, largest, largest)])


def asking(limits: dict[str, str], **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": limits}}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}


@pytest.mark.parametrize(
    ("limits", "annotations", "need"),
    [
        ({"aliyun.com/gpu-mem": "8"}, {}, Need(8192)),
        ({"keti.com/mpsgpu": "1"}, {}, Need()),
        ({"keti.com/mpsgpu": "2"}, {"GPUlimits": "4Gi"}, Need(4096)),
        ({"nvidia.com/gpu": "2"}, {}, Need(whole=True)),
        ({"aliyun.com/gpu-mem": "eight"}, {}, Need()),
        ({}, {}, Need()),
    ],
)
def test_what_a_card_must_have(limits: dict[str, str], annotations: dict[str, str], need: Need) -> None:
    assert need_of(asking(limits, **annotations), unit=MemoryUnit.GIB) == need


def test_the_sieve() -> None:
    assert too_small(room(4096), Need(8192)) == (
        "the pod asks for 8192 MiB of a card, and the largest free piece has 4096 MiB"
    )
    assert too_small(room(8192), Need(8192)) == ""
    assert too_small(room(8192, free=0), Need(whole=True)) == "no card is wholly free"
    assert too_small(ClusterRoom(1, 1, 0, 0, []), Need(1)) != ""
    assert too_small(ClusterRoom(1, 1, 0, 0, []), Need()) == ""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    made = EmbeddedServer(tmp_path_factory.mktemp("member"))
    yield made
    made.stop()


@pytest.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[Client]:
    async with Client(access_of(server.kubeconfig())) as made:
        yield made


@contextlib.asynccontextmanager
async def followed(rooms: Rooms) -> AsyncIterator[None]:
    task = asyncio.create_task(rooms.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def publish(client: Client, namespace: str, text: str) -> None:
    made = {"metadata": {"name": "shoal-room", "namespace": namespace}, "data": {"room": text}}
    await client.apply(CONFIG_MAPS.raw, {"apiVersion": "v1", "kind": "ConfigMap", **made}, force=True)


def written(serial: int, largest: int) -> str:
    model = {"model": "A100", "cards": 8, "free": 1, "largest_mib": largest, "free_mib": largest}
    return json.dumps({"version": 1, "serial": serial, "nodes": 1, "queue": 0, "models": [model]})


async def test_a_new_serial_wakes_and_a_malformed_room_is_none(client: Client, server: EmbeddedServer) -> None:
    server.create_namespace("one")
    member = Member("a", "uid-a", client, namespace="one")
    rooms = Rooms(Table(member))
    told: list[str] = []
    rooms.on_change(told.append)
    async with followed(rooms):
        await publish(client, "one", written(1, 4096))
        await until(lambda: rooms.room_of("a") is not None, "the room is read")
        told.clear()
        await publish(client, "one", written(2, 8192))
        await until(lambda: told == ["a"], "a new serial wakes")
        assert rooms.room_of("a") == room(8192, serial=2)
        await publish(client, "one", '{"version": 2}')
        await until(lambda: rooms.room_of("a") is None, "another version is not believed")
        await publish(client, "one", written(3, 4096))
        await until(lambda: rooms.room_of("a") is not None, "it is read again")


async def test_members_come_and_go(client: Client, server: EmbeddedServer) -> None:
    server.create_namespace("two")
    await publish(client, "two", written(1, 4096))
    table = Table()
    rooms = Rooms(table)
    told: list[str] = []
    rooms.on_change(told.append)
    async with followed(rooms):
        table.set(Member("b", "uid-b", client, namespace="two"))
        await until(lambda: rooms.room_of("b") is not None, "a newcomer is followed")
        assert "b" in told
        table.set()
        await until(lambda: rooms.known() == {}, "one that went is forgotten")


async def test_old_rooms_are_not_believed(client: Client, server: EmbeddedServer) -> None:
    server.create_namespace("three")
    now = 0.0
    rooms = Rooms(Table(Member("a", "uid-a", client, namespace="three")), believed_seconds=30, clock=lambda: now)
    async with followed(rooms):
        await publish(client, "three", written(1, 4096))
        await until(lambda: rooms.room_of("a") is not None, "the room is read")
        now = 31.0
        assert rooms.room_of("a") is None
        assert rooms.known()


async def test_too_small_a_room_is_not_asked_and_a_doubtful_one_is(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    server.create_namespace("four")
    follow = Table(Member("a", "uid-a", client, namespace="four"))
    rooms = Rooms(follow)
    peer = Peer(5)
    async with followed(rooms), peer.member(tmp_path, "a") as member, OfferClient(seconds=30) as offers:
        choose = AskingChoice(offers, rooms=rooms, fresh_seconds=1000)
        await publish(client, "four", written(1, 4096))
        await until(lambda: rooms.room_of("a") is not None, "the room is read")
        choice = await choose(pod(1), ClusterSelector(), {"a": member})
        assert (choice.cluster, peer.asked) == ("", {})
        assert "largest free piece has 4096 MiB" in choice.why
        # Rubbish is not trusted: the cluster is asked, at once, though the answer before was to last.
        await publish(client, "four", "full, go away")
        await until(lambda: rooms.room_of("a") is None, "rubbish is no room")
        assert (await choose(pod(1), ClusterSelector(), {"a": member})).cluster == "a"
