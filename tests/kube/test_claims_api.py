"""The versions of `resource.k8s.io`: which one is taken, and what becomes of its objects."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shoal.agent.claims.devices import HeldOfCard, pool_slices, whole_slices
from shoal.gpu.protocol import Driver
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.claims_api import V1, V1BETA1, V1BETA2, VERSIONS, ClaimsApi, ClaimsVersion, newer_slice, older_slice
from shoal.kube.client import Client
from shoal.kube.errors import AnswerError, KubeError, NotFoundError, UnservedError
from shoal.kube.objects.claims import ResourceSlice, ResourceSliceSpec
from shoal.model.gpu import Gpu, MigInstance

#: As kube-apiserver 1.32 has it.
SLICE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceSlice",
    "metadata": {"name": "n-gpu.shoal.dev-0", "resourceVersion": "7"},
    "spec": {
        "driver": "gpu.shoal.dev",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "basic": {
                    "attributes": {"index": {"int": 0}, "uuid": {"string": "GPU-0"}},
                    "capacity": {"memory": {"value": "15Gi"}},
                },
            },
            {"name": "gpu-1", "basic": {}},
        ],
    },
}
CLAIM: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "d", "uid": "u"},
    "spec": {
        "devices": {
            "requests": [
                {"name": "gpu", "deviceClassName": "shoal-gpu", "allocationMode": "ExactCount", "count": 2},
                {"name": "else", "firstAvailable": [{"name": "a", "deviceClassName": "shoal-gpu"}]},
            ],
            "constraints": [{"requests": ["gpu"], "matchAttribute": "gpu.shoal.dev/numaNode"}],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "gpu", "driver": "gpu.shoal.dev", "pool": "n", "device": "gpu-0", "adminAccess": None}
                ]
            }
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}],
    },
}


def test_a_slice_of_v1beta1_is_read():
    first, second = V1BETA1.slice_of(SLICE).spec.devices
    assert (first.name, second.name) == ("gpu-0", "gpu-1")
    assert first.attributes["uuid"].string == "GPU-0"
    assert first.capacity["memory"].value == "15Gi"


def test_a_slice_goes_there_and_back():
    assert older_slice(newer_slice(SLICE)) == SLICE
    assert V1BETA1.written(newer_slice(SLICE)) == SLICE


@pytest.mark.parametrize("version", VERSIONS, ids=lambda one: one.name)
def test_what_is_written_is_what_is_read(version: ClaimsVersion):
    gpus = [Gpu("GPU-0", 0, 15360), Gpu("GPU-1", 1, 1, mig=True, mig_instances=(MigInstance("MIG-1", "1g", 9728),))]
    make = pool_slices if version.shares else whole_slices
    for part in make(gpus, (), Driver("535.104.05"), {"GPU-0": HeldOfCard()}):
        one = ResourceSlice(spec=ResourceSliceSpec(devices=part.devices, shared_counters=part.counters))
        manifest = version.written(msgspec.to_builtins(one))
        assert manifest["apiVersion"] == f"resource.k8s.io/{version.name}"
        assert version.slice_of(manifest) == one
        assert all(("basic" in device) is (version is V1BETA1) for device in manifest["spec"].get("devices", ()))


def test_a_claim_of_v1beta1_is_read():
    claim = V1BETA1.claim_of(CLAIM)
    gpu, other = claim.spec.devices.requests
    assert gpu.exactly is not None
    assert (gpu.name, gpu.exactly.device_class_name, gpu.exactly.count) == ("gpu", "shoal-gpu", 2)
    assert other.exactly is None
    assert [one.name for one in other.first_available] == ["a"]
    assert claim.spec.devices.constraints[0].match_attribute == "gpu.shoal.dev/numaNode"
    assert claim.status.allocation is not None
    (result,) = claim.status.allocation.devices.results
    assert (result.device, result.share_id, result.consumed_capacity) == ("gpu-0", None, {})
    assert claim.status.reserved_for[0].uid == "p"


@pytest.mark.parametrize("obj", [{}, {"metadata": {"name": "x"}, "spec": None}, {"spec": {"devices": None}}])
def test_what_is_left_out_has_its_default(obj: dict):
    assert V1BETA1.slice_of(obj).spec.devices == ()
    assert V1BETA1.claim_of(obj).spec.devices.requests == ()


@pytest.mark.parametrize("devices", ["x", ["x"], [{"name": 1}], [{"basic": {"attributes": 3}}]])
def test_nonsense_is_no_slice(devices: object):
    with pytest.raises(AnswerError, match="cannot be read"):
        V1BETA1.slice_of({"metadata": {"name": "x"}, "spec": {"devices": devices}})


class Server:
    """An API server that has some versions of the group, and a claim in each."""

    def __init__(self, versions: Sequence[str] | None) -> None:
        self.versions = versions
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        served = [{"groupVersion": f"resource.k8s.io/{one}", "version": one} for one in self.versions or ()]
        if request.path == "/apis/resource.k8s.io" and self.versions is not None:
            return web.json_response({"kind": "APIGroup", "name": "resource.k8s.io", "versions": served})
        if request.path.split("/")[3:4] in [[one] for one in self.versions or ()] and request.path.endswith("/c"):
            return web.json_response(CLAIM)
        return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)


@contextlib.asynccontextmanager
async def api_of(server: Server) -> AsyncIterator[ClaimsApi]:
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(Access(f"http://127.0.0.1:{runner.addresses[0][1]}", StoredCredential())) as client:
            yield ClaimsApi(client)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("served", "taken"),
    [
        (["v1", "v1beta2", "v1beta1"], V1),
        (["v1beta1", "v1beta2"], V1BETA2),
        (["v1beta1", "v1alpha3"], V1BETA1),
    ],
)
async def test_the_newest_is_taken_and_looked_up_once(served: list[str], taken: ClaimsVersion):
    server = Server(served)
    async with api_of(server) as api:
        assert (await api.claim("d", "c")).metadata.uid == "u"
        assert await api.version() is taken
        with pytest.raises(NotFoundError):
            await api.claim("d", "other")
    claims = f"/apis/resource.k8s.io/{taken.name}/namespaces/d/resourceclaims"
    assert server.asked == ["/apis/resource.k8s.io", f"{claims}/c", f"{claims}/other"]


@pytest.mark.parametrize(("served", "words"), [(None, "has no resource.k8s.io"), (["v1alpha3"], "as v1alpha3 only")])
async def test_none_is_known_and_the_server_is_asked_again(served: list[str] | None, words: str):
    server = Server(served)
    async with api_of(server) as api:
        with pytest.raises(UnservedError, match=words):
            await api.version()
        with pytest.raises(KubeError):
            await api.claim("d", "c")
        server.versions = ["v1beta1"]
        assert await api.version() is V1BETA1
