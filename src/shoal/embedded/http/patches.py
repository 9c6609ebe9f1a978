"""PATCH requests: the kind of patch by its media type, and its effect on the stored object."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import yaml
from aiohttp import web

from shoal.embedded.errors import ApiStatus, FieldError, bad_request, invalid, invalid_value, required
from shoal.embedded.http import bodies
from shoal.embedded.http.lists import truth
from shoal.embedded.http.paths import Target
from shoal.embedded.patch.apply import server_side_apply
from shoal.embedded.patch.json_patch import apply_json_patch
from shoal.embedded.patch.json_values import copied
from shoal.embedded.patch.merge import merge_patch
from shoal.embedded.patch.strategic import strategic_merge
from shoal.embedded.registry import Registry
from shoal.embedded.rules.shapes import check_shape
from shoal.embedded.store import Object

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = ("application/apply-patch+yaml", "application/apply-patch+cbor")
#: A patch of a live object.
Patch = Callable[[Object], Object]


async def read_patch(request: web.Request, target: Target) -> Patch:
    """The patch that the body asks for, other than an apply."""
    media = bodies.media_type(request)
    if media not in (MERGE, STRATEGIC, JSON_PATCH):
        raise ApiStatus(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    content = await bodies.read(request)
    try:
        body = json.loads(content)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {bodies.json_error(error, content)}") from error
    kind = target.kind
    if media == JSON_PATCH:
        return lambda live: apply_json_patch(live, body)
    if media == MERGE:
        return lambda live: merge_patch(live, body)
    return lambda live: strategic_merge(live, body, kind=kind.kind, group=kind.group)


def patch_object(registry: Registry, target: Target, patch: Patch, *, manager: str, dry_run: bool) -> Object:
    """Change a stored object by a patch."""
    live = registry.get(target.kind, target.namespace, target.name)
    patched = patch(copied(live))
    _check_patched(patched, target)
    uid = patched["metadata"].get("uid", "")
    if uid and uid != live["metadata"]["uid"]:
        fault = invalid_value("metadata.uid", uid, "field is immutable")
        raise invalid(target.kind.kind, target.kind.group, target.name, [fault])
    stored, _ = registry.update(
        target.kind,
        target.namespace,
        target.name,
        patched,
        subresource=target.subresource,
        manager=manager,
        dry_run=dry_run,
    )
    return stored


def _check_patched(patched: Object, target: Target) -> None:
    """A patch that leads to no object is the patch's fault: 422, with the whole of it in the message."""
    try:
        check_shape(patched, target.kind)
    except ApiStatus as error:
        _, _, why = error.message.partition(f"cannot be handled as a {target.kind.kind}: ")
        text = json.dumps(dict(sorted(patched.items())), separators=(",", ":"))
        fault = FieldError("FieldValueInvalid", "patch", f"Invalid value: {json.dumps(text)}: {why or error.message}")
        raise ApiStatus(
            422, "Invalid", f' "" is invalid: patch: {fault.message}', {"causes": [fault.cause()]}
        ) from error


async def apply(request: web.Request, registry: Registry, target: Target, *, dry_run: bool) -> tuple[Object, bool]:
    """Server-side apply; whether it made the object is the second answer."""
    manager = request.query.get("fieldManager", "")
    if not manager:
        raise invalid("PatchOptions", "meta.k8s.io", "", [required("fieldManager", "is required for apply patch")])
    applied = await _applied(request, target)
    named = (applied.get("metadata") or {}).get("name", "")
    if named and named != target.name:
        raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({target.name})")
    kind = target.kind
    live = registry.store.get(kind.key, (target.namespace, target.name))
    merged = server_side_apply(
        copied(live),
        applied,
        manager=manager,
        force=truth(request.query, "force"),
        now=registry.now(),
        kind=kind.kind,
        group=kind.group,
        subresource=target.subresource,
    )
    check_shape(merged, kind)
    if live is None:
        merged.setdefault("metadata", {}).setdefault("name", target.name)
        return registry.create(kind, target.namespace, merged, manager=None, dry_run=dry_run), True
    stored, _ = registry.update(
        kind, target.namespace, target.name, merged, subresource=target.subresource, manager=None, dry_run=dry_run
    )
    return stored, False


async def _applied(request: web.Request, target: Target) -> dict[str, Any]:
    content = await bodies.read(request)
    try:
        applied = bodies.yaml_of(content)
    except yaml.YAMLError as error:
        raise bad_request(f"error decoding YAML: {error}") from error
    if not isinstance(applied, dict):
        raise bad_request("error decoding YAML: the body is no object")
    bodies.check_type(applied, target.kind.kind, target.kind.group, target.kind.version)
    check_shape(applied, target.kind)
    return applied
