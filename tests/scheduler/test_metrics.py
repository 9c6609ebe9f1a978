"""The metrics of the scheduler, read by a parser that forgives nothing."""

from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.client import Client
from shoal.kube.reflector import Reflector
from shoal.kube.resources import PODS
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import Share
from shoal.observe.prometheus import MetricRegistry
from shoal.placement.ledger import Booking, Ledger
from shoal.scheduler.metrics import LedgerSource, Metrics, WatchSource
from tests.kube.waiting import until
from tests.observe.text import parse


def test_a_fresh_scheduler_has_families_that_can_be_read() -> None:
    kinds, samples = parse(Metrics().registry.text())
    assert kinds["shoal_scheduler_decisions_total"] == "counter"
    assert kinds["shoal_scheduler_decision_seconds"] == "histogram"
    assert samples["shoal_scheduler_held_pods", ()] == 0
    assert all(name.endswith("_total") for name, kind in kinds.items() if kind == "counter")


def cards(count: int, model: str = "T") -> tuple[Gpu, ...]:
    return tuple(Gpu(f"GPU-{n}", n, 16384, model) for n in range(count))


def test_the_ledger_is_told_card_by_card() -> None:
    ledger = Ledger()
    ledger.set_inventory(NodeGpus("n", cards(2, 'odd "model"'), 8000, 8000))
    held = ContainerAllocation("c", (CardShare("GPU-1", 1, Share(memory_mib=4096)),))
    ledger.assume(Booking("pod", Allocation("n", (held,))))
    registry = MetricRegistry()
    registry.add(LedgerSource(ledger))
    _, samples = parse(registry.text())

    def of(card: int, figure: str) -> float:
        return samples[f"shoal_scheduler_card_{figure}", (("node", "n"), ("card", str(card)))]

    info = (("node", "n"), ("card", "1"), ("uuid", "GPU-1"), ("model", 'odd "model"'))
    assert samples["shoal_scheduler_card_info", info] == 1
    assert of(1, "memory_bytes") == 16384 * 2**20
    assert of(1, "memory_requested_bytes") == 4096 * 2**20
    assert (of(0, "memory_requested_bytes"), of(0, "pods"), of(1, "pods"), of(0, "usable")) == (0, 0, 1, 1)
    ledger.release("pod")
    whole = ContainerAllocation("c", (CardShare("GPU-0", 0, Share(exclusive=True)),))
    ledger.assume(Booking("other", Allocation("n", (whole,))))
    _, samples = parse(registry.text())
    assert (of(0, "memory_requested_bytes"), of(0, "compute_requested_percent")) == (16384 * 2**20, 100)


def test_a_ledger_that_changes_during_a_scrape_leaves_the_text_whole() -> None:
    ledger = Ledger()
    for n in range(200):
        ledger.set_inventory(NodeGpus(f"n{n}", cards(4), 8000, 8000))
    registry = MetricRegistry()
    registry.add(LedgerSource(ledger))
    pieces: list[str] = []
    for number, piece in enumerate(registry.pieces()):
        pieces.append(piece)
        ledger.remove_node(f"n{number}")
    assert len(pieces) > 10
    parse("".join(pieces))


async def test_watches_tell_their_state() -> None:
    # Nobody listens on port 1.
    async with Client(Access(server="http://127.0.0.1:1", credentials=StoredCredential())) as client:
        watch = Reflector(client, PODS)
        registry = MetricRegistry()
        registry.add(WatchSource({"pods": watch}))
        _, samples = parse(registry.text())
        assert samples["shoal_scheduler_watch_up", (("resource", "pods"),)] == 1
        async with watch:
            await until(lambda: watch.last_error is not None, "refused")
            _, samples = parse(registry.text())
    assert samples["shoal_scheduler_watch_up", (("resource", "pods"),)] == 0
    assert samples["shoal_scheduler_watch_total", (("resource", "pods"), ("step", "errors"))] == 1
