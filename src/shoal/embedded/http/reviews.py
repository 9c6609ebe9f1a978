"""Questions about access: who somebody is, and what they may do."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from aiohttp import web

from shoal.embedded.access.authorization import Asked, Gate, rules_of
from shoal.embedded.access.tokens import ISSUER
from shoal.embedded.access.users import User
from shoal.embedded.errors import ApiStatus
from shoal.embedded.http import bodies
from shoal.embedded.http.answers import answer
from shoal.embedded.store import Object, ObjectStore

_AUTHORIZATION: Final = ["apis", "authorization.k8s.io", "v1"]
_AUTHENTICATION: Final = ["apis", "authentication.k8s.io", "v1"]


async def review(
    request: web.Request, path: list[str], user: User, gate: Gate, store: ObjectStore
) -> web.Response | None:
    """The answer to a review; None if the path is not one."""
    api, question = path[:3], path[-1]
    if api == _AUTHENTICATION and question == "selfsubjectreviews":
        return await _answered(request, lambda _: {"userInfo": user.info()})
    if api == _AUTHENTICATION and question == "tokenreviews":
        return await _answered(request, lambda spec: _token(gate, spec))
    if api != _AUTHORIZATION:
        return None
    if question == "selfsubjectaccessreviews":
        return await _answered(request, lambda spec: _access(gate, user, spec))
    if question == "selfsubjectrulesreviews":
        return await _answered(request, lambda spec: _rules(store, user, spec))
    if question == "subjectaccessreviews" or (question == "localsubjectaccessreviews" and len(path) == 6):
        return await _answered(request, lambda spec: _access(gate, _subject(spec), spec))
    return None


def _access(gate: Gate, user: User, spec: Object) -> dict[str, Any]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if path is not None:
        wanted = Asked(path.get("verb", ""), path=path.get("path", ""))
    else:
        told = resource or {}
        parts = ("verb", "group", "resource", "subresource", "namespace", "name")
        wanted = Asked(**{part: str(told.get(part) or "") for part in parts})
    allowed, reason = gate.decide(user, wanted)
    return {"allowed": allowed} | ({"reason": reason} if reason else {})


def _subject(spec: Object) -> User:
    return User(spec.get("user") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "")


def _rules(store: ObjectStore, user: User, spec: Object) -> dict[str, Any]:
    rules = rules_of(store, user, spec.get("namespace") or "")
    return {
        "resourceRules": [rule for rule in rules if "resources" in rule],
        "nonResourceRules": [rule for rule in rules if "nonResourceURLs" in rule],
        "incomplete": False,
    }


def _token(gate: Gate, spec: Object) -> dict[str, Any]:
    token, wanted = str(spec.get("token") or ""), [str(one) for one in spec.get("audiences") or [ISSUER]]
    # Tokens of service accounts have audiences of their own; others are for this server.
    audiences = gate.tokens.audiences(token, wanted)
    found = gate.tokens.user(token, wanted)
    if found is None and ISSUER in wanted:
        with contextlib.suppress(ApiStatus):
            found, audiences = gate.user(f"Bearer {token}"), [ISSUER]
    if found is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": found.info(), "audiences": audiences}


async def _answered(request: web.Request, status: Any) -> web.Response:
    given = await bodies.read_any(request, "review")
    return answer({**given, "status": status(given.get("spec") or {})}, 201)
