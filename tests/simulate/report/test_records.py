import json

from shoal.simulate.churn import Wait
from shoal.simulate.report.records import as_json
from tests.simulate.report.results import LOSS, QUEUE, churned, static


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
