"""What can go wrong with a GPU driver, whichever is behind the protocol.

A reading the card does not offer is no error: its field is None.
"""


class GpuError(Exception):
    """Root of every error `shoal.gpu` raises."""


class NoDriverError(GpuError):
    """There is no driver, or not one that answers. It may come later: try again."""


class NoPermissionError(GpuError):
    """The call needs more rights than this process has."""


class UnknownCardError(GpuError):
    """No card has this UUID."""


class LostCardError(GpuError):
    """The card was there and does not answer any more: fallen off the bus, or in need of a reset."""


class NotSupportedError(GpuError):
    """The card or the driver cannot do this."""


class NoCgroupError(GpuError):
    """The cgroup a memory limit names is not there, or has no accounting of device memory."""


class OutOfMemoryError(GpuError):
    """A simulated program asked for more memory than its card or its cgroup has left."""


class DescriptionError(GpuError, ValueError):
    """A description of simulated cards that cannot be read."""


class MpsError(GpuError):
    """A command could not be given to the MPS daemon, or its answer cannot be read."""


class MpsRefusalError(MpsError):
    """The MPS daemon answered, and did not do what it was told."""


class NoMpsDaemonError(MpsError):
    """No MPS daemon answers on this pipe directory."""
