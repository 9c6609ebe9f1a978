"""What the API server refuses with: a Kubernetes `Status`, and the refusals that several parts share.

The words are those of the real kube-apiserver, since clients and people match on them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class ApiStatus(Exception):  # noqa: N818 - the API's own word
    """A refusal that goes to the client as a `Status`."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        #: Where an expired list could go on.
        self.continue_token = ""

    def body(self) -> dict[str, Any]:
        """The `Status` object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.continue_token} if self.continue_token else {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def bad_request(message: str) -> ApiStatus:
    """400: the request itself makes no sense."""
    return ApiStatus(400, "BadRequest", message)


def not_found(plural: str, group: str, name: str) -> ApiStatus:
    """404 for one object."""
    return ApiStatus(404, "NotFound", f'{_qualified(plural, group)} "{name}" not found', _details(name, group, plural))


def no_such_path() -> ApiStatus:
    """404 for a path that no resource answers."""
    return ApiStatus(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(plural: str, group: str, name: str) -> ApiStatus:
    """409 for a name that is taken."""
    message = f'{_qualified(plural, group)} "{name}" already exists'
    return ApiStatus(409, "AlreadyExists", message, _details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str) -> ApiStatus:
    """409 for a change that came too late."""
    message = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
    return ApiStatus(409, "Conflict", message, _details(name, group, plural))


def forbidden(plural: str, group: str, name: str, why: str, causes: Sequence[dict[str, str]] = ()) -> ApiStatus:
    """403 from admission or authorization."""
    details = _details(name, group, plural)
    if causes:
        details["causes"] = list(causes)
    what = f'{_qualified(plural, group)} "{name}"' if name else _qualified(plural, group)
    return ApiStatus(403, "Forbidden", f"{what} is forbidden: {why}", details)


def expired(oldest: int, asked: int) -> ApiStatus:
    """410 for a watch from a version that is no longer kept."""
    return ApiStatus(410, "Expired", f"too old resource version: {asked} ({oldest})")


def method_not_allowed() -> ApiStatus:
    """405: the resource has no such verb."""
    return ApiStatus(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


class FieldError:
    """One broken field: its path, why, and the cause's reason as the API names it."""

    def __init__(self, reason: str, field: str, message: str) -> None:
        self.reason = reason
        self.field = field
        self.message = message

    def cause(self) -> dict[str, str]:
        """The entry in `details.causes`."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


def required(field: str, why: str = "") -> FieldError:
    """A field that must be there."""
    return FieldError("FieldValueRequired", field, f"Required value: {why}" if why else "Required value")


def invalid_value(field: str, value: object, why: str) -> FieldError:
    """A field with a value that cannot be."""
    return FieldError("FieldValueInvalid", field, f"Invalid value: {_shown(value)}: {why}")


def forbidden_value(field: str, why: str) -> FieldError:
    """A field that may not be set, or not be changed."""
    return FieldError("FieldValueForbidden", field, f"Forbidden: {why}")


def unsupported_value(field: str, value: object, allowed: Sequence[str]) -> FieldError:
    """A field with a word outside its list."""
    words = ", ".join(f'"{word}"' for word in sorted(allowed))
    return FieldError("FieldValueNotSupported", field, f"Unsupported value: {_shown(value)}: supported values: {words}")


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> ApiStatus:
    """422 with every broken field."""
    texts = list(dict.fromkeys(f"{error.field}: {error.message}" for error in errors))
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    qualified = f"{kind}.{group}" if group else kind
    details: dict[str, Any] = _details(name, group, kind)
    details["causes"] = [error.cause() for error in errors]
    return ApiStatus(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details)


def _details(name: str, group: str, kind: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    details["kind"] = kind
    return details


def _qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return f'"{value}"' if isinstance(value, str) else str(value)
