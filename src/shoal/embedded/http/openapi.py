"""OpenAPI as far as kubectl needs it to create and apply: which writes take fieldValidation and dryRun. No schemas."""

from __future__ import annotations

from typing import Any

from shoal.embedded.kinds import Catalogue, Kind


def index(catalogue: Catalogue) -> dict[str, Any]:
    """`/openapi/v3`: one document per group and version."""
    paths = {_path(group, version) for group, versions in catalogue.groups().items() for version in versions}
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash=embedded"} for path in sorted(paths)}}


def document(catalogue: Catalogue, path: str) -> dict[str, Any] | None:
    """`/openapi/v3/api/v1` and its like; None if there is no such version."""
    for group, versions in catalogue.groups().items():
        for version, kinds in versions.items():
            if _path(group, version) == path:
                paths = {url: operations for kind in kinds for url, operations in _operations(kind).items()}
                info = {"title": "Kubernetes", "version": "v1.36.3"}
                return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}
    return None


def swagger(catalogue: Catalogue) -> dict[str, Any]:
    """`/openapi/v2`: the same without documents per version."""
    paths = {url: operations for kind in catalogue.all() for url, operations in _operations(kind).items()}
    return {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.3"}, "paths": paths, "definitions": {}}


def _path(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _operations(kind: Kind) -> dict[str, Any]:
    prefix = f"/{_path(kind.group, kind.version)}"
    if kind.namespaced:
        prefix += "/namespaces/{namespace}"
    identity = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
    ]

    def operation(action: str) -> dict[str, Any]:
        return {
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": identity,
        }

    return {
        f"{prefix}/{kind.plural}": {"post": operation("post")},
        f"{prefix}/{kind.plural}/{{name}}": {"put": operation("put"), "patch": operation("patch")},
    }
