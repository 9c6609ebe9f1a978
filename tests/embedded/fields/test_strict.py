from typing import Any

import pytest
import yaml

from shoal.embedded.fields.strict import TimeError, faults, go_text, load, strip
from shoal.embedded.fields.table import FILE, struct_of, structs
from shoal.embedded.kinds import BUILT_IN

#: Text, kind, and what is wrong with it.
CASES = [
    (
        '{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "imag": 1}]}}',
        "Pod",
        ["spec.containers[0].imag"],
    ),
    ('{"kind": "Pod", "apiVersion": "v1", "Spec": {}}', "Pod", ["Spec"]),
    ('{"spec": {"nodeSelector": {"any": "thing"}, "overhead": {"cpu": 1}}}', "Pod", []),
    ('{"spec": {"volumes": [{"name": "a", "emptyDir": {}, "configmap": {}}]}}', "Pod", ["spec.volumes[0].configmap"]),
    ('{"spec": {"containers": "none"}}', "Pod", []),
    ('{"spec": {"capacity": {"storage": "1Gi"}, "nfs": {"serve": "x"}}}', "PersistentVolume", ["spec.nfs.serve"]),
]


@pytest.mark.parametrize(("text", "kind", "unknown"), CASES)
def test_unknown_fields(text: str, kind: str, unknown: list[str]) -> None:
    value, document = load(text.encode())
    struct = struct_of("", kind)
    assert struct is not None
    assert list(faults(document, struct)) == [f'unknown field "{path}"' for path in unknown]
    strip(value, struct)
    assert list(faults(value, struct)) == []


def test_doubled_fields() -> None:
    value, document = load(b'{"data": {"a": "1", "a": "2"}, "data": {"b": "3"}, "more": {"a": 1, "a": 2}}')
    assert value == {"data": {"b": "3"}, "more": {"a": 2}}
    assert list(faults(document, struct_of("", "ConfigMap"))) == [
        'duplicate field "data.a"',
        'duplicate field "data"',
        'unknown field "more"',
    ]
    assert list(faults(document, None))[-1] == 'duplicate field "more.a"'


@pytest.mark.parametrize(
    ("text", "good"), [("2026-01-01T00:00:00Z", True), ("2026-01-01T00:00:00.5+02:00", True), ("now", False)]
)
def test_times(text: str, good: bool) -> None:
    lease: dict[str, Any] = {"spec": {"renewTime": text}}
    struct = struct_of("coordination.k8s.io", "Lease")
    assert struct is not None
    if good:
        strip(lease, struct)
        assert lease["spec"]["renewTime"] == text
    else:
        with pytest.raises(TimeError, match='parsing time "now"'):
            strip(lease, struct)


def test_every_kind_that_is_served_has_fields() -> None:
    for kind in BUILT_IN:
        struct = struct_of(kind.group, kind.kind)
        assert struct is not None, kind
        assert {"kind", "apiVersion", "metadata"} <= struct.members.keys(), kind


def test_a_custom_group_is_not_taken_for_a_built_in_one() -> None:
    assert struct_of("apps.example.com", "Deployment") is None


def test_the_table_stays_small() -> None:
    assert len(structs()) > 400
    assert FILE.stat().st_size < 60_000


@pytest.mark.parametrize(
    ("value", "text"),
    [("{b: 1, a: [x, true, null]}", "map[a:[x true <nil>] b:1]"), ("{}", "map[]")],
)
def test_go_text(value: str, text: str) -> None:
    assert go_text(yaml.safe_load(value)) == text
