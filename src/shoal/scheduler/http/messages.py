"""What is asked and what is answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


class HttpError(Exception):
    """A request that is answered with an error, in words for the caller."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read to its end."""

    method: str
    #: Without the query, percent signs decoded.
    path: str
    body: bytes
    #: Whether the caller has shown a certificate that TLS has checked.
    certified: bool = False
    #: Whether the caller wants to ask again on the same connection.
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Response:
    """One answer: whole, or in `pieces` that are made while others are answered."""

    content: bytes = b""
    kind: str = JSON
    status: HTTPStatus = HTTPStatus.OK
    pieces: Iterator[bytes] | None = None

    def head(self, *, keep: bool) -> bytes:
        """Status line and headers, with the empty line."""
        length = "Transfer-Encoding: chunked" if self.pieces is not None else f"Content-Length: {len(self.content)}"
        close = "" if keep else "Connection: close\r\n"
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {self.kind}\r\n{length}\r\n{close}\r\n"
        ).encode()


def text(words: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """An answer in words."""
    return Response(words.encode(), TEXT, status)
