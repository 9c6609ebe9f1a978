"""What kubelet writes into the status of pods, and which events it tells."""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cases import read_cases
from tests.kubelet.pods import FOREVER, Pods, container, container_status, is_ready, pod
from tests.testbed.node import Node
from tests.testbed.waiting import wait_for

CASES = read_cases(Path(__file__).parent / "cases" / "statuses.yaml")
#: kubelet has no cluster DNS in the test bed, and says so of each pod; how often it tries again is a matter of time.
IGNORED = ("MissingClusterDNS",)


def manifest(case: dict) -> dict:
    scripts = {"forever": FOREVER, "sidecar": FOREVER}
    env = [{"name": name, "valueFrom": source} for name, source in case.get("env", {}).items()]
    init = [container(name, scripts.get(script, script)) for name, script in case.get("init", {}).items()]
    for one in init:
        if case["init"][one["name"]] == "sidecar":
            one["restartPolicy"] = "Always"
    made = pod(
        re.sub(r"\W+", "-", case["name"]),
        [container(name, scripts.get(script, script), env=env) for name, script in case["containers"].items()],
        init,
        case.get("restart", "Never"),
    )
    if "deadline" in case:
        made["spec"]["activeDeadlineSeconds"] = case["deadline"]
    if "requests" in case:
        made["spec"]["containers"][0]["resources"] = {"requests": case["requests"]}
    return made


def reached(until: dict) -> Callable[[dict], bool]:
    def check(found: dict) -> bool:
        states = {
            kind: kind not in until or key in container_status(found, until[kind]).get("state", {})
            for kind, key in (("ended", "terminated"), ("running", "running"))
        }
        waiting = [
            one["state"].get("waiting", {}).get("reason") for one in found["status"].get("containerStatuses", ())
        ]
        states["waiting"] = "waiting" not in until or until["waiting"] in waiting
        right = found["status"].get("phase") == until["phase"]
        return right and all(states.values()) and (not until.get("ready") or is_ready(found))

    return check


def condensed(status: dict) -> dict:
    """A container's status in the words of the table."""
    ((state, details),) = status["state"].items()
    found = {"state": state, **{key: details[key] for key in ("exitCode", "reason", "message") if key in details}}
    found |= {key: status[key] for key in ("ready", "started", "restartCount")}
    last = status["lastState"].get("terminated")
    return {**found, "last": [last["exitCode"], last["reason"]]} if last else found


def held_back(restarts: int) -> str:
    """For how long kubelet holds a container back that ended after so many restarts."""
    return f"{min(10 * 2 ** (restarts - 1), 300)}s" if restarts else ""


@pytest.mark.min_kube("1.36")  # older ones word some events differently
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_status_and_events(kubelet: Node, pods: Pods, case: dict):
    made = manifest(case)
    name = made["metadata"]["name"]
    pods.create(made, kubelet)
    found = pods.wait(name, reached(case["until"]), str(case["until"]))
    status = found["status"]
    every = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    restarts = max((one["restartCount"] for one in every), default=0)
    words = {"NAMESPACE": pods.namespace, "UID": found["metadata"]["uid"], "NAME": name, "HELD": held_back(restarts)}

    def told(text: str) -> str:
        return re.sub("|".join(words), lambda match: words[match[0]], text)

    if "conditions" in case:
        assert {
            one["type"]: [one["status"] == "True", *(one[key] for key in ("reason", "message") if key in one)]
            for one in status.get("conditions", ())
        } == case["conditions"]
    expected = {
        key: {**one, **({"message": told(one["message"])} if "message" in one else {})}
        for key, one in case["statuses"].items()
    }
    for one in expected.values():
        if one["restartCount"] == "RESTARTS":
            assert restarts >= 1
            one["restartCount"] = restarts
    assert {one["name"]: condensed(one) for one in every} == expected
    if "order" in case:
        assert [one["name"] for one in status["containerStatuses"]] == case["order"]
    assert status.get("reason") == case.get("reason")
    if "starts" in case:
        assert status["message"].startswith(case["starts"])
    else:
        assert status.get("message") == case.get("message")
    if "events" in case:
        expected_events = {
            (kind, reason, told(text), f"spec.{path}" if path else "") for kind, reason, text, path in case["events"]
        }
        last = case["events"][-1][1]
        pods.wait_event(name, lambda event: event["reason"] == last, last)
        assert {
            (one["type"], one["reason"], one["message"], one["involvedObject"].get("fieldPath", ""))
            for one in pods.events(name)
            if one["reason"] not in IGNORED
        } == expected_events


def test_a_deleted_pod_that_does_not_listen_is_killed_after_its_grace(kubelet: Node, pods: Pods):
    deaf = pod("deaf", [{**container("main"), "command": ["sleep", "1000"]}])
    pods.create(deaf, kubelet)
    pods.wait_running("deaf")
    path = f"/api/v1/namespaces/{pods.namespace}/pods/deaf"
    told = time.monotonic()
    pods.apiserver.request("DELETE", f"{path}?gracePeriodSeconds=2")
    event = pods.wait_event("deaf", lambda event: event["reason"] == "Killing", "of its end")
    assert (event["type"], event["message"]) == ("Normal", "Stopping container main")
    wait_for(lambda: pods.apiserver.try_request("GET", path)[0] == 404, "rid of the pod")
    assert time.monotonic() - told > 1.9


def test_logs_that_are_not_there(kubelet: Node, pods: Pods):
    def answer(name: str, query: str = "") -> tuple[int, str]:
        path = f"/api/v1/namespaces/{pods.namespace}/pods/{name}/log{query}"
        status, body = pods.apiserver.try_request("GET", path)
        return status, body["message"]

    pods.create(pod("pair", [container("a"), container("b")]), kubelet)
    pods.wait_running("pair")
    assert answer("pair") == (400, "a container name must be specified for pod pair, choose one of: [a b]")
    assert answer("pair", "?container=c") == (400, "container c is not valid for pod pair")
    why = 'previous terminated container "a" in pod "pair" not found'
    assert answer("pair", "?container=a&previous=true") == (400, why)
    pods.create(pod("waits", [container("main")], [container("first", "sleep 1000")]), kubelet)
    pods.wait("waits", lambda found: "running" in container_status(found, "first").get("state", {}), "begun")
    assert answer("waits", "?container=main") == (
        400,
        'container "main" in pod "waits" is waiting to start: PodInitializing',
    )
    pods.create(pod("refused", [{**container("main"), "resources": {"requests": {"cpu": "1000"}}}]), kubelet)
    pods.wait_phase("refused", "Failed")
    assert answer("refused") == (400, 'container "main" in pod "refused" is not available')
    unbound = pod("unbound", [container("main")])
    pods.apiserver.request("POST", f"/api/v1/namespaces/{pods.namespace}/pods", unbound)
    assert answer("unbound") == (204, "")


def _says(pods: Pods, path: str, lines: str) -> bool:
    return bool(pods.apiserver.request("GET", path)["message"].split() == lines.split())


def test_logs_of_runs(kubelet: Node, pods: Pods):
    pods.create(pod("twice", [container("main", "echo one; echo two; echo three; exit 1")], restart="Always"), kubelet)
    pods.wait("twice", reached({"phase": "Running", "waiting": "CrashLoopBackOff"}), "held back")
    path = f"/api/v1/namespaces/{pods.namespace}/pods/twice/log"
    for query, lines in {
        "": "one two three",
        "?tailLines=2": "two three",
        "?tailLines=0": "",
        "?previous=true": "one two three",
        "?limitBytes=5": "one t",
        "?sinceSeconds=3600": "one two three",
    }.items():
        # Meanwhile kubelet starts it again, and removes the container before the last.
        wait_for(partial(_says, pods, f"{path}{query}", lines), f"told {query}")
    stamped = pods.apiserver.request("GET", f"{path}?timestamps=true&tailLines=1")["message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z three\n", stamped)
    status, refusal = pods.apiserver.try_request("GET", f"{path}?tailLines=-1&sinceSeconds=0")
    assert (status, refusal["reason"]) == (422, "Invalid")
