"""The environment of a container: what device plugins add, what the pod says, references followed.

What CDI devices add comes last and wins; the runtime does that, not kubelet. Services are not in it.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.embedded.nodes.errors import ContainerConfigError
from shoal.embedded.rules.pods import containers
from shoal.model import quantity

#: Fetches an object by its plural and name, from the namespace of the pod.
Fetch = Callable[[str, str], Mapping[str, Any] | None]
_REFERENCE: Final = re.compile(r"\$(\$|\(([-._a-zA-Z0-9]+)\))")
_KEYED: Final = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_KINDS: Final = {"configmaps": "configmap", "secrets": "secret"}
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ContainerEnvironment:
    """The variables of a container, and the names of those whose values come from a Secret."""

    variables: dict[str, str]
    secret: frozenset[str] = frozenset()


def environment(
    container: Mapping[str, Any],
    pod: Mapping[str, Any],
    *,
    addresses: Mapping[str, str],
    allocatable: Mapping[str, str],
    allocated: Iterable[Mapping[str, str]],
    fetch: Fetch,
) -> ContainerEnvironment:
    """The environment of a container. `addresses` has `podIP` and `hostIP`; `allocated` is what device plugins add."""
    env = {"PATH": PATH, "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"]}
    for more in allocated:
        env |= more
    secret: set[str] = set()
    for source in container.get("envFrom") or ():
        found = _all_of(source, fetch)
        env |= found
        secret |= set(found) if "secretRef" in source else set()
    for variable in container.get("env") or ():
        value = _value(variable, container, pod, env, addresses, allocatable, fetch)
        if value is None:
            continue
        name = variable["name"]
        env[name] = value
        # What is put together from a secret is one.
        used = {match[2] for match in _REFERENCE.finditer(variable.get("value", ""))}
        if "secretKeyRef" in (variable.get("valueFrom") or {}) or used & secret:
            secret.add(name)
        else:
            secret.discard(name)
    return ContainerEnvironment(env, frozenset(secret))


def _value(
    variable: Mapping[str, Any],
    container: Mapping[str, Any],
    pod: Mapping[str, Any],
    env: Mapping[str, str],
    addresses: Mapping[str, str],
    allocatable: Mapping[str, str],
    fetch: Fetch,
) -> str | None:
    source = variable.get("valueFrom") or {}
    if "fieldRef" in source:
        return field_value(source["fieldRef"].get("fieldPath", ""), pod, addresses)
    if "resourceFieldRef" in source:
        return _resource(source["resourceFieldRef"], container, pod, allocatable)
    for key, plural in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if key in source:
            return _key_of(source[key], plural, pod, fetch)
    return expanded(variable.get("value", ""), env)


def expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where the name is known; `$$` is a dollar."""

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else env.get(match[2], match[0])

    return _REFERENCE.sub(replaced, text)


def field_value(path: str, pod: Mapping[str, Any], addresses: Mapping[str, str]) -> str:
    """A field of the pod, as text."""
    meta, spec = pod["metadata"], pod["spec"]
    if match := _KEYED.fullmatch(path):
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    plain = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": addresses["hostIP"],
        "status.hostIPs": addresses["hostIP"],
        "status.podIP": addresses["podIP"],
        "status.podIPs": addresses["podIP"],
    }
    if path not in plain:
        raise ContainerConfigError(f"unsupported fieldPath: {path}")
    return str(plain[path])


def _resource(
    reference: Mapping[str, Any], container: Mapping[str, Any], pod: Mapping[str, Any], allocatable: Mapping[str, str]
) -> str:
    named = reference.get("containerName")
    if named:
        found = [one for one in containers(pod["spec"]) if one["name"] == named]
        if not found:
            raise ContainerConfigError(f'container "{named}" not found')
        container = found[0]
    part, _, name = str(reference.get("resource", "")).partition(".")
    amounts = (container.get("resources") or {}).get(part) or {}
    # What nobody limited is limited by the node.
    amount = amounts.get(name, allocatable.get(name, "0") if part == "limits" else "0")
    divisor = quantity.parse(reference.get("divisor") or "0") or 1
    return str(math.ceil(quantity.parse(amount) / divisor))


def _key_of(reference: Mapping[str, Any], plural: str, pod: Mapping[str, Any], fetch: Fetch) -> str | None:
    name, key = reference.get("name", ""), reference.get("key", "")
    content = _content(plural, name, optional=bool(reference.get("optional")), fetch=fetch)
    if content is None:
        return None
    if key not in content:
        if reference.get("optional"):
            return None
        kind = {"configmaps": "ConfigMap", "secrets": "Secret"}[plural]
        raise ContainerConfigError(f"couldn't find key {key} in {kind} {pod['metadata']['namespace']}/{name}")
    return content[key]


def _all_of(source: Mapping[str, Any], fetch: Fetch) -> dict[str, str]:
    prefix = source.get("prefix", "")
    found: dict[str, str] = {}
    for key, plural in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
        if key in source:
            reference = source[key]
            optional = bool(reference.get("optional"))
            found |= _content(plural, reference.get("name", ""), optional=optional, fetch=fetch) or {}
    return {f"{prefix}{name}": value for name, value in found.items()}


def _content(plural: str, name: str, *, optional: bool, fetch: Fetch) -> dict[str, str] | None:
    obj = fetch(plural, name)
    if obj is None:
        if optional:
            return None
        raise ContainerConfigError(f'{_KINDS[plural]} "{name}" not found')
    data = obj.get("data") or {}
    if plural == "configmaps":
        return {key: str(value) for key, value in data.items()}
    return {key: _decoded(value) for key, value in data.items()}


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value).decode(errors="replace")
    except binascii.Error:
        return ""
