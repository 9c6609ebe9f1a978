"""What kube-apiserver keeps of an amount, compared with `quantity.stored`."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model import quantity
from shoal.model.errors import QuantityError
from tests.soak import times
from tests.testbed.apiserver import ApiServer

DIGITS = st.sampled_from(["", "0", "1", "8", "10", "100", "1000", "1024", "12000", "007"]) | st.integers(0, 10**18).map(
    str
)
DECIMALS = st.sampled_from(["", ".", ".5", ".500", ".001", ".0"]) | st.integers(0, 10**10).map(lambda n: f".{n}")
SUFFIXES = st.sampled_from(
    [
        "",
        "m",
        "u",
        "n",
        "k",
        "M",
        "G",
        "T",
        "P",
        "Ki",
        "Mi",
        "Gi",
        "Ti",
        "Pi",
        "Ei",
        "e3",
        "E3",
        "e-3",
        "e+6",
        "e1",
        "E",
    ]
)


@pytest.fixture(scope="module")
def pods(apiserver: ApiServer) -> str:
    """Where pods can be made."""
    name = f"quantities-{uuid.uuid4().hex[:12]}"
    apiserver.create_namespace(name)
    return f"/api/v1/namespaces/{name}/pods"


@settings(max_examples=times(300))
@given(st.sampled_from(["", "+"]), DIGITS, DECIMALS, SUFFIXES)
def test_stored(apiserver: ApiServer, pods: str, sign: str, digits: str, decimals: str, suffix: str) -> None:
    written = sign + digits + decimals + suffix
    try:
        value = quantity.parse(written)
    except QuantityError:
        return
    # Above an exa it leaves out the suffix: 1000E becomes 1.
    if value >= 10**21:
        return
    container = {"name": "c", "image": "x", "resources": {"limits": {"cpu": written}}}
    pod = {"metadata": {"name": "q"}, "spec": {"containers": [container]}}
    kept = apiserver.request("POST", f"{pods}?dryRun=All", pod)
    assert kept["spec"]["containers"][0]["resources"]["limits"]["cpu"] == quantity.stored(written)
