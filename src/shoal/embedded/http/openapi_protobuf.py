"""The second version of OpenAPI in protobuf, the only form in which kubectl asks for it.

It does so for a `kind: List`, whose objects it would check itself. Written is what `openapi.swagger` says, which is
operations and their parameters, by the numbers of `openapi.v2.Document`.
"""

from __future__ import annotations

import json
from typing import Any, Final

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
