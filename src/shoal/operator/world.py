"""What is there, as the pure parts of the operator read it. The controller fills it from its watches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import RawObject


@dataclass(frozen=True, slots=True)
class World:
    """One moment of the cluster."""

    #: The operator's own namespace: everything of a node's runs there.
    namespace: str
    #: Wall clock, Unix seconds.
    now: float
    #: Shoal's ClusterPolicies, whole.
    policies: tuple[RawObject, ...] = ()
    #: NVIDIA's ClusterPolicies (clusterpolicies.nvidia.com), whole; none where that kind is not served.
    nvidia_policies: tuple[RawObject, ...] = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    #: Pods of the operator's namespace, by node; those without a node under "".
    operand_pods: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    #: Pods of all namespaces with a GPU of any family, by node: whom a driver upgrade evicts.
    gpu_pods: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    #: All pods of nodes whose driver upgrade has come to `drain-required`, by node.
    drained_pods: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    #: Evictions that disruption budgets refused when they were last tried, by the pod's UID, in the server's words.
    refusals: Mapping[str, str] = field(default_factory=dict)
    #: Other writes that the server refused when they were last tried, by what they were for, in the server's words.
    failures: Mapping[str, str] = field(default_factory=dict)
    #: `controller-revision-hash` of the newest ControllerRevision of each DaemonSet of the namespace, by its name.
    revisions: Mapping[str, str] = field(default_factory=dict)
    #: What the operator has made, whole, by kind and name: DaemonSets, ConfigMaps, RuntimeClasses.
    owned: Mapping[tuple[str, str], RawObject] = field(default_factory=dict)
    #: Names of all RuntimeClasses, others' too.
    runtime_classes: frozenset[str] = frozenset()
    #: Names of ConfigMaps of the namespace that a policy may refer to.
    config_maps: frozenset[str] = frozenset()
    #: The manifests of operands, by file name without `.yaml`: agent, mps, discovery-bus, discovery-cards, metrics,
    #: validator, validator-runtime, driver, toolkit, cleanup.
    operands: Mapping[str, tuple[RawObject, ...]] = field(default_factory=dict)
    #: Why the manifests that are mounted now cannot be used; empty if they can. `operands` are then the last good ones.
    operands_error: str = ""


def is_ready(thing: Node | Pod) -> bool:
    """Whether a node or a pod says that it is ready."""
    return any(one.type == "Ready" and one.status == "True" for one in thing.status.conditions)
