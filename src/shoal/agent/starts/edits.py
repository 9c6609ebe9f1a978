"""What a container gets for its cards: environment, device nodes, and what NVIDIA's own CDI spec says. Pure.

NVIDIA's spec, when the node has one, brings the driver's libraries and hooks. Its environment loses against ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shoal.agent.nvidia import replicas
from shoal.agent.nvidia.partitions import Partition
from shoal.kubelet.cdi import ContainerEdits, Device, DeviceNode, Found, Spec, resolve
from shoal.model.allocation import Allocation, ContainerAllocation
from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu, NodeGpus

#: Of every container with a card, where the host has them.
CONTROL_DEVICES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
#: The kinds of NVIDIA's own specs for cards: of its toolkit, of its device plugin.
_VENDOR_KINDS: Final = (nvidia.RESOURCE_GPU, nvidia.CDI_KIND)


@dataclass(frozen=True, slots=True)
class Scene:
    """The node a container starts on."""

    node: NodeGpus
    unit: MemoryUnit
    #: The device nodes the host has: by name, the path in containers and that on the host if it differs.
    device_nodes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: The devices of NVIDIA's own specs by qualified name.
    vendor: Mapping[str, tuple[Spec, Device]] = field(default_factory=dict)
    isolated: bool = True


def environment(container: ContainerAllocation, allocation: Allocation, resource: str, scene: Scene) -> dict[str, str]:
    """The variables of the container's family, with its cards by UUID."""
    if resource == keti.RESOURCE_MPS:
        return keti.container_env(container)
    if resource in replicas.RESOURCES:
        return {nvidia.ENV_VISIBLE_DEVICES: ",".join(card.uuid for card in container.cards)}
    return gpushare.container_env(
        container, allocation=allocation, node=scene.node, unit=scene.unit, isolated=scene.isolated
    )


def container_edits(
    container: ContainerAllocation, allocation: Allocation, resource: str, scene: Scene
) -> ContainerEdits:
    """All of it, for a runtime that takes CDI."""
    cards = cards_of(container, scene.node)
    env = environment(container, allocation, resource, scene)
    vendor = vendor_edits(cards, scene.vendor)
    given = {node.path for node in vendor.device_nodes}
    nodes = [node for node in device_nodes(cards, scene) if node.path not in given]
    return vendor + ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in env.items()), device_nodes=tuple(nodes)
    )


def cards_of(container: ContainerAllocation, node: NodeGpus) -> list[Gpu]:
    """The container's cards, in the order it sees them."""
    known = {gpu.uuid: gpu for gpu in node.gpus}
    return [known[card.uuid] for card in container.cards if card.uuid in known]


def device_nodes(cards: Iterable[Gpu], scene: Scene) -> list[DeviceNode]:
    """The device nodes of cards, and those all cards need."""
    names = [f"nvidia{card.minor}" for card in cards if card.minor is not None]
    return [
        DeviceNode(path=found[0], host_path=found[1], permissions="rw")
        for name in (*names, *CONTROL_DEVICES)
        if (found := scene.device_nodes.get(name)) is not None
    ]


def partition_edits(chosen: Sequence[Partition], scene: Scene) -> ContainerEdits:
    """What a container gets for MIG partitions. Their capability devices come with NVIDIA's own spec alone."""
    cards = list({one.gpu.uuid: one.gpu for one in chosen}.values())
    uuids = [one.instance.uuid for one in chosen]
    vendor = _vendor([(one.instance.uuid, f"{one.gpu.index}:{one.place}") for one in chosen], scene.vendor)
    given = {node.path for node in vendor.device_nodes}
    return vendor + ContainerEdits(
        env=(f"{nvidia.ENV_VISIBLE_DEVICES}={','.join(uuids)}",),
        device_nodes=tuple(node for node in device_nodes(cards, scene) if node.path not in given),
    )


def vendor_edits(cards: Sequence[Gpu], vendor: Mapping[str, tuple[Spec, Device]]) -> ContainerEdits:
    """What NVIDIA's own spec does for these cards; nothing unless it has every one of them."""
    return _vendor([(card.uuid, str(card.index)) for card in cards], vendor)


def _vendor(wanted: Iterable[tuple[str, str]], vendor: Mapping[str, tuple[Spec, Device]]) -> ContainerEdits:
    names = []
    for spellings in wanted:
        listed = (f"{kind}={name}" for kind in _VENDOR_KINDS for name in spellings)
        found = next((name for name in listed if name in vendor), None)
        if found is None:
            return ContainerEdits()
        names.append(found)
    return resolve(names, Found(dict(vendor))) if names else ContainerEdits()


def is_vendors(spec: Spec) -> bool:
    """Whether a spec is one of NVIDIA's for cards."""
    return spec.kind in _VENDOR_KINDS
