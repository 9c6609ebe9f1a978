"""Beside NVIDIA's own operator: every section that its live ClusterPolicy enables is left to it.

While its device plugin is on, Shoal serves no card. With its plugin off, Shoal serves on its driver and toolkit. Its
labels on nodes, and the RuntimeClasses, are its own as long as it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.kube.resources import RawObject, Resource, meta_of

NVIDIA_POLICIES: Final = Resource(
    "nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", dict[str, Any], namespaced=False, whole=True
)
#: The sections that both operators have. Without a word NVIDIA's takes each for enabled.
SECTIONS: Final = ("driver", "toolkit", "devicePlugin", "dcgmExporter", "gfd")


@dataclass(frozen=True, slots=True)
class NvidiaOperator:
    """What NVIDIA's operator does in a cluster."""

    #: Its live policy; empty: there is none.
    policy: str = ""
    #: What it looks after.
    sections: frozenset[str] = frozenset()

    @property
    def is_there(self) -> bool:
        """Whether there is a live policy of NVIDIA's."""
        return bool(self.policy)


def nvidia_operator(policies: Iterable[RawObject]) -> NvidiaOperator:
    """What the live policy of NVIDIA's enables: the oldest counts, as in NVIDIA's operator."""
    live = [policy for policy in policies if meta_of(policy).deletion_timestamp is None]
    if not live:
        return NvidiaOperator()
    policy = min(live, key=lambda one: (meta_of(one).creation_timestamp or "", meta_of(one).name))
    spec = policy.get("spec")
    sections = spec if isinstance(spec, Mapping) else {}
    return NvidiaOperator(meta_of(policy).name, frozenset(name for name in SECTIONS if _is_on(sections.get(name))))


def _is_on(section: object) -> bool:
    if not isinstance(section, Mapping):
        return True
    return section.get("enabled") is not False
