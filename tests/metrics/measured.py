"""Snapshots of simulated cards, for whatever reads snapshots: what the cards show, attributed by the real rules."""

from dataclasses import replace
from itertools import count

from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Card
from shoal.gpu.simulated import SimulatedNvml
from shoal.metrics.attribution import attribute
from shoal.metrics.processes import ContainerRef
from shoal.metrics.snapshot import CardSnapshot, ContainerName, ContainerSnapshot, NodeLoad, PodLoad, Snapshot

MIB = 1 << 20
LOAD = NodeLoad(
    cpu_total_milli=16_000,
    cpu_used_milli=4_000,
    memory_total_bytes=64 << 30,
    memory_used_bytes=16 << 30,
    storage_total_bytes=1000 << 30,
    storage_used_bytes=500 << 30,
    network_received_bytes=123_456_789_012,
    network_sent_bytes=98_765_432_109,
)


class MeasuredNode:
    """A node with simulated cards and programs in containers."""

    def __init__(self, cards: object = "2xA100-40G", name: str = "node-1", started: float = 1_700_000_000.0) -> None:
        self.name = name
        self.now = started
        self.nvml = SimulatedNvml(parse_cards(cards), clock=lambda: self.now, seed=name)
        self.load: NodeLoad | None = LOAD
        self._names: dict[ContainerRef, ContainerName] = {}
        self._owners: dict[int, ContainerRef] = {}
        self._pids = count(100)
        self._number = 0

    @property
    def cards(self) -> tuple[Card, ...]:
        return self.nvml.survey().cards

    def run(self, card: int, pod: str | None, *, mib: int, percent: int = 0, namespace: str = "userpod") -> int:
        """Start a program on a card, in the one container of a pod or in none."""
        pid = next(self._pids)
        if pod is not None:
            ref = ContainerRef(f"uid-{namespace}-{pod}", f"id-{namespace}-{pod}")
            self._names[ref] = ContainerName(namespace, pod, "main", ref.pod_uid)
            self._owners[pid] = ref
        self.nvml.add_process(self.cards[card].uuid, pid, memory_bytes=mib * MIB, utilisation=percent, mps=True)
        return pid

    def snapshot(self, passed: float = 5.0) -> Snapshot:
        """What the cards show after some seconds."""
        self.now += passed
        self._number += 1
        pods = sorted({(name.namespace, name.pod, name.pod_uid) for name in self._names.values()})
        return Snapshot(
            self.name,
            self.now,
            self.now,
            passed,
            self._number,
            self.nvml.driver(),
            tuple(self._card(card) for card in self.cards),
            self.load,
            tuple(
                PodLoad(namespace, pod, uid, 1500 + n, (100 + n) * MIB, (200 + n) * MIB, 3000 + n, 4000 + n)
                for n, (namespace, pod, uid) in enumerate(pods)
            ),
        )

    def _card(self, card: Card) -> CardSnapshot:
        if card.lost:
            return CardSnapshot(card)
        traffic = self.nvml.pcie_traffic(card.uuid)
        sample = replace(self.nvml.sample(card.uuid), pcie_sent=traffic.sent, pcie_received=traffic.received)
        use = attribute(sample.memory_used_bytes, sample.processes, self._owners, {})
        containers = tuple(
            ContainerSnapshot(
                self._names[one.container],
                requested_bytes=one.memory_bytes,
                used_bytes=one.memory_bytes,
                source=one.source,
                container_id=one.container.container_id,
            )
            for one in use.containers
        )
        return CardSnapshot(card, sample, use.used_bytes, use.unattributed_bytes, containers)
