"""Kubernetes' protobuf, read into what the same object is in JSON. kubectl's `create` commands send it.

Only reading, and only kinds of the table: answers are always JSON, which every client takes.
"""

from __future__ import annotations

import base64
import json
import struct as binary
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from shoal.embedded.fields.table import Field, Struct, struct_of

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_DEEPEST: Final = 100
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = binary.Struct("<d")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: A field on the wire: its number, and a number or bytes.
_Part = tuple[int, int | bytes]


class ProtobufError(ValueError):
    """Bytes that are not an object of a known kind."""


def decoded(content: bytes) -> dict[str, Any]:
    """The object in an envelope, with its kind and apiVersion."""
    if not content.startswith(_MAGIC):
        raise ProtobufError("provided data does not appear to be a protobuf message, expected prefix 6b 38 73 00")
    envelope = dict(_parts(content[len(_MAGIC) :]))
    type_ = dict(_parts(_bytes(envelope.get(1, b""))))
    version, kind = _text(type_.get(1, b"")), _text(type_.get(2, b""))
    group = version.rpartition("/")[0]
    struct = struct_of(group, kind)
    if struct is None:
        raise ProtobufError(f"no kind {kind!r} of {version!r} is known in protobuf; send it as JSON")
    return {"kind": kind, "apiVersion": version, **_message(_bytes(envelope.get(2, b"")), struct, 0)}


def _message(content: bytes, struct: Struct, depth: int) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise ProtobufError(f"nested deeper than {_DEEPEST} messages")
    found: dict[str, Any] = {}
    for number, part in _parts(content):
        field = struct.numbers.get(number)
        if field is None:
            continue
        if field.embedded and field.struct is not None:
            found.update(_message(_bytes(part), field.struct, depth + 1))
        elif field.shape.startswith("[]"):
            found.setdefault(field.name, []).extend(_elements(part, field, depth))
        elif field.shape.startswith("{}"):
            key, value = _entry(_bytes(part), field, depth)
            found.setdefault(field.name, {})[key] = value
        else:
            value = _value(part, field, depth)
            # Go writes every field that is no pointer, empty or not; JSON leaves the empty ones out.
            if field.optional or value not in ("", 0, None):
                found[field.name] = value
    return found


def _elements(part: int | bytes, field: Field, depth: int) -> list[Any]:
    if field.of in ("int", "bool") and isinstance(part, bytes):
        return [_value(number, field, depth) for number in _varints(part)]
    return [_value(part, field, depth)]


def _entry(content: bytes, field: Field, depth: int) -> tuple[str, Any]:
    parts = dict(_parts(content))
    empty: int | bytes = 0 if field.of in ("int", "bool") else b""
    value = parts.get(2, empty)
    if field.shape == "{}[]":
        # A list as a value is a message that holds it.
        return _text(parts.get(1, b"")), [_value(one, field, depth) for _, one in _parts(_bytes(value))]
    return _text(parts.get(1, b"")), _value(value, field, depth)


def _value(part: int | bytes, field: Field, depth: int) -> Any:
    if field.struct is not None:
        return _message(_bytes(part), field.struct, depth + 1)
    if field.of in ("int", "bool"):
        if not isinstance(part, int):
            raise ProtobufError(f"field {field.name} is no number")
        return bool(part) if field.of == "bool" else part - (1 << 64) if part >> 63 else part
    content = _bytes(part)
    if field.of == "str":
        return _text(content)
    if field.of == "bytes":
        return base64.b64encode(content).decode()
    if field.of == "num":
        if len(content) != _DOUBLE.size:
            raise ProtobufError(f"field {field.name} is no number of 64 bits")
        return _DOUBLE.unpack(content)[0]
    return _leaf(dict(_parts(content)), field)


def _leaf(parts: dict[int, int | bytes], field: Field) -> Any:
    """A type with a form of its own in JSON; None if it is not set."""
    if field.of == "quantity":
        return _text(parts.get(1, b""))
    if field.of == "intstr":
        return _text(parts.get(3, b"")) if parts.get(1) else _signed32(parts.get(2, 0))
    if field.of == "raw":
        try:
            return json.loads(_bytes(parts.get(1, b"null")))
        except ValueError as error:
            raise ProtobufError(f"field {field.name} holds no JSON: {error}") from error
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not parts or not isinstance(seconds, int) or not isinstance(nanos, int):
        return None
    try:
        moment = _EPOCH + timedelta(seconds=seconds - (1 << 64) if seconds >> 63 else seconds)
    except OverflowError as error:
        raise ProtobufError(f"field {field.name} is no time") from error
    fraction = f".{nanos // 1000:06}" if field.of == "microtime" else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _signed32(part: int | bytes) -> int:
    number = int(part) if isinstance(part, int) else 0
    return number - (1 << 64) if number >> 63 else number


def _parts(content: bytes) -> Iterator[_Part]:
    """The fields of a message in their order."""
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(content, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(content, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ProtobufError(f"wire type {kind} is not known")
        if position + length > len(content):
            raise ProtobufError("unexpected EOF")
        yield number, content[position : position + length]
        position += length


def _varints(content: bytes) -> Iterator[int]:
    position = 0
    while position < len(content):
        value, position = _varint(content, position)
        yield value


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            raise ProtobufError("unexpected EOF")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, position
    raise ProtobufError("a number has more than 64 bits")


def _bytes(part: int | bytes) -> bytes:
    if isinstance(part, int):
        raise ProtobufError("a number stands where a message or a text should be")
    return part


def _text(part: int | bytes) -> str:
    try:
        return _bytes(part).decode()
    except UnicodeDecodeError as error:
        raise ProtobufError(f"text is not UTF-8: {error}") from error
