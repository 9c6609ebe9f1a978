"""The objects that the checks look at, read from the API server once. A kind that may not be read is None."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

from shoal.analysis.collectors import announcement_of
from shoal.analysis.installed import GRANTS, namespace_of
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, NotFoundError
from shoal.kube.objects.node import Node
from shoal.kube.objects.others import Lease
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import LEASES, NODES, PODS, RawObject, Resource
from shoal.metrics import history_wire
from shoal.metrics.history_wire import Announcement
from shoal.model.contract import gpushare, kubernetes, shoal
from shoal.operator.nvidia import NVIDIA_POLICIES
from shoal.operator.writes import POLICIES

T = TypeVar("T")

_DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet", dict, whole=True)
_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", dict, whole=True)
_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", dict, whole=True)
_NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", dict, whole=True)
_POLICIES: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    dict,
    namespaced=False,
    whole=True,
)
_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    dict,
    namespaced=False,
    whole=True,
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A cluster as `shoal doctor` sees it."""

    version: str
    now: datetime
    #: Where Shoal is installed.
    namespace: str
    nodes: list[Node]
    pods: list[Pod]
    #: Those of Shoal and of other stacks, in all namespaces.
    daemon_sets: list[RawObject] | None = None
    deployments: list[RawObject] | None = None
    #: The Lease of the scheduler; empty if there is none.
    leader: list[Lease] | None = None
    node_leases: list[Lease] | None = None
    #: EndpointSlices of the extender's Service.
    extender: list[RawObject] | None = None
    policies: list[RawObject] | None = None
    bindings: list[RawObject] | None = None
    #: ClusterRoleBindings of Shoal's services.
    granted: list[RawObject] | None = None
    #: ClusterPolicies of Shoal, and of NVIDIA; none where the kind is not known.
    wishes: list[RawObject] | None = field(default_factory=list)
    nvidia_wishes: list[RawObject] | None = field(default_factory=list)
    #: What collectors report of themselves.
    collectors: list[Announcement] | None = field(default_factory=list)
    #: NetworkPolicies of the namespace where Shoal is installed.
    network_policies: list[RawObject] | None = field(default_factory=list)
    #: Kinds that this cluster does not have.
    absent: frozenset[str] = field(default=frozenset())


async def read_installation(client: Client) -> Installation:
    """Read it all. Raises KubeError if the cluster, its nodes or its pods cannot be read."""
    absent: set[str] = set()

    async def listed(resource: Resource[T], namespace: str = "", labels: str = "") -> list[T] | None:
        try:
            return (await client.list(resource, namespace=namespace, labels=labels)).items
        except ForbiddenError:
            return None
        except NotFoundError:
            absent.add(resource.plural)
            return []

    async def named(resource: Resource[T], *names: str, namespace: str = "") -> list[T] | None:
        found = []
        for name in names:
            try:
                found.append(await client.get(resource, name, namespace=namespace))
            except ForbiddenError:
                return None
            except NotFoundError:
                continue
        return found

    version, nodes, pods, home = await asyncio.gather(
        client.version(), client.list(NODES), client.list(PODS), namespace_of(client)
    )
    service = f"{kubernetes.LABEL_SERVICE}={gpushare.EXTENDER_NAME}"
    daemon_sets, deployments, extender, policies, bindings = await asyncio.gather(
        listed(_DAEMON_SETS),
        listed(_DEPLOYMENTS),
        listed(_SLICES, home, service),
        listed(_POLICIES),
        listed(_BINDINGS),
    )
    wishes, nvidia_wishes = await asyncio.gather(listed(POLICIES), listed(NVIDIA_POLICIES))
    leader, node_leases, history_leases, network_policies = await asyncio.gather(
        named(LEASES, shoal.NAME_SCHEDULER, namespace=home),
        listed(LEASES, kubernetes.NODE_LEASES),
        listed(LEASES, history_wire.NAMESPACE),
        listed(_NETWORK_POLICIES, home),
    )
    return Installation(
        version=version.git_version,
        now=datetime.now(UTC),
        namespace=home,
        nodes=sorted(nodes.items, key=lambda node: node.metadata.name),
        pods=pods.items,
        daemon_sets=daemon_sets,
        deployments=deployments,
        leader=leader,
        node_leases=node_leases,
        extender=extender,
        policies=policies,
        bindings=bindings,
        granted=await named(GRANTS, shoal.NAME_SCHEDULER, shoal.NAME_AGENT),
        wishes=wishes,
        nvidia_wishes=nvidia_wishes,
        collectors=None
        if history_leases is None
        else [one for lease in history_leases if (one := announcement_of(lease)) is not None],
        network_policies=network_policies,
        absent=frozenset(absent),
    )
