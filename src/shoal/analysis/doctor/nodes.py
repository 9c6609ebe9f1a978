"""The nodes: cards, who serves them to kubelet, the unit of memory, and what the runtimes can do."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from shoal.agent.device_plugin.edits import choose_strategy
from shoal.analysis.doctor.findings import Finding, failed, note, ok, some, warning
from shoal.analysis.doctor.installation import Installation
from shoal.analysis.inspect.use import offered, unit_of_capacity, unit_of_inventory
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import manifest_of
from shoal.model.contract import gpushare, keti, kubernetes, mechanisms, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.mechanisms import Mechanism
from shoal.model.errors import CodecError
from shoal.model.gpu import Gpu, Isolation
from shoal.model.node import node_gpus
from shoal.operator.nodes import is_gpu_node

_FAMILIES: Final = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU)


def inventories(installation: Installation) -> Iterator[Finding]:
    """Whether nodes that should have cards show them, and whether they can be read."""
    shown, empty, labelled, foreign = 0, [], [], []
    for node in installation.nodes:
        name = node.metadata.name
        if shoal.ANNOTATION_GPUS in node.metadata.annotations:
            try:
                if _cards(node):
                    shown += 1
                else:
                    empty.append(name)
            except CodecError as error:
                yield failed("cards", f"those of {name} cannot be read: {error}", f"restart the agent on {name}")
        elif _is_offered(node):
            foreign.append(name)
        elif is_gpu_node(node.metadata.labels):
            labelled.append(name)
    if empty:
        yield failed(
            "cards",
            f"{some(empty)}: the agent finds no card",
            f"kubectl -n {installation.namespace} logs -l app.kubernetes.io/name={shoal.NAME_AGENT}: it says "
            "what the driver answers, and so does `shoal doctor --here` on the node",
        )
    if labelled:
        yield failed(
            "cards",
            f"{some(labelled)}: labelled for GPUs, and no agent shows any",
            f"kubectl -n {installation.namespace} logs -l app.kubernetes.io/name={shoal.NAME_AGENT}: it says "
            "what it waits for, the driver first",
        )
    if foreign:
        yield note("cards", f"{some(foreign)}: served by another device plugin, read from the nodes' capacity")
    if shown:
        yield ok("cards", f"{shown} node(s) show their cards")
    elif not labelled and not foreign and not empty:
        yield failed("cards", "no node shows any", "kubectl apply -k deploy/agent, and label nodes gpushare=true")


def health(installation: Installation) -> Iterator[Finding]:
    """Cards that are unhealthy, and nodes with cards that are not ready."""
    for node in installation.nodes:
        cards = _readable(node)
        if cards and not any(one.type == "Ready" and one.status == "True" for one in node.status.conditions):
            yield warning("health", f"{node.metadata.name} has cards and is not ready", "see kubectl describe node")
        for card in cards:
            if not card.healthy:
                yield warning(
                    "health",
                    f"GPU{card.index} of {node.metadata.name} is out of use: {card.fault or 'no reason is given'}",
                    "reset or replace the card; it comes back by itself when it is well",
                )


def served(installation: Installation) -> Iterator[Finding]:
    """Nodes with cards that offer none: kubelet drops the resources of a device plugin that is gone."""
    away = [
        node.metadata.name
        for node in installation.nodes
        if any(card.healthy and not card.mig for card in _readable(node)) and not _is_offered(node)
    ]
    if away:
        yield failed(
            "agent",
            f"{some(away)}: cards, but kubelet offers none: the agent is away, or has not registered",
            "see whether the agent runs there, and its /readyz",
        )


def by_claims(installation: Installation) -> Iterator[Finding]:
    """Names that nodes serve by claims, or would if certain pods ended."""
    for node in installation.nodes:
        try:
            served = mechanisms.decode(node.metadata.annotations)
        except CodecError as error:
            yield warning("claims", f"{node.metadata.name}: {error}", "the agent writes it anew: see whether it runs")
            continue
        for name in mechanisms.NAMES:
            yield from _mechanism(installation, node, name, served.get(name, Mechanism.DEVICES))


def _mechanism(installation: Installation, node: Node, name: str, one: Mechanism) -> Iterator[Finding]:
    where, label = node.metadata.name, mechanisms.label_of(name)
    asked = name in mechanisms.asked_for(node.metadata.labels)
    if one is Mechanism.CLAIMS:
        yield ok("claims", f"{where} serves {name} by claims")
    elif one is Mechanism.DEVICES and asked and _readable(node):
        yield warning(
            "claims",
            f"{where} has label {label} and serves {name} by devices",
            "set sharing.claims (agent: claims: true); its event GPUClaimsUnavailable may tell more",
        )
    if one not in (Mechanism.TO_CLAIMS, Mechanism.TO_DEVICES):
        return
    to, by = ("claims", "devices") if one is Mechanism.TO_CLAIMS else ("devices", "claims")
    holders = [
        f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in installation.pods
        if pod.spec.node_name == where and _has(pod, name)
    ]
    undo = f"kubectl label node {where} {label}{'-' if one is Mechanism.TO_CLAIMS else '=true'}"
    if holders:
        yield warning(
            "claims",
            f"{where} takes no pods of {name}: it changes to {to} when pods with {by} have ended: {some(holders)}",
            f"end them, or leave it as it was: {undo}",
        )
    else:
        yield note("claims", f"{where} changes {name} to {to}: nobody holds it, a matter of seconds")


def _has(pod: Pod, name: str) -> bool:
    """Whether a pod that is not over has a name, by the one mechanism that its node has for it."""
    if pod.status.phase in kubernetes.FINISHED_PHASES:
        return False
    return any(name in one.resources.limits for one in (*pod.spec.init_containers, *pod.spec.containers))


def unit_of(installation: Installation) -> MemoryUnit | None:
    """What one of `aliyun.com/gpu-mem` stands for on most nodes; None where it is not served."""
    units = Counter(unit for node in installation.nodes if (unit := _unit(node)) is not None)
    return units.most_common(1)[0][0] if units else None


def units(installation: Installation) -> Iterator[Finding]:
    """Whether all nodes count memory in one unit."""
    by_unit: dict[MemoryUnit, list[str]] = {}
    for node in installation.nodes:
        unit = _unit(node)
        if unit is not None:
            by_unit.setdefault(unit, []).append(node.metadata.name)
    if len(by_unit) > 1:
        says = "; ".join(f"{unit.value} on {some(names)}" for unit, names in by_unit.items())
        yield failed("unit", f"memory is counted differently: {says}", "set memoryUnit alike for agents and scheduler")
    elif by_unit:
        yield ok("unit", f"one {gpushare.RESOURCE_MEMORY} is one {next(iter(by_unit)).value}")


def runtimes(installation: Installation) -> Iterator[Finding]:
    """Whether kubelet and container runtime take CDI, by which a container gets its own card for sure."""
    without: dict[str, list[str]] = {}
    with_cards = [node for node in installation.nodes if _readable(node)]
    for node in with_cards:
        info = node.status.node_info
        chosen = choose_strategy(info.kubelet_version, info.container_runtime_version)
        if not chosen.strategy.by_cdi:
            without.setdefault(chosen.why, []).append(node.metadata.name)
    for why, names in without.items():
        yield warning(
            "cdi",
            f"{some(names)}: {why}",
            "update the runtime; until then cards go by amount, and no share has a wall",
        )
    if with_cards and not without:
        yield ok("cdi", f"{len(with_cards)} node(s) take CDI devices")


def isolation(installation: Installation) -> Iterator[Finding]:
    """Nodes where shares are counted and not enforced, or enforced by MPS alone."""
    bare = [
        node.metadata.name
        for node in installation.nodes
        if any(card.isolation is Isolation.NONE and not card.mig for card in _readable(node))
    ]
    if bare:
        yield note(
            "isolation",
            f"{some(bare)}: shares are counted, and nothing keeps a container to its own",
            "see docs/agent.md: driver R615 or newer, or MPS",
        )
    compute = [
        node.metadata.name
        for node in installation.nodes
        if any(card.isolation is Isolation.NAMESPACE for card in _readable(node))
    ]
    if compute:
        yield note(
            "isolation",
            f"{some(compute)}: MPS namespaces limit compute; their memory limit is a convention that a program can "
            "lift, and containers with several GPUs have none",
            "see docs/agent.md: with cgroup v2 and the program shoal-limit the driver limits memory (isolation cgroup)",
        )
    shared = [
        node.metadata.name
        for node in installation.nodes
        if any(card.isolation is Isolation.MPS for card in _readable(node))
    ]
    if shared:
        yield note(
            "isolation",
            f"{some(shared)}: MPS limits clients by their environment, and each can change the limits of others",
            f"give it to namespaces that trust each other alone, by label {shoal.LABEL_MPS}={shoal.MPS_ALLOW}: shares "
            "of others are counted there, and their MPS clients refused. Driver R615 or newer keeps them apart",
        )


def _cards(node: Node) -> tuple[Gpu, ...]:
    return node_gpus(manifest_of(node), unit=MemoryUnit.GIB).gpus


def _readable(node: Node) -> tuple[Gpu, ...]:
    """The cards that the agent shows; none where nobody can tell."""
    if shoal.ANNOTATION_GPUS not in node.metadata.annotations:
        return ()
    try:
        return _cards(node)
    except CodecError:
        return ()


def _is_offered(node: Node) -> bool:
    with contextlib.suppress(CodecError):
        if Mechanism.CLAIMS in mechanisms.decode(node.metadata.annotations).values():
            return True
    return any(offered(node.status.allocatable, resource) for resource in (*_FAMILIES, shoal.RESOURCE_SLOT))


def _unit(node: Node) -> MemoryUnit | None:
    """The unit a node counts memory in: from the size of its cards where that is known, else as gpushare guesses it."""
    allocatable = node.status.allocatable
    cards = [card for card in _readable(node) if not card.mig]
    return unit_of_inventory(offered(allocatable, gpushare.RESOURCE_MEMORY), cards) or unit_of_capacity(allocatable)
