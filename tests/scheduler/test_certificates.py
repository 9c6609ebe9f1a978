"""The extender's own certificates: made once, agreed on, renewed, changed by command; on the embedded API server."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.embedded.app import EmbeddedApi
from shoal.http.errors import TlsError
from shoal.kube import certificates
from shoal.kube.access.credentials import KeyPair
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.access.tls import load_pair
from shoal.kube.client import Client
from shoal.kube.resources import SECRETS
from shoal.scheduler.certificates import Bundle, BundleSecret, decode, fresh
from shoal.scheduler.config import SECRET
from shoal.scheduler.errors import BundleError
from shoal.scheduler.extender.server import Address, Extender
from shoal.scheduler.tls import OwnTls
from tests.scheduler.extender.scene import Scene

NAMESPACE = "kube-system"


@dataclass
class Place:
    """An API server, and a clock that can be set forward."""

    api: EmbeddedApi
    client: Client
    now: datetime

    def secret(self) -> BundleSecret:
        return BundleSecret(self.client, namespace=NAMESPACE, name=SECRET, now=lambda: self.now)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with EmbeddedApi(tmp_path / "api") as api:
        access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
        async with Client(access) as client:
            yield Place(api, client, datetime.now(UTC))


async def empty(place: Place) -> None:
    """The Secret as the manifests have it."""
    await place.client.create(SECRETS, {"metadata": {"name": SECRET}, "type": "Opaque"}, namespace=NAMESPACE)


@pytest.mark.parametrize("there", [True, False])
async def test_replicas_that_start_at_once_agree(place: Place, there: bool) -> None:
    if there:
        await empty(place)
    bundles = await asyncio.gather(*(place.secret().ensure() for _ in range(5)))
    assert len({bundle.authority.certificate for bundle in bundles}) == 1
    assert await place.secret().read() == bundles[0], "and it is what is kept"


async def test_a_start_that_is_killed_at_any_moment_leaves_a_usable_secret(place: Place) -> None:
    await empty(place)
    for turns in range(0, 60, 3):
        task = asyncio.create_task(place.secret().ensure())
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        task.cancel()
        await asyncio.wait({task})
        kept = await place.secret().read()
        assert kept is None or kept.accepted
    first = await place.secret().ensure()
    assert await place.secret().ensure() == first


async def test_the_authority_lives_ten_years_and_the_servers_certificate_is_renewed_under_it(place: Place) -> None:
    first = await place.secret().ensure()
    assert certificates.validity(first.authority.certificate)[1] - place.now > timedelta(days=3600)
    place.now += timedelta(days=200)
    assert await place.secret().ensure() == first, "not yet"
    place.now += timedelta(days=60)
    second = await place.secret().ensure()
    assert second.server != first.server
    assert (second.authority, second.client) == (first.authority, first.client)
    place.now += timedelta(days=20 * 365)
    assert (await place.secret().ensure()).authority == first.authority, "it is never changed under kube-scheduler"


async def test_what_is_in_the_secret_and_cannot_be_used_is_told_with_the_fix(place: Place) -> None:
    await place.client.create(
        SECRETS, {"metadata": {"name": SECRET}, "type": "Opaque", "data": {"ca.crt": "eA=="}}, namespace=NAMESPACE
    )
    with pytest.raises(TlsError, match=r"lacks ca.key.*: empty its data, restart the scheduler"):
        await place.secret().ensure()


def test_parts_that_do_not_belong_together_are_refused() -> None:
    one, two = fresh(datetime.now(UTC)), fresh(datetime.now(UTC))
    assert decode(one.encode()) == one
    for key in ("ca.crt", "ca.key", "tls.crt", "tls.key", "client.crt", "client.key"):
        with pytest.raises(BundleError, match=r"is not|cannot be read"):
            decode({**one.encode(), key: two.encode()[key]})
        with pytest.raises(BundleError):
            decode({**one.encode(), key: "eA=="})
        with pytest.raises(BundleError):
            decode({**one.encode(), key: "!"})


# Served


@contextlib.asynccontextmanager
async def served(place: Place) -> AsyncIterator[tuple[int, OwnTls]]:
    tls = await OwnTls.begun(place.secret())
    scene = Scene()
    extender = Extender(scene.verbs, scene.state, metrics=scene.metrics, not_ready=lambda: "", clock=lambda: 0.0)
    async with extender.serve(Address("127.0.0.1", 0, tls=tls)) as port:
        yield port, tls


async def status(port: int, bundle: Bundle, pair: KeyPair | None, path: str = "/gpushare-scheduler/inspect") -> int:
    """What the extender answers to who shows this pair; 0 when it gets no answer."""
    context = ssl.create_default_context(cadata=bundle.authority.certificate.decode())
    if pair is not None:
        load_pair(context, pair)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        try:
            async with session.get(f"https://127.0.0.1:{port}{path}") as answer:
                return answer.status
        except (aiohttp.ClientError, ConnectionError):
            return 0


async def test_only_the_clients_half_opens_the_door(place: Place) -> None:
    async with served(place) as (port, _):
        bundle = await place.secret().ensure()
        assert await status(port, bundle, bundle.client) == 200, "inspect too"
        assert await status(port, bundle, None) == 0
        assert await status(port, bundle, fresh(place.now).client) == 0
        forged = bundle.authority.client("kube-scheduler", now=place.now, life=timedelta(days=1))
        assert await status(port, bundle, forged) == 401, "signed by the same authority, and not in the Secret"


async def test_the_old_client_counts_until_the_new_one_was_used(place: Place) -> None:
    async with served(place) as (port, _):
        old = await place.secret().ensure()
        new = await place.secret().rotate_client()
        assert await status(port, old, old.client) == 200
        assert await status(port, old, new.client) == 200, "though the Secret was not looked at since"
        assert await status(port, old, old.client) == 401
        kept = await place.secret().read()
        assert kept is not None
        assert kept.previous == ""
    async with served(place) as (port, _):
        assert await status(port, old, old.client) == 401, "also after a restart"
        assert await status(port, old, new.client) == 200


async def test_a_renewed_servers_certificate_is_shown_without_a_restart(place: Place) -> None:
    place.now -= timedelta(days=300)
    async with served(place) as (port, tls):
        bundle = await place.secret().ensure()
        before = await asyncio.to_thread(ssl_certificate, port, bundle)
        place.now += timedelta(days=300)
        await tls.look()
        assert await asyncio.to_thread(ssl_certificate, port, bundle) != before
        assert await status(port, bundle, bundle.client) == 200


def ssl_certificate(port: int, bundle: Bundle) -> bytes:
    import socket

    context = ssl.create_default_context(cadata=bundle.authority.certificate.decode())
    load_pair(context, bundle.client)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
        assert shown is not None
        return shown


# The command


async def test_the_command_prints_the_clients_half_and_changes_it_when_told(place: Place, tmp_path: Path) -> None:
    def printed(*options: str) -> tuple[int, str]:
        kubeconfig = ["--kubeconfig", str(place.api.kubeconfig())]
        done = CliRunner().invoke(main, ["config", "kube-scheduler", "--for", "1.36", *kubeconfig, *options])
        return done.exit_code, done.output

    code, words = await asyncio.to_thread(printed)
    assert (code, "start the scheduler first" in words) == (1, True)
    bundle = await place.secret().ensure()
    code, text = await asyncio.to_thread(printed)
    assert code == 0
    (extender,) = yaml.safe_load(text)["extenders"]
    assert extender["enableHTTPS"] is True
    data = bundle.encode()
    assert extender["tlsConfig"] == {
        "serverName": "gpushare-schd-extender.kube-system.svc",
        "caData": data["ca.crt"],
        "certData": data["client.crt"],
        "keyData": data["client.key"],
    }
    assert "which only root may read" in text
    code, text = await asyncio.to_thread(printed, "--rotate-client")
    rotated = await place.secret().read()
    assert rotated is not None
    assert rotated.accepted > bundle.accepted
    assert json.dumps(rotated.encode()["client.key"]) in json.dumps(yaml.safe_load(text))
    code, text = await asyncio.to_thread(printed, "--plain")
    assert "tlsConfig" not in text
    assert "http://127.0.0.1:32766/" in text
    code, text = await asyncio.to_thread(printed, "--mode", "second")
    assert "keyFile: /etc/shoal-tls/client.key" in text
    assert (await asyncio.to_thread(printed, "--plain", "--rotate-client"))[0] == 2
