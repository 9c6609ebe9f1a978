"""What the manager tells of the clusters: true, and within bounds whatever the clusters have written."""

import datetime

from shoal.clusters.member import Health, MemberState
from shoal.clusters.telling import told_clusters
from shoal.model.contract import clusters
from shoal.model.contract.clusters import (
    MAX_CLUSTERS,
    ClusterRoom,
    ClusterSilence,
    RoomOfModel,
    SilenceRecord,
    ToldClusters,
)

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
SINCE = "2026-01-02T03:00:00Z"


def room(*models: RoomOfModel) -> ClusterRoom:
    return ClusterRoom(1, 7, 3, 2, list(models))


def test_rooms_silences_and_problems() -> None:
    states = {
        "home": MemberState("home", "own", "u1", True, Health.ANSWERS, version="v1.36.3"),
        "east": MemberState("east", "Secret a/east", "u2", health=Health.SILENT, why="no answer in time"),
        "west": MemberState("west", "Secret a/west", "u3", health=Health.ANSWERS),
    }
    silences = SilenceRecord({"u2": ClusterSilence("east", SINCE)})
    rooms = {"west": room(RoomOfModel("A30", 4, 1, 8000, 9000), RoomOfModel("L4", 2, 2, 24000, 48000)), "east": room()}
    problems = {"east": "no answer in time", "Secret a/odd": "it holds no kubeconfig"}
    told = told_clusters(states, rooms, silences, problems, NOW)
    assert told.time == "2026-01-02T03:04:05Z"
    east, home, west = told.clusters
    assert (east.state, east.since, east.problem, east.cards) == ("silent", SINCE, "no answer in time", None)
    assert (home.own, home.version, home.problem) == (True, "v1.36.3", "no scheduler of Shoal there tells its room")
    assert (west.nodes, west.cards, west.free, west.queue, west.problem) == (3, 6, 3, 2, "")
    assert [one.model for one in west.models] == ["A30", "L4"]
    assert told.problems == {"Secret a/odd": "it holds no kubeconfig"}


def test_it_stays_within_its_bounds() -> None:
    hostile = '"\\\n\x1b<b>é' * 200
    models = [RoomOfModel(f"{number}{hostile}"[:300], 2**31, 2**31, 2**31, 2**31) for number in range(1000)]
    states = {
        f"c{number}{'x' * 240}": MemberState(
            f"c{number}{'x' * 240}", hostile, "u" * 64, health=Health.ANSWERS, why=hostile, version="v" * 64
        )
        for number in range(MAX_CLUSTERS + 50)
    }
    problems = {f"{number}{hostile}": hostile for number in range(1000)}
    told = told_clusters(states, {name: room(*models) for name in states}, SilenceRecord({}), problems, NOW)
    written = clusters.encode(told, what="it", limit=clusters.MAX_TOLD)
    assert clusters.decode(ToldClusters, written, what="it", limit=clusters.MAX_TOLD).clusters[0].models
    assert not any(letter in written for letter in "\n\x1b")
