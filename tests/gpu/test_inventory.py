"""What a node publishes of its cards; the conformance suite has the rest."""

from shoal.gpu.inventory import gpus
from shoal.gpu.protocol import Card, Survey
from shoal.model.gpu import Link, MigInstance

GIB = 2**30
AMPERE = (8, 0)


def card(uuid: str, index: int = 0, **more: object) -> Card:
    given: dict[str, object] = {"model": "A30", "memory_bytes": 24 * GIB, "compute_capability": AMPERE, **more}
    return Card(uuid=uuid, index=index, **given)  # type: ignore[arg-type]


def test_memory_is_all_of_it_unless_asked_otherwise() -> None:
    survey = Survey((card("GPU-1", reserved_bytes=512 * 2**20 + 1), card("GPU-2", 1)))
    assert [gpu.memory_mib for gpu in gpus(survey)] == [24576, 24576]
    assert [gpu.memory_mib for gpu in gpus(survey, without_reserved=True)] == [24063, 24576]


def test_a_card_that_tells_no_size_takes_no_shares() -> None:
    (gpu,) = gpus(Survey((card("GPU-1", memory_bytes=0, reserved_bytes=5),)), without_reserved=True)
    assert gpu.memory_mib == 0


def test_mps_clients() -> None:
    cards = (
        card("GPU-1"),
        card("GPU-2", 1, compute_capability=(6, 0)),
        card("GPU-3", 2, compute_capability=None),
        card("GPU-4", 3, mig=True, mig_instances=(MigInstance("MIG-1", "1g.6gb", 5952),)),
    )
    assert [gpu.mps_clients for gpu in gpus(Survey(cards))] == [10, 10, 0, 0]
    assert [gpu.mps_clients for gpu in gpus(Survey(cards), mps_clients=100)] == [48, 16, 0, 0]
    assert gpus(Survey(cards))[3].mig_instances == (MigInstance("MIG-1", "1g.6gb", 5952),)


def test_links_to_cards_that_are_not_there_are_left_out() -> None:
    survey = Survey((card("GPU-1", links=(Link("GPU-2", 4), Link("GPU-9", 4))), card("GPU-2", 5)))
    assert gpus(survey)[0].links == (Link("GPU-2", 4),)


def test_families() -> None:
    capabilities = [(7, 0), (7, 5), (8, 6), (8, 9), (9, 0), (10, 0), (12, 1), (99, 0), None]
    assert [card("GPU-1", compute_capability=each).family for each in capabilities] == [
        *("volta", "turing", "ampere", "ada-lovelace", "hopper", "blackwell", "blackwell", "undefined", "undefined"),
    ]
