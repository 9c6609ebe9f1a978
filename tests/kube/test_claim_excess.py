"""An allocation of Shoal's driver is compared with the spec of its claim."""

from typing import Any

import msgspec
import pytest

from shoal.kube.claim_excess import excess
from shoal.kube.objects.claims import ResourceClaim
from shoal.model.contract import dra

ONE_MEBIBYTE: dict[str, Any] = {"capacity": {"requests": {"memory": "1Mi"}}}
SHARE: dict[str, Any] = {"shareID": "s", "consumedCapacity": {"memory": "1Mi", "compute": "0"}}
Manifest = dict[str, Any]


def result(number: int = 0, *, request: str = "gpu", kind: str = "gpu", **more: Any) -> Manifest:
    return {"request": request, "driver": dra.DRIVER, "pool": "n", "device": f"{kind}-{number}", **more}


def claim(requests: list[Manifest], *results: Manifest) -> ResourceClaim:
    spec = {"devices": {"requests": requests}}
    status = {"allocation": {"devices": {"results": results}}}
    return msgspec.convert({"metadata": {"name": "c"}, "spec": spec, "status": status}, ResourceClaim)


def exactly(**asked: Any) -> list[Manifest]:
    return [{"name": "gpu", "exactly": {"deviceClassName": dra.DEVICE_CLASS, **asked}}]


def share(**consumed: Any) -> Manifest:
    return {"shareID": "s", "consumedCapacity": consumed}


ALTERNATIVES = [
    {
        "name": "gpu",
        "firstAvailable": [
            {"name": "large", "deviceClassName": dra.DEVICE_CLASS, "count": 2},
            {"name": "small", "deviceClassName": dra.DEVICE_CLASS, **ONE_MEBIBYTE},
        ],
    }
]
COVERED = {
    "no allocation": claim(exactly()),
    "a whole GPU": claim(exactly(), result()),
    "a whole GPU as a share": claim(exactly(), result(**share(memory="24Gi", compute="0"))),
    "as many as asked": claim(exactly(count=2), result(), result(1)),
    "all that match": claim(exactly(allocationMode="All"), *map(result, range(8))),
    "a share": claim(exactly(**ONE_MEBIBYTE), result(**SHARE)),
    "memory rounded up": claim(exactly(capacity={"requests": {"memory": "1"}}), result(**SHARE)),
    "memory rounded up to the next step": claim(
        exactly(capacity={"requests": {"memory": "1500Ki"}}), result(**share(memory="2Mi"))
    ),
    "compute rounded up": claim(
        exactly(capacity={"requests": {"memory": "1Mi", "compute": "1500m"}}),
        result(**share(memory="1Mi", compute="2")),
    ),
    "a client without a size": claim(
        exactly(capacity={"requests": {"memory": "0", "clients": "1"}}), result(**share(memory="0", clients="1"))
    ),
    "a MIG device for part of its memory": claim(exactly(**ONE_MEBIBYTE), result(kind="mig")),
    "one alternative": claim(ALTERNATIVES, result(request="gpu/large"), result(1, request="gpu/large")),
    "devices of another driver": claim(exactly(**ONE_MEBIBYTE), *(result(n, driver="other.example") for n in (1, 2))),
}
EXCESS = {
    "has 4 devices for request 'gpu', which asks for 1": claim(exactly(**ONE_MEBIBYTE), *map(result, range(4))),
    "has 3 devices for request 'gpu', which asks for 2": claim(exactly(count=2), *map(result, range(3))),
    "has 2 devices": claim(exactly(), result(), result(1, driver="other.example")),
    "has all of device 'gpu-0' for request 'gpu', which asks for '1Mi' of memory": claim(
        exactly(**ONE_MEBIBYTE), result()
    ),
    "has '24Gi' of memory of device 'gpu-0' for request 'gpu', which asks for '1Mi'": claim(
        exactly(**ONE_MEBIBYTE), result(**share(memory="24Gi"))
    ),
    "has '50' of compute": claim(exactly(**ONE_MEBIBYTE), result(**share(memory="1Mi", compute="50"))),
    "has '1' of clients": claim(exactly(**ONE_MEBIBYTE), result(**share(memory="1Mi", clients="1"))),
    "has amounts of device 'gpu-0' for request 'gpu' that are no share": claim(
        exactly(**ONE_MEBIBYTE), result(**share())
    ),
    "that are no share of a GPU": claim(exactly(**ONE_MEBIBYTE), result(**share(memory="-1Gi"))),
    "has 'much' of memory": claim(exactly(**ONE_MEBIBYTE), result(**share(memory="much"))),
    "no share of a GPU": claim(exactly(**ONE_MEBIBYTE), result(**share(memory="1Mi", other="1"))),
    "has a device for request 'other'": claim(exactly(), result(request="other")),
    "has a device for request 'gpu', which the spec does not have": claim(ALTERNATIVES, result()),
    "which are alternatives of one request": claim(
        ALTERNATIVES, result(request="gpu/large"), result(1, request="gpu/small")
    ),
    "has all of device 'gpu-0' for request 'gpu/small'": claim(ALTERNATIVES, result(request="gpu/small")),
}


@pytest.mark.parametrize("name", COVERED)
def test_an_allocation_within_the_spec(name: str) -> None:
    assert excess(COVERED[name]) == ""


@pytest.mark.parametrize("words", EXCESS)
def test_an_allocation_beyond_the_spec_names_claim_value_and_fix(words: str) -> None:
    found = excess(EXCESS[words])
    assert found.startswith("status.allocation of claim 'c' has ")
    assert words in found
    assert "delete the claim and its pod" in found


def test_a_server_without_consumable_capacity_gives_whole_gpus() -> None:
    assert excess(claim(exactly(**ONE_MEBIBYTE), result()), shares=False) == ""
    assert "has 2 devices" in excess(claim(exactly(**ONE_MEBIBYTE), result(), result(1)), shares=False)
