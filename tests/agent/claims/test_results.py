"""What was allocated to a claim, and which requests its containers use together."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from shoal.agent.claims.devices import NodeDevices
from shoal.agent.claims.results import ClaimResult, card_shares, read_results, requests_of, views_of
from shoal.agent.errors import RefusedError
from shoal.kube.objects.claims import ResourceClaim
from shoal.kube.objects.pod import Pod
from shoal.model.gpu import Gpu, MigInstance
from shoal.model.request import Share
from tests.agent.claiming import spec_for

PART = MigInstance("MIG-a", "1g.10gb", 9728)
DEVICES = NodeDevices.of(
    [Gpu("GPU-0", 0, 16384), Gpu("GPU-1", 1, 16384), Gpu("GPU-2", 2, 81920, mig=True, mig_instances=(PART,))]
)


def result(request: str = "gpu", device: str = "gpu-0", memory: object = "3Gi", **more: object) -> dict:
    found = {"request": request, "driver": "gpu.shoal.dev", "pool": "n", "device": device, "shareID": "s", **more}
    return {"consumedCapacity": {"memory": memory}, **found}


def read(*results: dict, uid: str = "u", spec: dict | None = None) -> tuple[ClaimResult, ...]:
    status = {"allocation": {"devices": {"results": results}}}
    claim = {"metadata": {"name": "c", "uid": uid}, "spec": spec or spec_for(results), "status": status}
    return read_results(msgspec.convert(claim, ResourceClaim), "u", node="n", devices=DEVICES)


def test_a_share():
    assert read(result()) == (ClaimResult("gpu", "gpu-0", "GPU-0", Share(3072), "s"),)


def test_an_alternative_is_its_requests():
    assert read(result("gpu/small"))[0].request == "gpu"


def test_other_drivers_are_left_out():
    assert read(result(driver="nic.example.com", device="nic-0"), result())[0].device == "gpu-0"


def test_a_partition():
    (one,) = read({"request": "gpu", "driver": "gpu.shoal.dev", "pool": "n", "device": "mig-a"})
    assert (one.uuid, one.partition, one.share) == ("MIG-a", True, Share())


def test_several_requests_on_one_card_add_up():
    found = read(result("a", memory="3Gi"), result("b", memory="5Gi"), result("b", "gpu-1", "1Gi"))
    assert requests_of(found) == ("a", "b")
    assert [(card.uuid, card.index, card.share) for card in card_shares(found, {"GPU-1": 1})] == [
        ("GPU-0", 0, Share(8192)),
        ("GPU-1", 1, Share(1024)),
    ]


@pytest.mark.parametrize(
    ("results", "uid", "words"),
    [
        ([result()], "other", "another one now"),
        ([result(pool="m")], "u", "pool"),
        ([result(device="gpu-9")], "u", "does not have"),
        ([result(device="gpu-2")], "u", "does not have"),  # its partitions are there, it is not
        ([result(memory="-1Gi")], "u", "at least 1Mi"),
        ([result(memory="17Gi")], "u", "the card has 16384Mi"),
        ([result(adminAccess=True)], "u", "admin access"),
        ([result(memory="16Gi"), result("b", memory="1Gi")], "u", "whole, and once more"),
        ([result(shareID=None), result("b")], "u", "whole, and once more"),
        ([result(device="mig-a"), result("b", device="mig-a")], "u", "whole, and once more"),
    ],
)
def test_what_cannot_be(results, uid, words):
    with pytest.raises(RefusedError, match=words):
        read(*results, uid=uid)


def test_an_allocation_beyond_the_claims_spec():
    asked = {"deviceClassName": "shoal-gpu", "capacity": {"requests": {"memory": "1Mi"}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}
    assert read(result(memory="1Mi"), spec=spec)[0].share == Share(1)
    words = (
        "claim 'c' has '3Gi' of memory of device 'gpu-0' for request 'gpu', which asks for '1Mi'; .* delete the claim"
    )
    with pytest.raises(RefusedError, match=words):
        read(result(), spec=spec)
    with pytest.raises(RefusedError, match=r"has 2 devices for request 'gpu', which asks for 1; .* delete the claim"):
        read(result(shareID=None), result(device="gpu-1", shareID=None), spec=spec)


def test_without_an_allocation():
    claim = msgspec.convert({"metadata": {"name": "c", "uid": "u"}}, ResourceClaim)
    with pytest.raises(RefusedError, match="no allocation"):
        read_results(claim, "u", node="n", devices=DEVICES)


def pod(*containers: list[dict], init: list[list[dict]] | None = None, status: dict | None = None) -> Pod:
    def listed(some: Iterable[list[dict]], prefix: str) -> list[dict]:
        return [{"name": f"{prefix}{number}", "resources": {"claims": one}} for number, one in enumerate(some)]

    return msgspec.convert(
        {
            "metadata": {"name": "p"},
            "spec": {
                "containers": listed(containers, "c"),
                "initContainers": listed(init or [], "i"),
                "resourceClaims": [
                    {"name": "gpu", "resourceClaimName": "claim"},
                    {"name": "made", "resourceClaimTemplateName": "t"},
                    {"name": "nic", "resourceClaimName": "nic"},
                ],
            },
            "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}], **(status or {})},
        },
        Pod,
    )


ALL = {"name": "gpu"}
A, B, C = ({"name": "gpu", "request": name} for name in "abc")


@pytest.mark.parametrize(
    ("containers", "views"),
    [
        ([[ALL]], {"a": "a", "b": "b", "c": "c"}),  # it gets a device for all of them besides
        ([[ALL, A]], {"a": "abc", "b": "b", "c": "c"}),
        ([[A], [B], [C]], {"a": "a", "b": "b", "c": "c"}),
        ([[A], [A, B]], {"a": "a", "b": "ab", "c": "c"}),
        ([[B, A]], {"a": "ab", "b": "b", "c": "c"}),  # containers get their devices in the order in which they ask
        ([[A], [A, B], [ALL], [C]], {"a": "a", "b": "ab", "c": "c"}),
        ([[A, {"name": "nic"}]], {"a": "a", "b": "b", "c": "c"}),  # another driver's claim
        ([], {"a": "a", "b": "b", "c": "c"}),
    ],
)
def test_the_last_device_tells_of_all(containers, views):
    found = views_of("abc", "claim", [pod(*containers)], ours={"claim", "p-made-x"})
    assert {request: "".join(together) for request, together in found.items()} == views


def test_init_containers_count_too():
    found = views_of("ab", "claim", [pod([A], init=[[A, B]])], ours=())
    assert found == {"a": ("a",), "b": ("a", "b")}


def test_containers_that_cannot_both_be_told():
    with pytest.raises(RefusedError, match="each with other requests"):
        views_of("abc", "claim", [pod([A, C], [B, C])], ours=())


def test_a_container_with_two_claims_of_the_driver():
    with pytest.raises(RefusedError, match="uses claims 'claim' and 'p-made-x'"):
        views_of("a", "claim", [pod([ALL, {"name": "made"}])], ours={"p-made-x"})


def test_claims_of_extended_resources():
    mapped = [{"containerName": "c0", "resourceName": "r", "requestName": "a"}]
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "p-ext", "requestMappings": mapped}}
    mapped.append({"containerName": "c1", "resourceName": "r", "requestName": "b"})
    assert views_of("ab", "p-ext", [pod([], [], status=status)], ours=()) == {"a": ("a",), "b": ("b",)}
