"""Why discovery does not do what it was asked."""


class DiscoveryError(Exception):
    """Root of every error `shoal.discovery` raises."""


class UnknownFactsError(DiscoveryError):
    """The driver or the configuration could not be read: nothing is known of the cards now."""
