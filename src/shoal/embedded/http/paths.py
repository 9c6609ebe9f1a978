"""From the path of a request to what it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.embedded.errors import ApiStatus, method_not_allowed, no_such_path
from shoal.embedded.kinds import PODS, Catalogue, Kind

_OF_NAMESPACES: Final = ("status", "finalize")
#: Parts of pods that need a container which runs a program.
_OF_PROGRAMS: Final = ("attach", "ephemeralcontainers", "exec", "portforward", "proxy")


class NoSuchGroupError(Exception):
    """No API lives under this path: the real server answers with plain text."""


@dataclass(frozen=True, slots=True)
class Target:
    """A collection, an object, or a part of an object."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def resolve(path: list[str], catalogue: Catalogue) -> Target:
    """The target of `api/v1/…` or `apis/GROUP/VERSION/…`."""
    if path[0] == "api" and len(path) > 2:
        group, version, rest = "", path[1], path[2:]
    elif path[0] == "apis" and len(path) > 3:
        group, version, rest = path[1], path[2], path[3:]
    else:
        raise NoSuchGroupError
    if version not in catalogue.groups().get(group, {}):
        raise NoSuchGroupError
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in _OF_NAMESPACES):
        namespace, rest = rest[1], rest[2:]
    kind = catalogue.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if kind.key == PODS.key and subresource in _OF_PROGRAMS:
        raise _no_program(subresource)
    if subresource and subresource not in kind.subresources:
        raise no_such_path()
    if name and kind.namespaced and not namespace:
        raise no_such_path()
    return Target(kind, namespace, name, subresource)


def _no_program(subresource: str) -> ApiStatus:
    why = f"the containers of this cluster are simulated and run no program, so pods have no {subresource}"
    return ApiStatus(405, "MethodNotAllowed", f"{why}: kubectl logs shows what a container was given", {})


def require_namespace(target: Target) -> None:
    """Only reading goes across namespaces."""
    if target.kind.namespaced and not target.namespace:
        raise method_not_allowed()
