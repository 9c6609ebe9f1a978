"""Why the operator does not do what it was asked."""


class OperatorError(Exception):
    """Root of every error `shoal.operator` raises."""


class OperandsError(OperatorError):
    """A file of operands that cannot be used."""
