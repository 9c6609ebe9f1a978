"""What a reconcile may ask for. Values only: `shoal.operator.controller` carries them out, in the order given.

Each action is one write and can be repeated: an operator that was killed after any of them comes to the same end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of an object of the operator's own, by force: drift is repaired."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove an object of the operator's own, if it is still the one that was seen."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class PatchNode:
    """Change listed labels and annotations (None removes), remove taints by key, cordon or uncordon.

    Refused by the server when the node is not the one that was seen (`uid`), or, with `resource_version`, has changed.
    """

    name: str
    uid: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    remove_taints: tuple[str, ...] = ()
    unschedulable: bool | None = None
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class Evict:
    """Ask for a pod to go, within disruption budgets."""

    name: str
    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Remove a pod of an operand, so that its DaemonSet makes it anew."""

    name: str
    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class Tell:
    """An Event about the policy or a node."""

    kind: Literal["ClusterPolicy", "Node"]
    name: str
    uid: str
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write the status of a policy."""

    policy: str
    uid: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Put Shoal's finalizer on a policy, or take it off."""

    policy: str
    uid: str
    present: bool


Action = Apply | Delete | PatchNode | Evict | DeletePod | Tell | SetStatus | SetFinalizer
