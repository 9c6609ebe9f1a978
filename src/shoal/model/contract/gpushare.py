"""Aliyun GPU share: `aliyun.com/gpu-mem` and everything around it, with the names only ACK (Alibaba's service) uses.

A decision is written twice, for old readers and new: five `ALIYUN_COM_GPU_MEM_*` annotations that know one card a pod,
and `scheduler.framework.gpushare.allocation`, which knows containers and several cards. Neither knows init containers,
compute beside ACK's own annotation, or UUIDs; `shoal.dev/allocation` is the full record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import nvidia, text
from shoal.model.errors import CodecError, shown
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import ContainerKind, ContainerRequest, Request, Share

# Resources
RESOURCE_MEMORY: Final = "aliyun.com/gpu-mem"
RESOURCE_COUNT: Final = "aliyun.com/gpu-count"
RESOURCE_COMPUTE: Final = "aliyun.com/gpu-core.percentage"

# Annotations of a pod, and environment of its containers under the same names
NAME_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
NAME_CARD: Final = "ALIYUN_COM_GPU_MEM_DEV"
NAME_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
ANNOTATION_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ANNOTATION_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
#: Declared upstream, never written.
ANNOTATION_ASSIGN_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSIGN_TIME"
ANNOTATION_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
ANNOTATION_ALLOCATION_ASSIGNED: Final = "scheduler.framework.gpushare.assigned"
ANNOTATION_ALLOCATION_ASSUME_TIME: Final = "scheduler.framework.gpushare.assume-time"
ANNOTATION_COMPUTE: Final = "gpushare.alibabacloud.com/core-percentage"
ANNOTATION_TFLOPS: Final = "gpushare.alibabacloud.com/core-tflops"

# Environment of containers
ENV_CONTAINER: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ENV_CGPU_DISABLE: Final = "CGPU_DISABLE"

# Labels of nodes
LABEL_NODE: Final = "gpushare"
LABEL_NO_ISOLATION: Final = "cgpu.disable.isolation"
LABEL_PLACEMENT: Final = "ack.node.gpu.placement"
PLACEMENTS: Final = ("binpack", "spread")

# Labels of pods
LABEL_POD_COUNT: Final = RESOURCE_COUNT
LABEL_POD_PLACEMENT: Final = "ack.gpushare.placement"
REQUIRE_WHOLE_DEVICE: Final = "require-whole-device"

# The extender
EXTENDER_NAME: Final = "gpushare-schd-extender"
EXTENDER_NAMESPACE: Final = "kube-system"
PATH_PREFIX: Final = "/gpushare-scheduler"
VERB_FILTER: Final = "filter"
VERB_BIND: Final = "bind"
#: Two verbs kube-scheduler knows and upstream does not serve.
VERB_PRIORITIZE: Final = "prioritize"
VERB_PREEMPT: Final = "preempt"
PATH_FILTER: Final = f"{PATH_PREFIX}/{VERB_FILTER}"
PATH_BIND: Final = f"{PATH_PREFIX}/{VERB_BIND}"
PATH_PRIORITIZE: Final = f"{PATH_PREFIX}/{VERB_PRIORITIZE}"
PATH_PREEMPT: Final = f"{PATH_PREFIX}/{VERB_PREEMPT}"
PATH_INSPECT: Final = f"{PATH_PREFIX}/inspect"
PATH_VERSION: Final = "/version"
VERSION: Final = "0.1.0"
PORT_DEFAULT: Final = 39999
PORT_MANIFEST: Final = 12345
PORT_NODE: Final = 32766
ENV_PORT: Final = "PORT"
ENV_LOG_LEVEL: Final = "LOG_LEVEL"
REASON_INSUFFICIENT: Final = "Insufficient GPU Memory in one device"
#: What `not_shared_reason` says of one node, said of many at once.
REASON_NOT_SHARED: Final = "The node is not for GPU share, need skip"
ERROR_NO_POD: Final = "arg or pod is nil"
ERROR_NO_NODES: Final = "cannot get node names"

# The device plugin
PLUGIN_NAME: Final = "gpushare-device-plugin-ds"
PLUGIN_SOCKET: Final = "aliyungpushare.sock"
ENV_NODE_NAME: Final = "NODE_NAME"
UNHEALTHY_CONFIGMAP_PREFIX: Final = "unhealthy-gpu-"
UNHEALTHY_CONFIGMAP_NAMESPACE: Final = EXTENDER_NAMESPACE
UNHEALTHY_KEY: Final = "gpus"

_GUESSED_MIB_ABOVE: Final = 100
_MAX_TABLE: Final = 64 * 1024
_MAX_INDEX: Final = 4095
_FULL_COMPUTE: Final = 100

_Amount = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Table = dict[str, dict[str, _Amount]]
_TABLE: Final = msgspec.json.Decoder(_Table)


class MemoryUnit(StrEnum):
    """What one of `aliyun.com/gpu-mem` stands for; the names are those of the device plugin's `--memory-unit`."""

    GIB = "GiB"
    MIB = "MiB"

    @classmethod
    def parse(cls, name: str) -> MemoryUnit:
        for unit in cls:
            if unit.value == name:
                return unit
        raise CodecError(f"memory unit {shown(name)} is not known: write GiB or MiB")

    @property
    def mib(self) -> int:
        """How many MiB one unit is."""
        return 1024 if self is MemoryUnit.GIB else 1

    def to_mib(self, units: int) -> int:
        return units * self.mib

    def floor(self, mib: int) -> int:
        """Whole units within an amount, as a card's size is told."""
        return mib // self.mib

    def ceil(self, mib: int) -> int:
        """Units that cover an amount, as a share is told."""
        return -(-mib // self.mib)


def guess_unit(card_units: int) -> MemoryUnit:
    """The unit `kubectl inspect gpushare` prints, guessed from the size of one card."""
    return MemoryUnit.MIB if card_units > _GUESSED_MIB_ABOVE else MemoryUnit.GIB


@dataclass(frozen=True, slots=True)
class BindState:
    """How far a pod has come: bound at `assume_time_ns`, and `assigned` once its container got the card."""

    assume_time_ns: int
    assigned: bool


def encode(
    allocation: Allocation,
    *,
    container_names: Sequence[str],
    node: NodeGpus,
    unit: MemoryUnit,
    assume_time_ns: int,
    assigned: bool = False,
) -> dict[str, str]:
    """The annotations of a decision; none when no ordinary container holds GPU memory of this family.

    `container_names` are those of `spec.containers`, in order: containers are written by their place there. The index
    annotation is left out when the pod sits on several cards, so that a device plugin that knows one card only finds
    none instead of a wrong one. The card's size is that of the largest card used: who takes CONTAINER/CARD of the card
    it finds then never takes too much.
    """
    memory: _Table = {}
    compute: _Table = {}
    used: dict[str, int] = {}
    for container in allocation.containers:
        units = _units_by_card(container, unit)
        if container.kind is not ContainerKind.APP or not units:
            continue
        if container.name not in container_names:
            raise CodecError(
                f"container {shown(container.name)} is not in the pod: give the names of spec.containers in their order"
            )
        position = str(container_names.index(container.name))
        memory[position] = {str(card.index): units[card.uuid] for card in container.cards}
        if any(card.share.compute for card in container.cards):
            compute[position] = {str(card.index): card.share.compute for card in container.cards}
        used.update((card.uuid, card.index) for card in container.cards)
    if not memory:
        return {}
    annotations = {
        NAME_CARD: str(_card_units(used, node, unit)),
        NAME_POD: str(sum(sum(cards.values()) for cards in memory.values())),
        ANNOTATION_ALLOCATION: text.to_json(memory, what=ANNOTATION_ALLOCATION, limit=_MAX_TABLE),
        **state_annotations(BindState(assume_time_ns, assigned)),
    }
    if len(used) == 1:
        annotations[NAME_INDEX] = str(*used.values())
    if compute:
        annotations[ANNOTATION_COMPUTE] = text.to_json(compute, what=ANNOTATION_COMPUTE, limit=_MAX_TABLE)
    return annotations


def state_annotations(state: BindState) -> dict[str, str]:
    """The annotations that tell a pod's `BindState`, in both spellings."""
    assigned = str(state.assigned).lower()
    return {
        ANNOTATION_ASSIGNED: assigned,
        ANNOTATION_ASSUME_TIME: str(state.assume_time_ns),
        ANNOTATION_ALLOCATION_ASSIGNED: assigned,
        ANNOTATION_ALLOCATION_ASSUME_TIME: str(state.assume_time_ns),
    }


def decode_state(annotations: Mapping[str, object]) -> BindState | None:
    """How far a pod has come; None when no scheduler of this family bound it. A missing flag means not assigned."""
    for time_key, flag_key in (
        (ANNOTATION_ASSUME_TIME, ANNOTATION_ASSIGNED),
        (ANNOTATION_ALLOCATION_ASSUME_TIME, ANNOTATION_ALLOCATION_ASSIGNED),
    ):
        if (time := text.value_of(annotations, time_key)) is not None:
            flag = text.value_of(annotations, flag_key)
            return BindState(
                text.integer(time, what=time_key),
                flag is not None and text.boolean(flag, what=flag_key),
            )
    return None


def decode(
    annotations: Mapping[str, object],
    *,
    request: Request,
    container_names: Sequence[str],
    node: NodeGpus,
    unit: MemoryUnit,
) -> Allocation | None:
    """The decision the annotations hold; None when they hold none or the pod asks for nothing of this family.

    The allocation table is preferred to the single index. Init containers stand in neither: one that asks for one card
    is taken to be on the pod's card when the pod has just one, and is left out otherwise.
    """
    wanted = [container for container in request.containers if _is_ours(container)]
    if not wanted:
        return None
    memory = _table(annotations, ANNOTATION_ALLOCATION, container_names)
    compute = None
    if memory is not None:
        compute = _table(annotations, ANNOTATION_COMPUTE, container_names)
    elif (index_text := text.value_of(annotations, NAME_INDEX)) is not None:
        memory = _one_card(annotations, index_text, wanted, unit)
    else:
        return None
    gpus = {gpu.index: gpu for gpu in node.gpus}
    places = {
        container.name: _cards_of(container, memory.get(container.name, {}), compute, gpus=gpus, node=node, unit=unit)
        for container in wanted
        if container.kind is ContainerKind.APP
    }
    used = {card.uuid: card.index for cards in places.values() for card in cards}
    if len(used) == 1:
        (uuid, index), *_ = used.items()
        for container in wanted:
            if container.kind is not ContainerKind.APP and container.gpus == 1:
                places[container.name] = (CardShare(uuid, index, container.share),)
    containers = tuple(
        ContainerAllocation(c.name, places[c.name], c.kind, c.memory_limit_mib) for c in wanted if places.get(c.name)
    )
    return Allocation(node.name, containers) if containers else None


def container_env(
    container: ContainerAllocation,
    *,
    allocation: Allocation,
    node: NodeGpus,
    unit: MemoryUnit,
    isolated: bool = True,
) -> dict[str, str]:
    """The environment of a container: its cards by UUID, and the sizes by which programs limit themselves.

    With several cards the index is left out and CONTAINER is the share of each card, so that CONTAINER/CARD stays the
    fraction of a card. `isolated=False` is for nodes labelled `cgpu.disable.isolation=true`.
    """
    cards = {card.uuid: card.index for card in container.cards}
    apps = (c for c in allocation.containers if c.kind is ContainerKind.APP)
    env = {
        nvidia.ENV_VISIBLE_DEVICES: ",".join(cards),
        NAME_POD: str(sum(sum(_units_by_card(app, unit).values()) for app in apps)),
        NAME_CARD: str(_card_units(cards, node, unit)),
        ENV_CONTAINER: str(max(_units_by_card(container, unit).values(), default=0)),
    }
    if len(cards) == 1:
        env[NAME_INDEX] = str(container.cards[0].index)
    if not isolated:
        env[ENV_CGPU_DISABLE] = "true"
    return env


def not_shared_reason(node: str) -> str:
    """Upstream's reason for refusing a node without GPU memory."""
    return f"The node {node} is not for GPU share, need skip"


def unhealthy_configmap(node: str) -> str:
    """The name of the ConfigMap that excludes cards of a node."""
    return UNHEALTHY_CONFIGMAP_PREFIX + node


def decode_unhealthy(data: Mapping[str, object]) -> frozenset[int]:
    """The indices of excluded cards from the ConfigMap's data."""
    what = f"key {UNHEALTHY_KEY} of ConfigMap {UNHEALTHY_CONFIGMAP_PREFIX}<node>"
    listed = text.items(text.value_of(data, UNHEALTHY_KEY) or "", what=what)
    return frozenset(text.integer(entry, what=what, maximum=_MAX_INDEX) for entry in listed)


def _is_ours(container: ContainerRequest) -> bool:
    share = container.share
    if share.clients:
        return False
    return container.memory_limit_mib is not None if share.exclusive else bool(share.memory_mib or share.compute)


def _units_by_card(container: ContainerAllocation, unit: MemoryUnit) -> dict[str, int]:
    """Units of memory by card UUID, empty for other families. Of a whole card it is what the container asked for."""
    if any(card.share.clients for card in container.cards):
        return {}
    of_whole = container.memory_limit_mib or 0
    units = {
        card.uuid: unit.ceil(of_whole if card.share.exclusive else card.share.memory_mib) for card in container.cards
    }
    return units if any(units.values()) else {}


def _asked_units(container: ContainerRequest, unit: MemoryUnit) -> int:
    each = container.memory_limit_mib or 0 if container.share.exclusive else container.share.memory_mib
    return unit.ceil(each) * container.gpus


def _card_units(uuids: Iterable[str], node: NodeGpus, unit: MemoryUnit) -> int:
    sizes = {gpu.uuid: gpu.memory_mib for gpu in node.gpus}
    missing = [uuid for uuid in uuids if uuid not in sizes]
    if missing:
        raise CodecError(f"node {shown(node.name)} has no card {shown(missing[0])}: decide again on its inventory")
    return unit.floor(max((sizes[uuid] for uuid in uuids), default=0))


def _table(annotations: Mapping[str, object], key: str, names: Sequence[str]) -> dict[str, dict[int, int]] | None:
    """Container name to card index to amount; None when the annotation is absent."""
    value = text.value_of(annotations, key)
    if value is None:
        return None
    table: dict[str, dict[int, int]] = {}
    for place, cards in text.from_json(value, _TABLE, what=key, limit=_MAX_TABLE).items():
        number = text.integer(place, what=f"a container index of {key}", maximum=_MAX_INDEX)
        if number >= len(names):
            raise CodecError(f"{key} names container {number}, the pod has {len(names)}: remove copied annotations")
        table[names[number]] = {
            text.integer(card, what=f"a card index of {key}", maximum=_MAX_INDEX): amount
            for card, amount in cards.items()
            if amount
        }
    return table


def _one_card(
    annotations: Mapping[str, object], index_text: str, wanted: Sequence[ContainerRequest], unit: MemoryUnit
) -> dict[str, dict[int, int]]:
    index = text.integer(index_text, what=NAME_INDEX, maximum=_MAX_INDEX)
    ours = [container for container in wanted if container.kind is ContainerKind.APP]
    total = sum(_asked_units(container, unit) for container in ours)
    pod_text = text.value_of(annotations, NAME_POD)
    if pod_text is not None and text.integer(pod_text, what=NAME_POD) != total:
        raise CodecError(
            f"{NAME_POD} holds {shown(pod_text)}, the pod's containers ask for {total}: remove copied annotations"
        )
    several = next((container for container in ours if container.gpus > 1), None)
    if several is not None:
        raise CodecError(
            f"{NAME_INDEX} names one card, container {shown(several.name)} asks for {several.gpus}: "
            f"write {ANNOTATION_ALLOCATION} instead"
        )
    return {container.name: {index: _asked_units(container, unit)} for container in ours}


def _cards_of(
    container: ContainerRequest,
    amounts: Mapping[int, int],
    compute: Mapping[str, Mapping[int, int]] | None,
    *,
    gpus: Mapping[int, Gpu],
    node: NodeGpus,
    unit: MemoryUnit,
) -> tuple[CardShare, ...]:
    asked = _asked_units(container, unit)
    if sum(amounts.values()) != asked:
        raise CodecError(
            f"the annotations give container {shown(container.name)} {sum(amounts.values())} {unit.value}, "
            f"it asks for {asked}: remove copied annotations"
        )
    cards = []
    for index, units in amounts.items():
        gpu = gpus.get(index)
        if gpu is None:
            raise CodecError(
                f"the annotations give container {shown(container.name)} card {index}, node {shown(node.name)} has "
                f"cards {sorted(gpus)}: delete the pod so that it is placed again"
            )
        percent = container.share.compute if compute is None else compute.get(container.name, {}).get(index, 0)
        if percent > _FULL_COMPUTE:
            raise CodecError(
                f"{ANNOTATION_COMPUTE} gives container {shown(container.name)} {percent} percent of card {index}: "
                "remove copied annotations"
            )
        share = Share(exclusive=True) if container.share.exclusive else Share(unit.to_mib(units), percent)
        cards.append(CardShare(gpu.uuid, gpu.index, share))
    return tuple(cards)
