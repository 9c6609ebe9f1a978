"""Which writes a policy or a binding is about: its resource rules and its selectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal.embedded.kinds import NAMESPACES
from shoal.embedded.selectors import matches_selector
from shoal.embedded.store import Object, ObjectStore
from shoal.embedded.writes import Write

#: No policy is asked about these: one that refuses everything could not be taken away again.
_EXEMPT: Final = "admissionregistration.k8s.io"


def is_about(constraints: Mapping[str, Any], write: Write) -> bool:
    """Whether the resource rules name a write; without any they name all."""
    if write.kind.group == _EXEMPT:
        return False
    rules = constraints.get("resourceRules") or ()
    if rules and not _any_rule(rules, write):
        return False
    return not _any_rule(constraints.get("excludeResourceRules") or (), write)


def selects(constraints: Mapping[str, Any], write: Write, store: ObjectStore) -> bool:
    """Whether the selectors take a write: by the labels of its namespace, and by those of the object, old or new."""
    namespace = constraints.get("namespaceSelector")
    if namespace and not _in_namespace(namespace, write, store):
        return False
    selector = constraints.get("objectSelector")
    return not selector or any(
        matches_selector(selector, obj["metadata"].get("labels") or {})
        for obj in (write.after, write.before)
        if obj is not None
    )


def namespace_of(write: Write, store: ObjectStore) -> Object | None:
    """The namespace that the object is in; None if it is in none."""
    return store.get(NAMESPACES.key, ("", write.namespace)) if write.kind.namespaced else None


def _in_namespace(selector: Mapping[str, Any], write: Write, store: ObjectStore) -> bool:
    if write.kind.key == NAMESPACES.key:
        return matches_selector(selector, write.after["metadata"].get("labels") or {})
    if not write.kind.namespaced:
        return True
    home = namespace_of(write, store) or {"metadata": {}}
    return matches_selector(selector, home["metadata"].get("labels") or {})


def _any_rule(rules: Sequence[Mapping[str, Any]], write: Write) -> bool:
    return any(_names(rule, write) for rule in rules)


def _names(rule: Mapping[str, Any], write: Write) -> bool:
    # One kind served under two names is matched by either.
    kinds = {write.kind, write.kind.stored}
    names = rule.get("resourceNames")
    scope = rule.get("scope", "*")
    return (
        any(
            _among(kind.group, rule.get("apiGroups")) and _among(kind.version, rule.get("apiVersions"))
            for kind in kinds
        )
        and _among(write.operation, rule.get("operations"))
        and any(_is_resource(word, write) for word in rule.get("resources") or ())
        and (not names or write.name in names)
        and scope in ("*", "Namespaced" if write.kind.namespaced else "Cluster")
    )


def _among(word: str, words: Sequence[str] | None) -> bool:
    return words is not None and ("*" in words or word in words)


def _is_resource(word: str, write: Write) -> bool:
    resource, slash, part = word.partition("/")
    if resource not in ("*", write.plural):
        return False
    return part in ("*", write.subresource) if slash else not write.subresource
