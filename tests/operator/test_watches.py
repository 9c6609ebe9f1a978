"""What is kept of objects is enough, and little."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Container, Pod, PodSpec, Resources
from shoal.kube.store import Change, ChangeType
from shoal.operator.node_state import target_of, trouble_of
from shoal.operator.nodes import deploy_labels
from shoal.operator.uninstall import removal
from shoal.operator.watches import (
    PodIndex,
    is_owned,
    slim_any_pod,
    slim_node,
    slim_operand_pod,
    slim_raw,
)
from tests.operator.scene import LABELLED, node, operand_pod, validation
from tests.operator.test_status import EVERY, pods_of, test_why_a_node_waits_for_its_driver

#: Every pod that the tests of the status look at.
_CASES: Any = test_why_a_node_waits_for_its_driver
PODS = [case[0] for case in _CASES.pytestmark[0].args[1]]


def rich(found: Node) -> Node:
    """The node with what others write."""
    meta = found.metadata
    more = {
        "kubernetes.io/hostname": meta.name,
        "feature.node.kubernetes.io/cpu-x": "true",
        "nvidia.com/gpu.count": "8",
    }
    annotations = {"shoal.dev/gpus": "x" * 1000, "other": "y", **meta.annotations}
    return msgspec.structs.replace(
        found, metadata=msgspec.structs.replace(meta, labels={**meta.labels, **more}, annotations=annotations)
    )


@pytest.mark.parametrize("pod", [*PODS, operand_pod("shoal-driver", "n1")], ids=lambda pod: pod.metadata.name)
@pytest.mark.parametrize("ready", range(5))
def test_a_node_stands_as_before(pod: Pod, ready: int) -> None:
    there = rich(node(valid=validation(ready, why="w", fix="f")))
    pods = (*pods_of("n1", "shoal-driver"), pod)
    slim = [slim_operand_pod(one) for one in pods]
    assert trouble_of(slim_node(there), slim, EVERY) == trouble_of(there, pods, EVERY)
    assert deploy_labels(slim_node(there).metadata.labels) == deploy_labels(there.metadata.labels)
    assert removal(slim_node(there)) == removal(there)


def test_what_nobody_reads_is_not_kept() -> None:
    kept = slim_node(rich(node(valid=validation()))).metadata
    assert set(kept.labels) == set(LABELLED)
    assert kept.annotations["shoal.dev/gpus"] == ""
    assert "other" not in kept.annotations


def test_a_pod_that_is_not_bound_says_where_it_belongs() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    pod = msgspec.structs.replace(operand_pod("shoal-agent", ""), spec=PodSpec(affinity=affinity))
    assert target_of(slim_operand_pod(pod)) == "n7"
    others: tuple[Any, ...] = (None, {}, {"nodeAffinity": []}, {"nodeAffinity": {"x": 1}})
    for other in others:
        assert target_of(msgspec.structs.replace(pod, spec=PodSpec(affinity=other))) == ""


def test_pods_without_cards_are_names() -> None:
    limits = Resources(limits={"aliyun.com/gpu-mem": "3"})
    meta = ObjectMeta(name="p", namespace="x", uid="u", resource_version="7", labels={"a": "b"})
    with_card = Pod(metadata=meta, spec=PodSpec(node_name="n", containers=(Container(name="c", resources=limits),)))
    without = Pod(metadata=meta, spec=PodSpec(node_name="n", containers=(Container(name="c"),)))
    assert slim_any_pod(with_card).spec.node_name == "n"
    assert slim_any_pod(with_card).metadata == meta
    assert slim_any_pod(without) == Pod(metadata=ObjectMeta(name="p", namespace="x", uid="u", resource_version="7"))


def test_raw_objects_have_their_kind_and_others_no_data() -> None:
    slim = slim_raw("ConfigMap", "v1", data=False)
    own = slim(
        {"metadata": {"name": "a", "labels": {"shoal.dev/policy": "p"}, "managedFields": [1]}, "data": {"x": "y"}}
    )
    assert (own["kind"], own["apiVersion"], own["data"]) == ("ConfigMap", "v1", {"x": "y"})
    assert "managedFields" not in own["metadata"]
    assert is_owned(own)
    other = slim({"metadata": {"name": "b"}, "data": {"secret": "words"}})
    assert "data" not in other
    assert not is_owned(other)


def _pod(uid: int, on: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=f"p{uid}", namespace="x", uid=str(uid)), spec=PodSpec(node_name=on))


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["", "a", "b", None]))))
def test_the_index_is_as_if_made_anew(steps: list[tuple[int, str | None]]) -> None:
    index = PodIndex()
    there: dict[int, Pod] = {}
    for uid, on in steps:
        old = there.pop(uid, None)
        if on is not None:
            there[uid] = _pod(uid, on)
            kind = ChangeType.ADDED if old is None else ChangeType.MODIFIED
            index.take(Change(kind, old, there[uid]))
        elif old is not None:
            index.take(Change(ChangeType.DELETED, old, None))
        wanted: dict[str, set[str]] = {}
        for pod in there.values():
            wanted.setdefault(pod.spec.node_name, set()).add(pod.metadata.uid)
        assert {name: {pod.metadata.uid for pod in pods} for name, pods in index.by_node.items()} == wanted
