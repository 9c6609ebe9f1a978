"""What a request wants to do, read from its method and path alone: whether the kind exists is no question here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.embedded.errors import ApiStatus, forbidden

_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTIONS: Final = {"get": "list", "delete": "deletecollection"}
_OF_NAMESPACES: Final = ("status", "finalize")
_NAMED: Final = "metadata.name="


@dataclass(frozen=True, slots=True)
class Asked:
    """A verb on a resource, or on a path that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def whole(self) -> str:
        """The resource with its part, as rules name it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def refusal(self, user: str, reason: str = "") -> ApiStatus:
        """403 in the words of the real server."""
        told = f": {reason}" if reason else ""
        if self.path:
            return ApiStatus(
                403, "Forbidden", f'forbidden: User "{user}" cannot {self.verb} path "{self.path}"{told}', {}
            )
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        why = f'User "{user}" cannot {self.verb} resource "{self.whole}" in API group "{self.group}" {where}{told}'
        return forbidden(self.resource, self.group, self.name, why)


def asked(method: str, path: Sequence[str], query: Mapping[str, str]) -> Asked:
    """What a request is about."""
    verb = _VERBS.get(method, method.lower())
    depth = {"api": 2, "apis": 3}.get(path[0], len(path))
    rest = list(path[depth:])
    if not rest:
        return Asked(verb, path="/" + "/".join(path))
    group = path[1] if depth == 3 else ""
    watched = rest[0] == "watch" and len(rest) > 1
    rest = rest[1:] if watched else rest
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _OF_NAMESPACES:
            rest = rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    if watched or (verb == "get" and query.get("watch", "") in ("1", "true")):
        verb = "watch"
    elif not name:
        verb = _COLLECTIONS.get(verb, verb)
    selector = query.get("fieldSelector", "")
    if not name and verb in ("list", "watch", "deletecollection") and selector.startswith(_NAMED):
        name = selector.removeprefix(_NAMED) if "," not in selector else ""
    return Asked(verb, group, resource, subresource, namespace, name)
