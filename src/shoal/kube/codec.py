"""Bytes to objects: one decoder per kind, for single objects, pages of lists and lines of a watch.

Whatever a server sends, what comes out is a clean object or an AnswerError, or the ApiError a watch line carries.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from shoal.kube.errors import AnswerError, api_error
from shoal.kube.objects.meta import Base, ListOf, Object, Status

T = TypeVar("T")
Batch = list["WatchEvent[T]"]
BOOKMARK: Final = "BOOKMARK"

_DECODING = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class WatchEvent(Base, Generic[T], frozen=True, kw_only=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, or BOOKMARK, whose object holds a version and nothing else."""

    type: str
    object: T


class _ErrorLine(msgspec.Struct):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


_error_line = msgspec.json.Decoder(_ErrorLine)
_status = msgspec.json.Decoder(Status)
_bookmark = msgspec.json.Decoder(WatchEvent[Object])


class Codec(Generic[T]):
    """Decoders of one type."""

    def __init__(self, of: type[T]) -> None:
        # The types are made at run time, where mypy cannot follow.
        kind: Any = of
        self._one: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._page: msgspec.json.Decoder[ListOf[T]] = msgspec.json.Decoder(ListOf[kind])
        self._event: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(WatchEvent[kind])

    def one(self, content: bytes, *, asked: str) -> T:
        """A single object."""
        try:
            return self._one.decode(content)
        except _DECODING as error:
            raise _broken(asked, error) from error

    def page(self, content: bytes, *, asked: str) -> ListOf[T]:
        """One page of a list."""
        try:
            return self._page.decode(content)
        except _DECODING as error:
            raise _broken(asked, error) from error

    def event(self, line: bytes, *, asked: str) -> WatchEvent[T]:
        """One line of a watch. A line of type ERROR is raised as the ApiError it tells of."""
        if not line.startswith(b'{"type":"ERROR"'):
            try:
                return self._event.decode(line)
            except _DECODING as error:
                # The object of a bookmark is empty, with null where a pod must have its containers.
                bookmark = _bookmark_of(line)
                if bookmark is not None:
                    return cast("WatchEvent[T]", bookmark)
                # A server may order the fields in another way, so it may be an ERROR all the same.
                raise _error_of(line, asked) or _broken(asked, error) from error
        raise _error_of(line, asked) or AnswerError(f"{asked}: an error line that cannot be read: watch again")


def codec_of(of: type[T]) -> Codec[T]:
    """The codec of a type, made once."""
    made: Any = of  # a type is hashable, which mypy does not take for granted
    return _codec(made)


@cache
def _codec(of: Any) -> Codec[Any]:
    return Codec(of)


def status_of(content: bytes) -> Status | None:
    """The Status a server answered with, if it is one."""
    try:
        status = _status.decode(content)
    except _DECODING:
        return None
    return status if status.kind == "Status" else None


def _bookmark_of(line: bytes) -> WatchEvent[Object] | None:
    try:
        event = _bookmark.decode(line)
    except _DECODING:
        return None
    return event if event.type == BOOKMARK else None


def _error_of(line: bytes, asked: str) -> Exception | None:
    try:
        read = _error_line.decode(line)
        status = _status.decode(read.object) if read.type == "ERROR" else None
    except _DECODING:
        return None
    if status is None:
        return None
    return api_error(
        asked=asked, status=status.code or 500, reason=status.reason or "", message=status.message or "no message"
    )


def _broken(asked: str, error: Exception) -> AnswerError:
    # msgspec names the place and the types, never the value; a decode error of bytes would show some.
    why = str(error) if isinstance(error, msgspec.MsgspecError) else type(error).__name__
    return AnswerError(f"{asked}: the answer cannot be read: {why}: check that the address is an API server's")
