"""Questions about access: whoever holds the token may do everything, and is told so."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from shoal.embedded.http import bodies
from shoal.embedded.http.answers import answer

_USER: Final = {"username": "admin", "groups": ["system:masters", "system:authenticated"]}
_ACCESS: Final = ("selfsubjectaccessreviews", "subjectaccessreviews", "localsubjectaccessreviews")


async def review(request: web.Request, path: list[str]) -> web.Response | None:
    """The answer to a review; None if the path is not one."""
    if path[:3] == ["apis", "authorization.k8s.io", "v1"] and path[-1] in _ACCESS:
        return await _answered(request, {"allowed": True})
    if path == ["apis", "authorization.k8s.io", "v1", "selfsubjectrulesreviews"]:
        rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        return await _answered(request, {"resourceRules": rules, "nonResourceRules": [], "incomplete": False})
    if path == ["apis", "authentication.k8s.io", "v1", "selfsubjectreviews"]:
        return await _answered(request, {"userInfo": _USER})
    return None


async def _answered(request: web.Request, status: dict[str, Any]) -> web.Response:
    return answer({**await bodies.read_any(request, "review"), "status": status}, 201)
