"""Admission by the ValidatingAdmissionPolicies that are stored, with their bindings: the shipped ones and any other.

CREATE and UPDATE are asked about, with the subresources that change objects, and Bindings of pods. DELETE and CONNECT
are not, and policies have no parameters here. Mutating policies can be stored and change nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.embedded.access.authorization import Asked, decide
from shoal.embedded.access.users import User
from shoal.embedded.errors import ApiStatus, forbidden, invalid, invalid_value
from shoal.embedded.kinds import POLICIES, POLICY_BINDINGS
from shoal.embedded.policies.cel import CelEnvironment, CelError
from shoal.embedded.policies.matching import is_about, namespace_of, selects
from shoal.embedded.policies.policy import AdmissionPolicy, Denial
from shoal.embedded.store import Object, ObjectStore
from shoal.embedded.writes import Write

_CODES: Final = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}
#: What the API answers when a validation names no reason.
_DEFAULT_REASON: Final = "Invalid"
_DENY: Final = "Deny"
#: Group, version, resource, subresource and operation: all that resource rules look at, names of objects excepted.
_Place = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class _Bound:
    """A policy with one of its bindings, and what both say of which writes they are about."""

    policy: AdmissionPolicy
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


class PolicyAdmission:
    """A validator of a registry. The runtime for CEL is loaded with the first policy."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._environment: CelEnvironment | None = None
        self._compiled: dict[str, tuple[str, AdmissionPolicy]] = {}
        #: By place, the bound policies that are about it.
        self._found: dict[_Place, list[_Bound]] = {}
        for kind in (POLICIES, POLICY_BINDINGS):
            store.listen(kind.key, self._found.clear)

    def __call__(self, write: Write) -> None:
        """Refuse what a bound policy refuses."""
        if write.kind.key == POLICIES.key and not write.subresource:
            self._check(write.after)
        found = self._bound(write)
        if not found:
            return
        seen = self.load().seen(self._data(write))
        for one in found:
            if not one.selects(write, self._store):
                continue
            denial = one.policy.judge(seen, lambda asked: self._may(write.user, asked))
            if denial is not None:
                raise _refusal(write, one, denial)

    def _bound(self, write: Write) -> list[_Bound]:
        """The policies that may be about a write, in the order of their names."""
        place = (write.kind.group, write.kind.version, write.plural, write.subresource, write.operation)
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = self._find(write)
        return found

    def _find(self, write: Write) -> list[_Bound]:
        found = []
        for binding in self._store.objects(POLICY_BINDINGS.key):
            spec = binding.get("spec") or {}
            obj = self._store.get(POLICIES.key, ("", spec.get("policyName", "")))
            if obj is None or _DENY not in (spec.get("validationActions") or ()):
                continue
            policy = self._policy(obj)
            one = _Bound(policy, binding["metadata"]["name"], policy.constraints, spec.get("matchResources") or {})
            if one.can_be_about(write):
                found.append(one)
        return sorted(found, key=lambda one: (one.policy.name, one.binding))

    def _policy(self, obj: Object) -> AdmissionPolicy:
        """The policy of an object, compiled once."""
        name, version = obj["metadata"]["name"], obj["metadata"]["resourceVersion"]
        known = self._compiled.get(name)
        if known is None or known[0] != version:
            known = self._compiled[name] = (version, self._compile(obj))
        return known[1]

    def load(self) -> CelEnvironment:
        """The runtime. CelError tells what to install if it is not there."""
        self._environment = self._environment or CelEnvironment()
        return self._environment

    def _compile(self, obj: Object) -> AdmissionPolicy:
        return AdmissionPolicy(obj, self.load())

    def _check(self, obj: Object) -> None:
        """422 for a policy that cannot be evaluated, as the real server has it."""
        try:
            self._compile(obj)
        except CelError as error:
            fault = invalid_value("spec", obj["metadata"]["name"], str(error))
            raise invalid(POLICIES.kind, POLICIES.group, obj["metadata"]["name"], [fault]) from error

    def _may(self, user: User, asked: Mapping[str, str]) -> bool:
        return decide(self._store, user, Asked(**asked))[0]

    def _data(self, write: Write) -> dict[str, Any]:
        """What expressions see of a write."""
        kind = write.kind.stored
        resource = {"group": kind.group, "version": kind.version, "resource": write.plural}
        named = {"group": kind.group, "version": kind.version, "kind": write.after.get("kind", kind.kind)}
        request = {
            "uid": str(uuid.uuid4()),
            "kind": named,
            "resource": resource,
            "subResource": write.subresource,
            "requestKind": named,
            "requestResource": resource,
            "requestSubResource": write.subresource,
            "name": write.name,
            "namespace": write.namespace,
            "operation": write.operation,
            "userInfo": write.user.info(),
            "dryRun": write.dry_run,
        }
        return {
            "object": write.after,
            "oldObject": write.before,
            "request": request,
            "namespaceObject": namespace_of(write, self._store),
            "params": None,
            "authorizer": {},
        }


def _refusal(write: Write, bound: _Bound, denial: Denial) -> ApiStatus:
    message = (
        f"ValidatingAdmissionPolicy '{bound.policy.name}' with binding '{bound.binding}' denied request: "
        f"{denial.message}"
    )
    status = forbidden(write.plural, write.kind.group, write.name, message, [{"message": message}])
    status.reason = denial.reason or _DEFAULT_REASON
    status.code = _CODES.get(status.reason, 422)
    return status
