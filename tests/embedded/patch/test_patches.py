"""Our patches against the table of what the real server does, and laws that hold for any JSON."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.json_patch import MOST_OPERATIONS, apply_json_patch, merge_patch
from shoal.embedded.patch.json_values import same
from shoal.embedded.patch.strategic import strategic_merge
from tests.embedded.patch.tables import OBJECTS as MANIFESTS
from tests.embedded.patch.tables import Case, every_case, found

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-1, 1) | st.sampled_from(["", "a", "b", "delete"])
NAMES = st.sampled_from(
    [
        "a",
        "b",
        "name",
        "spec",
        "metadata",
        "finalizers",
        "containers",
        "ports",
        "containerPort",
        "ownerReferences",
        "0",
        "-",
        "~",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$setElementOrder/finalizers",
        "$setElementOrder",
        "$deleteFromPrimitiveList/finalizers",
        "$deleteFromPrimitiveList",
    ]
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))
OBJECTS = st.dictionaries(NAMES, JSON, max_size=4)
PATHS = st.lists(NAMES | st.sampled_from(["0", "1", "-1", "9"]), max_size=4).map(lambda words: "/" + "/".join(words))
OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"])},
        optional={"path": PATHS | JSON, "from": PATHS | JSON, "value": JSON},
    )
    | JSON,
    max_size=4,
)


@every_case
def test_a_patch_does_what_the_real_server_does(case: Case) -> None:
    manifest = MANIFESTS[case.object]
    before = copy.deepcopy((manifest, case.patch))
    refusal = case.expected
    if refusal is None:
        assert case.at
        result = case.patched(manifest)
        assert {path: found(result, path) for path in case.at} == case.at
    else:
        with pytest.raises(ApiStatus) as refused:
            case.patched(manifest)
        answer = refused.value
        told = (answer.code, answer.reason, answer.message, answer.details)
        assert told == (refusal.code, refusal.reason, refusal.message, refusal.details)
    assert (manifest, case.patch) == before


def test_a_strategic_patch_of_null_changes_nothing() -> None:
    assert strategic_merge(MANIFESTS["node"], None, kind="Node", group="") == MANIFESTS["node"]


def test_a_custom_resource_takes_no_strategic_patch() -> None:
    with pytest.raises(ApiStatus) as refused:
        strategic_merge({}, {"spec": {}}, kind="Foo", group="x.io")
    assert (refused.value.code, refused.value.reason) == (415, "UnsupportedMediaType")


def test_a_merge_patch_of_null_is_refused() -> None:
    with pytest.raises(ApiStatus, match=r"^Invalid JSON Patch$"):
        merge_patch({}, None)


def test_too_many_operations_are_refused() -> None:
    with pytest.raises(ApiStatus) as refused:
        apply_json_patch({}, [{"op": "add", "path": "/a", "value": 1}] * (MOST_OPERATIONS + 1))
    assert (refused.value.code, refused.value.reason) == (413, "RequestEntityTooLarge")


@given(target=OBJECTS, patch=OBJECTS)
def test_a_merge_patch_follows_its_definition(target: dict, patch: dict) -> None:
    result = merge_patch(target, patch)
    assert same(merge_patch(result, patch), result)
    assert set(result) == {key for key in target.keys() | patch.keys() if key not in patch or patch[key] is not None}
    for key, value in result.items():
        if key not in patch:
            assert same(value, target[key])
        elif isinstance(patch[key], dict):
            base = target.get(key)
            assert same(value, merge_patch(base if isinstance(base, dict) else {}, patch[key]))
        elif not isinstance(patch[key], list):
            assert same(value, patch[key])


@given(target=OBJECTS, name=NAMES, value=JSON)
def test_what_a_json_patch_adds_it_can_test_and_remove(target: dict, name: str, value: Any) -> None:
    path = "/" + name.replace("~", "~0").replace("/", "~1")
    added = apply_json_patch(target, [{"op": "add", "path": path, "value": value}])
    assert same(added[name], value)
    assert same(apply_json_patch(added, [{"op": "test", "path": path, "value": value}]), added)
    without = {key: kept for key, kept in target.items() if key != name}
    assert same(apply_json_patch(added, [{"op": "remove", "path": path}]), without)


@given(elements=st.lists(JSON, max_size=4), index=st.integers(0, 4), value=JSON)
def test_what_a_json_patch_inserts_it_can_remove(elements: list, index: int, value: Any) -> None:
    path = f"/a/{min(index, len(elements))}"
    operations = [{"op": "add", "path": path, "value": value}, {"op": "remove", "path": path}]
    assert same(apply_json_patch({"a": elements}, operations), {"a": elements})


@given(target=OBJECTS, patch=JSON)
def test_a_merge_or_strategic_patch_gives_an_object_or_a_refusal(target: dict, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    for kind, group in (("Pod", ""), ("Deployment", "apps"), ("Other", "policy")):
        with contextlib.suppress(ApiStatus):
            assert isinstance(strategic_merge(target, patch, kind=kind, group=group), dict)
    with contextlib.suppress(ApiStatus):
        assert isinstance(merge_patch(target, patch), dict)
    assert repr(before) == repr((target, patch))


@given(target=OBJECTS, operations=OPERATIONS | JSON)
def test_a_json_patch_gives_an_object_or_a_refusal(target: dict, operations: Any) -> None:
    before = copy.deepcopy((target, operations))
    with contextlib.suppress(ApiStatus):
        assert isinstance(apply_json_patch(target, operations), dict)
    assert repr(before) == repr((target, operations))


@given(spec=st.dictionaries(st.sampled_from(["containers", "volumes", "$setElementOrder/containers"]), JSON))
def test_a_strategic_patch_of_a_pod_spec_gives_an_object_or_a_refusal(spec: dict) -> None:
    with contextlib.suppress(ApiStatus):
        patch = {"spec": {"template": {"spec": spec}}}
        result = strategic_merge(MANIFESTS["deployment"], patch, kind="Deployment", group="apps")
        assert "$" not in "".join(found(result, "spec.template.spec"))
