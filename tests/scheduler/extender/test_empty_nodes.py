"""Whether preemption could help at all, held against a cluster in which really nobody is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import CardSelector, ContainerRequest, Request, Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Booking, Ledger
from shoal.placement.policies import POLICIES
from shoal.scheduler.extender.filtering import EmptyNodes

MAKES = (("A", 8192, 10), ("B", 16384, 0), ("B C", 24576, 4))

cards = st.lists(st.sampled_from(MAKES), max_size=4)
shares = st.sampled_from(
    [
        Share(memory_mib=6144),
        Share(memory_mib=12288),
        Share(memory_mib=20480, compute=50),
        Share(memory_mib=4096, clients=1),
        Share(exclusive=True),
    ]
)
requests = st.builds(
    Request,
    containers=st.lists(st.tuples(st.integers(1, 3), shares), min_size=1, max_size=2).map(
        lambda found: tuple(ContainerRequest(f"c{n}", gpus, share) for n, (gpus, share) in enumerate(found))
    ),
    selector=st.sampled_from([CardSelector(), CardSelector(models=frozenset({"B"}))]),
)


def inventory(number: int, makes: list[tuple[str, int, int]], *, one_container: bool = False) -> NodeGpus:
    gpus = tuple(
        Gpu(f"GPU-{number}-{index}", index, memory, model, mps_clients=clients)
        for index, (model, memory, clients) in enumerate(makes)
    )
    return NodeGpus(f"n{number}", gpus, 64_000, 64_000, one_container=one_container)


@given(st.lists(st.tuples(cards, st.booleans()), min_size=1, max_size=6), requests, requests)
def test_a_refusal_holds_for_empty_nodes(
    nodes: list[tuple[list[tuple[str, int, int]], bool]], request: Request, other: Request
) -> None:
    used, empty = Engine(Ledger(), POLICIES["binpack"]), Engine(Ledger(), POLICIES["binpack"])
    for number, (makes, one_container) in enumerate(nodes):
        for engine in (used, empty):
            engine.ledger.set_inventory(inventory(number, makes, one_container=one_container))
    for number in range(4):
        allocation = used.decide(other)
        if allocation is not None:
            used.ledger.assume(Booking(f"pod-{number}", allocation))
    rows = np.arange(len(nodes))
    answers = EmptyNodes(used.ledger)
    for _ in range(2):  # worked out, then remembered
        refused = answers.refuse(used.class_of(request), rows)
        assert refused.tolist() == (~empty.fits(request)).tolist()


def test_wishes_for_single_cards_are_left_open() -> None:
    engine = Engine(Ledger(), POLICIES["binpack"])
    engine.ledger.set_inventory(inventory(0, [MAKES[0]]))
    selector = CardSelector(uuids=frozenset({"GPU-other"}))
    request = Request((ContainerRequest("c", 1, Share(memory_mib=1)),), selector=selector)
    assert EmptyNodes(engine.ledger).refuse(engine.class_of(request), np.arange(1)).tolist() == [False]
