from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import EVENTS
from shoal.embedded.recorder import EventWriter

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@contextmanager
def recorder(path: Path) -> Iterator[tuple[EventWriter, EmbeddedApi, Clock]]:
    clock = Clock()
    api = EmbeddedApi(path, clock=clock)
    yield EventWriter(api.registry, "test-controller"), api, clock


ABOUT = {"kind": "Thing", "apiVersion": "v1", "metadata": {"name": "t", "namespace": "default", "uid": "u"}}


def told(api: EmbeddedApi) -> list[tuple[str, int]]:
    return sorted((event["message"], event["count"]) for event in api.registry.store.objects(EVENTS.key))


def test_equal_events_are_counted(tmp_path: Path) -> None:
    with recorder(tmp_path) as (events, api, clock):
        for _ in range(3):
            events.tell(ABOUT, "Why", "same")
            clock.now += timedelta(seconds=1)
        (event,) = api.registry.store.objects(EVENTS.key)
        assert (event["count"], event["type"], event["reason"]) == (3, "Normal", "Why")
        assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-05-01T12:00:00Z", "2026-05-01T12:00:02Z")
        assert event["involvedObject"] == {
            "kind": "Thing",
            "apiVersion": "v1",
            "name": "t",
            "namespace": "default",
            "uid": "u",
        }
        assert event["source"] == {"component": "test-controller"}


def test_many_alike_are_combined_and_a_flood_is_cut_off(tmp_path: Path) -> None:
    with recorder(tmp_path) as (events, api, _):
        for number in range(100):
            events.tell(ABOUT, "Why", f"number {number:02}")
        assert told(api) == [
            ("(combined from similar events): number 24", 16),
            *((f"number {number:02}", 1) for number in range(9)),
        ]


def test_the_allowance_comes_back(tmp_path: Path) -> None:
    with recorder(tmp_path) as (events, api, clock):
        for _ in range(30):
            events.tell(ABOUT, "Why", "same")
        assert told(api) == [("same", 25)]
        clock.now += timedelta(minutes=5)
        events.tell(ABOUT, "Why", "same")
        events.tell(ABOUT, "Why", "same")
        assert told(api) == [("same", 26)]


def test_an_event_that_cannot_be_written_is_given_up(tmp_path: Path) -> None:
    with recorder(tmp_path) as (events, api, _):
        nowhere = {**ABOUT, "metadata": {**ABOUT["metadata"], "namespace": "nowhere"}}  # type: ignore[dict-item]
        events.tell(nowhere, "Why", "lost")
        assert told(api) == []


def test_who_tells_it_and_of_which_part(tmp_path: Path) -> None:
    with recorder(tmp_path) as (events, api, _):
        for path in ("spec.containers{a}", "spec.containers{b}"):
            events.tell(ABOUT, "Started", "Container started", component="kubelet", host="n", field_path=path)
        told = api.registry.store.objects(EVENTS.key)
        assert {event["involvedObject"]["fieldPath"]: event["count"] for event in told} == {
            "spec.containers{a}": 1,
            "spec.containers{b}": 1,
        }
        assert {(event["reportingComponent"], event["reportingInstance"]) for event in told} == {("kubelet", "n")}
        assert told[0]["source"] == {"component": "kubelet", "host": "n"}
