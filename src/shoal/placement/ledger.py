"""The ledger: what every pod holds of every card, whatever the kind of share.

What was measured (`measure`) is no booking: memory used beyond what is booked, by nobody's pod or by a pod beyond its
request, lowers what is free of its card, never below nothing; whoever holds a share keeps it.

Cards are keyed by UUID. What a pod holds is recorded whether or not its card is there: a card that vanishes and comes
back finds its bookings again. `assume` never books more than a card has. `confirm` and `rebuild` record what is true
in the cluster even when somebody else over-booked; such a card is reported and takes nothing new until it is sound.
Every call may be repeated with the same effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from shoal.model.allocation import Allocation
from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import Share
from shoal.placement.columns import UNUSABLE, WHOLE, CardFigures, CardKind, Columns, alive
from shoal.placement.errors import BookingError
from shoal.placement.load_columns import LoadColumns


@dataclass(frozen=True, slots=True)
class Booking:
    """What one pod holds. `pod` is its UID, or any name unique to it."""

    pod: str
    allocation: Allocation
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def node(self) -> str:
        return self.allocation.node


@dataclass(frozen=True, slots=True)
class OverBooked:
    """A card that holds more than it has, and the pods on it."""

    node: str
    uuid: str
    used: Share
    card: Gpu
    pods: tuple[str, ...]


@dataclass(slots=True)
class CardLedger:
    """One card: what is booked on it, and the card itself while it is there."""

    gpu: Gpu | None = None
    slot: int = UNUSABLE
    kind: int = 0
    memory_mib: int = 0
    compute: int = 0
    clients: int = 0
    exclusive: int = 0
    #: Pods that are nothing but clients without sizes.
    unsized: int = 0
    pods: int = 0
    #: What was measured, and how much of the memory is used beyond what is booked.
    load: CardDigest | None = None
    beyond_mib: int = 0

    def leave_node(self) -> None:
        """The card is there no more; what is booked of it stays."""
        self.gpu, self.slot, self.load, self.beyond_mib = None, UNUSABLE, None, 0

    def add(self, share: Share, sign: int) -> None:
        self.memory_mib += sign * share.memory_mib
        self.compute += sign * share.compute
        self.clients += sign * share.clients
        self.exclusive += sign * share.exclusive
        if share.clients:
            self.unsized += sign * share.unsized
        self.pods += sign

    @property
    def inventory(self) -> Gpu:
        """The card itself, which must be there: it has a slot."""
        if self.gpu is None:
            raise LookupError("a card that is gone has no inventory")
        return self.gpu

    @property
    def used(self) -> Share:
        return Share(self.memory_mib, self.compute, self.clients, self.exclusive > 0)

    @property
    def free_mib(self) -> int:
        """Memory that is neither booked nor used beyond that; below 0 where more is booked than there is."""
        free = (0 if self.gpu is None else self.gpu.memory_mib) - self.memory_mib
        return min(free, max(0, free - self.beyond_mib)) if self.beyond_mib else free

    @property
    def untouched(self) -> bool:
        """Nobody has booked any of it, and nobody uses any."""
        return not self.pods and not self.beyond_mib

    def measure(self, load: CardDigest | None, *, tolerated_mib: int) -> None:
        """Take what was measured. Whatever it claims, it is about this card, and of memory that the card has."""
        self.load = load
        self.beyond_mib = 0
        if load is not None and self.gpu is not None:
            beyond = (load.unattributed_mib or 0) + (load.overuse_mib or 0)
            beyond = min(beyond, self.gpu.memory_mib if load.used_mib is None else load.used_mib, self.gpu.memory_mib)
            self.beyond_mib = beyond if beyond > tolerated_mib else 0

    def over(self) -> bool:
        """More is booked than the card has."""
        if self.gpu is None:
            return False
        if self.exclusive and self.pods > 1:
            return True
        return self.memory_mib > self.gpu.memory_mib or self.compute > WHOLE or self.clients > self.gpu.mps_clients

    def fault(self) -> str | None:
        """Why nothing new may be booked here, or None."""
        if self.gpu is None:
            return "the card is gone"
        if self.gpu.mig:
            return "MIG is on: the card is handed out by partitions"
        if not self.gpu.healthy:
            return f"unhealthy: {self.gpu.fault or 'no reason given'}"
        if self.over():
            return "over-booked: takes nothing until pods leave"
        return None

    def refusal(self, share: Share) -> str | None:
        """Why this share does not fit here, or None when it fits."""
        fault = self.fault()
        if fault is not None:
            return fault
        assert self.gpu is not None
        if share.exclusive and self.pods:
            return f"wanted whole, {self.pods} pods on it"
        if share.exclusive and self.beyond_mib:
            return f"wanted whole, {self._beyond()}"
        if self.exclusive:
            return "taken whole by another pod"
        if share.unsized and self.pods > self.unsized:
            return f"{self.pods - self.unsized} pods with sizes on it, beside which no client without sizes may be"
        if share.unsized and not self.pods and self.beyond_mib:
            return f"{self._beyond()}, beside which no client without sizes may be"
        if self.unsized and not share.unsized:
            return f"{self.unsized} pods without sizes on it, beside which no share is safe"
        if self._has_room(self.gpu, share):
            return None
        memory = self.free_mib
        clients = self.gpu.mps_clients - self.clients
        short = [
            f"{free} {unit} free of {total}, {wanted} wanted"
            for unit, wanted, free, total in (
                ("MiB", share.memory_mib, memory, self.gpu.memory_mib),
                ("% compute", share.compute, WHOLE - self.compute, WHOLE),
                ("MPS clients", share.clients, clients, self.gpu.mps_clients),
            )
            if wanted > free
        ]
        if self.beyond_mib and share.memory_mib > memory:
            short.append(self._beyond())
        return ", ".join(short)

    def _beyond(self) -> str:
        """Who uses more than was booked, in words."""
        load = self.load or CardDigest()
        parts = (
            (load.unattributed_mib, "by nobody's pod"),
            (load.overuse_mib, "by pods beyond their requests"),
        )
        return " and ".join(f"{mib} MiB used {by}" for mib, by in parts if mib)

    def holds(self, share: Share) -> bool:
        """Whether this share fits here: `refusal` without the words for amounts that are short."""
        return self.gpu is not None and self._has_room(self.gpu, share) and self.refusal(share) is None

    def _has_room(self, gpu: Gpu, share: Share) -> bool:
        return (
            share.memory_mib <= self.free_mib
            and share.compute <= WHOLE - self.compute
            and share.clients <= gpu.mps_clients - self.clients
        )

    def figures(self) -> CardFigures:
        if self.gpu is None or self.fault() is not None:
            return CardFigures(self.kind, UNUSABLE, UNUSABLE, UNUSABLE, 0, self.pods)
        if self.untouched:
            return CardFigures(self.kind, self.gpu.memory_mib, WHOLE, self.gpu.mps_clients, WHOLE, 0)
        if self.exclusive:
            return CardFigures(self.kind, 0, 0, 0, 0, self.pods)
        if self.unsized and self.unsized < self.pods:  # somebody else put them together
            return CardFigures(self.kind, UNUSABLE, UNUSABLE, UNUSABLE, 0, self.pods)
        memory = self.free_mib
        compute = WHOLE - self.compute
        clients = self.gpu.mps_clients - self.clients
        share = min(compute, WHOLE - 1)
        if self.gpu.memory_mib:
            share = min(share, (200 * memory + self.gpu.memory_mib) // (2 * self.gpu.memory_mib))
        if self.gpu.mps_clients:
            share = min(share, (200 * clients + self.gpu.mps_clients) // (2 * self.gpu.mps_clients))
        if self.unsized:
            memory = compute = UNUSABLE
        return CardFigures(self.kind, memory, compute, clients, share, self.pods)


@dataclass(slots=True)
class NodeLedger:
    """One node: its inventory while it is known, its cards and its pods."""

    name: str
    row: int
    inventory: NodeGpus | None = None
    cards: dict[str, CardLedger] = field(default_factory=dict)
    #: The cards that are there, by slot; slots follow the cards' indices.
    slots: list[CardLedger] = field(default_factory=list)
    pods: dict[str, Booking] = field(default_factory=dict)
    cpu_used: int = 0
    memory_used: int = 0
    whole: int = 0

    def refusal(self, uuid: str, share: Share) -> str | None:
        """Why this share does not fit on a card, or on a partition of MIG, by its UUID; None when it fits.

        Partitions have no books of their own until somebody has them.
        """
        card = self.cards.get(uuid)
        if card is not None and card.gpu is not None:
            return card.refusal(share)
        parts = () if self.inventory is None else self.inventory.partitions()
        gpu = next((gpu for gpu, part in parts if part.uuid == uuid), None)
        if gpu is None:
            return "no such card" if card is None else "the card is gone"
        if not gpu.healthy:
            return f"unhealthy: {gpu.fault or 'no reason given'}"
        if not share.exclusive:
            return "a partition of MIG is handed out whole"
        return None if card is None or not card.pods else "taken whole by another pod"


class Ledger:
    """What is free and who holds what, for every node."""

    def __init__(self) -> None:
        self.columns = Columns()
        #: What was measured, for the policies that weigh it; None until something was.
        self.load: LoadColumns | None = None
        #: The last digest of each node, whether or not the node is there, and how much of it is let pass.
        self._loads: dict[str, tuple[LoadDigest, int]] = {}
        #: The nodes with cards that are used beyond what is booked.
        self.lowered: set[str] = set()
        self._nodes: dict[str, NodeLedger] = {}
        self._rows: list[NodeLedger] = []
        self._bookings: dict[str, Booking] = {}
        self._assumed: set[str] = set()
        self._free_rows: list[int] = []

    # Reading

    def node(self, name: str) -> NodeLedger | None:
        return self._nodes.get(name)

    def node_at(self, row: int) -> NodeLedger:
        """The node of a row in `columns`; the row of one that is gone keeps its name until another node takes it."""
        return self._rows[row]

    def row_of(self, name: str) -> int | None:
        """The row in `columns` of the node with that name; None when nothing is known of it.

        It stays while the node is there or a pod holds anything of it; then another node may get it.
        """
        node = self._nodes.get(name)
        return None if node is None else node.row

    def nodes(self) -> Iterator[NodeLedger]:
        """The nodes with an inventory, by row."""
        return (node for node in self._rows if node.inventory is not None)

    def cpu_milli(self) -> int:
        """The CPU of all nodes together."""
        return sum(node.inventory.cpu_milli for node in self._rows if node.inventory is not None)

    def booking(self, pod: str) -> Booking | None:
        return self._bookings.get(pod)

    def bookings(self) -> Iterator[Booking]:
        return iter(self._bookings.values())

    def is_assumed(self, pod: str) -> bool:
        """Booked here, not yet seen in the cluster."""
        return pod in self._assumed

    def over_booked(self) -> list[OverBooked]:
        """Every card that holds more than it has."""
        return [
            OverBooked(node.name, uuid, card.used, card.gpu, _holders(node, uuid))
            for node in self.nodes()
            for uuid, card in node.cards.items()
            if card.gpu is not None and card.over()
        ]

    def cardless(self) -> list[Booking]:
        """Bookings that hold a card which is not there (gone, or a name nobody knows)."""
        return [
            booking
            for booking in self._bookings.values()
            if any(
                (card := self._nodes[booking.node].cards.get(uuid)) is None or card.gpu is None
                for uuid in booking.allocation.held()
            )
        ]

    # Inventory

    def set_inventory(self, inventory: NodeGpus) -> None:
        """A node appeared or changed: cards come, go, fall ill and recover; bookings stay with their UUIDs."""
        _refuse_twins(inventory)
        node = self._books(inventory.name)
        if node.inventory == inventory:
            return
        node.inventory = inventory
        for card in node.cards.values():
            card.leave_node()
        node.slots = []
        for slot, gpu in enumerate(sorted(inventory.gpus, key=lambda gpu: (gpu.index, gpu.uuid))):
            card = node.cards.setdefault(gpu.uuid, CardLedger())
            card.gpu, card.slot = gpu, slot
            card.kind = self.columns.kind_id(CardKind(gpu.model, gpu.memory_mib, gpu.mps_clients))
            node.slots.append(card)
        self._sweep(node)
        self._take_measures(node)
        self._write_node(node)

    def remove_node(self, name: str) -> None:
        """A node is gone. What its pods hold stays recorded until they are released."""
        node = self._nodes.get(name)
        if node is None or node.inventory is None:
            return
        node.inventory = None
        node.slots = []
        for card in node.cards.values():
            card.leave_node()
        self._sweep(node)
        self._take_measures(node)
        self._write_node(node)
        self._forget(node)

    # Live load

    def measure(self, name: str, digest: LoadDigest | None, *, tolerated_mib: int = 0) -> bool:
        """What was measured of a node; None when it is not known any more. True when a card has more free than before.

        Of each card up to `tolerated_mib` may be used beyond what is booked without any effect.
        """
        if digest is None:
            if self._loads.pop(name, None) is None:
                return False
        else:
            self._loads[name] = digest, tolerated_mib
        node = self._nodes.get(name)
        if node is None or node.inventory is None:
            return False
        before = [card.beyond_mib for card in node.slots]
        self._take_measures(node)
        changes = [card.beyond_mib - beyond for card, beyond in zip(node.slots, before, strict=True)]
        if any(changes):
            for card, change in zip(node.slots, changes, strict=True):
                if change:
                    self.columns.write_card(node.row, card.slot, card.figures())
            node.whole = sum(card.untouched and card.fault() is None for card in node.slots)
            self._write_free(node)
        return min(changes, default=0) < 0

    def measured(self, name: str) -> LoadDigest | None:
        """What was measured of a node, as far as it counts."""
        known = self._loads.get(name)
        return None if known is None else known[0]

    def _take_measures(self, node: NodeLedger) -> None:
        if self.load is None:
            if not self._loads:
                return
            self.load = LoadColumns()
        digest, tolerated = self._loads.get(node.name, (None, 0))
        loads = [None if digest is None else digest.cards.get(card.inventory.uuid) for card in node.slots]
        for card, load in zip(node.slots, loads, strict=True):
            card.measure(load, tolerated_mib=tolerated)
        self.load.write(node.row, digest, loads)
        if any(card.beyond_mib for card in node.slots):
            self.lowered.add(node.name)
        else:
            self.lowered.discard(node.name)

    # Bookings

    def assume(self, booking: Booking) -> None:
        """Book a decision before the cluster has confirmed it. Refuses what does not fit."""
        known = self._bookings.get(booking.pod)
        if known is not None:
            if known == booking:
                return
            raise BookingError(f"pod {booking.pod} is booked on {known.node} already: release it first")
        node = self._nodes.get(booking.node)
        if node is None or node.inventory is None:
            raise BookingError(f"pod {booking.pod}: node {booking.node} is not known")
        held = booking.allocation.held()
        for uuid, share in held.items():
            refusal = node.refusal(uuid, share)
            if refusal is not None:
                raise BookingError(f"pod {booking.pod}: card {uuid} of node {node.name}: {refusal}")
        for name, wanted, free in (
            ("milli CPU", booking.cpu_milli, node.inventory.cpu_milli - node.cpu_used),
            ("MiB of memory", booking.memory_mib, node.inventory.memory_mib - node.memory_used),
        ):
            if wanted > max(free, 0):
                raise BookingError(f"pod {booking.pod}: node {node.name} has {free} {name} free, {wanted} wanted")
        self._assumed.add(booking.pod)
        self._enter(node, booking, held)

    def confirm(self, booking: Booking) -> None:
        """The cluster shows this pod with this allocation: it is so, whatever was assumed, even if it over-books."""
        self._assumed.discard(booking.pod)
        known = self._bookings.get(booking.pod)
        if known == booking:
            return
        if known is not None:
            self._leave(known)
        self._enter(self._books(booking.node), booking, booking.allocation.held())

    def release(self, pod: str) -> None:
        """The pod holds nothing any more."""
        self._assumed.discard(pod)
        known = self._bookings.get(pod)
        if known is not None:
            self._leave(known)

    def rebuild(self, bookings: Iterable[Booking], *, keep_assumed: Collection[str] = ()) -> list[OverBooked]:
        """Replace all bookings by what the cluster shows, and tell which cards hold too much.

        `keep_assumed` names pods whose binding is still on its way; they stay booked if they were assumed.
        """
        truth = {booking.pod: booking for booking in bookings}
        for pod in [pod for pod in self._bookings if pod not in truth]:
            if not (pod in self._assumed and pod in keep_assumed):
                self.release(pod)
        for booking in truth.values():
            self.confirm(booking)
        return self.over_booked()

    # Parts

    def _books(self, name: str) -> NodeLedger:
        node = self._nodes.get(name)
        if node is None:
            row = self._free_rows.pop() if self._free_rows else self.columns.add_row()
            node = self._nodes[name] = NodeLedger(name, row)
            if row == len(self._rows):
                self._rows.append(node)
            else:
                self._rows[row] = node
        return node

    def _forget(self, node: NodeLedger) -> None:
        """A node that is gone and that nobody holds anything of leaves its row to another."""
        if node.inventory is None and not node.pods:
            del self._nodes[node.name]
            self._free_rows.append(node.row)

    def _enter(self, node: NodeLedger, booking: Booking, held: dict[str, Share]) -> None:
        self._bookings[booking.pod] = booking
        node.pods[booking.pod] = booking
        self._post(node, booking, held, +1)

    def _leave(self, booking: Booking) -> None:
        node = self._nodes[booking.node]
        del self._bookings[booking.pod]
        del node.pods[booking.pod]
        self._post(node, booking, booking.allocation.held(), -1)
        self._sweep(node)
        self._forget(node)

    def _post(self, node: NodeLedger, booking: Booking, held: dict[str, Share], sign: int) -> None:
        node.cpu_used += sign * booking.cpu_milli
        node.memory_used += sign * booking.memory_mib
        for uuid, share in held.items():
            card = node.cards.get(uuid)
            if card is None:
                card = node.cards[uuid] = CardLedger()
            before = card.slot >= 0 and card.untouched and card.fault() is None
            card.add(share, sign)
            if card.slot >= 0:
                figures = card.figures()
                node.whole += (figures.share == WHOLE) - before
                self.columns.write_card(node.row, card.slot, figures)
        self._write_free(node)

    def _write_node(self, node: NodeLedger) -> None:
        figures = [card.figures() for card in node.slots]
        node.whole = sum(card.share == WHOLE for card in figures)
        models = sorted({card.gpu.model for card in node.slots if card.gpu is not None})
        self.columns.write_node(
            node.row,
            alive=alive(node.inventory),
            model="+".join(models),
            policy=node.inventory.policy if node.inventory else None,
            cards=figures,
        )
        self._write_free(node)

    def _write_free(self, node: NodeLedger) -> None:
        if node.inventory is None:
            self.columns.write_free(node.row, cpu=UNUSABLE, ram=UNUSABLE, whole=0)
            return
        self.columns.write_free(
            node.row,
            cpu=node.inventory.cpu_milli - node.cpu_used,
            ram=node.inventory.memory_mib - node.memory_used,
            whole=node.whole,
        )

    @staticmethod
    def _sweep(node: NodeLedger) -> None:
        """Forget cards that are gone and that nobody holds."""
        for uuid in [uuid for uuid, card in node.cards.items() if card.gpu is None and not card.pods]:
            del node.cards[uuid]


def _holders(node: NodeLedger, uuid: str) -> tuple[str, ...]:
    return tuple(pod for pod, booking in node.pods.items() if uuid in booking.allocation.held())


def _refuse_twins(inventory: NodeGpus) -> None:
    seen: set[str] = set()
    for gpu in inventory.gpus:
        if gpu.uuid in seen:
            raise BookingError(f"node {inventory.name}: two cards with UUID {gpu.uuid}: an inventory names each once")
        seen.add(gpu.uuid)
