"""Errors of claims. Every message says what was wrong, where, and what to do."""

from __future__ import annotations

from shoal.model.errors import RequestError
from shoal.scheduler.errors import SchedulerError


class SelectorError(SchedulerError):
    """An expression that is not understood here, in words that follow the expression."""


class EvaluationError(SchedulerError):
    """An expression that gives no answer for a device."""


class NotReadyError(SchedulerError):
    """A claim that another component is still creating or releasing; usually nothing has to be done."""


class OwnClaimError(RequestError):
    """A claim of the pod is missing, deleted or another pod's: other pods of the same template are not affected."""


class SearchLimitError(SchedulerError):
    """A search took too many steps, and was ended without an answer."""
