"""Cards for pods that nobody placed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.device_plugin.decisions import choose_cards
from shoal.agent.errors import NoCardError
from shoal.agent.node.holdings import mismatch
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import (
    ANY_CARD,
    NO_SHARE,
    CardSelector,
    ContainerKind,
    ContainerRequest,
    Request,
    Share,
    fits,
)

NODE = NodeGpus("n", tuple(Gpu(f"GPU-{index}", index, 8192, model="Tesla T4") for index in range(3)))


def ask(*shares: Share, gpus: int = 1, selector: CardSelector = ANY_CARD) -> Request:
    return Request(tuple(ContainerRequest(f"c{n}", gpus, share) for n, share in enumerate(shares)), selector=selector)


def indices(request: Request, taken: dict[str, Share] | None = None, node: NodeGpus = NODE) -> list[list[int]]:
    found = choose_cards(request, node=node, taken=taken or {})
    return [[card.index for card in container.cards] for container in found.containers]


def test_fullest_card_with_room():
    taken = {"GPU-1": Share(6000), "GPU-2": Share(7000)}
    assert indices(ask(Share(2000)), taken) == [[1]]
    assert indices(ask(Share(1000)), taken) == [[2]]


def test_whole_cards_are_empty_ones():
    assert indices(ask(Share(exclusive=True), gpus=2), {"GPU-1": Share(1)}) == [[0, 2]]
    with pytest.raises(NoCardError, match=r"asks for 3 cards with nobody else on them, 2 of 3 cards"):
        indices(ask(Share(exclusive=True), gpus=3), {"GPU-1": Share(1)})


def test_containers_of_a_pod_count_beside_each_other():
    assert indices(ask(Share(5000), Share(5000), Share(5000))) == [[0], [1], [2]]
    with pytest.raises(NoCardError, match="'c3'"):
        indices(ask(*[Share(5000)] * 4))
    assert indices(ask(Share(exclusive=True), Share(exclusive=True))) == [[0], [1]]


def test_clients_without_sizes_go_beside_their_like_alone():
    free, sized = Share(clients=1), Share(1000, clients=1)
    assert indices(ask(free), {"GPU-0": Share(1), "GPU-1": Share(compute=1), "GPU-2": free + free}) == [[2]]
    assert indices(ask(sized), {"GPU-0": free, "GPU-1": free, "GPU-2": sized}) == [[2]]
    with pytest.raises(NoCardError):
        indices(ask(free), {f"GPU-{number}": sized for number in range(3)})
    with pytest.raises(NoCardError):
        indices(ask(Share(compute=1)), {f"GPU-{number}": free for number in range(3)})
    assert indices(ask(free, Share(1000), free, Share(1000))) == [[0], [1], [0], [1]]


def test_an_init_container_is_over_when_the_apps_run():
    both = (
        ContainerRequest("first", 1, Share(8192), ContainerKind.INIT),
        ContainerRequest("main", 1, Share(8192)),
    )
    assert indices(Request(both), {"GPU-1": Share(1), "GPU-2": Share(1)}) == [[0], [0]]


def test_sick_cards_partitioned_cards_and_refused_models_are_left_out():
    cards = (
        Gpu("GPU-0", 0, 8192, healthy=False, fault="xid"),
        Gpu("GPU-1", 1, 8192, mig=True),
        Gpu("GPU-2", 2, 8192, model="A30"),
        Gpu("GPU-3", 3, 8192, model="T4"),
    )
    node = NodeGpus("n", cards)
    assert indices(ask(Share(1)), node=node) == [[2]]
    assert indices(ask(Share(1), selector=CardSelector(not_models=frozenset({"A30"}))), node=node) == [[3]]


SHARES = st.one_of(
    st.builds(Share, memory_mib=st.integers(1, 9000), compute=st.integers(0, 100)),
    st.builds(Share, memory_mib=st.integers(0, 4000), clients=st.just(1)),
    st.just(Share(exclusive=True)),
)
CONTAINERS = st.lists(st.tuples(SHARES, st.sampled_from(ContainerKind), st.integers(1, 3)), min_size=1, max_size=4)


@given(CONTAINERS, st.dictionaries(st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]), SHARES))
def test_what_is_chosen_fits_and_is_what_was_asked_for(
    asked: list[tuple[Share, ContainerKind, int]], taken: dict[str, Share]
):
    ordered = sorted(asked, key=lambda one: one[1] is ContainerKind.APP)
    request = Request(
        tuple(ContainerRequest(f"c{n}", gpus, share, kind) for n, (share, kind, gpus) in enumerate(ordered))
    )
    try:
        found = choose_cards(request, node=NODE, taken=taken)
    except NoCardError:
        return
    assert mismatch(request, found, NODE) == ""
    for gpu in NODE.gpus:
        held = found.held().get(gpu.uuid)
        if held is not None:
            assert fits(gpu, taken.get(gpu.uuid, NO_SHARE), held)
