"""The ledger's answers to single events; what holds for any order of them is in `test_ledger_properties`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import NO_SHARE, Share, fits
from shoal.placement.engine import Engine
from shoal.placement.errors import BookingError
from shoal.placement.ledger import Booking, CardLedger, Ledger
from shoal.placement.policies import policy_named
from tests.placement.clusters import GIB, WHOLE, booking, card, ledger_of, node, request, uuid_of


def test_assume_names_the_card_and_the_numbers() -> None:
    ledger = ledger_of(node("n1", [16]))
    ledger.assume(booking("a", "n1", {0: Share(10 * GIB)}))
    with pytest.raises(BookingError, match=r"pod b: card GPU-n1-0 of node n1: 6144 MiB free of 16384, 7168 wanted"):
        ledger.assume(booking("b", "n1", {0: Share(7 * GIB)}))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (booking("a", "nowhere", {}), "node nowhere is not known"),
        (booking("a", "n1", {7: Share(GIB)}), "card GPU-n1-7 of node n1: no such card"),
        (booking("a", "n1", {}, cores=5), "node n1 has 4000 milli CPU free, 5000 wanted"),
        (booking("a", "n1", {}, gib=9), "node n1 has 8192 MiB of memory free, 9216 wanted"),
    ],
)
def test_assume_refuses(wanted: Booking, message: str) -> None:
    ledger = ledger_of(node("n1", [16], cores=4, gib=8))
    with pytest.raises(BookingError, match=message):
        ledger.assume(wanted)
    assert ledger.booking("a") is None


def test_a_refused_booking_leaves_no_part_of_it() -> None:
    """The first card would fit, the second does not."""
    ledger = ledger_of(node("n1", [16, 1]))
    with pytest.raises(BookingError):
        ledger.assume(booking("a", "n1", {0: Share(2 * GIB), 1: Share(2 * GIB)}))
    ledger.assume(booking("b", "n1", {0: WHOLE}))


def test_a_pod_is_booked_once() -> None:
    ledger = ledger_of(node("n1", [16]), node("n2", [16]))
    ledger.assume(booking("a", "n1", {0: Share(GIB)}))
    with pytest.raises(BookingError, match="pod a is booked on n1 already: release it first"):
        ledger.assume(booking("a", "n2", {0: Share(GIB)}))


def test_confirm_overrules_what_was_assumed() -> None:
    ledger = ledger_of(node("n1", [16]), node("n2", [16]))
    ledger.assume(booking("a", "n1", {0: WHOLE}))
    ledger.confirm(booking("a", "n2", {0: Share(GIB)}))
    assert not ledger.is_assumed("a")
    ledger.assume(booking("b", "n1", {0: WHOLE}))
    kept = ledger.booking("a")
    assert kept is not None
    assert kept.node == "n2"


def test_an_over_booked_card_is_reported_with_its_pods() -> None:
    ledger = ledger_of(node("n1", [16]))
    found = ledger.rebuild([booking("a", "n1", {0: Share(10 * GIB)}), booking("b", "n1", {0: Share(10 * GIB)})])
    assert [(over.node, over.uuid, over.used, over.pods) for over in found] == [
        ("n1", uuid_of("n1", 0), Share(20 * GIB), ("a", "b"))
    ]


@pytest.mark.parametrize(
    "pods",
    [
        [Share(compute=60), Share(compute=60)],
        [Share(1, clients=6), Share(1, clients=6)],
        [Share(10 * GIB), Share(10 * GIB)],
        [WHOLE, Share(1)],
        [WHOLE, WHOLE],
    ],
)
def test_an_over_booked_card_takes_nothing_until_it_is_sound(pods: list[Share]) -> None:
    ledger = ledger_of(node("n1", [16]))
    engine = Engine(ledger, policy_named("binpack"))
    for number, share in enumerate(pods):
        ledger.confirm(booking(str(number), "n1", {0: share}))
    for asked in (request(Share(1)), request(Share(compute=1)), request(Share(clients=1)), request(WHOLE)):
        assert engine.decide(asked) is None
    with pytest.raises(BookingError, match="over-booked"):
        ledger.assume(booking("new", "n1", {0: Share(1)}))
    ledger.release("0")
    assert ledger.over_booked() == []
    assert (engine.decide(request(Share(1))) is None) == pods[1].exclusive


def test_a_card_that_vanishes_and_returns_finds_its_bookings() -> None:
    ledger = ledger_of(node("n1", [16, 16]))
    ledger.confirm(booking("a", "n1", {1: Share(10 * GIB)}))
    ledger.set_inventory(node("n1", [16]))
    assert [lost.pod for lost in ledger.cardless()] == ["a"]
    with pytest.raises(BookingError, match="the card is gone"):
        ledger.assume(booking("b", "n1", {1: Share(GIB)}))
    ledger.set_inventory(node("n1", [16, 16]))
    assert ledger.cardless() == []
    with pytest.raises(BookingError, match="6144 MiB free"):
        ledger.assume(booking("b", "n1", {1: Share(7 * GIB)}))


def test_a_node_that_vanishes_and_returns_finds_its_bookings() -> None:
    ledger = ledger_of(node("n1", [16]))
    ledger.confirm(booking("a", "n1", {0: WHOLE}, cores=60))
    ledger.remove_node("n1")
    assert [lost.pod for lost in ledger.cardless()] == ["a"]
    assert list(ledger.nodes()) == []
    ledger.set_inventory(node("n1", [16]))
    engine = Engine(ledger, policy_named("binpack"))
    assert engine.decide(request(Share(GIB))) is None
    assert engine.decide(request(cores=5)) is None
    assert engine.decide(request(cores=4)) is not None


def test_a_card_is_known_by_its_uuid_not_by_its_index() -> None:
    """After a reboot the two cards have changed places."""
    first, second = card("n1", 0, 16), card("n1", 1, 16)
    ledger = ledger_of(node("n1", [first, second]))
    ledger.confirm(booking("a", "n1", {0: WHOLE}))
    swapped = [Gpu(first.uuid, 1, first.memory_mib), Gpu(second.uuid, 0, second.memory_mib)]
    ledger.set_inventory(node("n1", swapped))
    made = Engine(ledger, policy_named("binpack")).decide(request(WHOLE))
    assert made is not None
    assert [(taken.uuid, taken.index) for taken in made.containers[0].cards] == [(second.uuid, 0)]


def test_a_card_that_shrinks_below_its_bookings_is_over_booked() -> None:
    ledger = ledger_of(node("n1", [16]))
    ledger.confirm(booking("a", "n1", {0: Share(10 * GIB)}))
    ledger.set_inventory(node("n1", [8]))
    assert [over.used.memory_mib for over in ledger.over_booked()] == [10 * GIB]


def test_a_sick_card_keeps_its_pods_and_takes_no_more() -> None:
    ledger = ledger_of(node("n1", [card("n1", 0, healthy=False, fault="Xid 48")]))
    ledger.confirm(booking("a", "n1", {0: Share(GIB)}))
    with pytest.raises(BookingError, match="unhealthy: Xid 48"):
        ledger.assume(booking("b", "n1", {0: Share(GIB)}))
    assert ledger.over_booked() == []
    assert ledger.cardless() == []


def test_an_inventory_names_each_card_once() -> None:
    with pytest.raises(BookingError, match="two cards with UUID GPU-n1-0"):
        ledger_of(NodeGpus("n1", (card("n1", 0), Gpu(uuid_of("n1", 0), 1, GIB))))


def test_rebuild_forgets_who_is_not_there_and_keeps_bindings_on_their_way() -> None:
    ledger = ledger_of(node("n1", [16]))
    for pod in ("bound", "on its way", "given up"):
        ledger.assume(booking(pod, "n1", {0: Share(GIB)}))
    ledger.confirm(booking("gone", "n1", {0: Share(GIB)}))
    ledger.rebuild([booking("bound", "n1", {0: Share(GIB)})], keep_assumed={"on its way", "gone"})
    assert {kept.pod for kept in ledger.bookings()} == {"bound", "on its way"}
    assert ledger.is_assumed("on its way")
    assert not ledger.is_assumed("bound")


def test_a_confirmed_pod_is_not_kept_as_assumed() -> None:
    """`keep_assumed` is for bindings on their way; a confirmed pod that the cluster no longer shows is gone."""
    ledger = ledger_of(node("n1", [16]))
    ledger.assume(booking("a", "n1", {0: WHOLE}))
    ledger.confirm(booking("a", "n1", {0: WHOLE}))
    ledger.rebuild([], keep_assumed={"a"})
    assert list(ledger.bookings()) == []


def test_pods_of_a_node_nobody_knows_are_recorded() -> None:
    ledger = Ledger()
    ledger.confirm(booking("a", "n1", {0: WHOLE}))
    assert [lost.pod for lost in ledger.cardless()] == ["a"]
    ledger.set_inventory(node("n1", [16]))
    with pytest.raises(BookingError, match="wanted whole, 1 pods on it"):
        ledger.assume(booking("b", "n1", {0: WHOLE}))


def test_the_largest_inventory_an_annotation_can_hold() -> None:
    ledger = ledger_of(NodeGpus("n1", (Gpu("GPU-a", 0, 2**31, mps_clients=2**20),), 2**53, 2**53))
    made = Engine(ledger, policy_named("binpack")).decide(request(Share(2**31, 100, 2**20), cores=1))
    assert made is not None


def test_a_node_that_is_gone_for_good_leaves_its_row_to_another() -> None:
    ledger = Ledger()
    for number in range(100):
        ledger.set_inventory(NodeGpus(f"node-{number}", (Gpu(f"GPU-{number}", 0, 1024),), 1000, 1000))
        ledger.remove_node(f"node-{number}")
    assert ledger.columns.rows == 1
    ledger.set_inventory(NodeGpus("last", (Gpu("GPU-last", 0, 1024),), 1000, 1000))
    assert [node.name for node in ledger.nodes()] == ["last"]
    assert ledger.columns.whole[0] == 1


@given(
    st.lists(
        st.builds(
            Share,
            memory_mib=st.sampled_from([0, 0, 1024, 2048, 4096]),
            compute=st.sampled_from([0, 0, 30, 50, 100]),
            clients=st.sampled_from([0, 0, 1, 2]),
        ).filter(lambda share: share != NO_SHARE)
        | st.just(Share(exclusive=True)),
        max_size=8,
    ),
    st.sampled_from([0, 1, 3]),
)
def test_the_ledger_and_the_agent_agree_on_what_fits(shares: list[Share], clients: int) -> None:
    """`CardLedger.refusal` has words for each reason; `shoal.model.request.fits` is the rule without them."""
    gpu = Gpu("GPU-0", 0, 4096, mps_clients=clients)
    books = CardLedger(gpu)
    for share in shares:
        assert (books.refusal(share) is None) == fits(gpu, books.used, share), (books, share)
        if books.refusal(share) is None:
            books.add(share, 1)
