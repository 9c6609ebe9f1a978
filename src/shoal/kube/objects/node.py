"""Nodes and namespaces."""

from __future__ import annotations

import msgspec

from shoal.kube.objects.meta import Base, Object
from shoal.kube.objects.pod import Quantities


class Taint(Base, frozen=True, kw_only=True):
    """Keeps pods away that do not tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Base, frozen=True, kw_only=True):
    """What was decided about the node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeCondition(Base, frozen=True, kw_only=True):
    """One condition of a node."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class NodeAddress(Base, frozen=True, kw_only=True):
    """Where the node can be reached."""

    type: str = ""
    address: str = ""


class NodeInfo(Base, frozen=True, kw_only=True):
    """What runs on the node."""

    boot_id: str = msgspec.field(default="", name="bootID")
    os_image: str = ""
    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(Base, frozen=True, kw_only=True):
    """What kubelet says of the node."""

    capacity: Quantities = msgspec.field(default_factory=dict)
    allocatable: Quantities = msgspec.field(default_factory=dict)
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeInfo = NodeInfo()


class Node(Object, frozen=True, kw_only=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceStatus(Base, frozen=True, kw_only=True):
    """Active or Terminating."""

    phase: str = ""


class Namespace(Object, frozen=True, kw_only=True):
    """A namespace."""

    status: NamespaceStatus = NamespaceStatus()
