"""Nodes, pods and claims with only the fields that the tables show, so that decoding many takes little time."""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.kube.objects.claims import ConsumerReference
from shoal.kube.objects.meta import Base, Object
from shoal.kube.objects.node import NodeAddress
from shoal.kube.objects.pod import Quantities, Resources
from shoal.kube.resources import Resource


class PartialCondition(Base, frozen=True, kw_only=True):
    """One condition of a node or a pod."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PartialContainer(Base, frozen=True, kw_only=True):
    """A container or init container."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources = Resources()


class PartialPodSpec(Base, frozen=True, kw_only=True):
    """Where the pod is and what it asks for."""

    node_name: str = ""
    containers: tuple[PartialContainer, ...] = ()
    init_containers: tuple[PartialContainer, ...] = ()
    resources: Resources | None = None
    overhead: Quantities = msgspec.field(default_factory=dict)


class PartialPodStatus(Base, frozen=True, kw_only=True):
    """What became of the pod."""

    phase: str = ""
    conditions: tuple[PartialCondition, ...] = ()


class PartialPod(Object, frozen=True, kw_only=True):
    """A pod."""

    spec: PartialPodSpec = PartialPodSpec()
    status: PartialPodStatus = PartialPodStatus()


class PartialNodeSpec(Base, frozen=True, kw_only=True):
    """Whether the node takes pods."""

    unschedulable: bool = False


class PartialNodeStatus(Base, frozen=True, kw_only=True):
    """What the node offers."""

    capacity: Quantities = msgspec.field(default_factory=dict)
    allocatable: Quantities = msgspec.field(default_factory=dict)
    conditions: tuple[PartialCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class PartialNode(Object, frozen=True, kw_only=True):
    """A node."""

    spec: PartialNodeSpec = PartialNodeSpec()
    status: PartialNodeStatus = PartialNodeStatus()


class PartialClaimStatus(Base, frozen=True, kw_only=True):
    """Who uses the claim."""

    reserved_for: tuple[ConsumerReference, ...] = ()


class PartialClaim(Object, frozen=True, kw_only=True):
    """A claim of devices."""

    status: PartialClaimStatus = PartialClaimStatus()


PODS: Final = Resource("", "v1", "pods", "Pod", PartialPod)
NODES: Final = Resource("", "v1", "nodes", "Node", PartialNode, namespaced=False)
CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", PartialClaim)
