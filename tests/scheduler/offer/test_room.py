"""`shoal-room`: what is told of a cluster's room, and when it is written."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.resources import CONFIG_MAPS
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ClusterRoom, RoomOfModel
from shoal.model.gpu import Gpu
from shoal.scheduler.offer.room import MOST_MODELS, RoomPublisher, room_of
from tests.kube.waiting import until
from tests.scheduler.extender.requests import args, pod
from tests.scheduler.offer.scene import OfferScene

NAMESPACE = "kube-system"
GIB = 1024


def cards(node: str, *models: tuple[str, int]) -> list[Gpu]:
    return [Gpu(f"GPU-{node}-{i}", i, gib * GIB, model) for i, (model, gib) in enumerate(models)]


@pytest.fixture
def scene() -> OfferScene:
    made = OfferScene()
    made.add_node("a", cards("a", ("T4", 16), ("T4", 16)))
    made.add_node("b", cards("b", ("A100", 40), ("A100", 80), ("T4", 16)))
    made.add_node("plain", 0)
    return made


def room(scene: OfferScene, before: ClusterRoom | None = None) -> ClusterRoom:
    return room_of(
        scene.state.engine.ledger.columns,
        nodes=scene.state.nodes(),
        queue=scene.state.engine.demand.waiting,
        holds=len(scene.holds),
        before=before,
    )


def test_cards_are_told_by_model(scene: OfferScene) -> None:
    scene.bind(pod("x", mem="10"), "a", 0, 10)
    scene.bind(pod("y", mem="16"), "b", 2, 16)
    scene.bind(pod("z", mem="30"), "b", 1, 30)
    assert room(scene) == ClusterRoom(
        version=1,
        serial=1,
        nodes=3,
        queue=0,
        models=[
            RoomOfModel("T4", cards=3, free=1, largest_mib=16 * GIB, free_mib=22 * GIB),
            RoomOfModel("A100", cards=2, free=1, largest_mib=50 * GIB, free_mib=90 * GIB),
        ],
    )


def test_a_card_that_takes_nothing_has_no_room(scene: OfferScene) -> None:
    sick = [Gpu("GPU-a-0", 0, 16 * GIB, "T4", healthy=False, fault="x"), Gpu("GPU-a-1", 1, 16 * GIB, "T4")]
    scene.add_node("a", sick)
    assert room(scene).models[0] == RoomOfModel("T4", cards=3, free=2, largest_mib=16 * GIB, free_mib=32 * GIB)


def test_the_serial_rises_with_what_is_free_and_not_with_who_waits(scene: OfferScene) -> None:
    first = room(scene)
    assert room(scene, first) == first
    scene.filter(args(pod("big", gpu="8"), ["a", "b"]))
    waiting = room(scene, first)
    assert (waiting.queue, waiting.serial) == (1, first.serial)
    scene.ask(pod(gpu="1"), origin="u1", hold=10)
    held = room(scene, waiting)
    assert (held.holds, held.serial) == (1, first.serial + 1)
    assert room(scene, ClusterRoom(1, 2**31 - 1, 0, 0, [])).serial == 0, "and begins anew at its end"


def test_the_document_stays_within_its_bounds() -> None:
    scene = OfferScene()
    for number in range(300):
        scene.add_node(f"n{number}", cards(f"n{number}", (f"{number:03}" + "ü" * 290, 16)))
    scene.add_node("many", cards("many", ("known", 2**20), ("known", 2**20)))
    scene.add_node("long", cards("long", ("x" * 301, 16)))
    written = clusters.encode(room(scene), what="room")
    read = clusters.decode(ClusterRoom, written, what="room")
    assert len(read.models) == MOST_MODELS
    assert read.models[0].model == "known", "those with the most cards"


# Published


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with (
        EmbeddedApi(tmp_path / "embedded") as api,
        Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client,
    ):
        yield client


class Publishing:
    """A publisher that looks often."""

    def __init__(self, client: Client, scene: OfferScene) -> None:
        self.client = client
        self.leads = True
        self.publisher = RoomPublisher(
            client, scene.state, scene.holds, namespace=NAMESPACE, may_write=lambda: self.leads, seconds=0.01
        )

    async def __aenter__(self) -> "Publishing":
        self.task = asyncio.create_task(self.publisher.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    async def written(self) -> tuple[ClusterRoom, str] | None:
        try:
            found = await self.client.get(CONFIG_MAPS, clusters.NAME_ROOM, namespace=NAMESPACE)
        except NotFoundError:
            return None
        return clusters.decode(ClusterRoom, found.data[clusters.KEY_ROOM], what="room"), found.metadata.resource_version


async def test_it_is_written_when_it_says_something_new(client: Client, scene: OfferScene) -> None:
    async with Publishing(client, scene) as publishing:
        await until(lambda: publishing.publisher.writes == 1, "written")
        assert (first := await publishing.written())
        scene.ask(pod(gpu="1"), count=3)
        scene.bind(pod("x", mem="4"), "a", 0, 4)
        await until(lambda: publishing.publisher.writes == 2, "written again")
        assert (second := await publishing.written())
        assert second[0].serial == first[0].serial + 1
        assert second[0].models[0].free_mib == 44 * GIB


async def test_what_was_written_before_a_restart_is_not_written_again(client: Client, scene: OfferScene) -> None:
    async with Publishing(client, scene) as publishing:
        await until(lambda: publishing.publisher.writes == 1, "written")
        before = await publishing.written()
    async with Publishing(client, scene) as publishing:
        await until(lambda: publishing.publisher._seen is not None, "looked")
        assert publishing.publisher.writes == 0
        assert await publishing.written() == before
        scene.bind(pod("x", mem="4"), "a", 0, 4)
        await until(lambda: publishing.publisher.writes == 1, "written")
        assert (after := await publishing.written())
        assert before is not None
        assert after[0].serial == before[0].serial + 1


@pytest.mark.parametrize("found", [{}, {"room": ""}, {"room": "{"}, {"room": '{"version":2}'}, {"room": "x" * 100_000}])
async def test_what_cannot_be_read_is_written_over(client: Client, scene: OfferScene, found: dict[str, str]) -> None:
    meta = {"name": clusters.NAME_ROOM, "namespace": NAMESPACE}
    await client.create(CONFIG_MAPS, {"metadata": meta, "data": {**found, "other": "stays"}})
    async with Publishing(client, scene) as publishing:
        await until(lambda: publishing.publisher.writes == 1, "written")
        assert (written := await publishing.written())
        assert written[0] == room(scene)
        kept = await client.get(CONFIG_MAPS, clusters.NAME_ROOM, namespace=NAMESPACE)
        assert kept.data["other"] == "stays"


async def test_who_does_not_lead_writes_nothing(client: Client, scene: OfferScene) -> None:
    publishing = Publishing(client, scene)
    publishing.leads = False
    await publishing.publisher._publish()
    assert publishing.publisher.writes == 0
    assert await publishing.written() is None
    publishing.leads = True
    await publishing.publisher._publish()
    assert publishing.publisher.writes == 1
