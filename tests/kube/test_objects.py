"""Slim structs: what they keep, what they refuse, and that the model reads the same from them as from the whole."""

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.client import Client
from shoal.kube.codec import Codec, codec_of, status_of
from shoal.kube.errors import ApiError, GoneError, KubeError
from shoal.kube.objects.node import Node
from shoal.kube.objects.others import Secret
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS, key_of, manifest_of, meta_of
from shoal.model.bound import allocation_of
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import ModelError
from shoal.model.manifest import pod_parts, read_pod
from shoal.model.node import node_gpus
from shoal.model.pod import request_of
from shoal.model.request import Request
from tests.cases import read_cases
from tests.kube.objects import pod

CASES = Path(__file__).parent.parent / "model" / "cases"


def _pods() -> list[Any]:
    cases = [case for name in ("accepted", "refused") for case in read_cases(CASES / f"{name}.yaml")]
    return [pytest.param(case["pod"], MemoryUnit(case.get("unit", "GiB")), id=case["name"]) for case in cases]


def _outcome(read: Any) -> object:
    try:
        return read()
    except ModelError as error:
        return str(error)


@pytest.mark.parametrize(("manifest", "unit"), _pods())
def test_the_model_reads_the_same_from_the_struct(manifest: Any, unit: MemoryUnit) -> None:
    try:
        slim = codec_of(Pod).one(msgspec.json.encode(manifest), asked="test")
    except KubeError:
        # Not of a form that an API server ever sends; the model refuses it too.
        assert isinstance(_outcome(lambda: request_of(read_pod(manifest), unit=unit)), str)
        return
    expected = _outcome(lambda: request_of(read_pod(manifest), unit=unit))
    got = _outcome(lambda: request_of(pod_parts(slim), unit=unit))
    if "spec" not in manifest:
        assert (got, expected) == (Request(), "the pod has no spec: give a Kubernetes pod object with spec.containers")
        return  # a struct does not tell a spec that is missing from an empty one; no API server sends either
    assert got == expected or (isinstance(got, str) and isinstance(expected, str))


ALLOCATION = {
    "ALIYUN_COM_GPU_MEM_IDX": "1",
    "ALIYUN_COM_GPU_MEM_POD": "4",
    "ALIYUN_COM_GPU_MEM_DEV": "16",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
}


async def test_pods_and_nodes_of_the_real_server(client: Client, namespace: str) -> None:
    """The same request, cards and allocation from the slim struct as from the whole object the server sends."""
    name = f"n-{namespace}"
    await client.create(NODES, {"metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "Tesla-T4"}}})
    amounts = {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2", "cpu": "16", "memory": "64Gi"}
    status = {"capacity": amounts, "allocatable": amounts}
    await client.patch(NODES, name, {"status": status}, subresource="status")
    resources = {"limits": {"aliyun.com/gpu-mem": "4", "cpu": "1500m", "memory": "1Gi"}}
    containers = [{"name": "app", "image": "x", "resources": resources}]
    sidecar = {"name": "s", "image": "x", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}}
    made = await client.create(PODS, pod("p", namespace, containers=containers, initContainers=[sidecar]))
    await client.bind(made, name, annotations=ALLOCATION)
    unit = MemoryUnit.GIB
    whole_node, slim_node = await client.get(NODES.raw, name), await client.get(NODES, name)
    cards = node_gpus(whole_node, unit=unit)
    assert len(cards.gpus) == 2
    assert node_gpus(manifest_of(slim_node), unit=unit) == cards
    whole = read_pod(await client.get(PODS.raw, "p", namespace=namespace))
    slim = pod_parts(await client.get(PODS, "p", namespace=namespace))
    request = request_of(whole, unit=unit)
    assert (request.cpu_milli, len(request.containers)) == (1600, 1)
    assert request_of(slim, unit=unit) == request
    allocation = allocation_of(whole, node=cards, unit=unit)
    assert allocation is not None
    assert allocation_of(slim, node=cards, unit=unit) == allocation
    await client.delete(NODES, name)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def _some(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, json_values))


#: Objects with the right names in the right places and anything as their values.
near_objects = st.fixed_dictionaries(
    {},
    optional={
        "metadata": json_values
        | st.fixed_dictionaries(
            {}, optional={"name": json_values, "labels": json_values, "ownerReferences": json_values}
        ),
        "spec": json_values
        | st.fixed_dictionaries(
            {}, optional={"containers": json_values, "nodeName": json_values, "taints": json_values}
        ),
        "status": json_values | st.fixed_dictionaries({}, optional={"capacity": json_values, "phase": json_values}),
        "items": json_values,
    },
)


@given(st.binary(max_size=200) | near_objects.map(msgspec.json.encode) | json_values.map(msgspec.json.encode))
@pytest.mark.parametrize("kind", [Pod, Node, Secret, dict])
def test_anything_decodes_cleanly_or_not_at_all(kind: Any, content: bytes) -> None:
    codec: Codec[Any] = codec_of(kind)
    line = b'{"type":"ADDED","object":' + content + b"}"
    for decode, sent in ((codec.one, content), (codec.page, content), (codec.event, content), (codec.event, line)):
        with contextlib.suppress(KubeError):
            assert decode(sent, asked="test") is not None
    with contextlib.suppress(KubeError):
        obj = codec.one(content, asked="test")
        assert all(isinstance(part, str) for part in key_of(obj))
        assert isinstance(manifest_of(obj), dict)


@given(st.binary(max_size=100) | json_values.map(msgspec.json.encode))
def test_any_error_body_is_a_status_or_none(content: bytes) -> None:
    status = status_of(content)
    assert status is None or status.kind == "Status"


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(KubeError):
        codec_of(dict).one(b'{"a":' * 100_000, asked="test")


@pytest.mark.parametrize("order", [("type", "object"), ("object", "type")])
def test_an_error_line_is_raised_as_what_it_tells(order: tuple[str, str]) -> None:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": 410,
        "reason": "Expired",
    }
    line = {"type": "ERROR", "object": {**status, "message": "too old resource version: 1 (2)"}}
    content = json.dumps({name: line[name] for name in order}, separators=(",", ":")).encode()
    with pytest.raises(GoneError, match="too old"):
        codec_of(Pod).event(content, asked="WATCH /x")
    other = content.replace(b"410", b"500").replace(b"Expired", b"InternalError")
    with pytest.raises(ApiError) as caught:
        codec_of(Pod).event(other, asked="WATCH /x")
    assert caught.value.status == 500


def test_unknown_fields_go_and_known_ones_stay() -> None:
    content = {
        "metadata": {"name": "p", "managedFields": [{"manager": "x"}], "creationTimestamp": None},
        "spec": {"affinity": {"nodeAffinity": {"a": [1]}}, "volumes": [{"name": "v", "hostPath": {}}], "nodeName": "n"},
        "status": {
            "podIP": "10.0.0.1",
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{"name": "c", "containerID": "containerd://x"}],
        },
    }
    slim = codec_of(Pod).one(json.dumps(content).encode(), asked="test")
    assert json.loads(json.dumps(manifest_of(slim))) == {
        "metadata": {"name": "p"},
        "spec": {"affinity": {"nodeAffinity": {"a": [1]}}, "volumes": [{"name": "v"}], "nodeName": "n"},
        "status": {
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{"name": "c", "containerID": "containerd://x"}],
        },
    }
    assert meta_of(slim).name == meta_of({"metadata": {"name": "p"}}).name
