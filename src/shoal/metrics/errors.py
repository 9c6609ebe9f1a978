"""Why the collector cannot do what it was asked. Messages name the value and the fix, and no secret."""


class MetricsError(Exception):
    """Root of every error `shoal.metrics` raises."""


class InfluxError(MetricsError):
    """InfluxDB cannot be asked now; points wait."""


class PodLoadError(MetricsError):
    """kubelet does not tell what its pods use."""
