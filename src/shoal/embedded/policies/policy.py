"""One admission policy, compiled: what all have in common, and what a ValidatingAdmissionPolicy says of a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.embedded.policies.cel import Authorize, CelEnvironment, Evaluation, is_path
from shoal.embedded.policies.errors import CelError, ExpressionError
from shoal.embedded.store import Object

if TYPE_CHECKING:
    from cel_expr_python import cel


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a write is refused, and by which reason of the API; empty is the API's own default."""

    message: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Validation:
    text: str
    expression: cel.Expression
    message: str
    message_expression: cel.Expression | None
    reason: str


class CompiledPolicy:
    """A policy by its object. CelError names the policy and the part that cannot be compiled."""

    def __init__(self, obj: Object, environment: CelEnvironment) -> None:
        self.name: str = obj["metadata"]["name"]
        self.spec: Mapping[str, Any] = obj.get("spec") or {}
        self.constraints: Mapping[str, Any] = self.spec.get("matchConstraints") or {}
        self.lenient = self.spec.get("failurePolicy") == "Ignore"
        self._environment = environment
        if self.spec.get("paramKind"):
            raise CelError(f"policy {self.name} has a paramKind: the embedded API server knows no parameters")
        written = {one["name"]: one["expression"] for one in self.spec.get("variables") or ()}
        self._inlined = {name: text for name, text in written.items() if is_path(text)}
        self._variables = {
            name: self._compiled(f"variable {name}", f"spec.variables[{place}].expression", text)
            for place, (name, text) in enumerate(written.items())
            if name not in self._inlined
        }
        self._conditions = [
            (
                one["expression"],
                self._condition(one["name"], f"spec.matchConditions[{place}].expression", one["expression"]),
            )
            for place, one in enumerate(self.spec.get("matchConditions") or ())
        ]

    def _evaluation(self, seen: cel.Activation, authorize: Authorize) -> Evaluation:
        return Evaluation(self._environment, seen, self._variables, authorize)

    def _applies(self, evaluation: Evaluation) -> bool:
        """Whether all match conditions hold. One that does not counts for more than one that cannot be evaluated."""
        failed = []
        for text, condition in self._conditions:
            try:
                if evaluation.of(condition) is not True:
                    return False
            except CelError as error:
                failed.append(f"expression '{text}' resulted in error: {error}")
        if failed:
            raise CelError(failed[0] if len(failed) == 1 else f"[{', '.join(failed)}]")
        return True

    def _condition(self, name: str, field: str, expression: str) -> cel.Expression:
        """A match condition, which knows no variables."""
        try:
            return self._environment.compile_plain(expression)
        except CelError as error:
            raise ExpressionError(self.name, f"match condition {name}", field, expression, str(error)) from None

    def _compiled(self, what: str, field: str, expression: str) -> cel.Expression:
        try:
            return self._environment.compile(expression, self._inlined)
        except CelError as error:
            raise ExpressionError(self.name, what, field, expression, str(error)) from None


class AdmissionPolicy(CompiledPolicy):
    """A ValidatingAdmissionPolicy."""

    def __init__(self, obj: Object, environment: CelEnvironment) -> None:
        super().__init__(obj, environment)
        self._validations = [
            self._validation(place, one) for place, one in enumerate(self.spec.get("validations") or (), start=1)
        ]
        whole = " && ".join(f"({one.text})" for one in self._validations)
        self._all = self._compiled("validations", "spec.validations", whole or "true")

    def judge(self, seen: cel.Activation, authorize: Authorize) -> Denial | None:
        """What is wrong with a write; None if the policy lets it through or has nothing to say about it."""
        evaluation = self._evaluation(seen, authorize)
        try:
            if not self._applies(evaluation):
                return None
        except CelError as error:
            return self._failure(str(error))
        if self._all_hold(evaluation):
            return None
        for validation in self._validations:
            try:
                if evaluation.of(validation.expression) is True:
                    continue
            except CelError as error:
                failure = self._failure(f"expression '{validation.text}' resulted in error: {error}")
                if failure is not None:
                    return failure
                continue
            return Denial(_message(validation, evaluation), validation.reason)
        return None

    def _all_hold(self, evaluation: Evaluation) -> bool:
        """Whether nothing is wrong, in one evaluation: the rule, while what is wrong is looked for one by one."""
        try:
            return evaluation.of(self._all) is True
        except CelError:
            return False

    def _failure(self, message: str) -> Denial | None:
        return None if self.lenient else Denial(message)

    def _validation(self, place: int, told: Mapping[str, Any]) -> _Validation:
        message_expression, field = told.get("messageExpression"), f"spec.validations[{place - 1}]"
        return _Validation(
            text=told["expression"].strip(),
            expression=self._compiled(f"validation {place}", f"{field}.expression", told["expression"]),
            message=told.get("message", ""),
            message_expression=message_expression
            and self._compiled(f"message of validation {place}", f"{field}.messageExpression", message_expression),
            reason=told.get("reason", ""),
        )


def _message(validation: _Validation, evaluation: Evaluation) -> str:
    """What the refusal says: an expression that gives nothing to read leaves it to the plain message."""
    if validation.message_expression is not None:
        try:
            told = evaluation.of(validation.message_expression)
        except CelError:
            told = ""
        if isinstance(told, str) and told.strip() and "\n" not in told:
            return told.strip()
    return validation.message.strip() or f"failed expression: {validation.text}"
