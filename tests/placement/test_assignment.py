"""Pods of several containers of every kind: placed if there is any way, and never with more than a card has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.request import ContainerKind, ContainerRequest, Request, Share, phases
from shoal.placement.engine import Engine
from shoal.placement.errors import BookingError
from shoal.placement.ledger import Booking, Ledger
from shoal.placement.policies import policy_named
from tests.placement.clusters import GIB, WHOLE, booking, ledger_of, node, uuid_of
from tests.soak import times

CARDS = 3

taken = st.builds(Share, st.sampled_from([0, 2, 4, 6, 8]).map(lambda gib: gib * GIB), st.sampled_from([0, 50, 100]))
wanted = st.one_of(
    st.just(WHOLE),
    st.builds(Share, st.sampled_from([1, 2, 3, 5, 7]).map(lambda gib: gib * GIB), st.sampled_from([0, 0, 50])),
)
limits = st.sampled_from([None, 6, 8, 12]).map(lambda gib: gib and gib * GIB)
sizes = st.sampled_from([[8, 8, 8], [8, 8, 12], [12, 8, 12], [12, 12, 8], [16, 12, 8], [8, 12, 16]])
kinds = st.lists(st.sampled_from(["app", "app", "init", "sidecar"]), min_size=1, max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Init containers and sidecars stand before the others, as in a pod's spec."""
    ordered = sorted((ContainerKind(kind) for kind in draw(kinds)), key=lambda kind: kind is ContainerKind.APP)
    return Request(
        tuple(
            container(f"c{place}", draw(st.sampled_from([1, 1, 2])), draw(wanted), kind, draw(limits))
            for place, kind in enumerate(ordered)
        )
    )


def container(name: str, gpus: int, share: Share, kind: ContainerKind, limit_mib: int | None) -> ContainerRequest:
    """Only a whole card has a size without booking it."""
    return ContainerRequest(name, gpus, share, kind, limit_mib if share.exclusive else None)


def every_way(asked: Request) -> Iterator[Allocation]:
    """All ways to give each container its cards."""
    for deal in product(*(combinations(range(CARDS), container.gpus) for container in asked.containers)):
        yield Allocation(
            "n1",
            tuple(
                ContainerAllocation(
                    container.name,
                    tuple(CardShare(uuid_of("n1", index), index, container.share) for index in indices),
                    container.kind,
                    container.memory_limit_mib,
                )
                for container, indices in zip(asked.containers, deal, strict=True)
            ),
        )


def is_sound(ledger: Ledger, made: Allocation) -> bool:
    """Whole cards are one container's at a time and never those of a share; and the ledger takes it."""
    whole = [c for c in made.containers if any(card.share.exclusive for card in c.cards)]
    shared = [c for c in made.containers if c not in whole]
    if not cards_of(whole).isdisjoint(cards_of(shared)):
        return False
    for running in phases(tuple((container.kind, container) for container in whole)):
        if len(cards_of(running)) != sum(len(container.cards) for container in running):
            return False
    if any(memory_of(ledger, card) < (c.memory_limit_mib or 0) for c in whole for card in c.cards):
        return False
    try:
        ledger.assume(Booking("new", made))
    except BookingError:
        return False
    ledger.release("new")
    return True


def memory_of(ledger: Ledger, card: CardShare) -> int:
    books = ledger.node("n1")
    assert books is not None
    return books.slots[card.index].inventory.memory_mib


def cards_of(containers: Iterable[ContainerAllocation]) -> set[str]:
    return {card.uuid for container in containers for card in container.cards}


@settings(max_examples=times(300))
@given(
    requests(),
    sizes,
    st.lists(taken, min_size=CARDS, max_size=CARDS),
    st.sampled_from(["binpack", "fragmentation", "keti"]),
)
def test_placed_if_there_is_any_way(asked: Request, gib: list[int], used: list[Share], policy: str) -> None:
    ledger = ledger_of(node("n1", gib))
    for index, share in enumerate(used):
        if share != Share():
            ledger.confirm(booking(f"there-{index}", "n1", {index: share}))
    made = Engine(ledger, policy_named(policy)).decide(asked)
    if made is None:
        assert not any(is_sound(ledger, way) for way in every_way(asked))
        return
    assert is_sound(ledger, made)
    for container, got in zip(asked.containers, made.containers, strict=True):
        assert (got.name, got.kind) == (container.name, container.kind)
        assert [card.share for card in got.cards] == [container.share] * container.gpus
