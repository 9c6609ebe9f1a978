"""Snapshots as a collector makes them, from a few numbers."""

from collections.abc import Sequence

from shoal.gpu.protocol import Card, Sample
from shoal.metrics.attribution import UseSource
from shoal.metrics.snapshot import CardSnapshot, ContainerName, ContainerSnapshot, NodeLoad, Snapshot

GIB = 1 << 30


def container(
    pod: str, used: int | None = None, *, namespace: str = "team", requested: int | None = None, name: str = "c0"
) -> ContainerSnapshot:
    """A container of a pod, with bytes used and requested of a card."""
    return ContainerSnapshot(
        ContainerName(namespace, pod, name, f"uid-{pod}"),
        requested_bytes=requested,
        used_bytes=used,
        utilisation=None if used is None else 30,
        source=None if used is None else UseSource.PROCESS,
    )


def card(
    index: int, containers: Sequence[ContainerSnapshot] = (), *, unattributed: int | None = 0, node: str = "n1"
) -> CardSnapshot:
    """A card of 16 GiB that measures 40 %, 55 °C and 70.5 W; one with `unattributed` None does not answer."""
    uuid = f"GPU-{node}-{index}"
    if unattributed is None:
        return CardSnapshot(Card(uuid, index, "Tesla T4", 16 * GIB), None, None, None, tuple(containers))
    used = unattributed + sum(one.used_bytes or 0 for one in containers)
    sample = Sample(
        memory_total_bytes=16 * GIB, memory_used_bytes=used, utilisation=40, temperature_c=55, power_mw=70_500
    )
    return CardSnapshot(Card(uuid, index, "Tesla T4", 16 * GIB), sample, used, unattributed, tuple(containers))


def snapshot(cards: Sequence[CardSnapshot], *, number: int = 1, time: float = 1e6, node: str = "n1") -> Snapshot:
    """A snapshot of a node."""
    load = NodeLoad(cpu_total_milli=8000, cpu_used_milli=1500, memory_used_bytes=3 * GIB)
    return Snapshot(node, time, float(number), 5.0, number, cards=tuple(cards), load=load)
