"""Tables against what kubectl prints of the same objects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.errors import ApiStatus
from shoal.embedded.tables import table_of
from shoal.embedded.tables.layout import human_duration
from tests.embedded.tables.rows import CREATED, NOW, PLACES, Row, every_row

DURATIONS = [
    (-2, "<invalid>"),
    (-1, "0s"),
    (0, "0s"),
    (119, "119s"),
    (120, "2m"),
    (121, "2m1s"),
    (599, "9m59s"),
    (600, "10m"),
    (3 * 3600 - 1, "179m"),
    (3 * 3600, "3h"),
    (3 * 3600 + 60, "3h1m"),
    (8 * 3600 - 1, "7h59m"),
    (8 * 3600, "8h"),
    (48 * 3600 - 1, "47h"),
    (48 * 3600, "2d"),
    (49 * 3600, "2d1h"),
    (8 * 86400, "8d"),
    (2 * 365 * 86400 - 1, "729d"),
    (2 * 365 * 86400, "2y"),
    (2 * 365 * 86400 + 86400, "2y1d"),
    (8 * 365 * 86400 + 86400, "8y"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "containers",
                    "initContainers",
                    "conditions",
                    "type",
                    "status",
                    "containerStatuses",
                    "initContainerStatuses",
                    "state",
                    "terminated",
                    "waiting",
                    "reason",
                    "labels",
                    "selector",
                    "matchExpressions",
                    "values",
                    "key",
                    "ports",
                    "template",
                    "spec",
                    "series",
                    "creationTimestamp",
                    "clusterIPs",
                    "externalIPs",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def table(row: Row, **options: Any) -> dict[str, Any]:
    metadata = {"name": "it", "creationTimestamp": CREATED, "labels": row.labels}
    item = {"metadata": metadata, **row.body}
    given_options = {"now": NOW, "list_meta": {"resourceVersion": "7"}, "include": "Metadata", **options}
    return table_of(row.kind, row.group, [item], **given_options)


@every_row
def test_a_row_is_what_kubectl_prints(row: Row) -> None:
    made = table(row)
    cells = [*row.cells, "it"] if row.kind == "Event" else ["it", *row.cells]
    assert made["rows"][0]["cells"] == cells
    assert len(made["columnDefinitions"]) == len(cells)


@pytest.mark.parametrize(("seconds", "text"), DURATIONS)
def test_durations(seconds: int, text: str) -> None:
    assert human_duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(("phase", "marked"), [("Succeeded", True), ("Failed", True), ("Running", False)])
def test_a_pod_that_is_over_is_marked(phase: str, marked: bool) -> None:
    row = table(Row(kind="Pod", body={"status": {"phase": phase}}))["rows"][0]
    assert [(mark["type"], mark["reason"]) for mark in row.get("conditions", [])] == [("Completed", phase)] * marked


@pytest.mark.parametrize("kind", ["Foo", "Bar"])
def test_a_custom_resource_has_name_and_age(kind: str) -> None:
    made = table(Row(kind=kind, group="x.io"))
    assert [(column["name"], column["type"]) for column in made["columnDefinitions"]] == [
        ("Name", "string"),
        ("Age", "date"),
    ]
    assert made["rows"][0]["cells"] == ["it", "5m"]


def test_the_object_comes_as_asked() -> None:
    row = Row(kind="ConfigMap", body={"data": {"a": "1"}})
    assert table(row)["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert "data" not in table(row, include="")["rows"][0]["object"]
    assert table(row, include="Object")["rows"][0]["object"]["data"] == {"a": "1"}
    assert table(row, include="None")["rows"][0]["object"] is None
    with pytest.raises(ApiStatus, match="must be 'Metadata', 'Object', 'None', or empty") as refused:
        table(row, include="Bogus")
    assert refused.value.code == 400


@given(
    kind=st.sampled_from(sorted(PLACES)),
    body=st.fixed_dictionaries({}, optional={"spec": JSON, "status": JSON, "metadata": JSON}),
)
def test_any_object_has_a_row(kind: tuple[str, str], body: dict) -> None:
    made = table_of(kind[1], kind[0], [body], now=NOW, list_meta={}, include="Metadata")
    assert len(made["rows"][0]["cells"]) == len(made["columnDefinitions"])
