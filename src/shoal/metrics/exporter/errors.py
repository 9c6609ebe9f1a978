"""Errors of the exporter. Every message says what was wrong, where, and what to do."""

from __future__ import annotations


class ExporterConfigError(Exception):
    """A setting, a list of fields or a web configuration that cannot be used."""
