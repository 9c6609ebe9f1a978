"""Patches, and what the real kube-apiserver makes of them, read from `cases/*.yaml`.

`test_patches.py` and `test_apply.py` run them through our functions; the tests `…_on_kubernetes.py` ask the real server
the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from shoal.embedded.patch.json_patch import apply_json_patch, merge_patch
from shoal.embedded.patch.strategic import strategic_merge
from tests.cases import read_cases

_CASES = Path(__file__).parent / "cases"
CONTENT_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
PLACES = {
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "Node": "/api/v1/nodes",
    "Service": "/api/v1/namespaces/{namespace}/services",
}
OBJECTS: dict[str, dict[str, Any]] = read_cases(_CASES / "objects.yaml")


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The error of a patch that does not go."""

    code: int
    reason: str = ""
    message: str
    details: dict[str, Any] | None = None


REJECTED = Refusal(
    code=422,
    reason="Invalid",
    message="the server rejected our request due to an error in our request",
    details={},
)


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A patch on an object: what stands at a path afterwards (None: nothing), or the refusal."""

    title: str
    type: Literal["merge", "json", "strategic"]
    object: str = "settings"
    subresource: str = ""
    patch: Any
    at: dict[str, Any] = {}
    refusal: Refusal | Literal["rejected"] | None = None

    @property
    def expected(self) -> Refusal | None:
        """The refusal in full."""
        return REJECTED if self.refusal == "rejected" else self.refusal

    def patched(self, target: dict[str, Any]) -> dict[str, Any]:
        """What our function makes of it."""
        if self.type == "merge":
            return merge_patch(target, self.patch)
        if self.type == "json":
            return apply_json_patch(target, self.patch)
        return strategic_merge(target, self.patch, kind=target["kind"], group=group_of(target["kind"]))


class Write(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An apply, or a create or merge patch (`update`), and what follows: what stands at paths, or the conflict."""

    by: str
    body: dict[str, Any]
    how: Literal["apply", "force", "update"] = "apply"
    at: dict[str, Any] = {}
    refused: str = ""


class Story(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Writes to one object that is not there at first."""

    title: str
    kind: str
    writes: list[Write]

    def manifest(self, write: Write, name: str) -> dict[str, Any]:
        """The body as it is sent, for an object of this name."""
        version = f"{group_of(self.kind)}/v1".removeprefix("/")
        metadata = {"name": name, **write.body.get("metadata", {})}
        return {**write.body, "apiVersion": version, "kind": self.kind, "metadata": metadata}


def group_of(kind: str) -> str:
    """The group of a kind of the cases."""
    return "apps" if kind == "Deployment" else ""


def found(value: Any, path: str) -> Any:
    """What stands at a path such as `spec.ports.0`; None for nothing."""
    for word in path.split("."):
        if isinstance(value, dict):
            value = value.get(word)
        elif isinstance(value, list) and int(word) < len(value):
            value = value[int(word)]
        else:
            return None
    return value


def _cases() -> list[Case]:
    read = {type_: read_cases(_CASES / f"{type_}.yaml") for type_ in CONTENT_TYPES}
    return msgspec.convert([{**case, "type": type_} for type_, cases in read.items() for case in cases], list[Case])


def _stories() -> list[Story]:
    return msgspec.convert(read_cases(_CASES / "stories.yaml"), list[Story])


CASES, STORIES = _cases(), _stories()
every_case = pytest.mark.parametrize("case", CASES, ids=[f"{case.type}: {case.title}" for case in CASES])
every_story = pytest.mark.parametrize("story", STORIES, ids=[f"{story.kind}: {story.title}" for story in STORIES])
