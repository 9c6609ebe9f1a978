"""The engine against `reference`: thousands of decisions of every policy, on clusters that pods come to and leave.

A decision is compared by what the reference thinks of it: its cards must be as good as the best of that node, and its
node as good as the best of all. Which of several equal ones is taken is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from shoal.model.allocation import Allocation
from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.model.gpu import Gpu, Link, NodeGpus
from shoal.model.request import CardSelector, ContainerKind, ContainerRequest, Request, Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import fgd_policy, policy_named
from tests.placement.clusters import GIB, WHOLE, uuid_of
from tests.placement.reference import (
    NOISE,
    Anywhere,
    Binpack,
    Card,
    Keti,
    Node,
    Pod,
    Reference,
    Spread,
    Topology,
    fits_apart,
    fits_beside,
    holds,
    pod_of,
    sizeless,
    whole_cards,
)
from tests.placement.reference_baselines import BestFit, DotProduct, Fgd, GpuClustering, GpuPacking, typical_pods
from tests.placement.reference_fragmentation import Fragmentation, numbers_of
from tests.soak import times

CASES = times(2_400)
#: Arrivals on one cluster: enough for the demand to be made anew six times.
ARRIVALS = 400

MAKES = (("T4", 16), ("V100", 32), ("A100", 40), ("H100", 80))
SIMPLE: dict[str, type[Reference]] = {
    "binpack": Binpack,
    "spread": Spread,
    "topology": Topology,
    "best-fit": BestFit,
    "dot-product": DotProduct,
    "gpu-packing": GpuPacking,
    "gpu-clustering": GpuClustering,
    "random": Anywhere,
    "keti": Keti,
}


# Random clusters and pods


def random_cards(rng: Random, name: str) -> Iterator[Gpu]:
    count = rng.choice([0, 1, 2, 2, 3, 4, 4, 4, 6, 8])
    make = rng.choice(MAKES)
    linked = {
        frozenset(rng.sample(range(count), 2)): rng.randint(1, 4)
        for _ in range(rng.choice([0, 0, 1, 2, 4]) if count > 1 else 0)
    }
    clients = rng.choice([10, 10, 4, 0])
    for index in range(count):
        model, gib = rng.choice(MAKES) if rng.random() < 0.05 else make
        links = [
            Link(uuid_of(name, peer), lanes)
            for pair, lanes in linked.items()
            if index in pair
            for peer in pair - {index}
        ]
        yield Gpu(
            uuid_of(name, index),
            index,
            gib * GIB - rng.choice([0, 0, 0, 811]),
            model,
            numa=index * 2 // count if rng.random() < 0.5 else None,
            links=tuple(links),
            healthy=rng.random() > 0.03,
            mps_clients=clients,
        )


def random_nodes(rng: Random) -> list[NodeGpus]:
    names = [f"n{number}" for number in range(rng.randint(3, 12))]
    return [
        NodeGpus(
            name,
            tuple(random_cards(rng, name)),
            rng.choice([8, 16, 32, 64, 96]) * 1000,
            rng.choice([32, 128, 256]) * GIB,
            one_container=rng.random() < 0.15,
        )
        for name in names
    ]


def random_share(rng: Random) -> Share:
    memory = rng.choice([1, 2, 3, 4, 6, 8, 12, 20]) * GIB - rng.choice([0, 0, 100])
    compute = rng.choice([5, 10, 20, 25, 30, 40, 50, 60, 75])
    return rng.choice(
        [Share(memory), Share(compute=compute), Share(memory, compute), Share(memory, clients=1), Share(clients=1)]
    )


def random_request(rng: Random, number: int) -> Request:
    """The first few make sure that every kind of pod is there."""
    one = [(1, random_share(rng))]
    containers = (
        one,
        [(1, WHOLE)],
        [(rng.choice([2, 4]), WHOLE)],
        [(rng.choice([2, 3]), random_share(rng))],
        [(1, random_share(rng)), (rng.choice([1, 2]), random_share(rng))],
        [(1, random_share(rng)), (rng.choice([1, 2]), WHOLE)],
        [],
        *([one] * 7),
    )[number if number < 7 else rng.randrange(14)]
    models = rng.sample([model for model, _ in MAKES], rng.choice([1, 2])) if rng.random() < 0.3 else []
    first = ContainerKind.INIT if len(containers) == 1 and rng.random() < 0.2 else ContainerKind.APP
    cores = rng.choice([0, 0.5, 1, 2, 4, 8, 12]) if containers else rng.choice([1, 4, 8])
    return Request(
        tuple(ContainerRequest(f"c{place}", gpus, share, first) for place, (gpus, share) in enumerate(containers)),
        int(cores * 1000),
        rng.choice([0, 1, 4, 16]) * GIB,
        CardSelector(models=frozenset(models)) if containers else CardSelector(),
    )


class World:
    """A cluster in plain tuples, kept from the engine's answers alone."""

    def __init__(self, nodes: Sequence[NodeGpus]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.gone: set[str] = set()
        #: Memory in use that nobody booked, by UUID.
        self.stray: dict[str, int] = {}
        self.pods: dict[str, tuple[str, Request, dict[str, Share]]] = {}
        self.states = {name: self._state(name) for name in self.nodes}

    def cluster(self) -> list[Node]:
        return [state for name, state in self.states.items() if name not in self.gone]

    def place(self, pod: str, request: Request, allocation: Allocation) -> None:
        held: dict[str, Share] = {}
        for container in allocation.containers:
            for card in container.cards:
                held[card.uuid] = held.get(card.uuid, Share()) + card.share
        self.pods[pod] = (allocation.node, request, held)
        node = self.states[allocation.node]
        for plain in node.cards:
            share = held.get(uuid_of(node.name, plain.number))
            assert share is None or holds(plain, share), "booked more than the card has"
        self.states[allocation.node] = self._state(allocation.node)

    def remove(self, pod: str) -> None:
        if pod in self.pods:
            node = self.pods.pop(pod)[0]
            self.states[node] = self._state(node)

    def measure(self, name: str, stray: dict[str, int]) -> None:
        for gpu in self.nodes[name].gpus:
            self.stray[gpu.uuid] = stray.get(gpu.uuid, 0)
        self.states[name] = self._state(name)

    def set(self, node: NodeGpus) -> None:
        self.nodes[node.name] = node
        self.states[node.name] = self._state(node.name)

    def _state(self, name: str) -> Node:
        node = self.nodes[name]
        here = [(request, held) for where, request, held in self.pods.values() if where == name]
        cards = []
        for gpu in node.gpus:
            shares = [held[gpu.uuid] for _, held in here if gpu.uuid in held]
            links = tuple((int(link.peer.rpartition("-")[2]), link.lanes) for link in gpu.links)
            used = sum(shares, Share())
            cards.append(
                Card(
                    gpu.index,
                    gpu.model,
                    gpu.memory_mib,
                    gpu.mps_clients,
                    gpu.numa,
                    links,
                    gpu.healthy,
                    len(shares),
                    used,
                    sum(sizeless(share) for share in shares),
                    min(self.stray.get(gpu.uuid, 0), gpu.memory_mib),
                )
            )
        kinds = frozenset(sum(share.exclusive for share in held.values()) for _, held in here if held)
        cpu, ram = sum(request.cpu_milli for request, _ in here), sum(request.memory_mib for request, _ in here)
        return Node(name, node.cpu_milli, node.memory_mib, tuple(cards), cpu, ram, kinds, node.one_container)


# The comparison


def check(reference: Reference, pod: Pod, allocation: Allocation | None) -> None:
    found: dict[str, tuple[Node, list[int]]] = {}
    for node in reference.cluster:
        stack = reference.stack(node, pod)
        if stack is not None:
            found[node.name] = node, stack
    if not found or not reference.together_first:
        anyhow = {node.name for node in reference.cluster if fits_beside(node, pod) and fits_apart(node, pod)}
        assert (allocation.node in anyhow) if allocation else not anyhow
        return
    assert allocation is not None, f"refused, but fits on {sorted(found)}"
    assert allocation.node in found, "placed where it does not fit, or apart where it need not be"
    node, stack = found[allocation.node]
    taken = check_cards(reference, node, pod, stack, allocation)
    best = max(reference.value(node, pod, stack)[0] for node, stack in found.values())
    own = reference.value(node, pod, taken)[1]
    assert own >= best - NOISE, f"{node.name} is worth {own}, the best node {best}"


def check_cards(reference: Reference, node: Node, pod: Pod, stack: list[int], allocation: Allocation) -> list[int]:
    """The cards taken for shares, after a look at all cards taken."""
    dealt = [[card.index for card in container.cards] for container in allocation.containers]
    assert [len(cards) for cards in dealt] == [need.gpus for need in pod.containers]
    taken: list[int] = []
    for group in (False, True):
        shared = [
            cards
            for cards, need in zip(dealt, pod.containers, strict=True)
            if not need.share.exclusive and sizeless(need.share) is group
        ]
        together = max(shared, key=len, default=[])
        assert all(cards == together[: len(cards)] for cards in shared), "the containers do not share their cards"
        taken += together
    reference.check_stack(node, pod, taken, stack)
    whole = [
        index for cards, need in zip(dealt, pod.containers, strict=True) if need.share.exclusive for index in cards
    ]
    assert whole == whole_cards(node, pod, taken)
    return taken


def play(
    engine: Engine, world: World, make: Callable[[list[Node]], Reference], rng: Random, *, measured: float = 0.0
) -> None:
    """Pods come and go, and before so many of them a node's load is measured; every arrival is a case."""
    requests = [random_request(rng, number) for number in range(rng.randint(8, 16))]
    classes = [(request, pod_of(request)) for request in requests]
    crowd = rng.choice([5, 10, 20, 40])
    present: list[str] = []
    for number in range(ARRIVALS):
        while present and rng.random() < len(present) / (2 * crowd):
            left = present.pop(rng.randrange(len(present)))
            engine.remove(left)
            world.remove(left)
        if rng.random() < 0.03:
            disturb(engine.ledger, world, rng)
        if rng.random() < measured:
            measure(engine.ledger, world, rng)
        request, pod = rng.choice(classes)
        reference = make(world.cluster())
        allocation = engine.place(f"p{number}", request)
        check(reference, pod, allocation)
        present.append(f"p{number}")
        if allocation is not None:
            world.place(f"p{number}", request, allocation)


def disturb(ledger: Ledger, world: World, rng: Random) -> None:
    """A node goes, or comes back with one of its cards sick or well again."""
    name = rng.choice(sorted(world.nodes))
    if name not in world.gone and len(world.gone) < len(world.nodes) - 1:
        ledger.remove_node(name)
        world.gone.add(name)
        return
    node = world.nodes[name]
    sick = rng.randrange(len(node.gpus) + 1)
    cards = tuple(replace(card, healthy=place != sick) for place, card in enumerate(node.gpus))
    ledger.set_inventory(replace(node, gpus=cards))
    world.set(replace(node, gpus=cards))
    world.gone.discard(name)


def measure(ledger: Ledger, world: World, rng: Random) -> None:
    """A node tells what is used of its cards by nobody's pod and beyond requests, or tells nothing any more."""
    name = rng.choice(sorted(world.nodes))
    cards = {
        gpu.uuid: CardDigest(
            unattributed_mib=rng.choice([None, 0, 3 * GIB, 100 * GIB]), overuse_mib=rng.choice([None, GIB])
        )
        for gpu in world.nodes[name].gpus
        if rng.random() < 0.5
    }
    digest = LoadDigest(cards) if rng.random() < 0.7 else None
    ledger.measure(name, digest)
    told = {} if digest is None else cards
    world.measure(name, {uuid: (one.unattributed_mib or 0) + (one.overuse_mib or 0) for uuid, one in told.items()})


def worlds(seed: int) -> Iterator[tuple[Random, World, Ledger]]:
    for number in range(CASES // ARRIVALS):
        rng = Random(f"{seed} {number}")
        world = World(random_nodes(rng))
        ledger = Ledger()
        for node in world.nodes.values():
            ledger.set_inventory(node)
        yield rng, world, ledger


@pytest.mark.parametrize("name", SIMPLE)
def test_policy(name: str) -> None:
    policy = policy_named(name)
    for rng, world, ledger in worlds(1):
        play(Engine(ledger, policy, policies=(policy,)), world, SIMPLE[name], rng)


@pytest.mark.parametrize("name", SIMPLE)
def test_policy_with_live_load(name: str) -> None:
    policy = policy_named(name)
    for rng, world, ledger in worlds(5):
        play(Engine(ledger, policy, policies=(policy,)), world, SIMPLE[name], rng, measured=0.2)


def test_fragmentation_with_live_load() -> None:
    policy = policy_named("fragmentation")
    for rng, world, ledger in worlds(6):
        engine = Engine(ledger, policy, policies=(policy,))
        play(engine, world, partial(fragmentation_now, engine), rng, measured=0.2)


def test_fgd() -> None:
    for rng, world, ledger in worlds(3):
        typical = [random_typical(rng) for _ in range(60)]
        policy = fgd_policy(typical)
        make = partial(Fgd, typical=typical_pods([pod_of(request) for request in typical]), known={})
        play(Engine(ledger, policy, policies=(policy,)), world, make, rng)


def random_typical(rng: Random) -> Request:
    kind = rng.choice([(1, Share(compute=30)), (1, Share(compute=75)), (1, WHOLE), (2, WHOLE), None])
    containers = (ContainerRequest("main", *kind),) if kind else ()
    models = frozenset({"T4"}) if kind and rng.random() < 0.2 else frozenset()
    return Request(containers, rng.choice([1000, 4000]), 0, CardSelector(models=models))


def test_fragmentation() -> None:
    policy = policy_named("fragmentation")
    for rng, world, ledger in worlds(4):
        engine = Engine(ledger, policy, policies=(policy,))
        play(engine, world, partial(fragmentation_now, engine), rng)


def fragmentation_now(engine: Engine, cluster: list[Node]) -> Reference:
    return Fragmentation(cluster, numbers_of(engine.valuation.demand, engine.ledger.columns.models))
