"""A snapshot in the messages of KETI's collectors, version 2 (`metric`) and version 1 (`v1.user`). Pure.

Each card has its own fixed numbers, totals are in bytes, containers have their IDs whatever the runtime, and what is
not there any more is not told. PIDs are not published. A card that does not answer is counted and not described, so
that KETI's scheduler places nothing on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from shoal.gpu.protocol import Card
from shoal.metrics.api import metric_pb2 as metric
from shoal.metrics.api import user_pb2 as user
from shoal.metrics.keti_points import pods_on, using
from shoal.metrics.snapshot import CardSnapshot, NodeLoad, PodLoad, Snapshot

_KILOBYTE: Final = 1000
#: KETI's names of architectures, and NVML's numbers of them. What KETI does not know it calls Unknown.
_ARCHITECTURES: Final = {
    "kepler": ("KEPLER", 2),
    "maxwell": ("MAXWELL", 3),
    "pascal": ("PASCAL", 4),
    "volta": ("VOLTA", 5),
    "turing": ("TURING", 6),
    "ampere": ("AMPERE", 7),
    "ada-lovelace": ("ADA", 8),
    "hopper": ("HOPPER", 9),
    "blackwell": ("BLACKWELL", 10),
}
_UNKNOWN: Final = ("Unknown", None)


def gigaflops(card: Card) -> int | None:
    """Two operations a cycle and core, at the highest clock: KETI's `flops`."""
    clock = card.limits.sm_clock_mhz
    return None if clock is None or card.cores is None else clock * card.cores * 2 // 1000


def bandwidth(card: Card) -> float | None:
    """Terabytes a second of the card's memory. KETI took the clock of the cores, which is another number."""
    clock = card.limits.memory_clock_mhz
    return None if clock is None or card.bus_width_bits is None else card.bus_width_bits * clock * 2 / 8 / 1e6


def links(snapshot: Snapshot) -> list[tuple[str, str, int]]:
    """The NVLinks between the node's cards, each once: two UUIDs and the number of lanes."""
    here = {card.card.uuid for card in snapshot.cards}
    return [
        (card.card.uuid, link.peer, link.lanes)
        for card in snapshot.cards
        for link in card.card.links
        if link.peer in here and card.card.uuid < link.peer
    ]


# Version 2


def multi_metric(snapshot: Snapshot) -> metric.MultiMetric:
    """The answer to GetMultiMetric."""
    return metric.MultiMetric(
        node_name=snapshot.node,
        gpu_count=len(snapshot.cards),
        nvlink_info=[metric.NVLink(gpu1uuid=a, gpu2uuid=b, lanecount=lanes) for a, b, lanes in links(snapshot)],
        node_metric=_node_metric(snapshot.load or NodeLoad()),
        gpu_metrics={card.card.uuid: _gpu_metric(card) for card in snapshot.cards if card.sample is not None},
        pod_metrics=_pod_metrics(snapshot),
    )


def _node_metric(load: NodeLoad) -> metric.NodeMetric:
    return metric.NodeMetric(
        milli_cpu_total=load.cpu_total_milli,
        milli_cpu_usage=load.cpu_used_milli,
        memory_total=load.memory_total_bytes,
        memory_usage=load.memory_used_bytes,
        storage_total=load.storage_total_bytes,
        storage_usage=load.storage_used_bytes,
        network_rx=load.network_received_bytes,
        network_tx=load.network_sent_bytes,
    )


def _gpu_metric(snapshot: CardSnapshot) -> metric.GPUMetric:
    card, sample = snapshot.card, snapshot.sample
    assert sample is not None
    return metric.GPUMetric(
        index=card.index,
        gpu_name=card.model,
        architecture=_ARCHITECTURES.get(card.family, _UNKNOWN)[0],
        max_clock=card.limits.sm_clock_mhz,
        cudacore=card.cores,
        bandwidth=bandwidth(card),
        flops=gigaflops(card),
        max_operative_temp=card.limits.max_c,
        slowdown_temp=card.limits.slowdown_c,
        shutdown_temp=card.limits.shutdown_c,
        memory_total=sample.memory_total_bytes,
        memory_used=_used(snapshot),
        power_used=sample.power_mw,
        pci_rx=None if sample.pcie_received is None else sample.pcie_received // _KILOBYTE,
        pci_tx=None if sample.pcie_sent is None else sample.pcie_sent // _KILOBYTE,
        temperature=sample.temperature_c,
        utilization=sample.utilisation,
        fan_speed=sample.fan,
        pod_count=pods_on(snapshot),
        energy_consumption=sample.energy_mj,
    )


def _used(snapshot: CardSnapshot) -> int | None:
    if snapshot.used_bytes is not None:
        return snapshot.used_bytes
    return None if snapshot.sample is None else snapshot.sample.memory_used_bytes


def _pod_metrics(snapshot: Snapshot) -> Mapping[str, metric.PodMetric]:
    """By name; pods of two namespaces with one name are told apart as namespace/name."""
    pods = {load.uid: (load.namespace, load.pod) for load in snapshot.pods}
    loads = {load.uid: load for load in snapshot.pods}
    users = [(card.card.uuid, container) for card in snapshot.cards for container in using(card)]
    for _, container in users:
        pods.setdefault(container.name.pod_uid, (container.name.namespace, container.name.pod))
    times = Counter(pod for _, pod in pods.values())
    made: dict[str, metric.PodMetric] = {}
    of: dict[str, metric.PodMetric] = {}
    for uid, (namespace, pod) in pods.items():
        of[uid] = made[pod if times[pod] == 1 else f"{namespace}/{pod}"] = _pod_metric(loads.get(uid))
    for uuid, container in users:
        pod_metric = of[container.name.pod_uid]
        pod_metric.is_gpu_pod = True
        key = container.container_id or container.name.container
        # KETI has one entry a container: further cards of it stand beside it.
        if key in pod_metric.pod_gpu_metrics:
            key = f"{key}/{uuid}"
        entry = metric.PodGPUMetric(gpu_uuid=uuid, gpu_memory_used=container.used_bytes)
        pod_metric.pod_gpu_metrics[key].CopyFrom(entry)
    return made


def _pod_metric(load: PodLoad | None) -> metric.PodMetric:
    if load is None:
        return metric.PodMetric()
    return metric.PodMetric(
        cpu_usage=load.cpu_milli,
        memory_usage=load.memory_bytes,
        storage_usage=load.storage_bytes,
        network_rx=load.network_received_bytes,
        network_tx=load.network_sent_bytes,
    )


# Version 1


def node_message(snapshot: Snapshot) -> user.NodeMessage:
    """The node, whole in every answer; KETI left out most of it but for the first."""
    load = snapshot.load or NodeLoad()
    pairs = links(snapshot)
    totals = [card.sample.memory_total_bytes for card in snapshot.cards if card.sample is not None]
    return user.NodeMessage(
        node_name=snapshot.node,
        node_totalcpu=load.cpu_total_milli,
        node_cpu=load.cpu_used_milli,
        gpu_count=len(snapshot.cards),
        node_totalmemory=load.memory_total_bytes,
        node_memory=load.memory_used_bytes,
        node_totalstorage=load.storage_total_bytes,
        node_storage=load.storage_used_bytes,
        gpu_uuid=" ".join(card.card.uuid for card in snapshot.cards),
        max_gpu_memory=max((total for total in totals if total is not None), default=None),
        gpu1index=[first for first, _, _ in pairs],
        gpu2index=[second for _, second, _ in pairs],
        lanecount=[lanes for _, _, lanes in pairs],
    )


def gpu_message(snapshot: CardSnapshot) -> user.GPUMessage | None:
    """A card, whole in every answer; None when it does not answer."""
    card, sample = snapshot.card, snapshot.sample
    if sample is None:
        return None
    return user.GPUMessage(
        gpu_uuid=card.uuid,
        gpu_total=sample.memory_total_bytes,
        gpu_used=_used(snapshot),
        gpu_free=sample.memory_free_bytes,
        gpu_name=card.model,
        gpu_index=card.index,
        gpu_temp=sample.temperature_c,
        gpu_power=sample.power_mw,
        mps_count=pods_on(snapshot),
        gpu_flops=gigaflops(card),
        gpu_arch=_ARCHITECTURES.get(card.family, _UNKNOWN)[1],
        gpu_tpower=card.limits.power_mw,
        gpu_util=sample.utilisation,
    )


def init_message(snapshot: Snapshot) -> user.InitMessage:
    """The node and all cards that answer."""
    cards = [made for card in snapshot.cards if (made := gpu_message(card)) is not None]
    return user.InitMessage(InitNode=node_message(snapshot), InitGPU=cards)
