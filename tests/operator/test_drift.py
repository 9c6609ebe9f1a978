"""Whether an object is as it is wanted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.operator.drift import ANNOTATION_APPLIED, digest, is_as_wanted, stamped

WANTED: dict[str, Any] = {
    "metadata": {"name": "a", "labels": {"x": "1"}},
    "spec": {
        "hostNetwork": False,
        "args": ["a", "b"],
        "containers": [
            {
                "name": "c",
                "env": [{"name": "A", "value": "1"}],
                "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}},
                "securityContext": {"runAsUser": 0},
            }
        ],
        "nodeSelector": {},
        "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
    },
}
# As the server gives it back: with what it adds, and without what is empty.
FOUND: dict[str, Any] = {
    "metadata": {"name": "a", "uid": "u", "labels": {"x": "1", "other": "2"}},
    "spec": {
        "args": ["a", "b"],
        "containers": [
            {"name": "sidecar-of-somebody"},
            {
                "name": "c",
                "env": [{"name": "Z", "value": "9"}, {"name": "A", "value": "1"}],
                "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
                "securityContext": {"runAsUser": 0},
                "imagePullPolicy": "Always",
            },
        ],
        "volumes": [{"name": "v", "hostPath": {"path": "/x", "type": ""}}],
    },
    "status": {"x": 1},
}


def test_what_the_server_and_others_add_is_no_drift() -> None:
    assert is_as_wanted(FOUND, WANTED)


def paths(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every leaf of a document."""
    if isinstance(document, dict):
        return [path for key, value in document.items() for path in paths(value, (*at, key))]
    if isinstance(document, list):
        return [path for n, value in enumerate(document) for path in paths(value, (*at, n))]
    return [at]


@pytest.mark.parametrize("path", paths(WANTED), ids=str)
def test_every_named_field_counts(path: tuple[Any, ...]) -> None:
    found = copy.deepcopy(WANTED)
    part: Any = found
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = True if part[path[-1]] is False else "other"
    assert not is_as_wanted(found, WANTED)


def test_lists_without_names_count_as_a_whole() -> None:
    found = copy.deepcopy(FOUND)
    found["spec"]["args"].append("c")
    assert not is_as_wanted(found, WANTED)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_everything_is_as_itself(document: Any) -> None:
    assert is_as_wanted({"spec": document}, {"spec": document})


def test_the_hash_is_of_the_manifest_and_knows_no_order() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1})
    assert stamped(WANTED)["metadata"]["annotations"] == {ANNOTATION_APPLIED: digest(WANTED)}
    assert "annotations" not in WANTED["metadata"]
