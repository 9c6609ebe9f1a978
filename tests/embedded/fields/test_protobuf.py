import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.fields.protobuf import ProtobufError, decoded
from shoal.embedded.fields.table import structs


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A message of these numbered fields: numbers as varints, all else with its length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(content)) + content
    return out


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + message((1, message((1, version), (2, kind))), (2, raw), (3, ""), (4, ""))


def named(name: str) -> bytes:
    """Metadata as Go writes it: every field that is no pointer, empty or not."""
    return message((1, name), (2, ""), (3, ""), (4, ""), (5, ""), (6, ""), (7, 0), (8, b""))


CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "a map with a map entry": (
        envelope("v1", "ConfigMap", message((1, named("m")), (2, message((1, "a"), (2, "b"))), (2, message((1, "c"))))),
        {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m"}, "data": {"a": "b", "c": ""}},
    ),
    "bytes": (
        envelope("v1", "Secret", message((1, named("s")), (2, message((1, "a"), (2, b"\xff\x00"))), (3, "Opaque"))),
        {
            "kind": "Secret",
            "apiVersion": "v1",
            "metadata": {"name": "s"},
            "type": "Opaque",
            "data": {"a": base64.b64encode(b"\xff\x00").decode()},
        },
    ),
    "a zero that was said, and structs that are empty": (
        envelope("apps/v1", "Deployment", message((1, named("d")), (2, message((1, 0), (4, b""))), (3, b""))),
        {
            "kind": "Deployment",
            "apiVersion": "apps/v1",
            "metadata": {"name": "d"},
            "spec": {"replicas": 0, "strategy": {}},
            "status": {},
        },
    ),
    "a number or a percentage": (
        envelope("policy/v1", "PodDisruptionBudget", message((2, message((1, message((1, 1), (2, 0), (3, "50%"))))))),
        {"kind": "PodDisruptionBudget", "apiVersion": "policy/v1", "spec": {"minAvailable": "50%"}},
    ),
    "a negative number, a time, fields of an embedded struct": (
        envelope(
            "v1",
            "Pod",
            message(
                (1, message((1, "p"), (8, message((1, 1_700_000_000), (2, 0))))),
                (2, message((5, -1), (1, message((1, "v"), (2, message((2, message((1, "Memory"))))))))),
            ),
        ),
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "p", "creationTimestamp": "2023-11-14T22:13:20Z"},
            "spec": {"activeDeadlineSeconds": -1, "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
        },
    ),
    "quantities": (
        envelope("v1", "ResourceQuota", message((2, message((1, message((1, "pods"), (2, message((1, "3"))))))))),
        {"kind": "ResourceQuota", "apiVersion": "v1", "spec": {"hard": {"pods": "3"}}},
    ),
    "JSON inside": (
        envelope("apps/v1", "ControllerRevision", message((2, message((1, b'{"a": [1]}'))), (3, 7))),
        {"kind": "ControllerRevision", "apiVersion": "apps/v1", "data": {"a": [1]}, "revision": 7},
    ),
    "a list of numbers, one by one and packed": (
        envelope("v1", "Pod", message((2, message((14, message((4, 5), (4, 6), (4, varint(7) + varint(8)))))))),
        {"kind": "Pod", "apiVersion": "v1", "spec": {"securityContext": {"supplementalGroups": [5, 6, 7, 8]}}},
    ),
    "options of a delete, in any group": (
        envelope("apps/v1", "DeleteOptions", message((1, 0), (4, "Background"))),
        {
            "kind": "DeleteOptions",
            "apiVersion": "apps/v1",
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Background",
        },
    ),
    "a field that nobody knows": (
        envelope("v1", "ConfigMap", message((1, named("m")), (999, "x"))),
        {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m"}},
    ),
}

BROKEN = {
    "json": (b'{"kind": "Pod"}', "does not appear to be a protobuf message"),
    "another kind": (envelope("v1", "Thing", b""), "no kind 'Thing' of 'v1' is known in protobuf; send it as JSON"),
    "cut off": (envelope("v1", "ConfigMap", message((1, named("m"))))[:-9], "unexpected EOF"),
    "a number for a message": (envelope("v1", "ConfigMap", message((1, 3))), "a number stands where"),
    "no text": (envelope("v1", "ConfigMap", message((1, message((1, b"\xff"))))), "text is not UTF-8"),
    "groups": (envelope("v1", "ConfigMap", b"\x0b"), "wire type 3 is not known"),
    "endless number": (envelope("v1", "ConfigMap", b"\x80" * 11), "more than 64 bits"),
    "no JSON inside": (envelope("apps/v1", "ControllerRevision", message((2, message((1, b"{"))))), "holds no JSON"),
}


@pytest.mark.parametrize("name", CASES)
def test_decoded(name: str) -> None:
    content, expected = CASES[name]
    assert decoded(content) == expected


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    content, why = BROKEN[name]
    with pytest.raises(ProtobufError, match=why):
        decoded(content)


def test_nested_without_end() -> None:
    schema, properties = b"", structs()["apiextensions.JSONSchemaProps"].members["properties"].number
    for _ in range(200):
        schema = message((properties, message((1, "x"), (2, schema))))
    version = message((1, "v1"), (4, message((1, schema))))
    with pytest.raises(ProtobufError, match="nested deeper"):
        decoded(envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", message((2, message((7, version))))))


@given(st.sampled_from(["v1 Pod", "v1 Secret", "apps/v1 Deployment", "v1 Event"]), st.binary(max_size=200))
def test_any_bytes_are_an_object_or_an_error(kind: str, raw: bytes) -> None:
    version, name = kind.split()
    try:
        found = decoded(envelope(version, name, raw))
    except ProtobufError:
        return
    assert json.loads(json.dumps(found, allow_nan=True))["kind"] == name
