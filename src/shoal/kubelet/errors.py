"""What goes wrong between Shoal and kubelet or its container runtime. Messages say where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class KubeletError(Exception):
    """Root of every error `shoal.kubelet` raises."""


class PodResourcesError(KubeletError):
    """kubelet's PodResources does not answer."""


class CdiError(KubeletError):
    """A spec that cannot be read or written, or a device that no spec has."""


class UnresolvableError(CdiError):
    """Device names that no spec has, in a runtime's words."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"unresolvable CDI devices {', '.join(names)}")
        self.names = tuple(names)
