"""MutatingAdmissionPolicies and their bindings: the fields the server fills in, and what it refuses.

Whether an expression can be compiled is asked by `shoal.embedded.admission`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.embedded.errors import FieldError, invalid_value, required, unsupported_value

Object = dict[str, Any]
_FAILURE: Final = ("Fail", "Ignore")
_REINVOCATION: Final = ("IfNeeded", "Never")
_OPERATIONS: Final = ("*", "CONNECT", "CREATE", "UPDATE")
#: By the type of a patch, where its expression stands.
_PATCHES: Final = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}


def default_mutating_policy(policy: Object) -> None:
    """Fill in a policy."""
    spec = policy.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    if isinstance(spec.get("matchConstraints"), dict):
        _default_match(spec["matchConstraints"])


def default_mutating_binding(binding: Object) -> None:
    """Fill in a binding."""
    spec = binding.setdefault("spec", {})
    if isinstance(spec.get("matchResources"), dict):
        _default_match(spec["matchResources"])


def _default_match(match: Object) -> None:
    match.setdefault("matchPolicy", "Equivalent")
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    for part in ("resourceRules", "excludeResourceRules"):
        for rule in match.get(part) or ():
            rule.setdefault("scope", "*")


def mutating_policy_errors(policy: Object) -> list[FieldError]:
    """What is wrong with a policy, but for its expressions."""
    spec = policy["spec"]
    errors = []
    if spec["failurePolicy"] not in _FAILURE:
        errors.append(unsupported_value("spec.failurePolicy", spec["failurePolicy"], _FAILURE))
    match = spec.get("matchConstraints")
    if match is None:
        errors.append(required("spec.matchConstraints"))
    else:
        if not match.get("resourceRules"):
            errors.append(required("spec.matchConstraints.resourceRules"))
        errors += _operation_errors(match, "spec.matchConstraints")
    for part in ("matchConditions", "variables"):
        for number, one in enumerate(spec.get(part) or ()):
            errors += [required(f"spec.{part}[{number}].{key}") for key in ("name", "expression") if not one.get(key)]
    if not spec.get("mutations"):
        errors.append(required("spec.mutations", "mutations must contain at least one item"))
    for number, mutation in enumerate(spec.get("mutations") or ()):
        errors += _mutation_errors(mutation, f"spec.mutations[{number}]")
    policy_of = spec.get("reinvocationPolicy")
    if not policy_of:
        errors.append(required("spec.reinvocationPolicy"))
    elif policy_of not in _REINVOCATION:
        errors.append(unsupported_value("spec.reinvocationPolicy", policy_of, _REINVOCATION))
    return errors


def mutating_binding_errors(binding: Object) -> list[FieldError]:
    """What is wrong with a binding."""
    spec = binding["spec"]
    errors = [] if spec.get("policyName") else [required("spec.policyName")]
    return errors + _operation_errors(spec.get("matchResources") or {}, "spec.matchResources")


def _operation_errors(match: Mapping[str, Any], path: str) -> list[FieldError]:
    return [
        unsupported_value(f"{path}.resourceRules.operations", operation, _OPERATIONS)
        for rule in match.get("resourceRules") or ()
        for operation in rule.get("operations") or ()
        if operation not in _OPERATIONS
    ]


def _mutation_errors(mutation: Mapping[str, Any], path: str) -> list[FieldError]:
    kind = mutation.get("patchType")
    if not kind:
        return [required(f"{path}.patchType")]
    if kind not in _PATCHES:
        return [unsupported_value(f"{path}.patchType", kind, tuple(_PATCHES))]
    part = _PATCHES[kind]
    told = mutation.get(part)
    errors = []
    if told is None:
        errors.append(required(f"{path}.{part}", f"must be specified when patchType is {kind}"))
    elif not (told.get("expression") or "").strip():
        errors.append(required(f"{path}.{part}.expression"))
    why = f"must not be specified when patchType is {kind}"
    return errors + [
        invalid_value(f"{path}.{other}", f"{{{other}}}", why)
        for other in _PATCHES.values()
        if other != part and mutation.get(other) is not None
    ]
