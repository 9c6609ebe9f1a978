"""Errors of placement."""


class PlacementError(Exception):
    """Root of every error `shoal.placement` raises."""


class BookingError(PlacementError):
    """A booking that would break the ledger: more than a card has, or a second one for the same pod."""


class PolicyError(PlacementError):
    """A policy that does not exist or cannot be used as asked."""


class RowsError(PlacementError):
    """An array over nodes that does not match the rows of the ledger."""
