"""The same objects on the real kube-apiserver: its table and ours of its object must agree."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from shoal.embedded.tables import table_of
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from tests.embedded.tables.rows import PLACES, Row, every_row
from tests.testbed.apiserver import ApiServer

# Older servers differ in messages, columns and managed fields; the embedded one follows this one.
pytestmark = pytest.mark.min_kube("1.36")

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@every_row
async def test_the_real_server_agrees(row: Row, apiserver: ApiServer, namespace: str) -> None:
    place = PLACES[row.group, row.kind].format(namespace=namespace)
    name = namespace  # unique, for kinds without namespace too
    if row.kind != "Namespace":
        _create(apiserver, place, name, row)
    before = datetime.now(UTC)
    theirs = await _get_table(apiserver, f"{place}/{name}")
    after = datetime.now(UTC)
    live = apiserver.request("GET", f"{place}/{name}")
    early, late = (
        table_of(row.kind, row.group, [live], now=now, list_meta=theirs["metadata"], include="Metadata")
        for now in (before, after)
    )
    assert _heads(early) == _heads(theirs)
    for cell, first, last in zip(theirs["rows"][0].pop("cells"), _cells(early), _cells(late), strict=True):
        assert cell in (first, last)
    assert _object(early) == _object(theirs)


def _create(apiserver: ApiServer, place: str, name: str, row: Row) -> None:
    manifest = {"metadata": {"name": name, "labels": row.labels}, **copy.deepcopy(row.body)}
    for reference in ("involvedObject", "regarding"):
        if reference in manifest:
            manifest[reference]["namespace"] = name
    made = apiserver.request("POST", place, manifest)
    if "status" in row.body:
        apiserver.request("PUT", f"{place}/{name}/status", {**made, "status": row.body["status"]})


async def _get_table(apiserver: ApiServer, path: str) -> dict[str, Any]:
    async with Client(load_kubeconfig([apiserver.kubeconfig()], environ={}, explicit=True)) as client:
        table: dict[str, Any] = json.loads(await client.request("GET", path, accept=_TABLE))
        return table


def _heads(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**column, "description": ""} for column in table["columnDefinitions"]]


def _cells(table: dict[str, Any]) -> list[Any]:
    cells: list[Any] = table["rows"][0].pop("cells")
    return cells


def _object(table: dict[str, Any]) -> tuple[object, ...]:
    """The row without its cells; metadata is left out, since the server's inner form of it differs for old kinds."""
    row = table["rows"][0]
    return row.get("conditions"), row["object"]["kind"], row["object"]["metadata"]["uid"]
