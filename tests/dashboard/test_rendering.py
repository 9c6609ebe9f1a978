"""Pages without a browser: bars, words for amounts and times, and the views that take an operator or a manager."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shoal.dashboard import documents
from shoal.dashboard.bars import LENGTH, REQUESTED, USED, BarShare, bar, gib
from shoal.dashboard.frame import TEMPLATES, Tab
from shoal.dashboard.rendering import ago, percent

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("amount", "words"),
    [(None, None), (0, "0 GiB"), (512, "512 MiB"), (1024, "1 GiB"), (1536, "1.5 GiB"), (204_800, "200 GiB")],
)
def test_memory_in_words(amount: int | None, words: str | None) -> None:
    assert gib(amount) == words


def test_what_is_not_known_is_not_zero() -> None:
    assert percent(None) is None
    assert percent(0) == "0 %"


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("2026-01-01T11:59:58Z", "2 s ago"),
        ("2026-01-01T11:50:00.500000Z", "10 min ago"),
        ("2026-01-01T09:00:00Z", "3 h ago"),
        ("2025-12-01T12:00:00Z", "31 days ago"),
        ("2027-01-01T12:00:00Z", "0 s ago"),
        ("<b>", "<b>"),
    ],
)
def test_how_long_ago(time: str, words: str) -> None:
    assert ago(time, NOW) == words


def test_a_bar_has_requested_above_used() -> None:
    shares = [BarShare("a/one", 4096, 1024), BarShare("a/two", 2048, 3072), BarShare("", 2048, 0)]
    drawn = bar(total_mib=10_240, requested_mib=8192, used_mib=5120, unattributed_mib=1024, shares=shares)
    above = [part for part in drawn.parts if part.lane == REQUESTED and part.kind != "free"]
    below = [part for part in drawn.parts if part.lane == USED and part.kind != "free"]
    assert [part.pattern for part in above] == ["", "", "others"]
    assert [round(part.x) for part in above] == [0, 80, 120]
    assert [part.pattern for part in below] == ["", "", "stripe", "hatch"]
    assert drawn.words == "requested 8 GiB of 10 GiB, used 5 GiB"


def test_a_bar_never_passes_its_end() -> None:
    drawn = bar(
        total_mib=1024,
        requested_mib=4096,
        used_mib=9999,
        unattributed_mib=9999,
        shares=[BarShare("a/one", 4096, 9999)],
    )
    assert all(part.x + part.width <= LENGTH for part in drawn.parts)


def test_a_bar_without_readings_says_so() -> None:
    drawn = bar(total_mib=1024, requested_mib=0, used_mib=None, unattributed_mib=None, shares=())
    assert [part.kind for part in drawn.parts if part.lane == USED] == ["nothing"]
    assert drawn.words.endswith("used not known")


def page(template: str, **values: Any) -> str:
    """A page with as much around it as it needs."""
    pods = documents.PodCounts(total=0, running=0, starting=0, waiting=0, ending=0, elsewhere=0)
    overview = documents.Overview(
        number=1,
        time="2026-01-01T12:00:00Z",
        old_since=None,
        trouble=None,
        user="ann",
        sees_all_pods=True,
        sees_all_nodes=True,
        nodes=documents.NodeCounts(total=0, ready=0, cordoned=0),
        cards=documents.CardCounts(total=0, broken=0, unknown=0, free=0),
        pods=pods,
        memory=documents.MemoryTotals(total_mib=0, requested_mib=0, used_mib=None, measured_mib=0),
        collectors=documents.CollectorCounts(measured=0, stale=0, missing=0, why="none"),
        clusters=2,
    )
    common = {"overview": overview, "tabs": [Tab("setup", "/setup", "Set-up", 1, True, "late")], "stream": ""}
    text = TEMPLATES.page(template, {**common, **values}).text
    assert text is not None
    return text


def test_the_operators_progress() -> None:
    waits = documents.SetupNode(
        name="n1", step="driver", grade="fails", since="2026-01-01T11:00:00Z", why="<b>no</b>", fix="load it"
    )
    serves = documents.SetupNode(name="n2", step=None, grade=None, since=None, why=None, fix=None)
    told = documents.SetupDocument(
        policy="shoal", state="notReady", problems=("a <b>problem</b>",), ready=1, nodes=(waits, serves)
    )
    text = page("setup.html", active="setup", setup=told, late=[waits])
    for part in ("&lt;b&gt;no&lt;/b&gt;", "load it", "serves", "fails", "a &lt;b&gt;problem"):
        assert part in text
    assert "<b>" not in text


def test_joined_clusters() -> None:
    model = documents.ClusterModel(model="A100", cards=8, free=3, largest_mib=40_960)
    home = documents.ClusterDocument(
        name="home",
        uid="1",
        version="v1.36.3",
        state="answers",
        own=True,
        nodes=2,
        cards=8,
        free=3,
        queue=0,
        models=(model,),
        problem=None,
        silent_since=None,
    )
    away = documents.ClusterDocument(
        name="a<b>",
        uid=None,
        version=None,
        state="silent",
        own=False,
        nodes=None,
        cards=None,
        free=None,
        queue=None,
        models=(),
        problem="no answer in time",
        silent_since="2026-01-01T00:00:00Z",
    )
    told = documents.ClustersDocument(
        managed=True,
        why=None,
        time="2026-01-01T00:00:00Z",
        stale_since="2026-01-01T00:00:00Z",
        items=(home, away),
        problems={"x": "<i>wrong</i>"},
    )
    text = page("clusters.html", active="clusters", told=told)
    for part in (
        "3 of 8 free",
        "no answer in time",
        "no data",
        "/clusters/a%3Cb%3E",
        "&lt;i&gt;wrong",
        "last told of them",
    ):
        assert part in text
    for cluster in (home, away):
        assert (
            "largest free piece" in page("cluster.html", active="clusters", cluster=cluster).lower() or cluster is away
        )
    assert "--context &#39;a&lt;b&gt;&#39;" in page("cluster.html", active="clusters", cluster=away)
