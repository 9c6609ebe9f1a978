"""What home shows of a copy: a table of statuses."""

import datetime
from typing import Any

import msgspec
import pytest

from shoal.clusters.mirror import final_patch, read_status, silent_patch, status_patch, unschedulable, waiting_patch

NOW = datetime.datetime(2026, 11, 17, 12, 0, 0, tzinfo=datetime.UTC)
NOW_TEXT = "2026-11-17T12:00:00Z"
OLD = "2026-11-17T11:00:00Z"
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastTransitionTime": OLD}
READY = {"type": "Ready", "status": "True", "lastTransitionTime": OLD}
MAIN = {
    "name": "main",
    "state": {"running": {"startedAt": OLD}},
    "lastState": {},
    "ready": True,
    "restartCount": 0,
    "image": "i",
    "imageID": "sha",
    "containerID": "containerd://1",
    "started": True,
}


def raw(status: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(status))


def patch(home: dict[str, Any], copy: dict[str, Any], node: str = "n1") -> dict[str, Any] | None:
    return status_patch(
        read_status(raw(home)), read_status(raw(copy)), cluster="east", node=node, logs="shoal logs one", now=NOW
    )


def merged(home: dict[str, Any], change: dict[str, Any] | None) -> dict[str, Any]:
    """Home's status after a strategic merge patch."""
    change = change or {}
    conditions = {one["type"]: one for one in home.get("conditions", ())}
    for one in change.get("conditions", ()):
        kept = {**conditions.get(one["type"], {}), **one}
        conditions[one["type"]] = {key: value for key, value in kept.items() if value is not None}
    rest = {**home, **change, "conditions": list(conditions.values())}
    return {key: value for key, value in rest.items() if value is not None}


def dispatched(message: str, status: str = "True", reason: str = "Dispatched") -> dict[str, Any]:
    return {
        "type": "shoal.dev/Dispatched",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": NOW_TEXT,
    }


WHERE = "on node n1 of cluster east"
SCHEDULED = {
    "type": "PodScheduled",
    "status": "True",
    "reason": "Dispatched",
    "message": WHERE,
    "lastTransitionTime": NOW_TEXT,
}


def test_a_running_copy_is_shown_without_its_addresses() -> None:
    home = {"phase": "Pending", "conditions": [GATED], "qosClass": "Guaranteed"}
    copy = {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": OLD}, READY],
        "containerStatuses": [{**MAIN, "resources": {"limits": {}}, "allocatedResources": {"cpu": "1"}}],
        "startTime": OLD,
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "hostIP": "10.0.0.2",
        "qosClass": "Burstable",
    }
    assert patch(home, copy) == {
        "phase": "Running",
        "startTime": OLD,
        "containerStatuses": [MAIN],
        "conditions": [
            {**READY, "reason": None, "message": None},
            SCHEDULED,
            dispatched(f"{WHERE}; kubectl logs here is empty: use `shoal logs one`"),
        ],
    }
    assert patch(merged(home, patch(home, copy)), copy) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_final_status_stays(phase: str) -> None:
    assert patch({"phase": phase}, {"phase": "Running"}) is None
    assert waiting_patch(read_status(raw({"phase": phase})), "NoCluster", "none", NOW) is None


def test_a_copy_without_a_node_leaves_the_pod_gated() -> None:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    told = patch({"phase": "Pending", "conditions": [GATED]}, {"phase": "Pending", "conditions": [why]}, node="")
    assert told == {"conditions": [dispatched("in cluster east, without a node yet: 0/3 nodes")]}
    assert unschedulable(read_status(raw({"conditions": [why]}))) == "0/3 nodes"
    assert unschedulable(read_status(raw({"conditions": [GATED]}))) == ""


def test_what_is_not_so_any_more_is_taken_away() -> None:
    home = {
        "phase": "Running",
        "reason": "Odd",
        "message": "m",
        "conditions": [SCHEDULED, dispatched("x")],
        "containerStatuses": [MAIN],
    }
    told = patch(home, {"phase": "Pending"})
    assert told is not None
    assert {key: told[key] for key in told if key != "conditions"} == {
        "phase": "Pending",
        "reason": None,
        "message": None,
        "containerStatuses": None,
    }


@pytest.mark.parametrize(
    "written",
    [
        b"[]",
        b"{",
        b'{"phase": 7}',
        b'{"conditions": "x"}',
        b'{"containerStatuses": [{"ready": true}]}',
        msgspec.json.encode({"containerStatuses": [MAIN] * 101}),
        msgspec.json.encode({"conditions": [READY] * 65}),
        msgspec.json.encode({"message": "x" * 40_000}),
    ],
)
def test_what_cannot_be_read_is_an_empty_status(written: bytes) -> None:
    assert read_status(msgspec.Raw(written)).phase == "Pending"


def test_a_phase_that_nobody_knows_is_unknown() -> None:
    told = patch({"phase": "Pending"}, {"phase": "Sleeping"})
    assert told is not None
    assert told["phase"] == "Unknown"


def test_a_long_message_is_cut() -> None:
    told = waiting_patch(read_status(raw({})), "NoCluster", "x" * 5000, NOW)
    assert told is not None
    assert len(told["conditions"][0]["message"]) == 1024


def test_why_a_pod_waits_is_written_once() -> None:
    home = {"phase": "Pending", "conditions": [GATED]}
    told = waiting_patch(read_status(raw(home)), "NoCluster", "none is joined", NOW)
    assert told == {"conditions": [dispatched("none is joined", "False", "NoCluster")]}
    later = NOW + datetime.timedelta(hours=1)
    after = merged(home, told)
    assert waiting_patch(read_status(raw(after)), "NoCluster", "none is joined", later) is None
    other = waiting_patch(read_status(raw(after)), "NoCluster", "none fits", later)
    assert other == {"conditions": [dispatched("none fits", "False", "NoCluster")]}


def final(home: dict[str, Any], copy: dict[str, Any] | None) -> dict[str, Any]:
    there = None if copy is None else read_status(raw(copy))
    return final_patch(read_status(raw(home)), there, cluster="east", node="n1", logs="shoal logs one", now=NOW)


def test_a_copy_that_ended_ends_the_pod() -> None:
    ended = {**MAIN, "ready": False, "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    told = final({"phase": "Running"}, {"phase": "Failed", "reason": "Evicted", "containerStatuses": [ended]})
    assert (told["phase"], told["reason"]) == ("Failed", "Evicted")
    assert told["containerStatuses"][0]["state"] == {"terminated": {"exitCode": 3, "signal": 0, "reason": "Error"}}


def test_a_copy_that_vanished_leaves_no_word_of_a_node() -> None:
    told = final_patch(read_status(raw({"phase": "Running"})), None, cluster="east", node="", logs="l", now=NOW)
    (where,) = [one for one in told["conditions"] if one["type"] == "shoal.dev/Dispatched"]
    assert where["message"] == "its copy in cluster east was deleted"


@pytest.mark.parametrize("copy", [None, {"phase": "Running", "conditions": [READY]}])
def test_a_copy_that_was_deleted_fails_the_pod_as_disrupted(copy: dict[str, Any] | None) -> None:
    told = final({"phase": "Running", "conditions": [READY]}, copy)
    assert (told["phase"], told["reason"]) == ("Failed", "CopyDeleted")
    conditions = {one["type"]: one for one in told["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert conditions["DisruptionTarget"]["status"] == "True"


def test_a_pod_of_a_lost_cluster_fails_as_disrupted() -> None:
    home = read_status(raw({"phase": "Running", "conditions": [READY], "containerStatuses": [MAIN]}))
    told = final_patch(home, None, cluster="east", node="", logs="l", now=NOW, lost=True)
    assert (told["phase"], told["reason"]) == ("Failed", "ClusterLost")
    conditions = {one["type"]: one for one in told["conditions"]}
    assert conditions["DisruptionTarget"]["reason"] == "ClusterLost"
    assert conditions["Ready"]["status"] == "False"


def test_that_a_cluster_is_silent_is_said_once_and_taken_back() -> None:
    home: dict[str, Any] = {"phase": "Running", "conditions": [dispatched(WHERE)]}
    told = merged(home, silent_patch(read_status(raw(home)), "it is waited for", NOW))
    assert told["conditions"] == [dispatched("it is waited for", "Unknown", "ClusterNotAnswering")]
    assert silent_patch(read_status(raw(told)), "it is waited for", NOW) is None
    back = merged(told, patch(told, {"phase": "Running"}))
    assert next(one for one in back["conditions"] if one["type"] == "shoal.dev/Dispatched")["status"] == "True"
    assert silent_patch(read_status(raw({"phase": "Failed"})), "it is waited for", NOW) is None


def test_what_kubelet_finds_missing_there_is_shown_here() -> None:
    """A cluster that was not asked what it has is told by its kubelet."""
    waiting = {"reason": "CreateContainerConfigError", "message": 'configmap "settings" not found'}
    stuck = {**MAIN, "state": {"waiting": waiting}, "ready": False, "started": False}
    shown = merged({}, patch({}, {"phase": "Pending", "containerStatuses": [stuck]}))
    assert shown["containerStatuses"][0]["state"]["waiting"] == waiting


@pytest.mark.parametrize(
    "status",
    [
        {"startTime": "yesterday"},
        {"startTime": "2026-11-17T25:00:00Z"},
        {"containerStatuses": [{**MAIN, "restartCount": 2**31}]},
        {"containerStatuses": [{**MAIN, "state": {"terminated": {"exitCode": 2**40}}}]},
        {"containerStatuses": [{**MAIN, "state": {"terminated": {"exitCode": 0, "finishedAt": ""}}}]},
        {"conditions": [{**READY, "lastTransitionTime": "2026-13-01T00:00:00Z"}]},
        {"containerStatuses": [{**MAIN, "name": "x" * 600}]},
    ],
)
def test_a_status_that_an_api_server_would_refuse_ends_the_pod_all_the_same(status: dict[str, Any]) -> None:
    """A member's API server may be anything: what this one refuses must not keep a pod from ending here."""
    copy = {"phase": "Failed", **status}
    final = final_patch(
        read_status(raw({"phase": "Running"})), read_status(raw(copy)), cluster="east", node="n1", logs="", now=NOW
    )
    assert final["phase"] == "Failed"
    assert set(final) <= {"phase", "reason", "message", "conditions"}


def test_words_of_a_member_are_one_line_for_a_terminal() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no\x1b]0;x\x07\nroom"}
    assert unschedulable(read_status(raw({"conditions": [said]}))) == "no ]0;x  room"
