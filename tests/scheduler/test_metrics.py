"""The text that Prometheus reads, checked with a parser that forgives nothing."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.client import Client
from shoal.kube.reflector import Reflector
from shoal.kube.resources import PODS
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import Share
from shoal.placement.ledger import Booking, Ledger
from shoal.scheduler.metrics import LedgerSource, Metrics, Registry, WatchSource
from tests.kube.waiting import until

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>.*)\}})? (?P<value>[^ ]+)")
LABEL = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> tuple[dict[str, str], Samples]:
    """The kinds of the families and all samples; AssertionError for anything that is not to the letter."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    samples: Samples = {}
    helped: set[str] = set()
    family = ""
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) (.+)", line):
            family = match[1]
            assert family not in helped, "a family stands in one piece"
            helped.add(family)
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line):
            assert match[1] == family
            assert match[1] not in kinds
            kinds[match[1]] = match[2]
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            suffixes = ("_bucket", "_sum", "_count") if kinds[family] == "histogram" else ("",)
            assert found["name"] in {family + suffix for suffix in suffixes}, line
            key = (found["name"], labels_of(found["labels"] or ""))
            assert key not in samples, f"twice: {line}"
            samples[key] = float(found["value"])
    assert helped == kinds.keys()
    return kinds, samples


def labels_of(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    place = 0
    while place < len(text):
        match = LABEL.match(text, place)
        assert match is not None, text
        found.append((match["name"], re.sub(r'\\[\\"n]', lambda part: UNESCAPED[part[0]], match["value"])))
        place = match.end()
    assert len({name for name, _ in found}) == len(found)
    return tuple(found)


def test_a_fresh_scheduler_has_families_that_can_be_read() -> None:
    kinds, samples = parse(Metrics().registry.text())
    assert kinds["shoal_scheduler_decisions_total"] == "counter"
    assert kinds["shoal_scheduler_decision_seconds"] == "histogram"
    assert samples["shoal_scheduler_held_pods", ()] == 0
    assert all(name.endswith("_total") for name, kind in kinds.items() if kind == "counter")


def test_counters_and_gauges() -> None:
    registry = Registry()
    counter = registry.counter("c_total", "Counted.", ["by"])
    gauge = registry.gauge("g", "Measured.")
    counter.inc("a")
    counter.inc("a", by=2)
    counter.inc("b")
    gauge.set(-1.5)
    _, samples = parse(registry.text())
    assert samples == {("c_total", (("by", "a"),)): 3, ("c_total", (("by", "b"),)): 1, ("g", ()): -1.5}


@given(st.lists(st.floats(0, 10)))
def test_histograms_count_what_is_at_most_each_bound(values: list[float]) -> None:
    registry = Registry()
    histogram = registry.histogram("h_seconds", "Times.", ["verb"], buckets=(0.1, 1, 5))
    for value in values:
        histogram.observe(value, "x")
    _, samples = parse(registry.text())
    if not values:
        assert samples == {}
        return
    for bound in (0.1, 1.0, 5.0, math.inf):
        text = "+Inf" if bound == math.inf else f"{bound:g}"
        at_most = sum(value <= bound for value in values)
        assert samples["h_seconds_bucket", (("verb", "x"), ("le", text))] == at_most
    assert samples["h_seconds_count", (("verb", "x"),)] == len(values)
    assert samples["h_seconds_sum", (("verb", "x"),)] == pytest.approx(sum(values))


@given(st.text(), st.floats(), st.text(min_size=1).filter(str.strip))
def test_any_label_value_and_help_comes_through(value: str, number: float, what: str) -> None:
    registry = Registry()
    registry.gauge("g", what, ["x"]).set(number, value)
    _, samples = parse(registry.text())
    ((key, read),) = samples.items()
    assert key == ("g", (("x", value),))
    assert read == number or (math.isnan(read) and math.isnan(number))


def cards(count: int, model: str = "T") -> tuple[Gpu, ...]:
    return tuple(Gpu(f"GPU-{n}", n, 16384, model) for n in range(count))


def test_the_ledger_is_told_card_by_card() -> None:
    ledger = Ledger()
    ledger.set_inventory(NodeGpus("n", cards(2, 'odd "model"'), 8000, 8000))
    held = ContainerAllocation("c", (CardShare("GPU-1", 1, Share(memory_mib=4096)),))
    ledger.assume(Booking("pod", Allocation("n", (held,))))
    registry = Registry()
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
    registry = Registry()
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
        registry = Registry()
        registry.add(WatchSource({"pods": watch}))
        _, samples = parse(registry.text())
        assert samples["shoal_scheduler_watch_up", (("resource", "pods"),)] == 1
        async with watch:
            await until(lambda: watch.last_error is not None, "refused")
            _, samples = parse(registry.text())
    assert samples["shoal_scheduler_watch_up", (("resource", "pods"),)] == 0
    assert samples["shoal_scheduler_watch_total", (("resource", "pods"), ("step", "errors"))] == 1


@pytest.mark.parametrize("broken", ["a 1", "# TYPE a counter\na 1\n", "# HELP a x\n# TYPE a gauge\na 1\na 1\n"])
def test_the_parser_refuses_what_is_broken(broken: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        parse(broken)
