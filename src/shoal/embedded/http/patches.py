"""PATCH requests: the kind of patch by its media type, and its effect on the stored object."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import yaml
from aiohttp import web

from shoal.embedded.errors import (
    ApiStatus,
    FieldError,
    bad_request,
    forbidden_value,
    invalid,
    invalid_value,
    required,
)
from shoal.embedded.fields import strict
from shoal.embedded.http import bodies, options
from shoal.embedded.http.answers import in_version
from shoal.embedded.http.lists import truth
from shoal.embedded.http.paths import Target
from shoal.embedded.patch.json_patch import apply_json_patch, merge_patch
from shoal.embedded.patch.json_values import copied
from shoal.embedded.patch.server_side_apply import not_typed, server_side_apply
from shoal.embedded.patch.strategic import strategic_merge
from shoal.embedded.registry import Registry
from shoal.embedded.rules.events import to_core
from shoal.embedded.rules.shapes import check_shape, field_faults
from shoal.embedded.store import Object

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = ("application/apply-patch+yaml", "application/apply-patch+cbor")


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch of a live object: what it makes of it, what it names twice, and its text where that is to be shown."""

    of: Callable[[Object], Object]
    doubled: tuple[str, ...] = ()
    text: str = ""


async def read_patch(request: web.Request, target: Target) -> Patch:
    """The patch that the body asks for, other than an apply."""
    media = bodies.media_type(request)
    if media not in (MERGE, STRATEGIC, JSON_PATCH):
        raise ApiStatus(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    if "force" in request.query:
        raise options.refused(request, forbidden_value("force", "may not be specified for non-apply patch"))
    content = await bodies.read(request)
    try:
        body, document = strict.load(content)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {bodies.json_error(error, content)}") from error
    kind = target.kind
    if media == JSON_PATCH:
        return Patch(lambda live: apply_json_patch(live, body))
    doubled = tuple(strict.faults(document, None))
    if media == MERGE:
        return Patch(lambda live: merge_patch(live, body), doubled)
    return Patch(
        lambda live: strategic_merge(live, body, kind=kind.kind, group=kind.group), doubled, strict.go_text(body)
    )


def patch_object(request: web.Request, registry: Registry, target: Target, patch: Patch) -> Object:
    """Change a stored object by a patch."""
    kind = target.kind
    live = registry.get(kind, target.namespace, target.name)
    patched = patch.of(copied(in_version(live, kind)))
    _check_patched(patched, target)
    faults = [*patch.doubled, *sorted(field_faults(patched, patched, kind))]
    options.report(request, faults, lambda why: _refused(patch.text or _text(patched), why))
    bodies.strip_fields(patched, kind)
    uid = patched["metadata"].get("uid", "")
    if uid and uid != live["metadata"]["uid"]:
        fault = invalid_value("metadata.uid", uid, "field is immutable")
        raise invalid(kind.kind, kind.group, target.name, [fault])
    stored, _ = registry.update(
        kind,
        target.namespace,
        target.name,
        patched if kind.home is None else to_core(patched),
        subresource=target.subresource,
        manager=options.manager(request),
        dry_run=options.dry_run(request),
    )
    return stored


def _check_patched(patched: Object, target: Target) -> None:
    """A patch that leads to no object is the patch's fault: 422, with the whole of it in the message."""
    try:
        check_shape(patched, target.kind)
    except ApiStatus as error:
        _, _, why = error.message.partition(f"cannot be handled as a {target.kind.kind}: ")
        raise _refused(_text(patched), why or error.message) from error


def _text(patched: Object) -> str:
    return json.dumps(dict(sorted(patched.items())), separators=(",", ":"))


def _refused(text: str, why: str) -> ApiStatus:
    fault = FieldError("FieldValueInvalid", "patch", f"Invalid value: {json.dumps(text)}: {why}")
    return ApiStatus(422, "Invalid", f' "" is invalid: patch: {fault.message}', {"causes": [fault.cause()]})


async def apply(request: web.Request, registry: Registry, target: Target) -> tuple[Object, bool]:
    """Server-side apply; whether it made the object is the second answer."""
    manager, dry_run = request.query.get("fieldManager", ""), options.dry_run(request)
    if not manager:
        raise invalid("PatchOptions", "meta.k8s.io", "", [required("fieldManager", "is required for apply patch")])
    applied = await _applied(request, target)
    named = (applied.get("metadata") or {}).get("name", "")
    if named and named != target.name:
        raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({target.name})")
    kind = target.kind
    live = registry.store.get(kind.key, (target.namespace, target.name))
    merged = server_side_apply(
        copied(live and in_version(live, kind)),
        applied,
        manager=manager,
        force=truth(request.query, "force"),
        now=registry.now(),
        kind=kind.kind,
        group=kind.group,
        subresource=target.subresource,
    )
    check_shape(merged, kind)
    merged = merged if kind.home is None else to_core(merged)
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
    for fault in field_faults(applied, applied, target.kind):
        field = "." + fault.partition('"')[2].rstrip('"')
        raise ApiStatus(500, "", f"{not_typed(applied)}: {field}: field not declared in schema")
    return applied
