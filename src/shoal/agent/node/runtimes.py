"""How a container can be told its cards on this node: what kubelet and the container runtime can do, by their versions.

kubelet passes CDI devices by itself from 1.29 on (`cdi-cri`) and has always passed annotations, in which runtimes look
for CDI devices too. containerd takes CDI from 2.0 on; 1.7 only if its configuration says so, which is not looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Strategy(StrEnum):
    """The names are those of NVIDIA's plugin."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"

    @property
    def by_cdi(self) -> bool:
        """Whether a CDI spec is what the container gets."""
        return self in (Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A strategy, and why this one."""

    strategy: Strategy
    why: str


_CDI_RUNTIMES: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
_CDI_KUBELET: Final = (1, 29)
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


def choose(kubelet: str, runtime: str) -> Chosen:
    """The strategy for a node, from the versions its object tells: `v1.36.3`, `containerd://2.4.2`."""
    name, _, version = runtime.partition("://")
    needed = _CDI_RUNTIMES.get(name)
    if needed is None or (_numbers(version) or (0, 0)) < needed:
        known = ", ".join(f"{one} {major}.{minor}" for one, (major, minor) in _CDI_RUNTIMES.items())
        return Chosen(
            Strategy.ENVVAR, f"runtime {runtime or 'unknown'} is not known to take CDI: that is {known} or newer"
        )
    if (_numbers(kubelet) or (0, 0)) < _CDI_KUBELET:
        return Chosen(Strategy.CDI_ANNOTATIONS, f"kubelet {kubelet or 'unknown'} does not pass CDI devices by itself")
    return Chosen(Strategy.CDI_CRI, f"kubelet {kubelet} and {name} {version} take CDI devices")


def _numbers(version: str) -> tuple[int, int] | None:
    match = _VERSION.match(version)
    return None if match is None else (int(match[1]), int(match[2]))
