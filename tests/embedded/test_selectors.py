from typing import Any

import pytest

from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import BUILT_IN, Kind
from shoal.embedded.selectors import field_selector, label_selector

KINDS = {kind.kind: kind for kind in BUILT_IN if kind.home is None}


def labelled(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "x", "labels": labels}}


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ("", {}, True),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("! a", {"a": "1"}, False),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b,c)", {}, False),
        ("a notin (b,c)", {}, True),
        ("a notin (b,c)", {"a": "b"}, False),
        ("a in (,b)", {"a": ""}, True),
        ("a=", {"a": ""}, True),
        ("a=b,c", {"a": "b"}, False),
        ("a=b,c", {"a": "b", "c": ""}, True),
        ("a>3", {"a": "4"}, True),
        ("a<3", {"a": "4"}, False),
        ("a>3", {"a": "x"}, False),
        ("in in (in)", {"in": "in"}, True),
    ],
)
def test_labels(selector: str, labels: dict[str, str], expected: bool) -> None:
    assert label_selector(selector)(labelled(**labels)) is expected


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        (",", "found ',', expected: !, identifier, or 'end of string'"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
    ],
)
def test_labels_that_cannot_be_read(selector: str, message: str) -> None:
    with pytest.raises(ApiStatus) as refused:
        label_selector(selector)
    assert refused.value.code == 400
    assert refused.value.message == message


POD = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "one"}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("kind", "selector", "obj", "expected"),
    [
        ("Pod", "spec.nodeName=one", POD, True),
        ("Pod", "spec.nodeName!=one", POD, False),
        ("Pod", "spec.nodeName=", POD, False),
        ("Pod", "status.phase!=Succeeded,status.phase!=Failed", POD, True),
        ("Pod", "metadata.name==p,metadata.namespace=n", POD, True),
        ("Pod", "spec.hostNetwork=false", POD, True),
        ("Node", "spec.unschedulable=false", {"metadata": {"name": "n"}}, True),
        ("Node", "spec.unschedulable=true", {"metadata": {"name": "n"}, "spec": {"unschedulable": True}}, True),
        ("Event", "involvedObject.name=p", {"metadata": {"name": "e"}, "involvedObject": {"name": "p"}}, True),
        ("ConfigMap", r"metadata.name=a\,b", {"metadata": {"name": "a,b"}}, True),
    ],
)
def test_fields(kind: str, selector: str, obj: dict[str, Any], expected: bool) -> None:
    assert field_selector(selector, KINDS[kind])(obj) is expected


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (KINDS["Pod"], "field label not supported: spec.x"),
        (KINDS["ConfigMap"], '"spec.x" is not a known field selector: only "metadata.name", "metadata.namespace"'),
        (KINDS["Job"], 'field label "spec.x" not supported for batchv1.Job'),
    ],
)
def test_fields_nobody_knows(kind: Kind, message: str) -> None:
    with pytest.raises(ApiStatus) as refused:
        field_selector("spec.x=1", kind)
    assert (refused.value.code, refused.value.message) == (400, message)
