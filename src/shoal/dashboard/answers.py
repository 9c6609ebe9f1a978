"""How the dashboard answers: times, JSON, and refusals in words that tell nothing but what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

JSON: Final = "application/json"
#: Nothing comes from elsewhere, nothing runs that is not a file of ours, and nobody frames the page.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
HSTS: Final = {"Strict-Transport-Security": "max-age=31536000"}
#: For whatever depends on who asks.
PRIVATE: Final = {"Cache-Control": "no-store"}

_CODES: Final = {
    400: "bad-request",
    401: "not-signed-in",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    413: "too-long",
    429: "too-many-requests",
    500: "failed",
    503: "unavailable",
}


class ErrorWords(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was wrong: a word for programs, and a sentence."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Any answer that is an error."""

    error: ErrorWords


class Refusal(Exception):  # noqa: N818 - it is an answer, and no failure of ours
    """An answer that is an error: its HTTP status, and words for whoever asked."""

    def __init__(self, status: int, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or _CODES.get(status, "failed")


def instant(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_answer(content: object, status: int = HTTPStatus.OK) -> web.Response:
    """An answer in JSON that only its caller may keep."""
    return json_bytes(msgspec.json.encode(content), status)


def json_bytes(content: bytes, status: int = HTTPStatus.OK) -> web.Response:
    """The same, encoded already."""
    return web.Response(body=content, status=status, content_type=JSON, charset="utf-8", headers=PRIVATE)


def error_answer(status: int, message: str, code: str = "", headers: dict[str, Any] | None = None) -> web.Response:
    """An error in JSON."""
    words = ErrorWords(code=code or _CODES.get(status, "failed"), message=message)
    answer = json_answer(ErrorAnswer(error=words), status)
    answer.headers.update(headers or {})
    return answer
