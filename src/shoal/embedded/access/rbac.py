"""RBAC: whether some binding gives a user a role that allows what they ask. Pure but for reading the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from shoal.embedded.access.asked import Asked
from shoal.embedded.access.users import User, account_name
from shoal.embedded.store import Object, Store

GROUP: Final = "rbac.authorization.k8s.io"
_PLURALS: Final = {"ClusterRole": "clusterroles", "Role": "roles"}


def decide(store: Store, user: User, wanted: Asked) -> tuple[bool, str]:
    """Whether the user may, and by what; or why a binding did not help."""
    if user.is_master:
        return True, ""
    problems: list[str] = []
    for binding, subject in _bindings(store, user, wanted.namespace):
        rules, problem = _rules(store, binding)
        if any(allows(rule, wanted) for rule in rules):
            return True, f"RBAC: allowed by {_described(binding, subject)}"
        problems += [problem] if problem else []
    if not problems:
        return False, ""
    told = list(dict.fromkeys(problems))
    return False, f"RBAC: {told[0] if len(told) == 1 else '[' + ', '.join(told) + ']'}"


def rules_of(store: Store, user: User, namespace: str) -> list[dict[str, Any]]:
    """Every rule that holds for a user in a namespace."""
    if user.is_master:
        verbs = ["*"]
        return [
            {"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]},
            {"verbs": verbs, "nonResourceURLs": ["*"]},
        ]
    return [rule for binding, _ in _bindings(store, user, namespace) for rule in _rules(store, binding)[0]]


def allows(rule: dict[str, Any], wanted: Asked) -> bool:
    """Whether one rule allows it."""
    if not _among(wanted.verb, rule.get("verbs")):
        return False
    if wanted.path:
        return any(_covers(pattern, wanted.path) for pattern in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames")
    return (
        _among(wanted.group, rule.get("apiGroups"))
        and _has_resource(rule.get("resources") or (), wanted)
        and (not names or wanted.name in names)
    )


def _among(word: str, words: Sequence[str] | None) -> bool:
    return words is not None and ("*" in words or word in words)


def _covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == path


def _has_resource(resources: Sequence[str], wanted: Asked) -> bool:
    parts = {"*", wanted.whole} | ({f"*/{wanted.subresource}"} if wanted.subresource else set())
    return not parts.isdisjoint(resources)


def _bindings(store: Store, user: User, namespace: str) -> Iterator[tuple[Object, dict[str, Any]]]:
    """The bindings that name a user, each with the subject that does."""
    found = store.objects((GROUP, "clusterrolebindings"))
    if namespace:
        found = [*found, *store.objects((GROUP, "rolebindings"), namespace)]
    for binding in found:
        home = binding["metadata"].get("namespace", "")
        for subject in binding.get("subjects") or ():
            if _is_meant(subject, user, home):
                yield binding, subject
                break


def _is_meant(subject: dict[str, Any], user: User, home: str) -> bool:
    name = subject.get("name", "")
    if subject.get("kind") == "ServiceAccount":
        return user.name == account_name(subject.get("namespace") or home, name)
    return name in user.groups if subject.get("kind") == "Group" else name == user.name


def _rules(store: Store, binding: Object) -> tuple[list[dict[str, Any]], str]:
    """The rules of a binding's role, and what is wrong with it."""
    reference = binding.get("roleRef") or {}
    kind, name = reference.get("kind", ""), reference.get("name", "")
    home = binding["metadata"].get("namespace", "") if kind == "Role" else ""
    role = store.get((GROUP, _PLURALS.get(kind, "")), (home, name))
    if role is None:
        return [], f'{kind.lower()}.{GROUP} "{name}" not found'
    return list(role.get("rules") or ()), ""


def _described(binding: Object, subject: dict[str, Any]) -> str:
    meta, role = binding["metadata"], binding["roleRef"]
    home = meta.get("namespace", "")
    name = f"{meta['name']}/{home}" if home else meta["name"]
    whom = subject["name"]
    if subject["kind"] == "ServiceAccount":
        whom = f"{whom}/{subject.get('namespace') or home}"
    return f'{binding["kind"]} "{name}" of {role["kind"]} "{role["name"]}" to {subject["kind"]} "{whom}"'
