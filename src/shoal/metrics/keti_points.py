"""A snapshot as KETI's collector wrote it to InfluxDB: `nodemetric`, `gpumetric` and `podmetric`. Pure.

Names and units of the fields are KETI's; tags say of which node, card and container a row is. What is not known is left
out, and never 0. A card that does not answer has no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from shoal.metrics.influx import FieldValue, InfluxPoint
from shoal.metrics.snapshot import CardSnapshot, ContainerSnapshot, NodeLoad, PodLoad, Snapshot
from shoal.model.contract.keti import MEASUREMENT_GPU, MEASUREMENT_NODE, MEASUREMENT_POD, TAG_UUID

TAG_NODE: Final = "node"
TAG_GPU: Final = "gpu"
TAG_NAMESPACE: Final = "namespace"
TAG_POD: Final = "pod"
TAG_CONTAINER: Final = "container"
#: The MIG instance's UUID, where the container has one.
TAG_MIG: Final = "mig"

_Fields = Mapping[str, FieldValue | None]


def points(snapshot: Snapshot) -> Iterator[InfluxPoint]:
    """All rows of a snapshot: one of the node, one a card, one for each container that uses a card."""
    yield _point(snapshot, MEASUREMENT_NODE, {}, _node(snapshot, snapshot.load or NodeLoad()))
    loads = {load.uid: load for load in snapshot.pods}
    for card in snapshot.cards:
        if card.sample is None:
            continue
        tags = {TAG_UUID: card.card.uuid, TAG_GPU: str(card.card.index)}
        yield _point(snapshot, MEASUREMENT_GPU, tags, _card(card))
        for container in using(card):
            name = container.name
            whose = {TAG_NAMESPACE: name.namespace, TAG_POD: name.pod, TAG_CONTAINER: name.container}
            fields = _container(container, loads.get(name.pod_uid))
            yield _point(snapshot, MEASUREMENT_POD, {**tags, **whose, TAG_MIG: container.mig_uuid}, fields)


def using(card: CardSnapshot) -> tuple[ContainerSnapshot, ...]:
    """The containers of which something runs on the card."""
    return tuple(container for container in card.containers if container.source is not None)


def pods_on(card: CardSnapshot) -> int:
    """How many pods have something that runs on the card."""
    return len({container.name.pod_uid for container in using(card)})


def _point(snapshot: Snapshot, measurement: str, tags: Mapping[str, str], fields: _Fields) -> InfluxPoint:
    known = {name: value for name, value in fields.items() if value is not None}
    return InfluxPoint(measurement, {TAG_NODE: snapshot.node, **tags}, known, snapshot.time)


def _node(snapshot: Snapshot, load: NodeLoad) -> _Fields:
    all_answer = all(card.sample is not None for card in snapshot.cards)
    return {
        "NodeName": snapshot.node,
        "NodeCPU": load.cpu_used_milli,
        "NodeMemory": load.memory_used_bytes,
        "NodeStorage": load.storage_used_bytes,
        "NodeNetworkRX": load.network_received_bytes,
        "NodeNetworkTX": load.network_sent_bytes,
        "Count": len(snapshot.cards),
        # A pod counts on each of its cards, as in KETI's sum.
        "totalpod": sum(map(pods_on, snapshot.cards)) if all_answer else None,
        # A list as KETI's programs write it and take it apart.
        "uuid": f"[{' '.join(card.card.uuid for card in snapshot.cards)}]",
    }


def _card(card: CardSnapshot) -> _Fields:
    sample = card.sample
    assert sample is not None
    return {
        "Index": card.card.index,
        "GPUName": card.card.model,
        "memory(total)": sample.memory_total_bytes,
        "memory(free)": sample.memory_free_bytes,
        "memory(used)": card.used_bytes if card.used_bytes is not None else sample.memory_used_bytes,
        "utilization": sample.utilisation,
        "Power": sample.power_mw,
        "temperature": sample.temperature_c,
        "Podnum": pods_on(card),
        "FanSpeed": sample.fan,
    }


def _container(container: ContainerSnapshot, load: PodLoad | None) -> _Fields:
    fields: dict[str, FieldValue | None] = {
        "gpu_mps_memory": container.used_bytes,
        "gpu_mps_pod": container.name.pod,
        "gpu_mps_uid": container.name.pod_uid,
    }
    if load is not None:
        fields |= {
            "gpu_mps_cpu": None if load.cpu_milli is None else float(load.cpu_milli),
            "gpu_mps_nodememory": load.memory_bytes,
            "gpu_mps_storage": load.storage_bytes,
            "gpu_mps_networkrx": load.network_received_bytes,
            "gpu_mps_networktx": load.network_sent_bytes,
        }
    return fields
