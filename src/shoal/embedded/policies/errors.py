"""What goes wrong with the expressions of policies."""

from __future__ import annotations


class CelError(Exception):
    """An expression cannot be compiled, or not be evaluated."""


class ExpressionError(CelError):
    """An expression of a policy cannot be compiled: the field it stands in, its text, and why."""

    def __init__(self, policy: str, what: str, field: str, text: str, why: str) -> None:
        super().__init__(f"policy {policy}, {what}: {why}")
        self.field = field
        self.text = text
        self.why = why


class MutationError(Exception):
    """A mutating policy cannot do to an object what it says, in the API server's words."""
