"""Admission by the policies that are stored, with their bindings: the shipped ones and any other.

MutatingAdmissionPolicies change what is written, before the rules of its kind are asked; ValidatingAdmissionPolicies
refuse after them. CREATE and UPDATE are asked about, with the subresources that change objects; validating policies are
asked about Bindings of pods too, while a mutating policy about a Binding, an Eviction, a Scale or a TokenRequest has
the request refused. DELETE and CONNECT are not asked about, and policies have no parameters here.

Mutating policies go one after another by their names (the real server has no order), in at most two rounds: the second
is for policies that say `IfNeeded`, after anything was patched.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shoal.embedded.access.authorization import Asked, decide
from shoal.embedded.access.users import User
from shoal.embedded.errors import ApiStatus, forbidden, invalid, invalid_value
from shoal.embedded.kinds import MUTATING_BINDINGS, MUTATING_POLICIES, POLICIES, POLICY_BINDINGS
from shoal.embedded.policies.bound import Bound, BoundPolicies
from shoal.embedded.policies.cel import CelEnvironment
from shoal.embedded.policies.errors import CelError, ExpressionError, MutationError
from shoal.embedded.policies.matching import namespace_of
from shoal.embedded.policies.mutation import JSON_PATCH, MutatingPolicy, Mutation
from shoal.embedded.policies.policy import AdmissionPolicy, CompiledPolicy, Denial
from shoal.embedded.registry import Stage, undecodable
from shoal.embedded.store import Object, ObjectStore
from shoal.embedded.writes import Write

_CODES: Final = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}
#: What the API answers when a validation names no reason.
_DEFAULT_REASON: Final = "Invalid"
_DENY: Final = "Deny"
_Mutating = Bound[MutatingPolicy]


class PolicyAdmission:
    """A validator and the mutator of a registry. The runtime for CEL is loaded with the first policy."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._environment: CelEnvironment | None = None
        self._validating = BoundPolicies(
            store,
            POLICIES,
            POLICY_BINDINGS,
            lambda obj: AdmissionPolicy(obj, self.load()),
            lambda binding: _DENY in (binding.get("validationActions") or ()),
        )
        self._mutating = BoundPolicies(
            store, MUTATING_POLICIES, MUTATING_BINDINGS, lambda obj: MutatingPolicy(obj, self.load())
        )

    def load(self) -> CelEnvironment:
        """The runtime. CelError tells what to install if it is not there."""
        self._environment = self._environment or CelEnvironment()
        return self._environment

    def __call__(self, write: Write) -> None:
        """Refuse what a bound policy refuses."""
        if not write.subresource:
            self._check(write)
        found = self._validating.about(write)
        if not found:
            return
        seen = self.load().seen(self.data(write))
        for one in found:
            if not one.selects(write, self._store):
                continue
            denial = one.policy.judge(seen, lambda asked: self.may(write.user, asked))
            if denial is not None:
                raise _refusal(write, one, denial)

    def mutates(self, write: Write) -> bool:
        """Whether a mutating policy may be about a write."""
        return bool(self._mutating.about(write))

    def mutated(self, write: Write, stage: Stage) -> Object:
        """What mutating policies make of a write. The stage tells how a patched object is taken up again."""
        rounds = _Rounds(self, stage)
        after = rounds.once(write)
        if rounds.patched:
            stage.admit(after)
            after = rounds.once(replace(write, after=after), again=rounds.reinvoked)
        return after

    def refuse_mutation(self, write: Write) -> None:
        """Refuse a write that a mutating policy would change, and that cannot be changed here."""
        for one in self.selected(write):
            place = f"{write.plural}/{write.subresource}" if write.subresource else write.plural
            why = f"policy '{one.policy.name}' with binding '{one.binding}' is about it"
            raise ApiStatus(500, "", f"the embedded API server does not mutate {place}, and {why}")

    def selected(self, write: Write) -> list[_Mutating]:
        """The mutating policies that are about a write."""
        return [one for one in self._mutating.about(write) if one.selects(write, self._store)]

    def _check(self, write: Write) -> None:
        """422 for a policy that cannot be evaluated, as the real server has it."""
        made = _MADE.get(write.kind.key)
        if made is None:
            return
        try:
            made(write.after, self.load())
        except ExpressionError as error:
            fault = invalid_value(error.field, error.text.strip(), error.why)
            raise invalid(write.kind.kind, write.kind.group, write.name, [fault]) from error
        except CelError as error:
            fault = invalid_value("spec", write.name, str(error))
            raise invalid(write.kind.kind, write.kind.group, write.name, [fault]) from error

    def may(self, user: User, asked: Mapping[str, str]) -> bool:
        """What an authorizer in an expression answers."""
        return decide(self._store, user, Asked(**asked))[0]

    def data(self, write: Write) -> dict[str, Any]:
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


_MADE: Final[Mapping[tuple[str, str], Callable[[Object, CelEnvironment], CompiledPolicy]]] = {
    POLICIES.key: AdmissionPolicy,
    MUTATING_POLICIES.key: MutatingPolicy,
}


@dataclass(slots=True)
class _Rounds:
    """The rounds of mutating policies about one write."""

    admission: PolicyAdmission
    stage: Stage
    #: Whether anything was patched, with whatever effect.
    patched: bool = False
    #: The policies and bindings that a second round is for.
    reinvoked: set[tuple[str, str]] = field(default_factory=set)

    def once(self, write: Write, again: set[tuple[str, str]] | None = None) -> Object:
        """What all policies make of an object, or in the second round those that are in `again`."""
        failed: list[tuple[_Mutating, str]] = []
        for one in self.admission.selected(write):
            try:
                if not one.policy.matches(*self._seen(write, namespace=False)):
                    continue
            except MutationError as error:
                failed.append((one, str(error)))
                continue
            key = (one.policy.name, one.binding)
            if again is not None and key not in again:
                continue
            for mutation in one.policy.mutations:
                try:
                    write = replace(write, after=self._patched(one, mutation, write))
                    self.patched = True
                except MutationError as error:
                    failed.append((one, str(error)))
            if one.policy.reinvoked:
                self.reinvoked.add(key)
        failed = [(one, why) for one, why in failed if not one.policy.lenient]
        if failed:
            raise _failure(write, failed)
        return write.after

    def _patched(self, one: _Mutating, mutation: Mutation, write: Write) -> Object:
        evaluation = one.policy.evaluation(*self._seen(write))
        made = mutation.of(evaluation, write.after, write.kind.stored)
        try:
            return self.stage.settle(made)
        except ApiStatus as status:
            why = undecodable(status)
            if mutation.type != JSON_PATCH:
                kind = write.kind.stored
                what = f"{kind.group}/{kind.version}, Kind={kind.kind}"
                raise MutationError(f"unable to convert unstructured object to {what}: {why}") from status
            # The real server has no failure policy for this.
            raise ApiStatus(
                500, "InternalError", f"Internal error occurred: {why}", {"causes": [{"message": why}]}
            ) from status

    def _seen(self, write: Write, *, namespace: bool = True) -> tuple[Any, Callable[[Mapping[str, str]], bool]]:
        """What expressions see, and whom they ask who may do what. Match conditions see no namespace, as on the real
        server."""
        data = self.admission.data(write)
        if not namespace:
            data["namespaceObject"] = {}
        return self.admission.load().seen(data), lambda asked: self.admission.may(write.user, asked)


def _refusal(write: Write, bound: Bound[AdmissionPolicy], denial: Denial) -> ApiStatus:
    message = (
        f"ValidatingAdmissionPolicy '{bound.policy.name}' with binding '{bound.binding}' denied request: "
        f"{denial.message}"
    )
    status = forbidden(write.plural, write.kind.group, write.name, message, [{"message": message}])
    status.reason = denial.reason or _DEFAULT_REASON
    status.code = _CODES.get(status.reason, 422)
    return status


def _failure(write: Write, failed: Sequence[tuple[_Mutating, str]]) -> ApiStatus:
    """What the API says when mutations fail: 403 with another reason."""
    messages = [f"policy '{one.policy.name}' with binding '{one.binding}' denied request: {why}" for one, why in failed]
    status = forbidden(write.plural, write.kind.group, write.name, "", [{"message": message} for message in messages])
    status.reason, status.message = _DEFAULT_REASON, messages[0]
    return status
