"""Reading annotation values: bounded, strict, and with one kind of error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from shoal.model.errors import CodecError, shown

T = TypeVar("T")

#: Most entries of one comma-separated value, and most characters: what admission policies can compare in their budget.
MAX_ITEMS = 128
MAX_LIST = 6000
_MAX_DIGITS = 20


def value_of(values: Mapping[str, object], key: str) -> str | None:
    """The text under a key of annotations, labels or ConfigMap data; None when the key is absent."""
    value = values.get(key)
    if value is None or isinstance(value, str):
        return value
    raise CodecError(f"{key} holds {shown(value)}: write text, in quotes")


def integer(text: str, *, what: str, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
    """A plain decimal integer within bounds."""
    digits = text.removeprefix("-")
    readable = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
    if readable and minimum <= (number := int(text)) <= maximum:
        return number
    raise CodecError(f"{what} holds {shown(text)}: write a whole number from {minimum} to {maximum}")


def items(text: str, *, what: str) -> tuple[str, ...]:
    """The entries of a comma-separated list, in order. Empty text is an empty list; an empty entry is a mistake."""
    if not text.strip():
        return ()
    if len(text) > MAX_LIST or text.count(",") >= MAX_ITEMS:
        raise CodecError(f"{what} has more than {MAX_ITEMS} entries or {MAX_LIST} characters: shorten the list")
    entries = tuple(entry.strip() for entry in text.split(","))
    if not all(entries):
        raise CodecError(f"{what} has an empty entry: remove the extra comma")
    return entries


def boolean(text: str, *, what: str) -> bool:
    """`true` or `false`, in any case."""
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise CodecError(f"{what} holds {shown(text)}: write true or false")


def from_json(text: str, decoder: msgspec.json.Decoder[T], *, what: str, limit: int) -> T:
    """JSON of a known shape, refused unread when it is longer than `limit` characters."""
    if len(text) > limit:
        raise CodecError(f"{what} has {len(text)} characters, at most {limit} are read: remove the annotation")
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CodecError(f"{what} holds {shown(text)}, which is not what it should be: {error}") from error


def to_json(value: object, *, what: str, limit: int) -> str:
    """JSON text of a structure, refused when readers would refuse its length."""
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
        raise CodecError(f"{what} cannot be written: {error}") from error
    if len(text) > limit:
        raise CodecError(f"{what} would have {len(text)} characters, at most {limit} fit: split the pod or the node")
    return text
