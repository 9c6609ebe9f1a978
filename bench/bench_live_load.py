"""Live load: what a decision costs with it and without, and what 5,000 collectors cost scheduler and API server.

Decisions: equal clusters, in which a quarter of each tenth card is used by nobody's pod. In one that is booked; the
other has a digest of every node, and a further one before every fourth decision: 5,000 nodes write some 100 times a
second, and the scheduler places 400 pods in it (bench_scheduler). One digest in twenty tells of a program of nobody
that came or went. Digests are made up in both, and taken in where they count. Decisions take turns, so that who else
uses the machine hits all alike. Decisions right after a digest are slower, and told apart: where a digest came before
every decision all of them would be such.

Digests: events of a watch as the API server sends them, decoded and taken in by the parts that the scheduler runs, in
CPU time; what TLS and sockets cost is not in it. How often they come is played with the collectors' own pace: nodes at
rest, and nodes whose cards change all the time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random

import msgspec
import numpy as np

import bench.results as results
from bench.bench_decision import CARDS, Churn
from shoal.kube.codec import codec_of
from shoal.kube.objects.others import Lease
from shoal.kube.store import Store
from shoal.kube.watch import batches
from shoal.metrics.digest import DigestPace, DigestSettings
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract.load import ANNOTATION_LOAD, NAMESPACE, CardDigest, LoadDigest, encode_load
from shoal.model.request import Share
from shoal.placement.ledger import Booking, Ledger
from shoal.scheduler.live_loads import LiveLoads

NODES = 5_000
DECISIONS = 2_000
#: The part of the digests that tell of a program of nobody that came or went.
CHANGES = 0.05
#: Decisions for each digest.
EVERY = 4
EVENTS = 10_000
#: Seconds of the collectors' life that are played, and how often they sample.
PLAYED = 600
INTERVAL = 5


def digest_for(ledger: Ledger, name: str, rng: Random, *, stray: float = 0.1) -> LoadDigest:
    """What a collector could tell of a node: busy cards, of which a few are used by nobody's pod."""
    node = ledger.node(name)
    assert node is not None
    cards = {
        card.inventory.uuid: CardDigest(
            used_mib=rng.randrange(card.inventory.memory_mib),
            unattributed_mib=card.inventory.memory_mib // 4 if rng.random() < stray else 0,
            overuse_mib=0,
            utilisation=rng.randrange(101),
            celsius=rng.randrange(30, 85),
            watts=rng.randrange(20, 400),
        )
        for card in node.slots
    }
    return LoadDigest(cards, rng.randrange(101), rng.randrange(101), rng.randrange(101))


# Decisions


class LoadedChurn(Churn):
    """A cluster that is full, with pods leaving and arriving, and digests coming in."""

    def __init__(self, nodes: int, *, changes: float | None) -> None:
        """`changes` is the part of the digests in which memory of nobody has changed; None: it is booked, and no digest
        comes.
        """
        self._changes = changes
        #: What the digests draw from: pods are drawn as in the cluster without them.
        self._chance = Random(11)
        self._told: dict[str, LoadDigest] = {}
        self.left = 0
        super().__init__(nodes)

    def arrive(self) -> float | None:
        """Before the first pod comes, memory is used by nobody's."""
        if not self._told:
            ledger = self.engine.ledger
            self.names = [node.name for node in ledger.nodes()]
            self.loads = LiveLoads(ledger, news=lambda _: None)
            told = {name: digest_for(ledger, name, self._chance) for name in self.names}
            self._stray = {
                name: {uuid: card.unattributed_mib or 0 for uuid, card in digest.cards.items()}
                for name, digest in told.items()
            }
            for name, digest in told.items():
                self.loads.take(name, digest)
            self._told = told
            if self._changes is None:
                self._book()
        return super().arrive()

    def _book(self) -> None:
        """The same memory as pods that never leave: as much is free on every card, and nothing is measured."""
        for name, digest in self._told.items():
            self.loads.drop(name)
            for uuid, card in digest.cards.items():
                if card.unattributed_mib:
                    held = CardShare(uuid, 0, Share(card.unattributed_mib))
                    allocation = Allocation(name, (ContainerAllocation("main", (held,)),))
                    self.engine.ledger.confirm(Booking(f"nobody-{uuid}", allocation))

    def hear(self, name: str, changes: float, *, heard: bool = True) -> None:
        digest = digest_for(self.engine.ledger, name, self._chance)
        if self._told:
            digest = replace(digest, cards=self._same(name, digest, changes))
        if heard:
            self._told[name] = digest
            self.loads.take(name, digest)

    def _same(self, name: str, digest: LoadDigest, changes: float) -> dict[str, CardDigest]:
        """The cards with memory of nobody as it was; by chance a program of nobody ends or begins where one was."""
        cards = dict(digest.cards)
        flips = self._chance.random() < changes
        for uuid, card in digest.cards.items():
            stray = self._stray[name].get(uuid, 0)
            if stray and flips:
                stray, flips = 0 if self._told[name].cards[uuid].unattributed_mib else stray, False
            elif stray:
                stray = self._told[name].cards[uuid].unattributed_mib or 0
            cards[uuid] = replace(card, unattributed_mib=stray)
        return cards

    def leave(self) -> None:
        """A pod leaves, and now and then a collector tells something."""
        self.left += 1
        if self.left % EVERY == 0:
            self.hear(self._chance.choice(self.names), self._changes or 0.0, heard=self._changes is not None)
        super().leave()


def decisions(nodes: int) -> list[results.Row]:
    churns = [LoadedChurn(nodes, changes=changes) for changes in (None, CHANGES)]
    for churn in churns:
        churn.round(DECISIONS // 10)
        churn.left = 0
    gc.collect()
    found: list[tuple[float, float]] = []
    after: list[bool] = []
    for _ in range(DECISIONS):
        plain, live = (churn.round(1)[0] for churn in churns)
        found.append((plain, live))
        after.append(churns[1].left % EVERY == 0)
    times, right_after = np.array(found), np.array(after)
    plain, live = np.median(times, axis=0).tolist()
    # Without the tenth that waited for the machine.
    kept = np.sort(times, axis=0)[: len(times) * 9 // 10].mean(axis=0)
    cold = np.median(times[right_after], axis=0)
    label = f"{nodes} nodes × {CARDS} cards: decision"
    return [
        results.Row(f"{label} p50 by requests", plain, "µs"),
        results.Row(f"{label} p50 with live load", live, "µs"),
        results.below("p50 with live load / by requests", live / plain, "×", 1.1),
        results.below("mean of the faster nine tenths, the same", float(kept[1] / kept[0]), "×", 1.1),
        results.Row("p50 right after a digest, the same", float(cold[1] / cold[0]), "×"),
    ]


# Digests


def lines(ledger: Ledger, names: list[str], count: int, rng: Random) -> list[bytes]:
    """Lines of a watch of Leases, with what the API server adds."""
    made: list[bytes] = []
    fields = {"f:metadata": {"f:annotations": {".": {}, f"f:{ANNOTATION_LOAD}": {}}}, "f:spec": {"f:renewTime": {}}}
    for number in range(count):
        name = rng.choice(names)
        managed = {
            "manager": "shoal",
            "operation": "Update",
            "apiVersion": "coordination.k8s.io/v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        lease = {
            "kind": "Lease",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-{name}",
                "resourceVersion": str(number + 1),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {ANNOTATION_LOAD: encode_load(digest_for(ledger, name, rng))},
                "managedFields": [managed],
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 180, "renewTime": "2026-01-01T00:00:00.000000Z"},
        }
        made.append(msgspec.json.encode({"type": "MODIFIED", "object": lease}) + b"\n")
    return made


async def heard(loads: LiveLoads, told: list[bytes]) -> float:
    """CPU seconds for these lines."""

    async def pieces() -> AsyncIterator[bytes]:
        for line in told:
            yield line

    store: Store[Lease] = Store()
    start = time.process_time()
    async for batch in batches(pieces(), codec_of(Lease), asked="leases"):
        for event in batch:
            for change in store.apply(event):
                loads.on_lease(change)
    return time.process_time() - start


def writes_per_second(nodes: int, digest: Callable[[int, int, Random], LoadDigest]) -> tuple[float, float]:
    """Mean and highest rate of writes of so many collectors that started in one minute, once they are under way."""
    by_second: Counter[int] = Counter()
    for node in range(nodes):
        rng = Random(node)
        pace = DigestPace(DigestSettings(), rng)
        began = rng.uniform(0, 60)
        sizes = {"GPU": 81_920}
        for sample in range(2 * PLAYED // INTERVAL):
            now = began + sample * INTERVAL
            seen = digest(node, sample, rng)
            if pace.is_due(seen, sizes, now):
                pace.wrote(seen, now)
                by_second[int(now)] += 1
    under_way = [by_second[second] for second in range(PLAYED, 2 * PLAYED)]
    return sum(under_way) / len(under_way), float(max(under_way))


_REST = LoadDigest({"GPU": CardDigest(1000, 0, 0, 50, 60, 200)})


def at_rest(node: int, sample: int, rng: Random) -> LoadDigest:
    return _REST


def restless(node: int, sample: int, rng: Random) -> LoadDigest:
    """Every minute another load; each twentieth node has a program of nobody that comes and goes every two minutes."""
    busy = (node * 7 + sample // 12 * 37) % 101
    stray = 8192 if node % 20 == 0 and sample // 24 % 2 else 0
    card = replace(_REST.cards["GPU"], utilisation=busy, celsius=40 + busy // 3, unattributed_mib=stray)
    return LoadDigest({"GPU": card})


def digests(nodes: int) -> list[results.Row]:
    churn = LoadedChurn(nodes, changes=None)
    told = lines(churn.engine.ledger, churn.names, EVENTS, Random(3))
    asyncio.run(heard(churn.loads, told))
    each = min(asyncio.run(heard(churn.loads, told)) for _ in range(5)) / EVENTS
    # A tenth of the collectors, since they do not know of each other.
    part = 10
    rest, rest_most = (part * rate for rate in writes_per_second(nodes // part, at_rest))
    busy, busy_most = (part * rate for rate in writes_per_second(nodes // part, restless))
    rows = [
        results.Row("one digest of 8 cards: event decoded and taken in", each * 1e6, "µs CPU"),
        results.Row("one digest of 8 cards: line of the watch", sum(map(len, told)) / len(told), "bytes"),
    ]
    for name, rate, most in (("at rest", rest, rest_most), ("restless", busy, busy_most)):
        rows += [
            results.Row(f"{nodes} nodes {name}: API server writes", rate, "per second"),
            results.Row(f"{nodes} nodes {name}: API server writes, highest second", most, "per second"),
            results.below(f"{nodes} nodes {name}: scheduler CPU for it", 100 * rate * each, "% of a core", 2),
        ]
    return rows


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    print(f"{nodes} nodes: decisions …", file=sys.stderr)
    rows = decisions(nodes)
    print(f"{nodes} nodes: digests …", file=sys.stderr)
    results.report("live_load", [*rows, *digests(nodes)])


if __name__ == "__main__":
    main()
