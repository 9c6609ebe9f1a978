"""What a result of a claim's allocation means."""

from __future__ import annotations

import re

import pytest

from shoal.model.contract import dra
from shoal.model.errors import CodecError
from shoal.model.request import Share


@pytest.mark.parametrize(
    ("uuid", "mig", "name"),
    [
        ("GPU-5e2BC7ff-2d0c-4b1d-9ff2-0a3c6c2b8e11", False, "gpu-5e2bc7ff-2d0c-4b1d-9ff2-0a3c6c2b8e11"),
        ("MIG-5e2bc7ff-2d0c-4b1d-9ff2-0a3c6c2b8e11", True, "mig-5e2bc7ff-2d0c-4b1d-9ff2-0a3c6c2b8e11"),
    ],
)
def test_name_of_a_device(uuid, mig, name):
    assert dra.device_name(uuid, mig=mig) == name


def test_a_uuid_that_is_no_label_has_a_name_of_its_own():
    old = [dra.device_name(f"MIG-GPU-5e2bc7ff-2d0c-4b1d-9ff2-0a3c6c2b8e11/{n}/0", mig=True) for n in (1, 2)]
    assert len(set(old)) == 2
    assert all(re.fullmatch(r"mig-[a-z0-9]{16}", name) for name in old)


def test_an_alternative_belongs_to_its_request():
    assert dra.base_request("gpu/small") == "gpu"
    assert dra.base_request("gpu") == "gpu"


@pytest.mark.parametrize(
    ("consumed", "share"),
    [
        ({"memory": "3Gi", "compute": "20"}, Share(3072, 20)),
        ({"memory": "3000Mi"}, Share(3000)),
        ({"memory": 1048577}, Share(2)),
        ({"memory": "24Gi", "compute": "0"}, Share(exclusive=True)),
        ({"memory": "2Gi", "compute": "0", "clients": "2"}, Share(2048, 0, 2)),
        ({"memory": "0", "clients": "1"}, Share(clients=1)),
    ],
)
def test_amounts(consumed, share):
    assert dra.allocated_share(consumed, share_id="s", memory_mib=24576) == share


def test_without_a_share_the_card_is_whole():
    assert dra.allocated_share({"memory": "1Gi"}, share_id=None, memory_mib=24576) == Share(exclusive=True)


@pytest.mark.parametrize(
    "consumed",
    [
        {},
        {"compute": "20"},
        {"memory": "-10Gi"},
        {"memory": "0"},
        {"memory": "30Gi"},
        {"memory": "1Gi", "compute": "-1"},
        {"memory": "1Gi", "compute": "101"},
        {"memory": "1Gi", "compute": "0.5"},
        {"memory": "lots"},
        {"memory": "9" * 65},
        {"memory": "1Gi", "cores": "1"},
        {"memory": "0", "clients": "0"},
        {"memory": "-1Gi", "clients": "1"},
        {"memory": "1Gi", "clients": "-1"},
        {"memory": "1Gi", "clients": "1000000"},
        {"gpu.shoal.dev/memory": "1Gi"},
    ],
)
def test_amounts_that_cannot_be(consumed):
    with pytest.raises(CodecError, match="consumedCapacity"):
        dra.allocated_share(consumed, share_id="s", memory_mib=24576)
