"""Policies with their bindings: compiled once, and found by the place of a write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shoal.embedded.kinds import Kind
from shoal.embedded.policies.matching import is_about, selects
from shoal.embedded.policies.policy import CompiledPolicy
from shoal.embedded.store import Object, ObjectStore
from shoal.embedded.writes import Write

P = TypeVar("P", bound=CompiledPolicy)
#: Group, version, resource, subresource and operation: all that resource rules look at, names of objects excepted.
_Place = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Bound(Generic[P]):
    """A policy with one of its bindings, and what both say of which writes they are about."""

    policy: P
    binding: str
    constraints: Mapping[str, Any]
    narrowed: Mapping[str, Any]

    def can_be_about(self, write: Write) -> bool:
        """Whether the rules are about the place of a write, if it were not for names."""
        return self._by_name() or self._is_about(write)

    def selects(self, write: Write, store: ObjectStore) -> bool:
        """Whether a write at such a place is meant."""
        return (
            (not self._by_name() or self._is_about(write))
            and selects(self.constraints, write, store)
            and selects(self.narrowed, write, store)
        )

    def _is_about(self, write: Write) -> bool:
        return is_about(self.constraints, write) and is_about(self.narrowed, write)

    def _by_name(self) -> bool:
        return any(
            "resourceNames" in rule
            for told in (self.constraints, self.narrowed)
            for part in ("resourceRules", "excludeResourceRules")
            for rule in told.get(part) or ()
        )


class BoundPolicies(Generic[P]):
    """The policies of one kind that are stored with a binding."""

    def __init__(
        self,
        store: ObjectStore,
        policies: Kind,
        bindings: Kind,
        made: Callable[[Object], P],
        in_force: Callable[[Mapping[str, Any]], bool] = lambda binding: True,
    ) -> None:
        """`made` compiles a policy; `in_force` tells by the spec of a binding whether it counts."""
        self._store = store
        self._policies = policies
        self._bindings = bindings
        self._made = made
        self._in_force = in_force
        self._compiled: dict[str, tuple[str, P]] = {}
        self._found: dict[_Place, list[Bound[P]]] = {}
        for kind in (policies, bindings):
            store.listen(kind.key, self._found.clear)

    def about(self, write: Write) -> list[Bound[P]]:
        """The policies that may be about a write, in the order of their names."""
        place = (write.kind.group, write.kind.version, write.plural, write.subresource, write.operation)
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = self._find(write)
        return found

    def _find(self, write: Write) -> list[Bound[P]]:
        found = []
        for binding in self._store.objects(self._bindings.key):
            spec = binding.get("spec") or {}
            obj = self._store.get(self._policies.key, ("", spec.get("policyName", "")))
            if obj is None or not self._in_force(spec):
                continue
            policy = self._policy(obj)
            one = Bound(policy, binding["metadata"]["name"], policy.constraints, spec.get("matchResources") or {})
            if one.can_be_about(write):
                found.append(one)
        return sorted(found, key=lambda one: (one.policy.name, one.binding))

    def _policy(self, obj: Object) -> P:
        """The policy of an object, compiled once."""
        name, version = obj["metadata"]["name"], obj["metadata"]["resourceVersion"]
        known = self._compiled.get(name)
        if known is None or known[0] != version:
            known = self._compiled[name] = (version, self._made(obj))
        return known[1]
