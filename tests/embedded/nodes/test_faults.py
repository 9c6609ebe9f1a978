"""Annotations of a Node break and mend its simulated cards."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import EVENTS, NODES
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import parse
from shoal.embedded.nodes.errors import FaultError
from shoal.embedded.nodes.faults import play
from shoal.gpu.protocol import CardEvent, EventKind
from shoal.gpu.simulated import SimulatedNvml
from tests.kube.waiting import until

CARDS = [{"model": "T4", "index": 1}, {"model": "T4", "index": 4, "lost": True}]


@pytest.fixture
async def api(tmp_path: Path) -> EmbeddedApi:
    return EmbeddedApi(tmp_path / "api")


@pytest.fixture
async def nodes(api: EmbeddedApi, short_folder: Path) -> AsyncIterator[Nodes]:
    nodes = Nodes(api, parse([{"name": "n", "gpus": CARDS, "devicePlugins": False}]), short_folder / "f")
    await nodes.start()
    yield nodes
    await nodes.stop()


def annotate(api: EmbeddedApi, **annotations: str) -> None:
    node = api.registry.get(NODES, "", "n")
    given = {f"shoal.dev/simulate.{card}": text for card, text in annotations.items()}
    present: dict[str, Any] = {**node, "metadata": {**node["metadata"], "annotations": given}}
    api.registry.update(NODES, "", "n", present)


def messages(api: EmbeddedApi) -> list[str]:
    return [event["message"] for event in api.registry.store.objects(EVENTS.key) if event["type"] == "Warning"]


async def test_a_fault_comes_once_with_each_new_value(api: EmbeddedApi, nodes: Nodes) -> None:
    watch = nodes["n"].host.nvml.watch()
    uuid = nodes["n"].host.nvml.uuids()[0]
    annotate(api, gpu1="xid=48")
    await until(lambda: len(watch.pending) == 1, "the card reports")
    annotate(api, gpu1="xid=48", gpu4="back")
    await until(lambda: len(watch.pending) == 2, "the other card is back")
    annotate(api, gpu1="ecc=2")
    await until(lambda: len(watch.pending) == 3, "errors are counted")
    assert watch.pending[0] == CardEvent(EventKind.XID, uuid, 48)
    assert [event.kind for event in watch.pending][1:] == [EventKind.BACK, EventKind.ECC_UNCORRECTED]


async def test_words_that_cannot_be_read_become_an_event(api: EmbeddedApi, nodes: Nodes) -> None:
    annotate(api, gpu0="lost", gpu1="melted")
    await until(lambda: len(messages(api)) == 2, "both are told")
    assert messages(api) == [
        "annotation shoal.dev/simulate.gpu0: the node has no card 'gpu0': its cards are gpu1, gpu4",
        "annotation shoal.dev/simulate.gpu1: 'melted' cannot be done to a card: write xid=79, ecc=1, lost or back",
    ]
    assert not any(card.lost for card in nodes["n"].host.nvml.survey().cards)


@pytest.mark.parametrize("card", ["", "1", "gpu", "gpu-1", "gpu1111", "GPU1", "gpu4294967297"])
def test_cards_that_are_none(card: str) -> None:
    nvml = SimulatedNvml(parse([{"gpus": CARDS}])[0].cards, clock=lambda: 0.0)
    with pytest.raises(FaultError, match="its cards are gpu1, gpu4"):
        play(nvml, card, "lost")


@pytest.mark.parametrize("text", ["", "xid", "xid=", "xid=-1", "xid=99999", "ecc=x", "LOST"])
def test_faults_that_are_none(text: str) -> None:
    nvml = SimulatedNvml(parse([{"gpus": CARDS}])[0].cards, clock=lambda: 0.0)
    with pytest.raises(FaultError, match="write xid=79"):
        play(nvml, "gpu1", text)


def test_a_card_is_lost_and_comes_back() -> None:
    nvml = SimulatedNvml(parse([{"gpus": CARDS}])[0].cards, clock=lambda: 0.0)
    play(nvml, "gpu1", "lost")
    assert [card.lost for card in nvml.survey().cards] == [True]
    play(nvml, "gpu1", "back")
    play(nvml, "gpu4", "back")
    assert [(card.index, card.lost) for card in nvml.survey().cards] == [(1, False), (4, False)]
