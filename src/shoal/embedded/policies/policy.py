"""One ValidatingAdmissionPolicy, compiled, and what it says of a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.embedded.policies.cel import Authorize, CelEnvironment, CelError, Evaluation, is_path
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


class AdmissionPolicy:
    """A policy by its object. CelError names the policy and the part that cannot be compiled."""

    def __init__(self, obj: Object, environment: CelEnvironment) -> None:
        self.name: str = obj["metadata"]["name"]
        spec: Mapping[str, Any] = obj.get("spec") or {}
        self.constraints: Mapping[str, Any] = spec.get("matchConstraints") or {}
        self._lenient = spec.get("failurePolicy") == "Ignore"
        self._environment = environment
        if spec.get("paramKind"):
            raise CelError(f"policy {self.name} has a paramKind: the embedded API server knows no parameters")
        written = {one["name"]: one["expression"] for one in spec.get("variables") or ()}
        self._inlined = {name: text for name, text in written.items() if is_path(text)}
        self._variables = {
            name: self._compiled(f"variable {name}", text)
            for name, text in written.items()
            if name not in self._inlined
        }
        self._conditions = [
            self._compiled(f"match condition {one['name']}", one["expression"])
            for one in spec.get("matchConditions") or ()
        ]
        self._validations = [
            self._validation(place, one) for place, one in enumerate(spec.get("validations") or (), start=1)
        ]
        whole = " && ".join(f"({one.text})" for one in self._validations)
        self._all = self._compiled("validations", whole or "true")

    def judge(self, seen: cel.Activation, authorize: Authorize) -> Denial | None:
        """What is wrong with a write; None if the policy lets it through or has nothing to say about it."""
        evaluation = Evaluation(self._environment, seen, self._variables, authorize)
        try:
            if not self._applies(evaluation):
                return None
        except CelError as error:
            return self._failure(f"failed to evaluate match conditions: {error}")
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

    def _applies(self, evaluation: Evaluation) -> bool:
        """Whether all match conditions hold. One that does not counts for more than one that cannot be evaluated."""
        failed: CelError | None = None
        for condition in self._conditions:
            try:
                if evaluation.of(condition) is not True:
                    return False
            except CelError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return True

    def _failure(self, message: str) -> Denial | None:
        return None if self._lenient else Denial(message)

    def _compiled(self, what: str, expression: str) -> cel.Expression:
        try:
            return self._environment.compile(expression, self._inlined)
        except CelError as error:
            raise CelError(f"policy {self.name}, {what}: {error}") from None

    def _validation(self, place: int, told: Mapping[str, Any]) -> _Validation:
        message_expression = told.get("messageExpression")
        return _Validation(
            text=told["expression"].strip(),
            expression=self._compiled(f"validation {place}", told["expression"]),
            message=told.get("message", ""),
            message_expression=message_expression
            and self._compiled(f"message of validation {place}", message_expression),
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
