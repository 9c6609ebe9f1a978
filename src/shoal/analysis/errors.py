"""Errors of the package; each message says what to do."""

from __future__ import annotations

from shoal.kube.errors import KubeError


class AnalysisError(Exception):
    """Root of all errors here but those that the API server is asked about."""


class SnapshotError(AnalysisError):
    """A file that cannot be written, or is no snapshot that can be read."""


class WorkloadError(AnalysisError):
    """A file that holds no pods."""


class NodeMissingError(KubeError):
    """A node that was named is not there."""
