"""The same table, asked of the real kube-apiserver, and our result compared with its result in full."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.embedded.patch.tables import CONTENT_TYPES, OBJECTS, PLACES, Case, every_case
from tests.testbed.apiserver import ApiServer

# Older servers differ in messages, columns and managed fields; the embedded one follows this one.
pytestmark = pytest.mark.min_kube("1.36")

_OF_THE_STORE = ("managedFields", "resourceVersion", "generation")


@every_case
def test_the_real_server_agrees(case: Case, apiserver: ApiServer, namespace: str) -> None:
    manifest = copy.deepcopy(OBJECTS[case.object])
    manifest["metadata"]["name"] = namespace  # unique, for kinds without namespace too
    place = PLACES[manifest["kind"]].format(namespace=namespace)
    live = apiserver.request("POST", place, manifest)
    url = f"{place}/{namespace}" + (f"/{case.subresource}" if case.subresource else "")
    status, answer = apiserver.try_request("PATCH", f"{url}?dryRun=All", case.patch, CONTENT_TYPES[case.type])
    refusal = case.expected
    if refusal is not None:
        told = (status, answer.get("reason", ""), answer["message"], answer.get("details"))
        assert told == (refusal.code, refusal.reason, refusal.message, refusal.details)
    else:
        assert status == 200, answer
        ours = apiserver.request("PUT", f"{url}?dryRun=All", case.patched(live))
        assert _comparable(ours) == _comparable(answer)


def _comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in _OF_THE_STORE}
    return {**manifest, "metadata": metadata}
