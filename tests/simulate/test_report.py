import json

import pytest

from shoal.simulate.churn import Wait
from shoal.simulate.report import as_json, sections, table
from tests.simulate.results import LOSS, QUEUE, churned, static

STATIC_TABLE = """\
without departures; mean of 2 seeds ± standard deviation

GPUs allocated, %, when 100 % of the capacity has arrived
workload     fragmentation            fgd
default       96.00 ± 1.41   94.00 ± 0.00
gpushare40    92.00 ± 0.00   91.00 ± 0.00
mean                 94.00          92.50

GPUs allocated, %, when 130 % of the capacity has arrived
workload     fragmentation            fgd
default       97.00 ± 1.41   95.00 ± 0.00
gpushare40    93.00 ± 0.00   92.00 ± 0.00
mean                 95.00          93.50"""


def test_the_table_without_departures():
    results = [
        static("default", "fragmentation", 1, 95),
        static("default", "fgd", 1, 94),
        static("default", "fragmentation", 2, 97),
        static("default", "fgd", 2, 94),
        static("gpushare40", "fragmentation", 1, 92),
        static("gpushare40", "fgd", 1, 91),
        static("gpushare40", "fragmentation", 2, 92),
        static("gpushare40", "fgd", 2, 91),
    ]
    assert table(results) == STATIC_TABLE


LOSS_TABLE = """\
with departures: load 0.95, lifetimes of the trace, same start, pods that do not fit leave; one seed

GPUs allocated, %
workload     fgd   binpack
default    95.70     92.10

refused, % of the arriving GPU demand
workload    fgd   binpack
default    4.38     10.00"""


def test_the_table_with_losses():
    assert table([churned("fgd", 1, 95.7, 4.38, LOSS), churned("binpack", 1, 92.1, 10, LOSS)]) == LOSS_TABLE


def test_the_table_with_a_queue_tells_the_waits_by_size():
    results = [
        churned("fgd", 1, 95, 0, QUEUE, Wait("share", 9, 0.1, 0.3, 0), Wait("8", 2, 0.5, 0.75, 1)),
        churned("fgd", 2, 95, 0, QUEUE, Wait("share", 9, 0.2, 0.5, 1)),
    ]
    shown = sections(results)
    assert [section.title.split(",")[0].split(":")[0] for section in shown] == [
        "GPUs allocated",
        "GPUs waited for",
        "waiting time in mean lifetimes",
    ]
    assert shown[2].rows == (
        ("default, share of a GPU", "0.1500 / 0.4000 / 0.5"),
        ("default, 8 GPUs", "0.5000 / 0.7500 / 1"),
    )


@pytest.mark.parametrize("results", [[], ()])
def test_no_results_make_no_tables(results):
    assert sections(results) == []


def test_json_without_departures():
    assert json.loads(as_json([static("default", "fgd", 42, 94.5)])) == [
        {"workload": "default", "policy": "fgd", "seed": 42, "alloc_100": 94.5, "alloc_130": 95.5}
    ]


def test_json_with_departures():
    assert json.loads(as_json([churned("fgd", 42, 94.5, 1.5, LOSS)])) == [
        {
            "workload": "default",
            "policy": "fgd",
            "seed": 42,
            "load": 0.95,
            "lifetimes": "trace",
            "mode": "loss",
            "start": "same",
            "alloc_mean": 94.5,
            "refused_pct": 1.5,
            "pending_gpus_mean": 3.25,
        }
    ]


def test_json_of_a_queue_has_the_waits_and_an_empty_start():
    (run,) = json.loads(as_json([churned("fgd", 42, 94.5, 0, QUEUE, Wait("2", 7, 0.5, 0.75, 1))]))
    assert run["waiting"] == {"2": {"pods": 7, "mean": 0.5, "p95": 0.75, "still_waiting": 1}}
    assert (run["mode"], run["start"]) == ("queue", "empty")


def test_json_of_no_results():
    assert as_json([]) == "[]"
