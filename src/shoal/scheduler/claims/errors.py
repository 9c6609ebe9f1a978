"""Errors of claims. Every message says what was wrong, where, and what to do."""

from __future__ import annotations

from shoal.model.errors import RequestError
from shoal.scheduler.errors import SchedulerError


class SelectorError(SchedulerError):
    """An expression that is not understood here, in words that follow the expression."""


class EvaluationError(SchedulerError):
    """An expression that gives no answer for a device."""


class CostLimitError(SchedulerError):
    """An evaluation that costs more than its budget."""


class PodCostError(RequestError):
    """Deciding on the claims of a pod costs more than is allowed for one pod."""


class NamespaceCostError(SchedulerError):
    """Pods of a namespace have cost more than its share: this one has to wait."""


class NotReadyError(SchedulerError):
    """A claim that another component is still creating or releasing; usually nothing has to be done."""


class OwnClaimError(RequestError):
    """A claim of the pod is missing, deleted or another pod's: other pods of the same template are not affected."""
