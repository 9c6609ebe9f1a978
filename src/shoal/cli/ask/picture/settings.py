"""The scheduler's settings as far as they can be known from outside.

What a command's options say comes first, then the ConfigMap that `deploy/scheduler` makes. Without it the unit of GPU
memory shows in the nodes, and the policy in the newest decision. Flags of the scheduler's own process are not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from shoal.cli.ask.picture.facts import Settings
from shoal.cli.inspect.units import offered, unit_of_capacity, unit_of_inventory
from shoal.kube.objects.node import Node
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import Key
from shoal.model.contract import gpushare, kubernetes, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError
from shoal.placement.policies import POLICIES
from shoal.scheduler.config import SchedulerConfig

CONFIGMAP: Final[Key] = (gpushare.EXTENDER_NAMESPACE, "shoal-scheduler")
_KEY: Final = "scheduler.yaml"
_MAX_TEXT: Final = 1 << 16
#: Newest decisions that are looked at for the policy.
_NEWEST: Final = 50


def settings_of(
    nodes: Sequence[Node], pods: Sequence[Pod], configmap: ConfigMap | None, *, unit: MemoryUnit | None = None
) -> tuple[Settings, list[str]]:
    """What the scheduler is set to, and what is wrong with its ConfigMap in words."""
    problems: list[str] = []
    config = None
    if configmap is not None and _KEY in configmap.data:
        try:
            config = _read(configmap.data[_KEY])
        except ValueError as error:
            problems.append(f"the settings in ConfigMap {'/'.join(CONFIGMAP)} cannot be read and do not count: {error}")
    if config is not None:
        return Settings(
            memory_unit=unit or config.memory_unit,
            policy=config.policy,
            policy_from=f"ConfigMap {'/'.join(CONFIGMAP)}",
            policy_namespaces=config.policy_namespaces,
            # The stock kube-scheduler asks the extender about the pods that name it.
            scheduler_names=(*config.scheduler_names, kubernetes.DEFAULT_SCHEDULER),
            cluster_name=config.cluster_name,
        ), problems
    policy, known_from = _decided_by(pods)
    return Settings(
        memory_unit=unit or unit_of(nodes),
        policy=policy,
        policy_from=known_from,
        policy_namespaces=SchedulerConfig().policy_namespaces,
    ), problems


def _read(text: str) -> SchedulerConfig:
    from shoal.cli.ask.documents import documents

    if len(text) > _MAX_TEXT:
        raise ValueError(f"they are longer than {_MAX_TEXT} characters")
    given = documents(text)
    if len(given) > 1:
        raise ValueError(f"they are {len(given)} documents")
    try:
        return msgspec.convert((given and given[0]) or {}, SchedulerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def unit_of(nodes: Iterable[Node]) -> MemoryUnit:
    """The unit that the first node with GPU memory counts in: by its inventory, else by the size of its cards."""
    for node in nodes:
        capacity = node.status.capacity
        inventory = node.metadata.annotations.get(shoal.ANNOTATION_GPUS)
        try:
            gpus = () if inventory is None else shoal.decode_gpus(inventory)
        except CodecError:
            continue
        units = offered(capacity, gpushare.RESOURCE_MEMORY)
        found = unit_of_inventory(units, gpus) or unit_of_capacity(capacity)
        if found is not None:
            return found
    return MemoryUnit.GIB


def _decided_by(pods: Sequence[Pod]) -> tuple[str, str]:
    """The policy of the newest decision of Shoal's on a pod that names none itself, and how that is known."""
    decided = [
        pod
        for pod in pods
        if shoal.ANNOTATION_ALLOCATION in pod.metadata.annotations
        and shoal.ANNOTATION_POLICY not in pod.metadata.annotations
    ]
    decided.sort(key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    for pod in decided[:_NEWEST]:
        try:
            name = shoal.decode_allocation(pod.metadata.annotations[shoal.ANNOTATION_ALLOCATION]).policy
        except CodecError:
            continue
        if name in POLICIES:
            return name, f"the newest decision, of pod {pod.metadata.namespace}/{pod.metadata.name}"
    return Settings().policy, "the default: no decision tells"
