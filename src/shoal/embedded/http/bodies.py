"""Bodies of requests, read up to a limit and decoded; whatever cannot be an object is refused in the server's words."""

from __future__ import annotations

import json
from typing import Any, Final

import yaml
from aiohttp import web

from shoal.embedded.errors import ApiStatus, bad_request
from shoal.embedded.fields import protobuf, strict
from shoal.embedded.fields.table import struct_of, structs
from shoal.embedded.http import options
from shoal.embedded.kinds import Kind
from shoal.embedded.rules.events import to_core
from shoal.embedded.rules.shapes import METADATA, check_shape, field_faults

LIMIT: Final = 3 * 1024 * 1024
_JSON: Final = ("application/json", "")
_YAML: Final = ("application/yaml",)
_UNKNOWN_FORMAT: Final = (
    "the body of the request was in an unknown format - accepted media types include: "
    "application/json, application/yaml, application/vnd.kubernetes.protobuf"
)


class _Loader(yaml.SafeLoader):
    """YAML with the types of JSON: a time stays text."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


async def read(request: web.Request) -> bytes:
    """The body, if it is not too large."""
    content = bytearray()
    async for piece in request.content.iter_chunked(1 << 16):
        content += piece
        if len(content) > LIMIT:
            raise ApiStatus(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LIMIT}")
    return bytes(content)


def media_type(request: web.Request) -> str:
    """The type of the body, without parameters."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def read_object(request: web.Request, kind: Kind) -> dict[str, Any]:
    """The object of this kind that the body holds, without what the kind does not have."""
    options.field_validation(request)
    obj, document = await _read(request, kind.kind)
    if kind.custom and not (obj.get("kind") and obj.get("apiVersion")):
        missing = "apiVersion" if obj.get("kind") else "Kind"
        shown = json.dumps(obj, separators=(",", ":"))
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): Object '{missing}' is missing in "
            f"'{shown}'"
        )
    check_type(obj, kind.kind, kind.group, kind.version)
    check_shape(obj, kind)
    options.report(request, field_faults(obj, document, kind), lambda why: refused(kind, why))
    strip_fields(obj, kind)
    return obj if kind.home is None else to_core(obj)


def strip_fields(obj: dict[str, Any], kind: Kind) -> None:
    """Take out, in place, what the kind does not have; of a custom kind the registry does the rest."""
    struct = None if kind.custom else struct_of(kind.group, kind.kind)
    try:
        if struct is not None:
            strict.strip(obj, struct)
        elif isinstance(obj.get("metadata"), dict):
            strict.strip(obj["metadata"], structs()[METADATA])
    except strict.TimeError as error:
        raise refused(kind, str(error)) from error


def refused(kind: Kind, why: str) -> ApiStatus:
    """400 for a body that cannot be decoded as its kind."""
    return bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')


async def read_any(request: web.Request, wanted: str) -> dict[str, Any]:
    """The mapping that the body holds."""
    return (await _read(request, wanted))[0]


async def _read(request: web.Request, wanted: str) -> tuple[dict[str, Any], Any]:
    """The mapping that the body holds, and the same with names that stand twice."""
    kind_of_body = media_type(request)
    if kind_of_body not in (*_JSON, *_YAML, protobuf.MEDIA_TYPE):
        raise ApiStatus(415, "UnsupportedMediaType", _UNKNOWN_FORMAT)
    content = await read(request)
    if kind_of_body == protobuf.MEDIA_TYPE:
        obj = _from_protobuf(content, wanted)
        return obj, obj
    try:
        value, document = strict.load(content) if kind_of_body in _JSON else _from_yaml(content)
    except (ValueError, yaml.YAMLError) as error:
        shown = content.decode(errors="replace") or "<empty>"
        raise _unrecognised(wanted, f"{json_error(error, content)} ({shown})") from error
    if not isinstance(value, dict):
        go = 'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
        what = "array" if isinstance(value, list) else "string" if isinstance(value, str) else "number"
        raise _unrecognised(wanted, f"json: cannot unmarshal {what} into Go value of type {go} ({content.hex()})")
    return value, document


def _from_yaml(content: bytes) -> tuple[Any, Any]:
    value = yaml_of(content)
    return value, value


def _from_protobuf(content: bytes, wanted: str) -> dict[str, Any]:
    try:
        return protobuf.decoded(content)
    except protobuf.ProtobufError as error:
        raise bad_request(f"the object provided is unrecognized (must be of type {wanted}): {error}") from error


def _unrecognised(wanted: str, why: str) -> ApiStatus:
    return bad_request(
        f"the object provided is unrecognized (must be of type {wanted}): "
        f"couldn't get version/kind; json parse error: {why}"
    )


async def read_optional(request: web.Request, wanted: str) -> dict[str, Any]:
    """The mapping that the body holds, empty if there is no body."""
    if not request.body_exists:
        return {}
    content = await read(request)
    if not content.strip():
        return {}
    if media_type(request) == protobuf.MEDIA_TYPE:
        return _from_protobuf(content, wanted)
    try:
        value = json.loads(content)
    except ValueError as error:
        shown = content.decode(errors="replace")
        raise _unrecognised(wanted, f"{json_error(error, content)} ({shown})") from error
    return value if isinstance(value, dict) else {}


def yaml_of(content: bytes) -> Any:
    """YAML, of which JSON is the common case and much faster to read as such."""
    try:
        return json.loads(content)
    except ValueError:
        return yaml.load(content, _Loader)


def check_type(obj: dict[str, Any], kind: str, group: str, version: str) -> None:
    """Refuse an object that says it is of another kind than its path; silence means the path's."""
    expected = f"{group}/{version}" if group else version
    said_kind, said_version = obj.get("kind") or kind, obj.get("apiVersion") or expected
    if not isinstance(said_kind, str) or not isinstance(said_version, str):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind}): kind and apiVersion are text")
    if (said_kind, said_version) == (kind, expected):
        return
    if said_version == expected:
        family = group.partition(".")[0] or "core"
        why = f"converting ({version}.{said_kind}) to ({family}.{kind}): unknown conversion"
    else:
        why = f'no kind "{said_kind}" is registered for version "{said_version}" in scheme "pkg/runtime/scheme.go:111"'
    shown = said_version.rpartition("/")[2]
    raise bad_request(f'{said_kind} in version "{shown}" cannot be handled as a {kind}: {why}')


def json_error(error: Exception, content: bytes) -> str:
    """What Go's decoder says of broken JSON, as far as the place tells."""
    if isinstance(error, json.JSONDecodeError):
        rest = error.doc[error.pos :].strip()
        if not rest:
            return "unexpected end of JSON input"
        return f"invalid character '{rest[0]}' looking for beginning of value"
    return "unexpected end of JSON input" if not content.strip() else str(error)
