"""Errors of servers."""

from __future__ import annotations


class TlsError(Exception):
    """Certificates that cannot be used; the message names them and the fix."""
