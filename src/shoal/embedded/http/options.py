"""The options of a write, as its query says them: dry run, who writes, what to do about unknown fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Final

from aiohttp import web

from shoal.embedded.errors import ApiStatus, FieldError, invalid

#: What the request that is being answered is to be warned of.
_WARNINGS: Final[ContextVar[list[str]]] = ContextVar("warnings")
_VALIDATIONS: Final = ("", "Ignore", "Strict", "Warn")
_OPTIONS: Final = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}


def dry_run(request: web.Request) -> bool:
    """Whether nothing is to be stored."""
    asked = request.query.getall("dryRun", [])
    if any(word != "All" for word in asked):
        shown = ",".join(f'"{word}"' for word in asked)
        why = f'Unsupported value: [{shown}]: supported values: "All"'
        raise refused(request, FieldError("FieldValueNotSupported", "dryRun", why))
    return bool(asked)


def manager(request: web.Request) -> str:
    """Who writes, for the record of managed fields: by name, or the program by its user agent."""
    return request.query.get("fieldManager", "") or request.headers.get("User-Agent", "").partition("/")[0]


def field_validation(request: web.Request) -> str:
    """What to do about fields that are unknown or there twice: Ignore, Warn or Strict."""
    asked = request.query.get("fieldValidation", "")
    if asked not in _VALIDATIONS:
        words = ", ".join(f'"{word}"' for word in _VALIDATIONS)
        why = f'Unsupported value: "{asked}": supported values: {words}'
        raise refused(request, FieldError("FieldValueNotSupported", "fieldValidation", why))
    return asked or "Warn"


def refused(request: web.Request, fault: FieldError) -> ApiStatus:
    """422 for an option."""
    return invalid(_OPTIONS.get(request.method, "DeleteOptions"), "meta.k8s.io", "", [fault])


def report(request: web.Request, faults: Iterable[str], refusal: Callable[[str], ApiStatus]) -> None:
    """Refuse faults, warn of them or leave it, as the client wants it."""
    mode = field_validation(request)
    if mode == "Ignore":
        return
    found = list(faults)
    if found and mode == "Strict":
        raise refusal(f"strict decoding error: {', '.join(found)}")
    warn(*found)


def begin_warnings() -> None:
    """A new request: nothing to warn of yet."""
    _WARNINGS.set([])


def warn(*texts: str) -> None:
    """Tell the client something beside the answer."""
    _WARNINGS.get().extend(texts)


def add_warnings(response: web.StreamResponse) -> None:
    """Put what was warned of into the answer's head."""
    for text in _WARNINGS.get():
        response.headers.add("Warning", f"299 - {json.dumps(text, ensure_ascii=False)}")
