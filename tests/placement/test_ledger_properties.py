"""What the ledger promises for any order of events, against books kept by plain sums over the bookings.

The machine remembers inventories, bookings and what was measured only. After every step all of the ledger's figures
must be those that follow from them, and an engine that lived through all steps must decide as one that has just been
made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.bound import on_cards
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.model.contract.shoal import ANNOTATION_ALLOCATION, decode_allocation, encode_allocation
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import read_pod
from shoal.model.pod import request_of
from shoal.model.request import ContainerKind, Share
from shoal.placement.engine import Engine
from shoal.placement.errors import BookingError
from shoal.placement.ledger import Booking, Ledger, OverBooked
from shoal.placement.policies import policy_named
from tests.placement.clusters import GIB, WHOLE, request
from tests.soak import times

NODES = ("n1", "n2")
PODS = tuple(f"p{number}" for number in range(8))
CARDS = 3

names = st.sampled_from(NODES)
pods = st.sampled_from(PODS)
shares = st.one_of(
    st.just(WHOLE),
    st.builds(Share, memory_mib=st.sampled_from([0, 1, 2, 3, 5, 8]).map(lambda gib: gib * GIB)),
    st.builds(Share, st.sampled_from([1, 2 * GIB]), compute=st.integers(0, 100), clients=st.integers(0, 2)),
)


def uuid_of(name: str, number: int) -> str:
    return f"{name}-card-{number}"


@st.composite
def inventories(draw: st.DrawFn) -> NodeGpus:
    """Any of the node's cards, of any size and health; their indices may change from one inventory to the next."""
    name = draw(names)
    numbers = draw(st.lists(st.integers(0, CARDS - 1), unique=True, max_size=CARDS))
    shift = draw(st.integers(0, 2))
    return NodeGpus(
        name,
        tuple(
            Gpu(
                uuid_of(name, number),
                (number + shift) % CARDS,
                draw(st.sampled_from([0, 4, 8, 16])) * GIB,
                draw(st.sampled_from(["T4", "A100"])),
                healthy=draw(st.sampled_from([True, True, True, False])),
                mig=draw(st.sampled_from([False, False, False, True])),
                mps_clients=draw(st.sampled_from([0, 2, 10])),
            )
            for number in numbers
        ),
        cpu_milli=draw(st.sampled_from([0, 4000, 16000])),
        memory_mib=draw(st.sampled_from([0, 8, 64])) * GIB,
    )


@st.composite
def bookings(draw: st.DrawFn) -> Booking:
    name = draw(names)
    containers = tuple(
        ContainerAllocation(
            f"c{place}",
            tuple(
                CardShare(uuid_of(name, number), number, draw(shares))
                for number in draw(st.lists(st.integers(0, CARDS - 1), unique=True, min_size=1, max_size=2))
            ),
            kind,
        )
        for place, kind in enumerate(
            draw(st.lists(st.sampled_from(["app", "init", "sidecar"]), max_size=2).map(_as_spec_orders_them))
        )
    )
    cpu, memory = draw(st.sampled_from([0, 1000, 3000])), draw(st.sampled_from([0, 1, 6])) * GIB
    return Booking(draw(pods), Allocation(name, containers, "binpack"), cpu, memory)


#: What a collector may claim, of its node's cards and of others, up to more than any card has.
claims = st.none() | st.sampled_from([0, 100, 300, 2 * GIB, 5 * GIB, 16 * GIB, 2**31])
digests = st.builds(
    LoadDigest,
    st.dictionaries(
        st.sampled_from([uuid_of(name, number) for name in NODES for number in range(CARDS)]),
        st.builds(CardDigest, claims, claims, claims, st.none() | st.integers(0, 100), st.none() | st.integers(20, 90)),
    ),
    cpu=st.none() | st.integers(0, 100),
)
#: Let pass without effect.
TOLERATED = 256


def _as_spec_orders_them(kinds: list[str]) -> list[ContainerKind]:
    return sorted((ContainerKind(kind) for kind in kinds), key=lambda kind: kind is ContainerKind.APP)


# The books, kept the slow way


def on_card(kept: Mapping[str, Booking], uuid: str) -> list[Share]:
    held = (booking.allocation.held() for booking in kept.values())
    return [shares[uuid] for shares in held if uuid in shares]


def is_over_booked(card: Gpu, held: list[Share]) -> bool:
    return (
        (len(held) > 1 and any(share.exclusive for share in held))
        or sum(share.memory_mib for share in held) > card.memory_mib
        or sum(share.compute for share in held) > 100
        or sum(share.clients for share in held) > card.mps_clients
    )


def beyond(card: Gpu, load: CardDigest | None) -> int:
    """Memory in use that nobody booked, as far as the card can have it."""
    if load is None:
        return 0
    used = card.memory_mib if load.used_mib is None else load.used_mib
    claimed = min((load.unattributed_mib or 0) + (load.overuse_mib or 0), used, card.memory_mib)
    return claimed if claimed > TOLERATED else 0


def takes(card: Gpu, held: list[Share], more: Share, load: CardDigest | None = None) -> bool:
    """Whether a card may be given away further, and this much of it."""
    if card.mig or not card.healthy or is_over_booked(card, held):
        return False
    if stray := beyond(card, load):
        if more.exclusive or (more.unsized and not held):
            return False
        if (
            sum(share.memory_mib for share in held) + more.memory_mib > max(0, card.memory_mib - stray)
            and more.memory_mib
        ):
            return False
    return not is_over_booked(card, [*held, more])


def figures(card: Gpu, held: list[Share], load: CardDigest | None = None) -> tuple[int, ...]:
    """Memory, compute and clients free, the free share in hundredths, the pods."""
    if card.mig or not card.healthy or is_over_booked(card, held):
        return -1, -1, -1, 0, len(held)
    if not held and not beyond(card, load):
        return card.memory_mib, 100, card.mps_clients, 100, 0
    if any(share.exclusive for share in held):
        return 0, 0, 0, 0, 1
    memory = max(0, card.memory_mib - sum(share.memory_mib for share in held) - beyond(card, load))
    compute = 100 - sum(share.compute for share in held)
    clients = card.mps_clients - sum(share.clients for share in held)
    parts = [99, compute]
    if card.memory_mib:
        parts.append(int(100 * memory / card.memory_mib + 0.5))
    if card.mps_clients:
        parts.append(int(100 * clients / card.mps_clients + 0.5))
    return memory, compute, clients, min(parts), len(held)


def by_index(node: NodeGpus) -> list[Gpu]:
    return sorted(node.gpus, key=lambda card: card.index)


def columns_of(ledger: Ledger, name: str) -> tuple[object, ...]:
    """What the arrays say of a node: CPU, memory and untouched cards free, then `figures` card by card."""
    books, columns = ledger.node(name), ledger.columns
    if books is None:  # gone for good, its row left to another
        return -1, -1, 0, []
    row = books.row
    per_card = (columns.memory_free, columns.compute_free, columns.clients_free, columns.code % 101, columns.pods)
    cards = [tuple(int(column[row, slot]) for column in per_card) for slot in range(columns.slots)]
    there = len(books.slots)
    assert all(card == (-1, -1, -1, 0, 0) for card in cards[there:]), "a slot without a card has something free"
    return int(columns.cpu_free[row]), int(columns.ram_free[row]), int(columns.whole[row]), cards[:there]


def without_order(over: Iterable[OverBooked]) -> set[tuple[str, str, Share, Gpu, frozenset[str]]]:
    return {(each.node, each.uuid, each.used, each.card, frozenset(each.pods)) for each in over}


def pod_of(booking: Booking) -> dict[str, object]:
    """The pod as the API server shows it after binding: the allocation is in an annotation."""
    listed: dict[bool, list[dict[str, object]]] = {True: [], False: []}
    for container in booking.allocation.containers:
        always = {"restartPolicy": "Always"} if container.kind is ContainerKind.SIDECAR else {}
        listed[container.kind is ContainerKind.APP].append({"name": container.name, **always})
    requests = {"cpu": f"{booking.cpu_milli}m", "memory": f"{booking.memory_mib}Mi"}
    return {
        "metadata": {
            "name": booking.pod,
            "annotations": {ANNOTATION_ALLOCATION: encode_allocation(booking.allocation)},
        },
        "spec": {
            "nodeName": booking.node,
            "initContainers": listed[False],
            "containers": [*listed[True], {"name": "rest", "resources": {"requests": requests}}],
        },
    }


def booking_of(pod: str, manifest: dict[str, object], node: NodeGpus) -> Booking:
    metadata: Any = manifest["metadata"]
    allocation = on_cards(decode_allocation(metadata["annotations"][ANNOTATION_ALLOCATION]), node)
    asked = request_of(read_pod(manifest), unit=MemoryUnit.GIB)
    return Booking(pod, allocation, asked.cpu_milli, asked.memory_mib)


QUESTIONS = (
    request(Share(2 * GIB), cores=1),
    request(Share(GIB, 30, 1)),
    request(WHOLE),
    request(WHOLE, gpus=2, cores=2, gib=4),
    request(Share(3 * GIB), Share(2 * GIB)),
)


def decisions(ledger: Ledger, engine: Engine | None = None) -> list[Allocation | None]:
    """By the policy in force, and by one that weighs measured load."""
    engine = engine or Engine(ledger, policy_named("fragmentation"))
    weighed = [replace(question, policy="keti") for question in QUESTIONS]
    return [engine.decide(question) for question in (*QUESTIONS, *weighed)]


class Books(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.engine = Engine(self.ledger, policy_named("fragmentation"))
        self.nodes: dict[str, NodeGpus] = {}
        self.kept: dict[str, Booking] = {}
        self.assumed: set[str] = set()
        #: Nodes in the order they were first heard of, by inventory or by a pod.
        self.seen: list[str] = []
        #: What was measured last, by node.
        self.loads: dict[str, LoadDigest] = {}

    def see(self, name: str) -> None:
        if name not in self.seen:
            self.seen.append(name)

    # What happens; everything twice, since every call may be repeated

    @rule(inventory=inventories())
    def set_inventory(self, inventory: NodeGpus) -> None:
        for _ in range(2):
            self.ledger.set_inventory(inventory)
        self.nodes[inventory.name] = inventory
        self.see(inventory.name)

    @rule(name=names)
    def remove_node(self, name: str) -> None:
        for _ in range(2):
            self.ledger.remove_node(name)
        self.nodes.pop(name, None)

    @rule(booking=bookings())
    def assume(self, booking: Booking) -> None:
        """Books what fits, refuses what does not, and leaves no trace of what it refuses."""
        known = self.kept.get(booking.pod)
        if known == booking or (known is None and self.fits(booking)):
            for _ in range(2):
                self.ledger.assume(booking)
            if known is None:
                self.kept[booking.pod] = booking
                self.assumed.add(booking.pod)
            return
        for _ in range(2):
            try:
                self.ledger.assume(booking)
            except BookingError:
                continue
            raise AssertionError("booked more than there is, or a pod twice")

    @rule(name=names, digest=digests | st.none())
    def measure(self, name: str, digest: LoadDigest | None) -> None:
        """Load changes what is free of the node's own cards, and of no other."""
        others = {other: columns_of(self.ledger, other) for other in self.seen if other != name}
        more = self.ledger.measure(name, digest, tolerated_mib=TOLERATED)
        assert not self.ledger.measure(name, digest, tolerated_mib=TOLERATED), "the same again frees nothing"
        before = self.loads.pop(name, None)
        if digest is not None:
            self.loads[name] = digest
        assert more == any(
            beyond(card, self.load_of(card.uuid))
            < beyond(card, None if before is None else before.cards.get(card.uuid))
            for card in (self.nodes[name].gpus if name in self.nodes else ())
        )
        assert {other: columns_of(self.ledger, other) for other in others} == others

    def load_of(self, uuid: str) -> CardDigest | None:
        """What the card's own node says of it."""
        digest = self.loads.get(uuid.split("-", maxsplit=1)[0])
        return None if digest is None else digest.cards.get(uuid)

    def fits(self, booking: Booking) -> bool:
        node = self.nodes.get(booking.node)
        if node is None:
            return False
        there = {card.uuid: card for card in node.gpus}
        cards = all(
            uuid in there and takes(there[uuid], on_card(self.kept, uuid), share, self.load_of(uuid))
            for uuid, share in booking.allocation.held().items()
        )
        cpu, memory = self.left_of(node)
        return cards and booking.cpu_milli <= max(cpu, 0) and booking.memory_mib <= max(memory, 0)

    def left_of(self, node: NodeGpus) -> tuple[int, int]:
        here = [booking for booking in self.kept.values() if booking.node == node.name]
        cpu = node.cpu_milli - sum(booking.cpu_milli for booking in here)
        return cpu, node.memory_mib - sum(booking.memory_mib for booking in here)

    @rule(booking=bookings())
    def assume_and_release(self, booking: Booking) -> None:
        """A booking that is released leaves the exact state before it."""
        if booking.pod in self.kept or not self.fits(booking):
            return
        before = {name: columns_of(self.ledger, name) for name in self.seen}
        self.ledger.assume(booking)
        for _ in range(2):
            self.ledger.release(booking.pod)
        assert {name: columns_of(self.ledger, name) for name in self.seen} == before

    @rule(booking=bookings())
    def confirm(self, booking: Booking) -> None:
        for _ in range(2):
            self.ledger.confirm(booking)
        self.kept[booking.pod] = booking
        self.assumed.discard(booking.pod)
        self.see(booking.node)

    @rule(pod=pods)
    def release(self, pod: str) -> None:
        for _ in range(2):
            self.ledger.release(pod)
        self.kept.pop(pod, None)
        self.assumed.discard(pod)

    @rule(truth=st.lists(bookings(), max_size=5, unique_by=lambda booking: booking.pod), keep=st.sets(pods))
    def rebuild(self, truth: list[Booking], keep: set[str]) -> None:
        """The cluster shows these pods; of the others only those stay whose binding is on its way."""
        told = {booking.pod: booking for booking in truth}
        waiting = {pod: self.kept[pod] for pod in keep & self.assumed if pod not in told}
        first = self.ledger.rebuild(truth, keep_assumed=keep)
        second = self.ledger.rebuild(truth, keep_assumed=keep)
        assert first == second == self.ledger.over_booked()
        self.kept = {**waiting, **told}
        self.assumed = set(waiting)
        for booking in truth:
            self.see(booking.node)

    @precondition(lambda self: self.kept)
    @rule()
    def restart(self) -> None:
        """A new ledger, filled from the annotations of the pods, is the old one."""
        for booking in self.kept.values():
            assert decode_allocation(encode_allocation(booking.allocation)) == booking.allocation
        found = [
            booking_of(pod, pod_of(booking), self.nodes.get(booking.node, NodeGpus(booking.node)))
            for pod, booking in self.kept.items()
        ]
        assert found == list(self.kept.values())
        again = Ledger()
        self.fill(again)
        over = again.rebuild(found)
        for name, digest in self.loads.items():
            again.measure(name, digest, tolerated_mib=TOLERATED)
        assert without_order(over) == without_order(self.ledger.over_booked())
        for name in self.seen:
            assert columns_of(again, name) == columns_of(self.ledger, name)
        assert decisions(again) == decisions(self.ledger)

    def fill(self, ledger: Ledger) -> None:
        """The nodes in the order of their rows: equal ones are taken in that order."""
        for node in self.ledger.nodes():
            ledger.set_inventory(self.nodes[node.name])

    # What always holds

    @invariant()
    def the_columns_follow_from_the_bookings(self) -> None:
        for name, node in self.nodes.items():
            cards = [figures(card, on_card(self.kept, card.uuid), self.load_of(card.uuid)) for card in by_index(node)]
            cpu, memory = self.left_of(node)
            untouched = sum(card[3] == 100 for card in cards)
            assert columns_of(self.ledger, name) == (cpu, memory, untouched, cards)
        for name in set(self.seen) - set(self.nodes):
            assert columns_of(self.ledger, name) == (-1, -1, 0, [])
        columns = self.ledger.columns
        assert int((columns.alive[: columns.rows] > 0).sum()) == len(self.nodes)

    @invariant()
    def the_bookings_are_those_told(self) -> None:
        assert {booking.pod: booking for booking in self.ledger.bookings()} == self.kept
        assert {pod for pod in PODS if self.ledger.is_assumed(pod)} == self.assumed
        assert all(self.ledger.booking(pod) == self.kept.get(pod) for pod in PODS)

    @invariant()
    def cards_that_are_gone_and_free_are_forgotten(self) -> None:
        for name in self.seen:
            books = self.ledger.node(name)
            there = {card.uuid for card in self.nodes[name].gpus} if name in self.nodes else set()
            here = [booking for booking in self.kept.values() if booking.node == name]
            if name not in self.nodes and not here:
                assert books is None
                continue
            assert books is not None
            assert set(books.cards) == there.union(*(booking.allocation.held() for booking in here))

    @invariant()
    def too_full_cards_are_reported(self) -> None:
        over = {
            card.uuid: {pod for pod, kept in self.kept.items() if card.uuid in kept.allocation.held()}
            for node in self.nodes.values()
            for card in node.gpus
            if is_over_booked(card, on_card(self.kept, card.uuid))
        }
        assert {each.uuid: set(each.pods) for each in self.ledger.over_booked()} == over

    @invariant()
    def pods_without_their_card_are_reported(self) -> None:
        there = {card.uuid for node in self.nodes.values() for card in node.gpus}
        lost = {pod for pod, kept in self.kept.items() if not there.issuperset(kept.allocation.held())}
        assert {booking.pod for booking in self.ledger.cardless()} == lost

    @invariant()
    def decisions_fit_and_do_not_depend_on_the_past(self) -> None:
        answers = decisions(self.ledger, self.engine)
        assert answers == decisions(self.ledger)
        for question, answer in zip(QUESTIONS * 2, answers, strict=True):
            if answer is not None:
                assert self.fits(Booking("new", answer, question.cpu_milli, question.memory_mib))


Books.TestCase.settings = settings(max_examples=times(60), stateful_step_count=30)
TestBooks = Books.TestCase
