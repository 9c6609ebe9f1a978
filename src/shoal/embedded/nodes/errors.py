"""What can go wrong on simulated nodes."""

from __future__ import annotations


class NodesError(Exception):
    """Root of every error `shoal.embedded.nodes` raises."""


class ClusterError(NodesError, ValueError):
    """A description of nodes that cannot be read."""


class SimulatedWorkloadError(NodesError, ValueError):
    """A pod's description of what it simulates that cannot be read."""


class FaultError(NodesError, ValueError):
    """A fault that cannot be played on a card."""


class AllocationError(NodesError):
    """Devices that a container cannot have, in kubelet's words."""


class ClaimNotReadyError(NodesError):
    """Claims that cannot be prepared or taken back, in kubelet's words."""


class CheckpointError(NodesError):
    """A checkpoint that is no checkpoint, or not the one that was written."""


class ContainerConfigError(NodesError):
    """A container that cannot be configured, in kubelet's words."""


class HookError(NodesError):
    """A hook failed; the message is what it wrote to its standard error."""
