"""The stories of server-side apply on the real kube-apiserver: object, records and refusals must be the same."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.server_side_apply import server_side_apply, track_update
from tests.embedded.patch.tables import OBJECTS, PLACES, Story, Write, every_story, group_of
from tests.testbed.apiserver import ApiServer

# Older servers differ in messages, columns and managed fields; the embedded one follows this one.
pytestmark = pytest.mark.min_kube("1.36")

_OF_THE_STORE = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")
_NOW = "2026-01-01T00:00:00Z"


@every_story
def test_the_real_server_agrees(story: Story, apiserver: ApiServer, namespace: str) -> None:
    place = PLACES[story.kind].format(namespace=namespace)
    live: dict[str, Any] | None = None
    for write in story.writes:
        body = story.manifest(write, namespace)  # a unique name, for kinds without namespace too
        live = _step(story, write, body, live, apiserver, f"{place}/{namespace}")


@pytest.mark.parametrize("name", ["settings", "deployment", "node"])
def test_a_new_object_is_recorded_alike(name: str, apiserver: ApiServer, namespace: str) -> None:
    manifest = {**OBJECTS[name], "metadata": {**OBJECTS[name]["metadata"], "name": namespace}}
    kind = manifest["kind"]
    place = PLACES[kind].format(namespace=namespace)
    theirs = apiserver.request("POST", f"{place}?fieldManager=u", manifest)
    ours = track_update(None, theirs, manager="u", now=_NOW, kind=kind, group=group_of(kind))
    assert _records(ours) == _records(theirs)


def test_a_status_is_recorded_alike(apiserver: ApiServer, namespace: str) -> None:
    manifest = {**OBJECTS["node"], "metadata": {"name": namespace}}
    live = apiserver.request("POST", "/api/v1/nodes", manifest)
    change = {"status": {"capacity": {"x.io/gpu": "3"}, "conditions": [{"type": "Ready", "status": "False"}]}}
    url = f"/api/v1/nodes/{namespace}/status?fieldManager=kubelet"
    theirs = apiserver.request("PATCH", url, change, "application/strategic-merge-patch+json")
    ours = track_update(live, theirs, manager="kubelet", now=_NOW, kind="Node", group="", subresource="status")
    assert _records(ours) == _records(theirs)
    assert {record.get("subresource") for record in _records(ours)} == {None, "status"}


def _step(
    story: Story, write: Write, body: dict[str, Any], live: dict[str, Any] | None, apiserver: ApiServer, url: str
) -> dict[str, Any] | None:
    query = f"?fieldManager={write.by}"
    options: Any = {"manager": write.by, "now": _NOW, "kind": story.kind, "group": group_of(story.kind)}
    if write.how == "update":
        place = url.rsplit("/", 1)[0]
        if live is None:
            theirs = apiserver.request("POST", f"{place}{query}", body)
        else:
            theirs = apiserver.request("PATCH", f"{url}{query}", body, "application/merge-patch+json")
        assert _records(track_update(live, theirs, **options)) == _records(theirs)
        return theirs
    force = write.how == "force"
    query += f"&force={str(force).lower()}"
    dry = _dry_run(body, live, apiserver, url, options, force) if not write.refused else {}
    status, theirs = apiserver.try_request("PATCH", f"{url}{query}", body, "application/apply-patch+yaml")
    if write.refused:
        with pytest.raises(ApiStatus) as refusal:
            server_side_apply(live, body, force=force, **options)
        ours = refusal.value
        assert (status, theirs["reason"], theirs["message"]) == (ours.code, ours.reason, ours.message)
        assert ours.message == write.refused
        assert ours.details is not None
        assert _sorted(theirs["details"]["causes"]) == _sorted(ours.details["causes"])
        return live
    assert status in (200, 201), theirs
    assert _comparable(dry) == _comparable(theirs)
    assert _records(server_side_apply(live, body, force=force, **options)) == _records(theirs)
    return theirs


def _dry_run(
    body: dict, live: dict | None, apiserver: ApiServer, url: str, options: Any, force: bool
) -> dict[str, Any]:
    """Our object with the defaults that the real server adds to it."""
    ours = server_side_apply(live, body, force=force, **options)
    ours["metadata"].pop("managedFields", None)
    if live is None:
        return apiserver.request("POST", f"{url.rsplit('/', 1)[0]}?dryRun=All", ours)
    return apiserver.request("PUT", f"{url}?dryRun=All", ours)


def _comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in _OF_THE_STORE}
    return {**manifest, "metadata": metadata}


def _records(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    records = manifest["metadata"].get("managedFields", [])
    return _sorted([{key: value for key, value in record.items() if key != "time"} for record in records])


def _sorted(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=repr)
