"""Errors of the simulator: what was wrong, where, and what to do."""


class SimulateError(Exception):
    """Root of every error `shoal.simulate` raises."""


class TraceError(SimulateError):
    """A node or pod list that cannot be replayed as it is."""


class SettingsError(SimulateError):
    """A comparison that cannot be run as asked."""


class RunError(SimulateError):
    """A run that failed; `details` is the traceback of the failure."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class PlotsError(SimulateError):
    """Plots were asked for and cannot be made."""
