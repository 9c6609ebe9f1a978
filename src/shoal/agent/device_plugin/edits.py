"""What a container gets for its cards: environment, device nodes, the edits of NVIDIA's own CDI spec. Pure.

NVIDIA's spec, if the node has one, brings the driver's libraries and hooks. The agent's variables override its own.

`DeviceListStrategy` is how a container is told its cards; kubelet's and the container runtime's versions decide it.
kubelet passes CDI devices by itself from 1.29 on (`cdi-cri`) and has always passed annotations, in which runtimes look
for CDI devices too. containerd takes CDI from 2.0 on; 1.7 only if its configuration says so, which is not looked at.
Runtimes without CDI get everything in the answer to Allocate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shoal.agent.nvidia import replicas
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.cdi import ContainerEdits, Device, DeviceNode, Found, Spec, resolve
from shoal.model.allocation import Allocation, ContainerAllocation
from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu, NodeGpus

#: Device nodes that every container with a card gets, if the host has them.
CONTROL_DEVICES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_NULL: Final = "/dev/null"
#: The kinds of NVIDIA's own specs for cards: of its toolkit, of its device plugin.
_VENDOR_KINDS: Final = (nvidia.RESOURCE_GPU, nvidia.CDI_KIND)


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the edits of a container depend on besides its allocation."""

    node: NodeGpus
    unit: MemoryUnit
    #: The device nodes the host has: by name, the path in containers and that on the host if it differs.
    device_nodes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: The devices of NVIDIA's own specs by qualified name.
    vendor: Mapping[str, tuple[Spec, Device]] = field(default_factory=dict)
    isolated: bool = True


def environment(
    container: ContainerAllocation, allocation: Allocation, resource: str, context: NodeContext
) -> dict[str, str]:
    """The variables of the container's family, with its cards by UUID."""
    if resource == keti.RESOURCE_MPS:
        return keti.container_env(container)
    if resource in replicas.RESOURCES:
        return {nvidia.ENV_VISIBLE_DEVICES: ",".join(card.uuid for card in container.cards)}
    return gpushare.container_env(
        container, allocation=allocation, node=context.node, unit=context.unit, isolated=context.isolated
    )


def container_edits(
    container: ContainerAllocation, allocation: Allocation, resource: str, context: NodeContext
) -> ContainerEdits:
    """All edits, for a runtime that takes CDI."""
    cards = cards_of(container, context.node)
    env = environment(container, allocation, resource, context)
    vendor = vendor_edits(cards, context.vendor)
    given = {node.path for node in vendor.device_nodes}
    nodes = [node for node in device_nodes(cards, context) if node.path not in given]
    return vendor + ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in env.items()), device_nodes=tuple(nodes)
    )


def cards_of(container: ContainerAllocation, node: NodeGpus) -> list[Gpu]:
    """The container's cards, in the order it sees them."""
    known = {gpu.uuid: gpu for gpu in node.gpus}
    return [known[card.uuid] for card in container.cards if card.uuid in known]


def device_nodes(cards: Iterable[Gpu], context: NodeContext) -> list[DeviceNode]:
    """The device nodes of cards, and those all cards need."""
    names = [f"nvidia{card.minor}" for card in cards if card.minor is not None]
    return [
        DeviceNode(path=found[0], host_path=found[1], permissions="rw")
        for name in (*names, *CONTROL_DEVICES)
        if (found := context.device_nodes.get(name)) is not None
    ]


def vendor_edits(cards: Sequence[Gpu], vendor: Mapping[str, tuple[Spec, Device]]) -> ContainerEdits:
    """What NVIDIA's own spec does for these cards; nothing unless it has every one of them."""
    return vendor_edits_of([(card.uuid, str(card.index)) for card in cards], vendor)


def vendor_edits_of(wanted: Iterable[tuple[str, str]], vendor: Mapping[str, tuple[Spec, Device]]) -> ContainerEdits:
    """What NVIDIA's own spec does for devices, each by all of its spellings; nothing unless it has every one."""
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


class DeviceListStrategy(StrEnum):
    """How a container is told its cards, by the names of NVIDIA's plugin."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"

    @property
    def by_cdi(self) -> bool:
        """Whether the container gets a CDI spec."""
        return self in (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)


@dataclass(frozen=True, slots=True)
class ChosenStrategy:
    """A strategy, and why it was chosen."""

    strategy: DeviceListStrategy
    why: str


_CDI_RUNTIMES: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
_CDI_KUBELET: Final = (1, 29)
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


def choose_strategy(kubelet: str, runtime: str) -> ChosenStrategy:
    """The strategy for a node, from the versions its object tells: `v1.36.3`, `containerd://2.4.2`."""
    name, _, version = runtime.partition("://")
    needed = _CDI_RUNTIMES.get(name)
    if needed is None or (version_numbers(version) or (0, 0)) < needed:
        known = ", ".join(f"{one} {major}.{minor}" for one, (major, minor) in _CDI_RUNTIMES.items())
        return ChosenStrategy(
            DeviceListStrategy.ENVVAR,
            f"runtime {runtime or 'unknown'} is not known to take CDI: that is {known} or newer",
        )
    if (version_numbers(kubelet) or (0, 0)) < _CDI_KUBELET:
        return ChosenStrategy(
            DeviceListStrategy.CDI_ANNOTATIONS, f"kubelet {kubelet or 'unknown'} does not pass CDI devices by itself"
        )
    return ChosenStrategy(DeviceListStrategy.CDI_CRI, f"kubelet {kubelet} and {name} {version} take CDI devices")


def version_numbers(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version; None if there are none."""
    match = _VERSION.match(version)
    return None if match is None else (int(match[1]), int(match[2]))


def answer(entry: ContainerAllocation, edits: ContainerEdits, *, by_mounts: bool) -> api.ContainerAllocateResponse:
    """The answer to Allocate that gives a container its cards."""
    return answer_with([card.uuid for card in entry.cards], edits, by_mounts=by_mounts)


def answer_with(uuids: Iterable[str], edits: ContainerEdits, *, by_mounts: bool) -> api.ContainerAllocateResponse:
    """The answer to Allocate that gives a container what these UUIDs name."""
    response = api.ContainerAllocateResponse(envs=edits.environment({}))
    for node in edits.device_nodes:
        response.devices.add(container_path=node.path, host_path=node.host_path or node.path, permissions="rw")
    if by_mounts:
        response.envs[nvidia.ENV_VISIBLE_DEVICES] = nvidia.VISIBLE_DEVICES_DIRECTORY
        for uuid in uuids:
            response.mounts.add(
                container_path=f"{nvidia.VISIBLE_DEVICES_DIRECTORY}/{uuid}", host_path=_NULL, read_only=True
            )
    return response


def given_cards(response: api.ContainerAllocateResponse, node: NodeGpus) -> tuple[str, ...]:
    """The cards that an answer gave, by UUID in their order; none if it names none.

    The answer may be another plugin's: gpushare's names cards by index, NVIDIA's in several ways.
    """
    listed = response.envs.get(nvidia.ENV_VISIBLE_DEVICES, "")
    if listed == nvidia.VISIBLE_DEVICES_DIRECTORY:
        prefix = f"{nvidia.VISIBLE_DEVICES_DIRECTORY}/"
        paths = (mount.container_path for mount in response.mounts)
        names = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
    else:
        names = [name for name in listed.split(",") if name]
    names = names or [device.name.partition("=")[2] for device in response.cdi_devices]
    by_index = {str(gpu.index): gpu.uuid for gpu in node.gpus}
    return tuple(by_index.get(name, name) for name in names)
