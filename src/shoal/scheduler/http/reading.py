"""Requests out of the bytes of a connection, bounded in size. No I/O.

HTTP/1.1 as clients speak it: a body with its length or in chunks, kept connections, requests sent ahead. What could be
read in two ways is refused, for others may stand between the caller and here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote, urlsplit

from shoal.scheduler.http.messages import HttpError, Request

#: Request line and headers; also the line before a chunk, and the trailers.
MAX_HEAD: Final = 16 << 10
_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([!-~]{1,8000}) HTTP/1\.([01])")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?")


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    path: str
    #: None for a body in chunks.
    length: int | None
    keep: bool
    #: Whether the caller waits for a word before it sends the body.
    waits: bool


class Reader:
    """The requests of one connection, one after another."""

    def __init__(self, *, max_body: int, certified: bool = False) -> None:
        self._max_body = max_body
        self._certified = certified
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._chunks = bytearray()
        #: Bytes of the current chunk that are still to come, its end of line included.
        self._left = 0
        self._last_chunk = False

    def feed(self, data: bytes) -> None:
        """What has arrived."""
        self._buffer += data

    @property
    def begun(self) -> bool:
        """Whether a request has begun to arrive and is not whole yet."""
        return self._head is not None or bool(self._buffer)

    @property
    def waits(self) -> bool:
        """Whether the caller waits to be told to go on with its body. True once."""
        if self._head is None or not self._head.waits or self._buffer:
            return False
        head = self._head
        self._head = _Head(head.method, head.path, head.length, head.keep, waits=False)
        return True

    def take(self) -> Request | None:
        """The next request, if all of it is there. Raises HttpError; nothing can be read after that."""
        if self._head is None:
            self._head = self._take_head()
            if self._head is None:
                return None
        head = self._head
        body = self._take_chunked() if head.length is None else self._take_bytes(head.length)
        if body is None:
            return None
        self._head = None
        return Request(head.method, head.path, body, self._certified, head.keep)

    def _take_head(self) -> _Head | None:
        while self._buffer.startswith(b"\r\n"):
            del self._buffer[:2]  # some clients end a body with a line of its own
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
        if end < 0:
            self._bound_head()
            return None
        head = _read_head(bytes(self._buffer[:end]), self._max_body)
        del self._buffer[: end + 4]
        return head

    def _bound_head(self) -> None:
        if len(self._buffer) >= MAX_HEAD:
            raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"headers are longer than {MAX_HEAD} bytes")

    def _take_bytes(self, count: int) -> bytes | None:
        if len(self._buffer) < count:
            return None
        with memoryview(self._buffer) as view:
            taken = bytes(view[:count])
        del self._buffer[:count]
        return taken

    def _take_chunked(self) -> bytes | None:
        while not self._last_chunk:
            if not self._left and not self._begin_chunk():
                return None
            if self._left and not self._end_chunk():
                return None
        while True:  # trailers, which nobody reads
            line = self._take_line()
            if line is None:
                return None
            if not line:
                break
        body = bytes(self._chunks)
        self._chunks, self._last_chunk = bytearray(), False
        return body

    def _begin_chunk(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise _bad("a chunk begins without its size")
        size = int(match[1], 16)
        if len(self._chunks) + size > self._max_body:
            raise _too_large(self._max_body)
        self._last_chunk = not size
        self._left = size + 2 if size else 0
        return True

    def _end_chunk(self) -> bool:
        """All that is there of the current chunk; true when it is whole."""
        content = min(self._left - 2, len(self._buffer)) if self._left > 2 else 0
        self._chunks += self._buffer[:content]
        del self._buffer[:content]
        self._left -= content
        if self._left > 2 or len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise _bad("a chunk is longer than its size")
        del self._buffer[:2]
        self._left = 0
        return True

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, MAX_HEAD)
        if end < 0:
            self._bound_head()
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _read_head(content: bytes, max_body: int) -> _Head:
    first, *rest = content.split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise _bad("the first line is not that of an HTTP/1.1 request")
    fields = _fields(rest)
    keep = b"close" not in fields.get(b"connection", b"").lower() if line[3] == b"1" else False
    length = _length(fields, max_body)
    waits = fields.get(b"expect", b"").lower() == b"100-continue"
    return _Head(line[1].decode(), _path(line[2].decode()), length, keep, waits)


def _path(target: str) -> str:
    if not target.startswith("/"):
        try:
            target = urlsplit(target).path
        except ValueError:
            raise _bad("the address in the first line cannot be read") from None
    return unquote(target.partition("?")[0])


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise _bad("a header cannot be read")
        name = match[1].lower()
        if name in (b"content-length", b"transfer-encoding") and name in fields:
            raise _bad(f"{name.decode()} is given twice")
        fields[name] = match[2]
    return fields


def _length(fields: dict[bytes, bytes], max_body: int) -> int | None:
    """How long the body is; None for chunks."""
    coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if coding is not None:
        if length is not None or coding.lower() != b"chunked":
            raise _bad("give a body with Content-Length or with Transfer-Encoding: chunked, not both, nothing else")
        return None
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise _bad("Content-Length is not a number")
    if int(length) > max_body:
        raise _too_large(max_body)
    return int(length)


def _bad(words: str) -> HttpError:
    return HttpError(HTTPStatus.BAD_REQUEST, words)


def _too_large(max_body: int) -> HttpError:
    return HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {max_body} bytes")
