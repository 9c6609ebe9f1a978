from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.contract import nvidia
from shoal.model.errors import CodecError


@given(st.uuids(), st.integers(0, 1000))
def test_replica_ids(uuid: object, number: int) -> None:
    device = nvidia.replica_id(f"GPU-{uuid}", number)
    assert device == f"GPU-{uuid}::{number}"
    assert nvidia.parse_replica_id(device) == (f"GPU-{uuid}", number)


def test_an_id_without_a_number_is_the_card() -> None:
    assert nvidia.parse_replica_id("GPU-a") == ("GPU-a", None)
    assert nvidia.parse_replica_id("MIG-a") == ("MIG-a", None)


@pytest.mark.parametrize("device", ["", "::1", "GPU-a::", "GPU-a::x", "GPU-a::-1", "GPU-a::1::2"])
def test_bad_replica_ids(device: str) -> None:
    with pytest.raises(CodecError, match="device id"):
        nvidia.parse_replica_id(device)


@given(st.text())
def test_ids_raise_nothing_but_codec_error(device: str) -> None:
    try:
        nvidia.parse_replica_id(device)
    except CodecError:
        assert "::" in device or not device


@pytest.mark.parametrize(
    ("profile", "resource"),
    [
        ("1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1c.3g.40gb", "nvidia.com/mig-1c.3g.40gb"),
        ("7g.80gb", "nvidia.com/mig-7g.80gb"),
    ],
)
def test_mig_resources(profile: str, resource: str) -> None:
    assert nvidia.mig_resource(profile) == resource
    assert nvidia.mig_profile(resource) == profile.replace("+", ".")


@pytest.mark.parametrize("profile", ["", "gpu", "1g", "1g.10gb/x", "1G.10GB", "1g.10gb\n", "1g.10gb" + ".a" * 40])
def test_bad_mig_profiles(profile: str) -> None:
    with pytest.raises(CodecError, match="MIG profile"):
        nvidia.mig_resource(profile)


def test_other_resources_have_no_profile() -> None:
    assert nvidia.mig_profile("nvidia.com/gpu") is None


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("Tesla T4", "Tesla-T4"),
        ("NVIDIA GeForce RTX™ 4090 (Laptop)", "NVIDIA-GeForce-RTX-4090-Laptop"),
        ("  PowerEdge   R750 ", "PowerEdge-R750"),
        ("-odd-", "odd"),
        ("x" * 70, "x" * 63),
        ("", ""),
        ("™", ""),
    ],
)
def test_sanitised(name: str, label: str) -> None:
    assert nvidia.sanitised(name) == label


@given(st.text(max_size=100))
def test_sanitised_is_a_label_value(name: str) -> None:
    label = nvidia.sanitised(name)
    assert len(label) <= 63
    assert label == "" or (label[0].isalnum() and label[-1].isalnum() and label.isascii())
    assert nvidia.sanitised(label) == label


def test_product_label() -> None:
    model = "NVIDIA A100-SXM4-80GB"
    assert nvidia.product_label(model) == "NVIDIA-A100-SXM4-80GB"
    assert nvidia.product_label(model, shared=True) == "NVIDIA-A100-SXM4-80GB-SHARED"
    assert nvidia.product_label(model, mig_profile="1g.10gb+me") == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me"
    assert len(nvidia.product_label("x" * 80, shared=True)) == 63
    assert nvidia.product_label("!", mig_profile="1g.10gb") == "MIG-1g.10gb"


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        *(((1, 3), "tesla"), ((2, 1), "fermi"), ((3, 7), "kepler"), ((4, 0), "undefined"), ((5, 2), "maxwell")),
        *(((6, 1), "pascal"), ((7, 0), "volta"), ((7, 2), "volta"), ((7, 5), "turing"), ((8, 6), "ampere")),
        *(((8, 9), "ada-lovelace"), ((9, 0), "hopper"), ((10, 3), "blackwell"), ((11, 0), "undefined")),
        *(((12, 1), "blackwell"), ((13, 0), "rubin"), ((14, 0), "undefined"), (None, "undefined")),
    ],
)
def test_family(capability: tuple[int, int] | None, family: str) -> None:
    assert nvidia.family(capability) == family
    assert family in nvidia.FAMILIES


def test_composed_labels() -> None:
    assert nvidia.deploy_label("device-plugin") == "nvidia.com/gpu.deploy.device-plugin"
    assert nvidia.resource_label("nvidia.com/mig-1g.10gb", "memory") == "nvidia.com/mig-1g.10gb.memory"
