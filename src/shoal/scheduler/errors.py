"""Errors of the scheduler. Every message says what was wrong, where, and what to do."""

from __future__ import annotations

from shoal.kube.objects.meta import ObjectMeta


class SchedulerError(Exception):
    """Anything that goes wrong here."""


class BindError(SchedulerError):
    """The pod was not bound; nothing is booked for it any more."""


class ClaimError(SchedulerError):
    """The claims of a pod could not be made ready for its node."""


class BundleError(SchedulerError):
    """A Secret that does not hold the extender's certificates."""


class WireError(SchedulerError):
    """A request to the extender that cannot be read, in words for kube-scheduler's log."""


class LoadSourceError(SchedulerError):
    """A server of live load cannot be read, or answers what it should not."""


class ConfigurationError(SchedulerError):
    """A version or address that no configuration of kube-scheduler can be written for."""


class UnknownPodError(SchedulerError):
    """The watch does not show the pod waiting under its UID, or only in an older version than the caller has."""

    def __init__(self, asked: ObjectMeta) -> None:
        super().__init__(UNKNOWN_POD)
        self.asked = asked


UNKNOWN_POD = "the API server has not shown such a pod waiting here yet: it is tried again"
