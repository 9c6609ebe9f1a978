"""Server-side apply: stories of several managers, and laws that hold for any configuration."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.json_patch import merge_patch
from shoal.embedded.patch.json_values import same
from shoal.embedded.patch.server_side_apply import decoded, encoded, server_side_apply, track_update
from tests.embedded.patch.tables import OBJECTS, Story, Write, every_story, found, group_of

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:00:01Z"
VALUES = st.sampled_from(["1", "2", "3"])
DATA = st.dictionaries(st.sampled_from("abcd"), VALUES, min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | VALUES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "containers", "ports", "containerPort", "env", "a"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def settings(data: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "case"}, "data": data}


def applied(live: dict | None, body: dict, by: str, *, force: bool = False, now: str = NOW) -> dict[str, Any]:
    return server_side_apply(live, body, manager=by, force=force, now=now, kind="ConfigMap", group="")


@every_story
def test_a_story_ends_as_on_the_real_server(story: Story) -> None:
    live: dict[str, Any] | None = None
    for write in story.writes:
        before = copy.deepcopy(live)
        if write.refused:
            with pytest.raises(ApiStatus) as refused:
                written(story, write, live)
            assert (refused.value.code, refused.value.reason) == (409, "Conflict")
            assert refused.value.message == write.refused
        else:
            result = written(story, write, live)
            assert {path: found(result, path) for path in write.at} == write.at
            assert live == before
            live = result


def written(story: Story, write: Write, live: dict[str, Any] | None) -> dict[str, Any]:
    options: Any = {"manager": write.by, "now": NOW, "kind": story.kind, "group": group_of(story.kind)}
    body = story.manifest(write, "case")
    if write.how == "update":
        return track_update(live, merge_patch(live or {}, body), **options)
    return server_side_apply(live, body, force=write.how == "force", **options)


def test_applying_the_same_again_changes_nothing() -> None:
    once = applied(None, settings({"a": "1"}), "m1")
    assert applied(once, settings({"a": "1"}), "m1", now=LATER) == once


def test_fields_that_nobody_recorded_are_in_conflict() -> None:
    with pytest.raises(ApiStatus, match=r'conflict with "before-first-apply" using v1: \.data\.a'):
        applied(settings({"a": "1"}), settings({"a": "2"}), "m1")


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"kind": "ConfigMap"}, 400, "invalid object type: /, Kind=ConfigMap"),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"managedFields": [{}]}},
            400,
            "metadata.managedFields must be nil",
        ),
    ],
)
def test_a_configuration_that_cannot_be_applied(body: dict, code: int, message: str) -> None:
    with pytest.raises(ApiStatus) as refused:
        applied(None, body, "m1")
    assert (refused.value.code, refused.value.message) == (code, message)


@pytest.mark.parametrize(
    ("containers", "why"),
    [
        (
            [{"image": "a"}],
            ".spec.template.spec.containers: element 0: associative list with keys has an element that omits key field"
            ' "name" (and doesn\'t have default value)',
        ),
        (
            [{"name": "c"}, {"name": "c"}],
            '.spec.template.spec.containers: duplicate entries for key [name="c"]',
        ),
    ],
)
def test_elements_that_do_not_say_which_they_are(containers: list, why: str) -> None:
    body = copy.deepcopy(OBJECTS["deployment"])
    body["spec"]["template"]["spec"] = {"containers": containers}
    with pytest.raises(ApiStatus) as refused:
        server_side_apply(None, body, manager="m", force=False, now=NOW, kind="Deployment", group="apps")
    message = f"failed to create typed patch object (/case; apps/v1, Kind=Deployment): {why}"
    assert (refused.value.code, refused.value.message) == (500, message)


@given(first=DATA, second=DATA, third=DATA)
def test_the_last_to_force_gets_its_way_and_leaves_the_rest(first: dict, second: dict, third: dict) -> None:
    live = applied(None, settings(first), "m1")
    live = applied(live, settings(second), "m2", force=True)
    assert live["data"] == {**first, **second}
    live = applied(live, settings(third), "m2", force=True)
    held = {
        key: value
        for key, value in {**first, **second}.items()
        if key in first and second.get(key, value) == first[key]
    }
    assert live["data"] == {**held, **third}


@given(paths=st.sets(st.lists(st.sampled_from(["f:a", 'k:{"name":"x"}', 'v:"y"']), min_size=1, max_size=4).map(tuple)))
def test_paths_survive_being_stored(paths: set) -> None:
    fields = encoded(frozenset(paths))
    assert decoded(fields) == decoded(json.loads(json.dumps(fields))) == paths


@given(spec=JSON, later=JSON)
def test_any_configuration_is_applied_or_refused(spec: Any, later: Any) -> None:
    options: Any = {"now": NOW, "kind": "Pod", "group": ""}
    first, second = ({"apiVersion": "v1", "kind": "Pod", "spec": body} for body in (spec, later))
    with contextlib.suppress(ApiStatus):
        live = server_side_apply(None, first, manager="a", force=False, **options)
        again = server_side_apply(live, first, manager="a", force=False, **options)
        if live["metadata"].get("managedFields"):  # who owned nothing finds everything owned by `before-first-apply`
            assert same(again, live)
        forced = server_side_apply(live, second, manager="b", force=True, **options)
        assert isinstance(track_update(forced, first, manager="u", **options), dict)
