"""The whole scheduler on a real API server, with the rights of `deploy/scheduler-offer` and no others: who may ask for
offers, by whichever way, what is held for a copy, and the room it publishes.
"""

import asyncio
import contextlib
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from shoal.kube.access.credentials import Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import CONFIG_MAPS, NODES, PODS, SECRETS
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ClusterRoom, CopyOrigin
from shoal.scheduler.app import Ports, Scheduler
from shoal.scheduler.certificates import OFFER_SERVER_NAME, decode
from shoal.scheduler.config import SECRET, LiveLoadConfig, LoadSource, OfferConfig, SchedulerConfig, TlsConfig
from tests.kube.waiting import until
from tests.scheduler.extender.requests import pod
from tests.scheduler.offer.site import NAMESPACE, account, token_of
from tests.testbed.apiserver import ApiServer
from tests.testbed.fake_nodes import node
from tests.testbed.processes import Run

pytestmark = pytest.mark.kube

DEPLOY = Path(__file__).parents[3] / "deploy"
CONFIG = SchedulerConfig(
    host="127.0.0.1",
    port=0,
    health_host="127.0.0.1",
    health_port=0,
    tls=TlsConfig(secret=SECRET),
    offer=OfferConfig(enabled=True, host="127.0.0.1", port=0),
    live_load=LiveLoadConfig(source=LoadSource.OFF),
)


@pytest.fixture(scope="module")
def installed(testbed_run: Run) -> Iterator[ApiServer]:
    """An API server with what is shipped for the scheduler, and two nodes with two cards."""
    server = ApiServer(testbed_run, f"offer-{uuid.uuid4().hex[:6]}")
    server.create_namespace("team")
    server.kubectl("apply", "-k", str(DEPLOY / "scheduler-offer"))
    for name in ("a", "b"):
        server.request("POST", "/api/v1/nodes", node(name, 2))
    server.kubectl("taint", "nodes", "--all", "node.kubernetes.io/not-ready-")  # no controller takes it off
    yield server
    server.stop()


@pytest.fixture
async def admin(installed: ApiServer) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig([installed.kubeconfig()], environ={}, explicit=True)) as client:
        yield client


@dataclass
class Running:
    """The scheduler, and how to ask it."""

    scheduler: Scheduler
    port: int
    tls: ssl.SSLContext
    session: aiohttp.ClientSession

    async def ask(self, headers: dict[str, str], **asked: Any) -> tuple[int, Any]:
        """Status and answer, decoded if it is JSON."""
        content = msgspec.json.encode({"pod": pod(gpu="1", namespace="team"), **asked})
        url = f"https://127.0.0.1:{self.port}{clusters.PATH_OFFER}"
        async with self.session.post(
            url, data=content, headers=headers, ssl=self.tls, server_hostname=OFFER_SERVER_NAME
        ) as response:
            answer = await response.read()
            return response.status, msgspec.json.decode(answer) if response.status == 200 else answer.decode()


@contextlib.asynccontextmanager
async def running(admin: Client, config: SchedulerConfig = CONFIG) -> AsyncIterator[Running]:
    """The scheduler with the token of its own account."""
    token = await token_of(admin, "shoal-scheduler", namespace=NAMESPACE)
    access = replace(admin.access, credentials=StoredCredential(token=Inline(token.encode())))
    served: list[Ports] = []
    async with Client(access) as client, Recorder(client, "test") as recorder, aiohttp.ClientSession() as session:
        scheduler = Scheduler(client, recorder, config, identity=f"test-{uuid.uuid4().hex[:6]}")
        task = asyncio.create_task(scheduler.run(serving=served.append))
        try:
            await until(lambda: task.done() or (bool(served) and not scheduler.not_ready()), "leads")
            if task.done():
                await task
            (ports,) = served
            assert ports.offer is not None
            bundle = decode((await admin.get(SECRETS, SECRET, namespace=NAMESPACE)).data)
            context = ssl.create_default_context(cadata=bundle.authority.certificate.decode())
            yield Running(scheduler, ports.offer, context, session)
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.fixture
async def offering(admin: Client) -> AsyncIterator[Running]:
    async with running(admin) as made:
        yield made


def own_address() -> str:
    """An address of this machine that is not loopback, by which packets would leave; empty without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent
        except OSError:
            return ""
        return str(probe.getsockname()[0])


async def room(admin: Client) -> ClusterRoom:
    found = await admin.get(CONFIG_MAPS, clusters.NAME_ROOM, namespace=NAMESPACE)
    return clusters.decode(ClusterRoom, found.data[clusters.KEY_ROOM], what="room")


async def test_callers_are_known_by_their_tokens_and_rights(admin: Client, offering: Running) -> None:
    await account(admin, "manager", may=NAMESPACE)
    await account(admin, "nobody")
    good, other = await token_of(admin, "manager"), await token_of(admin, "nobody")
    for headers in ({"Authorization": f"Bearer {good}"}, {clusters.HEADER_TOKEN: good}):
        status, answer = await offering.ask(headers, count=9)
        assert (status, answer["fits"]) == (200, 4), answer
        assert 0 < answer["score"] <= 1
    status, words = await offering.ask({clusters.HEADER_TOKEN: other})
    assert (status, "you may not create offers.shoal.dev in namespace kube-system" in words) == (403, True)
    elsewhere = await token_of(admin, "manager", audience="elsewhere")
    for token in ("forged", elsewhere, good[:-4] + "AAAA"):
        assert (await offering.ask({clusters.HEADER_TOKEN: token}))[0] == 401
    assert (await offering.ask({}))[0] == 401


async def test_a_copy_gets_the_card_that_is_held_for_it(admin: Client, offering: Running) -> None:
    """Others come between the offer and the copy: they get what is left."""
    await account(admin, "holder", may=NAMESPACE)
    token = {clusters.HEADER_TOKEN: await token_of(admin, "holder")}
    wanted = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"schedulerName": "gpu-scheduler", "containers": [{"name": "main", "image": "x", **wanted}]}
    home = str(uuid.uuid4())
    asked = {"metadata": {"name": "work", "namespace": "team"}, "spec": spec}
    _, answer = await offering.ask(token, pod=asked, origin=home, hold=60)
    assert answer["held"]
    ledger = offering.scheduler.state.engine.ledger
    (held,) = [one.allocation for one in ledger.bookings() if one.pod.startswith("offer:")]
    await until(lambda: offering.scheduler._room.writes > 0, "told")
    for number in range(3):
        await admin.create(PODS, {"metadata": {"name": f"other-{number}"}, "spec": spec}, namespace="team")
    origin = clusters.encode(CopyOrigin("home", home, 1), what=clusters.ANNOTATION_ORIGIN)
    meta = {"name": "work", "annotations": {clusters.ANNOTATION_ORIGIN: origin}}
    await admin.create(PODS, {"metadata": meta, "spec": spec}, namespace="team")
    names = ("work", "other-0", "other-1", "other-2")
    pods: dict[str, Pod] = {}
    while len(pods) < len(names):
        found = {name: await admin.get(PODS, name, namespace="team") for name in names}
        pods = {name: one for name, one in found.items() if one.spec.node_name}
        await asyncio.sleep(0.1)
    (container,) = msgspec.json.decode(pods["work"].metadata.annotations["shoal.dev/allocation"])["containers"]
    assert [card["uuid"] for card in container["cards"]] == list(held.held())
    assert not any(one.pod.startswith("offer:") for one in ledger.bookings())
    for name in names:
        await admin.delete(PODS, name, namespace="team", grace_seconds=0)


async def test_the_room_is_published_and_not_written_again_at_rest(admin: Client) -> None:
    async with running(admin) as offering:
        publisher = offering.scheduler._room
        await until(lambda: publisher.looks > 2, "looked")
        first = await room(admin)
        assert first.nodes == len((await admin.list(NODES)).items)
        assert [(one.model, one.cards) for one in first.models] == [("Testbed T16", 4)]
        await account(admin, "asker", may=NAMESPACE)
        token = {clusters.HEADER_TOKEN: await token_of(admin, "asker")}
        writes, looks = publisher.writes, publisher.looks
        assert (await offering.ask(token, count=4))[0] == 200
        await until(lambda: publisher.looks > looks + 2, "looked")
        assert publisher.writes == writes, "offers without holds change nothing"
        assert (await offering.ask(token, origin="u1", hold=60))[1]["held"]
        await until(lambda: publisher.writes > writes, "written")
        held = await room(admin)
        assert (held.holds, held.models[0].free) == (1, first.models[0].free - 1)
        assert held.serial == first.serial + 1
    async with running(admin) as offering:  # nothing of the hold survives
        await until(lambda: offering.scheduler._room.writes == 1, "written")
        last = await room(admin)
        assert (last.holds, last.models, last.serial) == (0, first.models, held.serial + 1)


async def test_the_way_in_by_the_proxy_to_services(admin: Client, installed: ApiServer) -> None:
    """The API server drops `Authorization` on the way: the token in our own header arrives."""
    address = own_address()
    if not address:
        pytest.skip("this machine has no address but loopback, to which the API server proxies nobody")
    config = msgspec.structs.replace(CONFIG, offer=OfferConfig(enabled=True, host=address, port=0))
    async with running(admin, config) as offering:
        # The API server proxies to addresses of pods alone.
        core, name = f"/api/v1/namespaces/{NAMESPACE}", clusters.NAME_OFFER_SERVICE
        behind: dict[str, Any] = {
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "scheduler", "image": "x"}]},
        }
        behind["spec"] |= {"serviceAccountName": "shoal-scheduler", "automountServiceAccountToken": False}
        await admin.request("POST", f"{core}/pods", body=behind)
        status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
        made = await admin.patch(PODS, name, status, namespace=NAMESPACE, subresource="status")
        target = {"kind": "Pod", "name": name, "namespace": NAMESPACE, "uid": made.metadata.uid}
        ports = [{"name": "offer", "port": offering.port, "protocol": "TCP"}]
        subset = {"addresses": [{"ip": address, "targetRef": target}], "ports": ports}
        await admin.request("POST", f"{core}/endpoints", body={"metadata": {"name": name}, "subsets": [subset]})
        await account(admin, "remote", may=NAMESPACE)
        rule = {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": [f"https:{clusters.NAME_OFFER_SERVICE}:offer"],
            "verbs": ["create"],
        }
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "proxy"}
        subject = {"kind": "ServiceAccount", "name": "remote", "namespace": "shoal-members"}
        named = {"metadata": {"name": "proxy"}}
        root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        await admin.request("POST", f"{root}/roles", body={**named, "rules": [rule]})
        await admin.request("POST", f"{root}/rolebindings", body={**named, "roleRef": role, "subjects": [subject]})
        token = await token_of(admin, "remote")
        service = f"/api/v1/namespaces/{NAMESPACE}/services/https:{clusters.NAME_OFFER_SERVICE}:offer"
        url = f"{admin.access.server}{service}/proxy{clusters.PATH_OFFER}"
        content = msgspec.json.encode({"pod": pod(gpu="1", namespace="team"), "count": 9})
        context = ssl.create_default_context(cafile=str(installed.ca))

        async def ask(headers: dict[str, str]) -> tuple[int, str]:
            shown = {"Authorization": f"Bearer {token}", **headers}
            async with offering.session.post(url, data=content, headers=shown, ssl=context) as response:
                return response.status, await response.text()

        answer = await ask({clusters.HEADER_TOKEN: token})
        assert answer[0] == 200, answer
        assert msgspec.json.decode(answer[1])["fits"] == 4
        refused, words = await ask({})
        assert (refused, "show a token" in words) == (401, True)
