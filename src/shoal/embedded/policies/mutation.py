"""One MutatingAdmissionPolicy, compiled, and what its mutations make of an object.

JSON patches are those of `patch.json_patch`; apply configurations are merged by the marks of server-side apply, without
a record of who manages what. What comes out is neither checked nor filled in here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shoal.embedded.fields import strict
from shoal.embedded.fields.table import struct_of
from shoal.embedded.kinds import Kind
from shoal.embedded.patch.json_patch import PatchError, TestFailedError, applied
from shoal.embedded.patch.json_values import shown as go_text
from shoal.embedded.patch.json_values import type_name
from shoal.embedded.patch.schema import MergedField, member_of, root_of
from shoal.embedded.patch.server_side_apply import ElementError, inside, laid_over, named_by
from shoal.embedded.policies.cel import Authorize, CelEnvironment, Evaluation, variables_of
from shoal.embedded.policies.errors import CelError, ExpressionError, MutationError
from shoal.embedded.policies.initialisers import configuration, operations
from shoal.embedded.policies.policy import CompiledPolicy
from shoal.embedded.rules.shapes import field_faults
from shoal.embedded.store import Object

if TYPE_CHECKING:
    from cel_expr_python import cel

JSON_PATCH: Final = "JSONPatch"
APPLY: Final = "ApplyConfiguration"
#: By the type of a patch: where its expression stands, and what that evaluates to.
PATCH_TYPES: Final = {JSON_PATCH: ("jsonPatch", "list(JSONPatch)"), APPLY: ("applyConfiguration", "Object")}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mutation of a policy."""

    type: str
    text: str
    expression: cel.Expression

    def of(self, evaluation: Evaluation, obj: Object, kind: Kind) -> Object:
        """The object after it. MutationError in the API server's words if there is none."""
        try:
            value = evaluation.of(self.expression)
        except CelError as error:
            raise MutationError(f"expression '{self.text}' resulted in error: {error}") from error
        try:
            if self.type == APPLY:
                return _merged(obj, configuration(value), kind)
            return _patched(obj, operations(value))
        except CelError as error:
            raise MutationError(str(error)) from error


class MutatingPolicy(CompiledPolicy):
    """A MutatingAdmissionPolicy. CelError names the part that cannot be compiled."""

    def __init__(self, obj: Object, environment: CelEnvironment) -> None:
        super().__init__(obj, environment)
        self.reinvoked = self.spec.get("reinvocationPolicy") == "IfNeeded"
        self.mutations = [self._mutation(place, one) for place, one in enumerate(self.spec.get("mutations") or ())]

    def matches(self, seen: cel.Activation, authorize: Authorize) -> bool:
        """Whether its match conditions hold; MutationError if that cannot be told."""
        try:
            return self._applies(self._evaluation(seen, authorize))
        except CelError as error:
            raise MutationError(str(error)) from error

    def evaluation(self, seen: cel.Activation, authorize: Authorize) -> Evaluation:
        """What a mutation sees."""
        return self._evaluation(seen, authorize)

    def _mutation(self, place: int, told: Mapping[str, Any]) -> Mutation:
        part, wanted = PATCH_TYPES[told["patchType"]]
        text = told[part]["expression"]
        known = {one["name"] for one in self.spec.get("variables") or ()}
        try:
            for name in variables_of(text):
                if name not in known:
                    raise CelError(f"compilation failed: undefined field '{name}'")
            made = self._environment.compile_mutation(text, wanted, self._inlined)
        except CelError as error:
            field = f"spec.mutations[{place}].{part}.expression"
            raise ExpressionError(self.name, f"mutation {place + 1}", field, text, str(error)) from None
        return Mutation(told["patchType"], text.strip(), made)


def _patched(obj: Object, patch: list[dict[str, Any]]) -> Object:
    try:
        return applied(obj, patch)
    except TestFailedError:
        return obj  # a test that fails is a patch that is not meant for this object
    except PatchError as error:
        raise MutationError(f"JSON Patch: {error}") from error


def _merged(obj: Object, told: dict[str, Any], kind: Kind) -> Object:
    """The object with a configuration laid over it."""
    root = root_of(kind.kind, kind.group)
    try:
        list(named_by(told, root))
        faults = list(_faults(told, kind))
    except ElementError as error:
        faults = [str(error)]
    if faults:
        listed = faults[0] if len(faults) == 1 else "errors:\n" + "\n".join(f"  {fault}" for fault in faults)
        raise MutationError(f"error applying patch: failed to convert patch object to typed object: {listed}")
    whole = list(_atomic(told, root, ""))
    if whole:
        why = f"may not mutate atomic arrays, maps or structs: {', '.join(whole)}"
        raise MutationError(f"error applying patch: invalid ApplyConfiguration: {why}")
    try:
        merged: Object = laid_over(obj, told, root)
    except ElementError as error:
        raise MutationError(f"error applying patch: failed to merge patch: {error}") from error
    return merged


def _faults(told: dict[str, Any], kind: Kind) -> Iterator[str]:
    """Fields that the kind does not have, and those of another type."""
    for fault in field_faults(told, told, kind):
        yield "." + fault.partition('"')[2].rstrip('"') + ": field not declared in schema"
    struct = struct_of(kind.group, kind.kind)
    for wrong in strict.wrong_types(told, struct, nulls=True) if struct is not None else ():
        yield f".{wrong.path}: expected {wrong.wanted}, got {_got(wrong)}"


def _got(wrong: strict.WrongType) -> str:
    """A value that is of another type, as Go prints it here and there."""
    if wrong.wanted == strict.NUMERIC:
        return "structpb.NullValue" if wrong.value is None else type_name(wrong.value)
    text = "0" if wrong.value is None else go_text(wrong.value)
    return f"&value.valueUnstructured{{Value:{text}}}" if wrong.wanted == "string" else f"&{{{text}}}"


def _atomic(value: Any, field: MergedField, path: str) -> Iterator[str]:
    """Where a configuration names what can only be replaced whole."""
    if isinstance(value, dict):
        if field.atomic:
            yield path
        for name, item in value.items():
            yield from _atomic(item, member_of(field, name), f"{path}.{name}")
    elif isinstance(value, list):
        if not (field.keys or field.members):
            yield path
        for number, item in enumerate(value):
            yield from _atomic(item, inside(field), f"{path}[{number}]")
