"""Errors of the package. What is told to a caller is in `answers.py`."""

from __future__ import annotations


class DashboardError(Exception):
    """Root of the errors of this package; the message says what to do."""
