"""Errors of claims. Every message says what was wrong, where, and what to do."""

from __future__ import annotations

from shoal.scheduler.errors import SchedulerError


class SelectorError(SchedulerError):
    """An expression that is not understood here, in words that follow the expression."""


class EvaluationError(SchedulerError):
    """An expression that gives no answer for a device."""


class NotReadyError(SchedulerError):
    """Claims of a pod that are still to come; nobody need do anything."""


class SearchLimitError(SchedulerError):
    """A search took too many steps, and was ended without an answer."""
