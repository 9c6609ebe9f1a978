"""Errors of the package; each message says what to do."""

from __future__ import annotations

from shoal.kube.errors import KubeError


class AnalysisError(Exception):
    """Root of the errors of this package. What goes wrong with the API server is a KubeError."""


class SnapshotError(AnalysisError):
    """A file that cannot be written, or is no snapshot that can be read."""


class WorkloadFileError(AnalysisError):
    """A file that holds no pods."""


class NodeMissingError(KubeError):
    """A node that was named is not there."""


class NotMeasuredError(AnalysisError):
    """Nothing can be known of what is used; the message says what to switch on, or which right is missing."""
