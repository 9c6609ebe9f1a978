"""Preparing claims on a node whose API server is a stand-in: what counts, what waits, what survives."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shoal.agent.claims.preparing import PreparedClaims
from shoal.agent.claims.records import ClaimRecords
from shoal.agent.claims.specs import ClaimSpecs
from shoal.agent.errors import RefusedError
from shoal.agent.limits import NO_LIMITS, ContainerStart
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.claims_api import ClaimsApi
from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.kubelet import cdi
from shoal.kubelet.dra import ClaimRef, Prepared
from shoal.model.contract import dra, gpushare, keti, mechanisms, nvidia, shoal
from shoal.model.gpu import Isolation
from shoal.model.manifest import pod_parts
from shoal.model.pod import gpus_of
from shoal.model.request import Share
from tests.agent.scene import UNIT, Scene


class Api:
    """Claims by name, over HTTP; or nothing at all while it is away."""

    def __init__(self) -> None:
        self.version = "v1"
        self.claims: dict[str, dict] = {}
        self.away = False
        self.asked = 0

    async def group(self, request: web.Request) -> web.Response:
        return web.json_response({"versions": [{"version": self.version}]})

    async def get(self, request: web.Request) -> web.Response:
        self.asked += 1
        assert request.match_info["version"] == self.version
        found = self.claims.get(request.match_info["name"])
        if self.away:
            return web.json_response({"kind": "Status", "code": 500, "message": "away"}, status=500)
        if found is None:
            return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)
        return web.json_response(found)


class Walls:
    """Limits that may fail, and note for whom they are."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.prepared: list[ContainerStart] = []

    def __getattr__(self, name: str) -> object:
        return getattr(NO_LIMITS, name)

    def isolation(self, uuid: str) -> Isolation:
        return Isolation.NONE

    async def prepare(self, start: ContainerStart) -> None:
        if self.fails is not None:
            raise self.fails
        self.prepared.append(start)


class Desk(Scene):
    """A node with a DRA driver, without its sockets."""

    def __init__(self, folder: Path, api: Api, client: Client) -> None:
        super().__init__(folder, "4xT4")
        self.api = api
        self.client = client
        self.walls = Walls()
        self.begin()

    def begin(self) -> None:
        """The driver's process starts."""
        specs = ClaimSpecs(self.paths.own_cdi, self.specs, self.walls, lambda: self.pods.node, unit=UNIT)  # type: ignore[arg-type]
        records = ClaimRecords(self.paths.run / "claims", "n")
        self.claims = PreparedClaims(ClaimsApi(self.client), self.pods, records, specs)
        self.claims.recall()

    def forget(self) -> None:
        """All that the process had in memory is gone."""
        for uid in list(self.pods.claims.held()):
            self.pods.release_claim(uid)

    def pod(self, name: str, *used: dict, claim: str = "c", limits: dict | None = None) -> None:
        """A pod that uses a claim is bound."""
        resources = {"claims": list(used) or [{"name": "gpu"}], "limits": limits or {}}
        manifest = {
            "metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {
                "nodeName": "n",
                "containers": [{"name": "main", "resources": resources}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            },
        }
        self.pods.on_pod(Change(ChangeType.ADDED, None, msgspec.convert(manifest, Pod)))

    def make(self, pod: Pod, *results: tuple[str, int, str], clients: str = "0", **changes: Any) -> ClaimRef:
        """A claim `c` was made of the names of a pod; `changes` of its metadata are what somebody forged."""
        claim = self.allocate("c", *results, pod=pod.metadata.uid, clients=clients)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod.metadata.uid, "controller": True}
        made = {"annotations": {dra.ANNOTATION_EXTENDED_RESOURCE: "true"}, "ownerReferences": [owner]}
        self.api.claims["c"]["metadata"] |= made | changes
        asked = gpus_of(pod_parts(pod), unit=UNIT).containers
        requests = [{"name": f"r{number}", "exactly": dra.exact_request(one)} for number, one in enumerate(asked)]
        self.api.claims["c"]["spec"] = {"devices": {"requests": requests}}
        return claim

    def pod_by_names(self, *asked: dict[str, str], annotations: dict[str, str] | None = None, uid: str = "p") -> Pod:
        """A pod that asks by resource names, which the node serves through claims, and has claim `c` by its status."""
        mapped = [
            {"containerName": f"c{number}", "resourceName": next(iter(one)), "requestName": f"r{number}"}
            for number, one in enumerate(asked)
        ]
        containers = [
            {"name": f"c{number}", "resources": {"limits": one, "requests": one}} for number, one in enumerate(asked)
        ]
        manifest = {
            "metadata": {"name": uid, "namespace": "d", "uid": uid, "annotations": annotations or {}},
            "spec": {"nodeName": "n", "containers": containers},
            "status": {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": mapped}},
        }
        pod = msgspec.convert(manifest, Pod)
        self.pods.serve_by_claims(frozenset(mechanisms.NAMES))
        self.pods.on_pod(Change(ChangeType.ADDED, None, pod))
        return pod

    def allocate(
        self, name: str, *results: tuple[str, int, str], pod: str = "p", uid: str = "", clients: str = "0"
    ) -> ClaimRef:
        """A claim has shares of cards: request, card, memory."""
        given = [
            {
                "request": request,
                "driver": dra.DRIVER,
                "pool": "n",
                "device": dra.device_name(self.pods.node.gpus[card].uuid),
                "shareID": f"{name}-{number}",
                "consumedCapacity": {"memory": memory, "compute": "0", "clients": clients},
            }
            for number, (request, card, memory) in enumerate(results)
        ]
        uid = uid or f"uid-{name}"
        self.api.claims[name] = {
            "metadata": {"name": name, "namespace": "d", "uid": uid},
            "status": {
                "allocation": {"devices": {"results": given}},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": pod}],
            },
        }
        return ClaimRef("d", name, uid)

    async def prepare(self, claim: ClaimRef, seconds: float = 0.0) -> Prepared:
        return (await self.claims.prepare([claim], seconds))[claim.uid]

    def visible(self, *names: str) -> str:
        """What a container with these CDI devices sees."""
        found = cdi.load([self.paths.own_cdi])
        return cdi.resolve(names, found).environment({})[nvidia.ENV_VISIBLE_DEVICES]

    def uuid(self, card: int) -> str:
        return self.pods.node.gpus[card].uuid

    def held(self) -> dict[str, dict[str, Share]]:
        held = shoal.decode_held(shoal.encode_held(self.pods.held()))
        return {uid: {card.uuid: card.share for card in cards} for uid, cards in held.claims.items()}


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    api = Api()
    app = web.Application()
    app.router.add_get("/apis/resource.k8s.io", api.group)
    app.router.add_get("/apis/resource.k8s.io/{version}/namespaces/d/resourceclaims/{name}", api.get)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        access = Access(f"http://127.0.0.1:{runner.addresses[0][1]}", StoredCredential())
        client = await stack.enter_async_context(Client(access))
        yield Desk(tmp_path, api, client)


async def test_a_share(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    answer = await desk.prepare(claim)
    (device,) = answer.devices
    assert (device.requests, device.pool, device.share_id) == (("gpu",), "n", "c-0")
    assert device.cdi_devices == ("shoal.dev/claim=uid-c-gpu",)
    assert desk.visible(*device.cdi_devices) == desk.uuid(1)
    assert desk.held() == {"uid-c": {desk.uuid(1): Share(3072)}}
    assert [start.container.cards[0].share for start in desk.walls.prepared] == [Share(3072)]


async def test_a_card_of_an_older_cluster_is_whole(desk: Desk):
    """Its allocations know neither shares nor amounts."""
    desk.api.version = "v1beta1"
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    found = desk.api.claims["c"]
    found["spec"] = {"devices": {"requests": [{"name": "gpu", "deviceClassName": "shoal-gpu"}]}}
    for one in found["status"]["allocation"]["devices"]["results"]:
        del one["shareID"], one["consumedCapacity"]
    (device,) = (await desk.prepare(claim)).devices
    assert device.share_id is None
    assert desk.visible(*device.cdi_devices) == desk.uuid(1)
    assert desk.held() == {"uid-c": {desk.uuid(1): Share(exclusive=True)}}


async def test_one_cdi_device_for_all_cards_of_a_request(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", *(("gpu", card, "3Gi") for card in (2, 0, 3, 1)))
    devices = (await desk.prepare(claim)).devices
    assert [len(one.cdi_devices) for one in devices] == [1, 0, 0, 0]
    assert desk.visible(*devices[0].cdi_devices) == ",".join(desk.uuid(card) for card in (2, 0, 3, 1))


async def test_requests_that_a_container_uses_together(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("a", 0, "3Gi"), ("b", 0, "5Gi"), ("c", 1, "1Gi"))
    devices = (await desk.prepare(claim)).devices
    names = [name for one in devices for name in one.cdi_devices]
    assert desk.visible(*names) == f"{desk.uuid(0)},{desk.uuid(1)}"
    assert desk.visible(names[1]) == desk.uuid(0)
    last = desk.walls.prepared[-1]
    assert {card.uuid: card.share.memory_mib for card in last.container.cards} == {
        desk.uuid(0): 8192,
        desk.uuid(1): 1024,
    }


async def test_again_is_the_same(desk: Desk):
    """kubelet asks again after a restart of the machine, with the same UID."""
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "12Gi"))
    first = await desk.prepare(claim)
    assert await desk.prepare(claim) == first
    assert desk.held() == {"uid-c": {desk.uuid(1): Share(12288)}}


async def test_known_claim_needs_no_api_server(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "12Gi"))
    first = await desk.prepare(claim)
    desk.api.away = True
    assert await desk.prepare(claim) == first


async def test_api_server_away_is_waited_for(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    desk.api.away = True
    assert "cannot be read" in (await desk.prepare(claim)).error
    waiting = asyncio.ensure_future(desk.prepare(claim, 300))
    while desk.api.asked < 3:  # noqa: ASYNC110 - the stand-in tells nobody
        await asyncio.sleep(0.01)
    desk.api.away = False
    assert (await waiting).error == ""


async def test_unprepare_needs_the_uid_alone(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    await desk.prepare(claim)
    desk.api.claims.clear()
    desk.api.away = True
    assert await desk.claims.unprepare([ClaimRef("x", "y", claim.uid), ClaimRef("d", "never", "seen")]) == {}
    assert desk.held() == {}
    assert list(desk.paths.own_cdi.iterdir()) == []
    desk.begin()
    assert len(desk.claims) == 0


async def test_room_is_what_numbers_and_claims_leave(desk: Desk):
    desk.pod("p")
    desk.put("numbers", card=1)  # 2 GiB
    desk.pods.give(desk.pods.get("numbers"))  # type: ignore[arg-type]
    size = desk.pods.node.gpus[1].memory_mib
    first = desk.allocate("first", ("gpu", 1, f"{size - 2048 - 1024}Mi"))
    assert (await desk.prepare(first)).error == ""
    second = desk.allocate("second", ("gpu", 1, "2Gi"))
    answer = await desk.prepare(second)
    assert f"has {size - 1024} MiB in use by other pods of the node, or by claims" in answer.error
    waiting = asyncio.ensure_future(desk.prepare(second, 300))
    await asyncio.sleep(0)
    desk.drop("numbers")
    assert (await waiting).error == ""


async def test_no_two_claims_get_the_same_room(desk: Desk):
    for name in "ab":
        desk.pod(name)
    claims = [desk.allocate(name, ("gpu", 1, "10Gi"), pod=name) for name in "ab"]
    answers = await asyncio.gather(*(desk.prepare(one) for one in claims))
    assert sorted(bool(one.error) for one in answers) == [False, True]


async def test_whole_card_and_shares(desk: Desk):
    desk.pod("p")
    share = desk.allocate("share", ("gpu", 0, "1Gi"))
    whole = desk.allocate("whole", ("gpu", 0, f"{desk.pods.node.gpus[0].memory_mib}Mi"))
    assert (await desk.prepare(share)).error == ""
    assert "in use by other pods" in (await desk.prepare(whole)).error
    await desk.claims.unprepare([share])
    assert (await desk.prepare(whole)).error == ""
    assert "in use as a whole" in (await desk.prepare(share)).error


async def test_claims_leave_fewer_units_by_number(desk: Desk):
    """kubelet is told of what claims hold, so that no scheduler books it by number."""
    desk.record({})
    desk.act()
    before = desk.serving.plugins["aliyun.com/gpu-mem"]._listing
    desk.pod("p")
    await desk.prepare(desk.allocate("c", ("gpu", 1, "3Gi")))
    desk.act()
    after = desk.serving.plugins["aliyun.com/gpu-mem"]._listing
    assert len(after.withdrawn) - len(before.withdrawn) == 3
    assert len(desk.serving.plugins["nvidia.com/gpu"]._listing.withdrawn) == 1


async def test_killed_after_the_record(desk: Desk):
    """What was counted counts again, and the CDI file is made again; kubelet asks once more or takes it back."""
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    first = await desk.prepare(claim)
    for path in desk.paths.own_cdi.iterdir():
        path.unlink()
    (desk.paths.own_cdi / ".shoal.dev-claim-uid-x.json.123").write_text("{")
    (desk.paths.own_cdi / "shoal.dev-claim-uid-stranger.json").write_text("{}")
    desk.forget()
    desk.begin()
    assert desk.held() == {"uid-c": {desk.uuid(1): Share(3072)}}
    assert [path.name for path in desk.paths.own_cdi.iterdir()] == ["shoal.dev-claim-uid-c.json"]
    assert desk.visible("shoal.dev/claim=uid-c-gpu") == desk.uuid(1)
    assert await desk.prepare(claim) == first


async def test_broken_record_is_prepared_again(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    await desk.prepare(claim)
    (path,) = (desk.paths.run / "claims").iterdir()
    path.write_text('{"version":1')
    desk.forget()
    desk.begin()
    assert desk.held() == {}
    assert (await desk.prepare(claim)).error == ""
    assert json.loads(path.read_text())["version"] == 1


async def test_claims_that_ended_while_the_machine_was_down(desk: Desk):
    desk.pod("p")
    for name in ("stays", "gone", "anew", "free"):
        assert (await desk.prepare(desk.allocate(name, ("gpu", 0, "1Gi")))).error == ""
    del desk.api.claims["gone"]
    desk.allocate("anew", ("gpu", 0, "1Gi"), uid="another")
    del desk.api.claims["free"]["status"]["allocation"]
    await desk.claims.forget_gone()
    assert set(desk.held()) == {"uid-stays"}


async def test_limit_that_cannot_be_set(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    desk.walls.fails = RefusedError("the daemon does not answer")
    assert (await desk.prepare(claim)).error == "the daemon does not answer"
    assert desk.held() == {}
    assert list((desk.paths.run / "claims").iterdir()) == []


async def test_full_disk(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    (desk.paths.run).mkdir(exist_ok=True)
    (desk.paths.run / "claims").write_text("not a folder")
    assert "cannot be remembered" in (await desk.prepare(claim)).error
    assert desk.held() == {}


async def test_numbers_and_a_claim_in_one_container(desk: Desk):
    desk.pod("p", limits={"aliyun.com/gpu-mem": "2"})
    claim = desk.allocate("c", ("gpu", 1, "3Gi"))
    assert "asks for aliyun.com/gpu-mem and for a claim" in (await desk.prepare(claim)).error


@pytest.mark.parametrize("again", [False, True])
async def test_a_claim_made_of_names(desk: Desk, again: bool):
    """Its containers have the variables that they have by devices, also when a file was lost."""
    annotations = {keti.ANNOTATION_MEMORY_LIMIT: "2Gi", keti.ANNOTATION_MEMORY_REQUEST: "1Gi"}
    asked = [{gpushare.RESOURCE_MEMORY: "3"}, {gpushare.RESOURCE_MEMORY: "2"}, {keti.RESOURCE_MPS: "1"}]
    pod = desk.pod_by_names(*asked, annotations=annotations)
    claim = desk.make(pod, ("r0", 1, "3Gi"), ("r1", 2, "2Gi"), ("r2", 2, "2Gi"))
    answer = await desk.prepare(claim)
    assert not answer.error
    assert desk.claims.names() == {gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS}
    if again:
        desk.forget()
        for path in desk.paths.own_cdi.iterdir():
            path.unlink()
        desk.begin()
        assert desk.claims.names() == {gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS}
    found = cdi.load([desk.paths.own_cdi])
    seen = [cdi.resolve([f"shoal.dev/claim=uid-c-r{number}"], found).environment({}) for number in range(3)]
    assert [one[nvidia.ENV_VISIBLE_DEVICES] for one in seen[:2]] == [desk.uuid(1), desk.uuid(2)]
    assert [one[gpushare.ENV_CONTAINER] for one in seen[:2]] == ["3", "2"]
    assert [one[gpushare.NAME_INDEX] for one in seen[:2]] == ["1", "2"]
    assert seen[2][keti.ENV_VISIBLE_DEVICES] == desk.uuid(2)
    assert seen[2][keti.ENV_MEMORY_LIMIT] == "0=2048M"
    # Held once, by the claim, and by nobody by number.
    assert desk.held() == {"uid-c": {desk.uuid(1): Share(3072), desk.uuid(2): Share(4096)}}
    assert desk.pods.totals.held(gpushare.RESOURCE_MEMORY, desk.uuid(1)) == Share()


LARGE = {keti.ANNOTATION_MEMORY_LIMIT: "14Gi"}
ONE_CLIENT = {keti.RESOURCE_MPS: "1"}
BY_HAND: dict[str, Any] = {"annotations": {}, "ownerReferences": []}
FOR_ANOTHER = {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "q", "controller": True}]}
SHARED = {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": False}]}


@pytest.mark.parametrize("forged", [BY_HAND, {"annotations": {}}, FOR_ANOTHER, SHARED])
async def test_a_status_that_names_a_claim_which_was_not_made_for_the_pod(desk: Desk, forged: dict[str, Any]):
    pod = desk.pod_by_names(ONE_CLIENT, annotations=LARGE)
    claim = desk.make(pod, ("r0", 1, "14Gi"), clients="1", **forged)
    assert "which was not made for this pod" in (await desk.prepare(claim)).error
    assert desk.held() == {}


@pytest.mark.parametrize(
    "request_",
    [
        {"allocationMode": "ExactCount", "count": 1, "capacity": {"requests": {"memory": "1Mi", "clients": "1"}}},
        {"allocationMode": "ExactCount", "count": 2, "capacity": {"requests": {"memory": "14Gi", "clients": "1"}}},
        {"allocationMode": "All", "capacity": {"requests": {"memory": "14Gi", "clients": "1"}}},
        {"allocationMode": "ExactCount", "count": 1},
        None,
    ],
)
async def test_a_claim_that_requests_something_else_than_its_pod(desk: Desk, request_: dict[str, Any] | None):
    """Whoever made it: owner and annotation are as a scheduler writes them."""
    pod = desk.pod_by_names(ONE_CLIENT, annotations=LARGE)
    claim = desk.make(pod, ("r0", 1, "1Mi"), clients="1")
    made = [] if request_ is None else [{"name": "r0", "exactly": request_}]
    desk.api.claims["c"]["spec"] = {"devices": {"requests": made}}
    assert "is not what container 'c0' of pod 'p' asks for" in (await desk.prepare(claim)).error
    assert desk.held() == {}


async def test_a_limit_is_never_above_what_is_allocated(desk: Desk):
    """Also for a claim that is all that its pod asks for, and got less."""
    pod = desk.pod_by_names(ONE_CLIENT, annotations=LARGE)
    claim = desk.make(pod, ("r0", 1, "1Mi"), clients="1")
    answer = await desk.prepare(claim)
    assert not answer.error
    seen = cdi.resolve(answer.devices[0].cdi_devices, cdi.load([desk.paths.own_cdi])).environment({})
    assert seen[keti.ENV_MEMORY_LIMIT] == "0=1M"
    assert {one.container.memory_limit_mib for one in desk.walls.prepared} == {1}


async def test_names_that_the_node_serves_as_devices_and_a_claim_by_the_status(desk: Desk):
    """The status of a pod does not make its devices a claim."""
    pod = desk.pod_by_names({gpushare.RESOURCE_MEMORY: "2"})
    desk.pods.serve_by_claims(frozenset())
    claim = desk.make(pod, ("r0", 1, "2Gi"))
    assert "asks for aliyun.com/gpu-mem and for a claim" in (await desk.prepare(claim)).error


async def test_nobody_has_reserved_it(desk: Desk):
    claim = desk.allocate("c", ("gpu", 1, "3Gi"), pod="elsewhere")
    assert "no pod of this node" in (await desk.prepare(claim)).error


async def test_claim_under_the_same_name(desk: Desk):
    desk.pod("p")
    claim = desk.allocate("c", ("gpu", 1, "3Gi"), uid="new")
    assert "another one now" in (await desk.prepare(ClaimRef("d", "c", "old"))).error
    assert (await desk.prepare(claim)).error == ""


async def test_allocated_anew_under_the_same_uid(desk: Desk):
    """A claim that nobody used was allocated again; what counts is what it has now."""
    desk.pod("p")
    await desk.prepare(desk.allocate("c", ("gpu", 1, "3Gi")))
    answer = await desk.prepare(desk.allocate("c", ("gpu", 2, "5Gi")))
    assert desk.visible(*answer.devices[0].cdi_devices) == desk.uuid(2)
    assert desk.held() == {"uid-c": {desk.uuid(2): Share(5120)}}
