"""Asking clusters for offers, and choosing by what they say, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.clusters.asking import AskingChoice
from shoal.clusters.choice import Unasked
from shoal.clusters.member import Member
from shoal.clusters.offers import OfferClient, asked_pod
from shoal.model.contract.clusters import HEADER_TOKEN, ClusterSelector, Offer, OfferRequest, encode
from tests.clusters.peer import TOKEN, Peer

ANY = ClusterSelector()
GANG = {"shoal.dev/pod-group": "g", "shoal.dev/pod-group-min": "3"}


def pod(number: int = 0, *, owner: str = "", labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A pod of a Job, as home's API server has it."""
    name = f"job-{number}"
    meta: dict[str, Any] = {
        "name": f"{name}-x7k2p",
        "namespace": "team",
        "uid": f"uid-{number}",
        "labels": {"app": "train", "batch.kubernetes.io/job-name": name, **(labels or {})},
        "ownerReferences": [{"kind": "Job", "name": name, "uid": owner or f"owner-{number}", "controller": True}],
    }
    token = {"name": f"kube-api-access-{number}", "projected": {"sources": []}}
    container = {
        "name": "main",
        "image": "train",
        "env": [{"name": "PASSWORD", "value": "tell-nobody"}],
        "command": ["train", "--key=tell-nobody"],
        "resources": {"limits": {"aliyun.com/gpu-mem": "8"}},
        "volumeMounts": [{"name": token["name"], "mountPath": "/var/run/secrets"}],
    }
    spec = {"containers": [container], "volumes": [token], "schedulingGates": [{"name": "shoal.dev/cluster"}]}
    return {"metadata": meta, "spec": spec}


@asynccontextmanager
async def joined(folder: Path, **peers: Peer) -> AsyncIterator[tuple[OfferClient, dict[str, Member]]]:
    async with AsyncExitStack() as stack:
        members = {name: await stack.enter_async_context(peer.member(folder, name)) for name, peer in peers.items()}
        yield await stack.enter_async_context(OfferClient(seconds=30)), members


async def asked(folder: Path, peer: Peer, *, seconds: float = 30.0, **fields: Any) -> Offer | Unasked | str:
    async with peer.member(folder, "one", **fields) as member, OfferClient(seconds=seconds) as offers:
        return await offers.ask(member, OfferRequest(asked_pod(pod()), count=2))


async def test_through_the_api_server_the_token_is_in_our_header(tmp_path: Path) -> None:
    peer = Peer(5)
    assert await asked(tmp_path, peer) == Offer(2, 0.5)
    assert peer.headers[0][HEADER_TOKEN] == TOKEN


async def test_directly_the_token_is_where_it_belongs(tmp_path: Path) -> None:
    peer = Peer(5)
    assert await asked(tmp_path, peer, direct=True) == Offer(2, 0.5)
    assert peer.headers[0]["Authorization"] == f"Bearer {TOKEN}"
    assert HEADER_TOKEN not in peer.headers[0]


async def test_a_direct_way_without_tls_is_not_gone(tmp_path: Path) -> None:
    peer = Peer(5)
    said = await asked(tmp_path, peer, offer_url="http://127.0.0.1:1")
    assert isinstance(said, str)
    assert "https://HOST:PORT" in said
    assert not peer.headers


async def test_a_cluster_without_the_service_is_tried(tmp_path: Path) -> None:
    assert await asked(tmp_path, Peer(5), namespace="elsewhere") is Unasked.TRIAL


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"", "something else than an offer"),
        (200, b"{}", "something else than an offer"),
        (200, b'{"fits": -1}', "something else than an offer"),
        (200, b'{"fits": 1, "score": 7}', "something else than an offer"),
        (200, b'{"fits": 1, "score": NaN}', "something else than an offer"),
        (200, b'{"fits": 1e400}', "something else than an offer"),
        (200, b'{"fits": 1, "more": 1}', "something else than an offer"),
        (200, b"\xff\xfe", "something else than an offer"),
        (200, b"[" * 10_000, "something else than an offer"),
        (200, b'{"fits": 1, "why": "' + b"x" * (1 << 20) + b'"}', "larger than"),
        (200, b'{"fits": 1, "why": "' + b"x" * 5000 + b'"}', "something else than an offer"),
        (302, b"", "302"),
        (403, b"no", "shoal clusters join"),
        (404, b"no such page", "nobody answers there"),
        (500, b"oh", "check that shoal-scheduler runs there"),
        (503, b"no endpoints available", "check that shoal-scheduler runs there"),
        (418, b"\x1b[31m\n" * 1000, "418"),
    ],
)
async def test_what_is_no_offer_is_a_problem_in_words(tmp_path: Path, status: int, body: bytes, words: str) -> None:
    peer = Peer(5)
    peer.says = status, body
    said = await asked(tmp_path, peer)
    assert isinstance(said, str), said
    assert words in said
    assert said.isprintable()
    assert len(said) < 400
    assert TOKEN not in said


async def test_one_that_does_not_answer_keeps_nobody_waiting(tmp_path: Path) -> None:
    peer = Peer(5)
    peer.silent = True
    said = await asked(tmp_path, peer, seconds=0.2)
    assert said == "no answer within 0.2 s: check the network to it, and its scheduler"


def test_what_is_shown_of_a_pod_is_equal_within_a_template_and_no_secret() -> None:
    one, other = asked_pod(pod(1)), asked_pod({**pod(2), "status": {"phase": "Pending"}})
    assert one == other
    named = pod(3)
    named["metadata"]["annotations"] = {"clusterName": "a", "GPUlimits": "4Gi"}
    assert asked_pod(named)["metadata"]["annotations"] == {"GPUlimits": "4Gi"}
    assert "tell-nobody" not in encode(OfferRequest(one), what="pod")
    assert one["spec"]["containers"][0]["resources"] == {"limits": {"aliyun.com/gpu-mem": "8"}}
    assert one["metadata"]["labels"] == {"app": "train"}


@pytest.mark.parametrize(
    "odd", [{}, {"spec": None, "metadata": 3}, {"spec": {"containers": [None, "x"], "volumes": 5}}]
)
def test_odd_pods_do_no_harm(odd: dict[str, Any]) -> None:
    assert asked_pod(odd)["kind"] == "Pod"


async def test_the_best_holds_and_the_others_are_only_asked(tmp_path: Path) -> None:
    a, b = Peer(5, score=0.2), Peer(5, score=0.9)
    async with joined(tmp_path, a=a, b=b) as (offers, members):
        choice = await AskingChoice(offers)(pod(7), ANY, members)
    assert choice.cluster == "b"
    assert (a.asked, b.asked) == ({"ask": 1}, {"ask": 1, "hold": 1})
    assert b.held == {"uid-7"}
    assert not a.held


async def test_a_cluster_that_is_full_by_then_gives_way_to_the_next(tmp_path: Path) -> None:
    a, b = Peer(5, score=0.2), Peer(0, score=0.9)
    b.claims = 100  # somebody else takes it in between, each time
    async with joined(tmp_path, a=a, b=b) as (offers, members):
        chooser = AskingChoice(offers)
        choices = [await chooser(pod(number), ANY, members) for number in range(6)]
    assert [choice.cluster for choice in choices] == ["a"] * 5 + [""]
    assert "b: full" in choices[-1].why


async def test_ruled_out_clusters_are_not_even_asked(tmp_path: Path) -> None:
    a, b = Peer(5), Peer(5)
    async with joined(tmp_path, a=a, b=b) as (offers, members):
        chooser = AskingChoice(offers, problems=lambda: {"c": "no connection: check the address"})
        assert (await chooser(pod(1), ClusterSelector(pinned="b"), members)).cluster == "b"
        lost = await chooser(pod(2), ClusterSelector(pinned="c"), members)
        unknown = await chooser(pod(3), ClusterSelector(pinned="d"), members)
    assert not a.asked
    assert (lost.cluster, "no connection" in lost.why) == ("", True)
    assert "known are 'a', 'b', 'c'" in unknown.why


async def test_malformed_answers_do_not_win(tmp_path: Path) -> None:
    a, b = Peer(5, score=0.9), Peer(5, score=0.1)
    a.says = 200, b'{"fits": 1, "score": 99}'
    async with joined(tmp_path, a=a, b=b) as (offers, members):
        choice = await AskingChoice(offers)(pod(1), ANY, members)
    assert choice.cluster == "b"
    assert "something else than an offer" in choice.ranking[1].why


async def test_pods_of_one_owner_that_come_at_once_stay_together(tmp_path: Path) -> None:
    a, b = Peer(2, score=0.9), Peer(9, score=0.1)
    async with joined(tmp_path, a=a, b=b) as (offers, members):
        chooser = AskingChoice(offers)
        made = await asyncio.gather(*(chooser(pod(number, owner="o"), ANY, members) for number in range(4)))
        spread = await chooser(pod(9, owner="o"), ClusterSelector(spread=True), members)
    assert sorted(choice.cluster for choice in made) == ["", "", "a", "a"]
    assert spread.cluster == "b"


async def test_a_pod_goes_where_its_siblings_are(tmp_path: Path) -> None:
    a, b = Peer(5, score=0.9), Peer(5, score=0.1)
    async with joined(tmp_path, a=a, b=b) as (offers, members):
        chooser = AskingChoice(offers)
        assert (await chooser(pod(2), ANY, members, {"b"})).cluster == "b"
        assert (await chooser(pod(3), ANY, members)).cluster == "a"


async def test_a_gang_goes_where_all_of_it_fits(tmp_path: Path) -> None:
    a, b = Peer(2, score=0.9), Peer(3, score=0.1)
    async with joined(tmp_path, a=a, b=b) as (offers, members):
        chooser = AskingChoice(offers)
        made = await asyncio.gather(*(chooser(pod(number, labels=GANG), ANY, members) for number in range(3)))
    assert [choice.cluster for choice in made] == ["b"] * 3


async def test_trials_come_last_and_not_twice(tmp_path: Path) -> None:
    a, b = Peer(1, score=0.1), Peer(9)
    async with joined(tmp_path, a=a, b=b) as (offers, members):
        b.says = 404, b'{"kind": "Status", "reason": "NotFound", "code": 404}'
        chooser = AskingChoice(offers)
        assert (await chooser(pod(1), ANY, members)).cluster == "a"
        assert (await chooser(pod(2), ANY, members)).cluster == "b"
        assert (await chooser(pod(2), ANY, members, tried=["b"])).cluster == ""


async def test_a_burst_of_jobs_fills_the_clusters_exactly(tmp_path: Path) -> None:
    """500 Jobs over room for 460: nobody waits while there is room, and nobody is sent where there is none."""
    peers = {"a": Peer(200, score=0.9), "b": Peer(160, score=0.5), "c": Peer(100, score=0.1)}
    async with joined(tmp_path, **peers) as (offers, members):
        chooser = AskingChoice(offers, fresh_seconds=1000)
        workers = asyncio.Semaphore(50)

        async def dispatch(number: int) -> str:
            async with workers:
                chosen = (await chooser(pod(number), ANY, members)).cluster
                await asyncio.sleep(0)
                assert not chosen or peers[chosen].bind(f"uid-{number}")
                return chosen

        made = await asyncio.gather(*map(dispatch, range(500)))
    assert {name: made.count(name) for name in (*peers, "")} == {"a": 200, "b": 160, "c": 100, "": 40}
    assert sum(peer.asked["ask"] for peer in peers.values()) < 150


async def test_a_burst_against_clusters_that_hold_little(tmp_path: Path) -> None:
    """Beyond their holds they are sent pods all the same, and not more than fit."""
    peers = {"a": Peer(30, score=0.9, most_holds=2), "b": Peer(30, score=0.1, most_holds=2)}
    async with joined(tmp_path, **peers) as (offers, members):
        chooser = AskingChoice(offers, fresh_seconds=0)
        made = await asyncio.gather(*(chooser(pod(number), ANY, members) for number in range(80)))
    sent = [choice.cluster for choice in made]
    assert (sent.count("a"), sent.count("b"), sent.count("")) == (30, 30, 20)


async def test_a_refused_pod_is_called_when_what_was_on_its_way_has_lapsed(tmp_path: Path) -> None:
    """Pods that were sent without a hold may never arrive, and nobody else tells of that."""
    async with joined(tmp_path, a=Peer(1, most_holds=0)) as (offers, members):
        chooser = AskingChoice(offers, fresh_seconds=0, hold_seconds=1)
        called = asyncio.Event()
        chooser.on_lapse = called.set
        assert [(await chooser(pod(number), ANY, members)).cluster for number in (1, 2)] == ["a", ""]
        assert not called.is_set()
        async with asyncio.timeout(60):
            await called.wait()
        assert (await chooser(pod(2), ANY, members)).cluster == "a"


async def test_a_hold_that_others_lost_is_not_taken(tmp_path: Path) -> None:
    """Pods that were left at home lose their holds just while a hold is asked for: what is held then is theirs."""
    now = [0.0]

    class Lapsing(Peer):
        def answer(self, request: OfferRequest) -> Offer:
            if request.origin == "uid-3" and request.hold:
                self.held.clear()
                now[0] += 1
            elif request.origin and not request.hold:
                self.held.discard(request.origin)
            return super().answer(request)

    home, other = Lapsing(2, score=0.9), Peer(9, score=0.1)
    async with home.member(tmp_path, "a", own=True) as own, joined(tmp_path, b=other) as (offers, members):
        chooser = AskingChoice(offers, fresh_seconds=0, clock=lambda: now[0])
        chooser.waits_at_home = lambda key, uid: uid != "uid-3"
        both = {"a": own, **members}
        assert [(await chooser(pod(number), ANY, both)).cluster for number in (1, 2)] == ["a", "a"]
        home.claims = 1
        now[0] += 9.5
        assert (await chooser(pod(3), ANY, both)).cluster == "b"
        assert home.held == set()


async def test_pods_that_were_left_at_home_count_there_until_they_have_a_node(tmp_path: Path) -> None:
    """They cannot be taken back: one too many would wait at home while another cluster has room."""
    now, waiting = [0.0], {("team", "job-1-x7k2p"), ("team", "job-2-x7k2p")}
    home, other = Peer(2, score=0.9), Peer(9, score=0.1)
    async with home.member(tmp_path, "a", own=True) as own, joined(tmp_path, b=other) as (offers, members):
        members = {"a": own, **members}
        chooser = AskingChoice(offers, fresh_seconds=0, clock=lambda: now[0])
        chooser.waits_at_home = lambda key, uid: key in waiting
        assert [(await chooser(pod(number), ANY, members)).cluster for number in (1, 2)] == ["a", "a"]
        # The scheduler at home is slow: nothing is held any more, and nothing is booked yet.
        home.held.clear()
        now[0] += 11
        assert (await chooser(pod(3), ANY, members)).cluster == "b"
        # One of them has got its node, and ended; the other still waits.
        waiting.discard(("team", "job-1-x7k2p"))
        assert (await chooser(pod(4), ANY, members)).cluster == "a"
        home.held.clear()
        now[0] += 400
        assert (await chooser(pod(5), ANY, members)).cluster == "a", "whatever it waits for, it is not its turn"
