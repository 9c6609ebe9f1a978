"""OpenAPI as far as kubectl needs it: which writes take fieldValidation and dryRun, and fields for `kubectl explain`.

Fields have names and types, no descriptions. The second version has no schemas: with them kubectl would make strategic
merge patches by their marks, which are not there.
"""

from __future__ import annotations

import json
from typing import Any, Final

from shoal.embedded.fields.table import Field, Struct, struct_of
from shoal.embedded.kinds import Catalogue, Kind

# The second version of OpenAPI in protobuf, the only form in which kubectl asks for it.
#
# It does so for a `kind: List`, whose objects it would check itself. Written is what `openapi.swagger` says, which is
# operations and their parameters, by the numbers of `openapi.v2.Document`.


#: The older spelling, which clients send, and the one that is answered.
MEDIA_TYPES: Final = (
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
)
_METHODS: Final = {"put": 3, "post": 4, "patch": 8}
_BYTES: Final = 2


def encoded(swagger: dict[str, Any]) -> bytes:
    """The document on the wire."""
    info = _text(1, swagger["info"]["title"]) + _text(2, swagger["info"]["version"])
    paths = b"".join(_field(2, _named(url, _path_item(operations))) for url, operations in swagger["paths"].items())
    return _text(1, swagger["swagger"]) + _field(2, info) + _field(8, paths) + _field(9, b"")


def _path_item(operations: dict[str, Any]) -> bytes:
    return b"".join(_field(_METHODS[method], _operation(operation)) for method, operation in operations.items())


def _operation(operation: dict[str, Any]) -> bytes:
    parameters = b"".join(_field(8, _parameter(parameter)) for parameter in operation["parameters"])
    responses = b"".join(
        _field(1, _named(code, _field(1, _text(1, response["description"]))))
        for code, response in operation["responses"].items()
    )
    extensions = b"".join(
        _field(13, _named(name, _text(2, json.dumps(value))))  # as YAML, of which JSON is a part
        for name, value in operation.items()
        if name.startswith("x-")
    )
    return parameters + _field(9, responses) + extensions


def _parameter(parameter: dict[str, Any]) -> bytes:
    """A parameter of the query, inside the three messages that say so."""
    query = _text(2, parameter["in"]) + _text(4, parameter["name"]) + _text(6, parameter["type"])
    query += _varint(20 << 3) + _varint(parameter["uniqueItems"])
    return _field(1, _field(2, _field(3, query)))


def _named(name: str, value: bytes) -> bytes:
    return _text(1, name) + _field(2, value)


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


_TYPES: Final[dict[str, dict[str, Any]]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "num": {"type": "number"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string"},
    "intstr": {"type": "string", "format": "int-or-string"},
    "raw": {"type": "object"},
}
#: What a parameter is: the second version says it beside the name, the third in a schema.
_STRING: Final[dict[str, Any]] = {"type": "string", "uniqueItems": True}
_IN_SCHEMA: Final[dict[str, Any]] = {"schema": _STRING}


def index(catalogue: Catalogue) -> dict[str, Any]:
    """`/openapi/v3`: one document per group and version."""
    paths = {_path(group, version) for group, versions in catalogue.groups().items() for version in versions}
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash=embedded"} for path in sorted(paths)}}


def document(catalogue: Catalogue, path: str) -> dict[str, Any] | None:
    """`/openapi/v3/api/v1` and its like; None if there is no such version."""
    for group, versions in catalogue.groups().items():
        for version, kinds in versions.items():
            if _path(group, version) == path:
                paths = {url: item for kind in kinds for url, item in _operations(kind, _IN_SCHEMA).items()}
                info = {"title": "Kubernetes", "version": "v1.36.3"}
                schemas = {name: schema for kind in kinds for name, schema in _schemas(kind).items()}
                return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}
    return None


def swagger(catalogue: Catalogue) -> dict[str, Any]:
    """`/openapi/v2`: the same without documents per version."""
    paths = {url: item for kind in catalogue.all() for url, item in _operations(kind, _STRING).items()}
    return {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.3"}, "paths": paths, "definitions": {}}


def _path(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _operations(kind: Kind, type_: dict[str, Any]) -> dict[str, Any]:
    prefix = f"/{_path(kind.group, kind.version)}"
    if kind.namespaced:
        prefix += "/namespaces/{namespace}"
    identity = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    parameters = [{"name": name, "in": "query", **type_} for name in ("dryRun", "fieldManager", "fieldValidation")]

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


def _schemas(kind: Kind) -> dict[str, Any]:
    """The schema of a kind and of all that it holds."""
    identity = [{"group": kind.group, "version": kind.version, "kind": kind.kind}]
    if kind.custom:
        return {f"{kind.group}.{kind.kind}": {**kind.schema, "x-kubernetes-group-version-kind": identity}}
    root = struct_of(kind.group, kind.kind)
    if root is None:
        return {}
    schemas: dict[str, Any] = {}
    waiting = [root]
    while waiting:
        struct = waiting.pop()
        if struct.name not in schemas:
            schemas[struct.name] = _struct_schema(struct)
            waiting += [field.struct for field in struct.members.values() if field.struct is not None]
    schemas[root.name]["x-kubernetes-group-version-kind"] = identity
    return schemas


def _struct_schema(struct: Struct) -> dict[str, Any]:
    return {"type": "object", "properties": {name: _field_schema(field) for name, field in struct.members.items()}}


def _field_schema(field: Field) -> dict[str, Any]:
    schema: dict[str, Any]
    if field.struct is None:
        schema = dict(_TYPES[field.of])
    else:
        schema = {"$ref": f"#/components/schemas/{field.struct.name}"}
    for shape in reversed([field.shape[at : at + 2] for at in range(0, len(field.shape), 2)]):
        schema = {"type": "array", "items": schema} if shape == "[]" else _map_of(schema)
    return schema


def _map_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}
