"""The port of offers: who may ask, what it refuses in words, and what callers can use of it."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube import reviews
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.reviews import Rate
from shoal.model.contract import clusters
from shoal.scheduler.config import SchedulerConfig
from shoal.scheduler.offer.holds import key_of
from shoal.scheduler.offer.server import BOUNDS
from tests.scheduler.extender.requests import pod
from tests.scheduler.offer.site import NAMESPACE, OfferSite, account, served, token_of


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with (
        EmbeddedApi(tmp_path / "embedded") as api,
        Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client,
    ):
        await account(client, "manager", may=NAMESPACE)
        yield client


@pytest.fixture
async def site(client: Client) -> AsyncIterator[OfferSite]:
    async with served(client) as site:
        yield site


# Who may ask


@pytest.mark.parametrize("header", ["Authorization", clusters.HEADER_TOKEN, clusters.HEADER_TOKEN.lower()])
async def test_who_has_the_right_is_answered(client: Client, site: OfferSite, header: str) -> None:
    status, answer = await site.ask(await token_of(client, "manager"), header=header, count=9, origin="u1", hold=10)
    assert (status, answer["fits"], answer["held"]) == (200, 4, True)
    assert site.scene.holds.keys() == {key_of("system:serviceaccount:shoal-members:manager", "u1")}


async def test_a_right_everywhere_is_one_here_too(client: Client, site: OfferSite) -> None:
    await account(client, "everywhere", may="*")
    assert (await site.ask(await token_of(client, "everywhere")))[0] == 200


async def test_who_has_no_right_is_refused(client: Client, site: OfferSite) -> None:
    await account(client, "nobody")
    await account(client, "elsewhere", may="team")
    for name in ("nobody", "elsewhere"):
        status, words = await site.ask(await token_of(client, name))
        assert status == 403
        assert f"you may not create offers.shoal.dev in namespace {NAMESPACE}" in words


async def test_who_shows_no_token_is_refused(site: OfferSite) -> None:
    for token in ("", "forged", "a.b.c", "x" * 3000):
        status, words = await site.ask(token)
        assert status == 401
        assert "a ServiceAccount's token of this cluster" in words
    assert (await site.ask("x" * 5000))[0] == 400, "longer than a header may be"


async def test_a_token_for_others_is_none_for_offers(client: Client, site: OfferSite) -> None:
    assert (await site.ask(await token_of(client, "manager", audience="elsewhere")))[0] == 401
    async with served(client, audience="shoal-offers") as strict:
        assert (await strict.ask(await token_of(client, "manager")))[0] == 401
        assert (await strict.ask(await token_of(client, "manager", audience="shoal-offers")))[0] == 200


async def test_our_own_header_goes_first(client: Client, site: OfferSite) -> None:
    token = await token_of(client, "manager")
    headers = {"Authorization": "Bearer of.a.proxy", clusters.HEADER_TOKEN: token}
    url = f"https://127.0.0.1:{site.port}{clusters.PATH_OFFER}"
    content = msgspec.json.encode({"pod": pod()})
    async with site.session.post(
        url, data=content, headers=headers, ssl=site.tls, server_hostname="shoal-offer.kube-system.svc"
    ) as response:
        assert response.status == 200


async def test_answers_about_callers_are_remembered_for_a_minute(
    client: Client, site: OfferSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    request = Client.request

    async def counted(self: Client, method: str, path: str, **rest: object) -> bytes:
        asked.append(path.rpartition("/")[2])
        return await request(self, method, path, **rest)  # type: ignore[arg-type]

    token = await token_of(client, "manager")
    monkeypatch.setattr(Client, "request", counted)
    for _ in range(5):
        assert (await site.ask(token))[0] == 200
    assert asked == ["tokenreviews", "subjectaccessreviews"]
    site.clock.now += reviews.REMEMBERED_SECONDS
    assert (await site.ask(token))[0] == 200
    assert asked == ["tokenreviews", "subjectaccessreviews"] * 2


async def test_strangers_tokens_do_not_keep_out_who_is_known(client: Client, site: OfferSite) -> None:
    """All callers that come through the API server have one address."""
    good = await token_of(client, "manager")
    assert (await site.ask(good))[0] == 200
    statuses = [(await site.ask(f"forged.{number}"))[0] for number in range(int(reviews.ONE_ADDRESS.burst) + 3)]
    assert statuses.count(429) >= 3
    site.clock.now += reviews.REMEMBERED_SECONDS  # its minute is over, and nothing is left of the address' either
    statuses = [(await site.ask(f"other.{number}"))[0] for number in range(int(reviews.ONE_ADDRESS.burst) + 3)]
    assert statuses.count(429) >= 1
    assert (await site.ask(good))[0] == 200


async def test_a_server_that_cannot_ask_says_so(client: Client) -> None:
    async with (
        Client(replace(client.access, server="http://127.0.0.1:1")) as nobody,
        served(nobody, admin=client) as site,
    ):
        status, words = await site.ask("some.token")
        assert (status, "does not tell who you are" in words) == (503, True)


async def test_no_token_and_no_pod_is_in_the_log(
    client: Client, site: OfferSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="shoal")
    good = await token_of(client, "manager")
    secret = pod(gpu="1")
    secret["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    await site.ask(good, pod=secret)
    await site.ask("forged.token.here")
    await site.ask(good, body=b'{"pod": "hunter2"}')
    for word in (good, "forged.token.here", "hunter2"):
        assert word not in caplog.text


# What is refused


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "cannot be read"),
        (b"{", 400, "cannot be read"),
        (b'{"pod":{},"count":0}', 400, "`int` >= 1 - at `$.count`"),
        (b'{"pod":{},"more":1}', 400, "unknown field `more`"),
        (b'{"pod":' + b'{"a":' * 100_000, 400, "nested too deeply"),
        (b'{"pod":{"a":"' + b"x" * BOUNDS.body + b'"}}', 413, "longer than 2097152 bytes"),
    ],
)
async def test_what_cannot_be_read(client: Client, site: OfferSite, body: bytes, status: int, words: str) -> None:
    token = await token_of(client, "manager")
    answered, answer = await site.ask(token, body=body)
    assert answered == status
    assert words in answer
    assert (await site.ask(token))[0] == 200, "and the next is answered"


async def test_bodies_of_strangers_are_not_read(site: OfferSite) -> None:
    """Who has not said who it is gets its answer before its body is looked at."""
    assert (await site.ask("forged", body=b"x" * (BOUNDS.body + 1)))[0] == 401


async def test_other_paths_and_methods(client: Client, site: OfferSite) -> None:
    token = await token_of(client, "manager")
    assert (await site.ask(token, path="/gpushare-scheduler/filter"))[0] == 404
    assert (await site.ask(token, path="/metrics"))[0] == 404
    assert (await site.ask(token, method="GET"))[0] == 405


async def test_a_replica_that_does_not_lead_sends_callers_away(client: Client, site: OfferSite) -> None:
    site.not_ready = "not the leader: that is another"
    assert await site.ask(await token_of(client, "manager")) == (503, "not the leader: that is another\n")
    assert (await site.ask("forged"))[0] == 401, "strangers hear nothing of it"


async def test_a_caller_may_use_so_much_time(client: Client) -> None:
    async with served(client, rate=Rate(-1.0, 1.0)) as site:
        token = await token_of(client, "manager")
        status, words = await site.ask(token)
        assert (status, "more of the scheduler's time" in words) == (429, True)
        await account(client, "other", may="*")
        site.clock.now += 10
        assert (await site.ask(await token_of(client, "other")))[0] == 429, "each has its own"


async def test_time_used_is_time_spent(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(client, rate=Rate(1.0, 0.5)) as site:
        token = await token_of(client, "manager")
        answer = site.scene.offers.answer

        def slowly(caller: str, body: bytes) -> bytes:
            site.clock.now += 2.5
            return answer(caller, body)

        monkeypatch.setattr(site.scene.offers, "answer", slowly)
        assert (await site.ask(token))[0] == 200
        assert (await site.ask(token))[0] == 429
        site.clock.now += 1
        assert (await site.ask(token))[0] == 200


async def test_without_tls_nobody_is_answered(site: OfferSite) -> None:
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await site.session.post(f"http://127.0.0.1:{site.port}{clusters.PATH_OFFER}", data=b"{}")
    strange = ssl.create_default_context()
    with pytest.raises(aiohttp.ClientError):
        await site.session.post(f"https://127.0.0.1:{site.port}{clusters.PATH_OFFER}", data=b"{}", ssl=strange)


async def test_many_at_once_are_answered_as_one_after_another(client: Client, site: OfferSite) -> None:
    token = await token_of(client, "manager")
    before = await site.ask(token, count=9)
    answers = await asyncio.gather(*(site.ask(token, count=9, origin=f"u{n}") for n in range(40)))
    assert answers == [before] * 40


# Settings


def test_offers_are_off_by_default_and_need_tls() -> None:
    assert not SchedulerConfig().offer.enabled
    with pytest.raises(msgspec.ValidationError, match=r"callers show tokens; set tls: \{secret: shoal-scheduler-tls\}"):
        msgspec.convert({"offer": {"enabled": True}}, SchedulerConfig)
    config = msgspec.convert({"offer": {"enabled": True}, "tls": {"secret": "shoal-scheduler-tls"}}, SchedulerConfig)
    assert config.offer.port == clusters.OFFER_PORT
