"""Plays the steps of one scenario. `test_scenarios.py` says how a step is written."""

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tests.suites.api.matching import differences, substituted
from tests.suites.api.play import Play
from tests.suites.connection import Connection
from tests.suites.workloads.nodes import Nodes
from tests.suites.workloads.snapshot import Object, snapshot

#: Seconds to wait for what must come. Generous: it only ends what would hang.
PATIENCE = 180.0
STEPS = {"apply", "do", "bind", "until", "node", "each", "expect"}
#: Where an object of a kind is made.
COLLECTIONS = {
    "Deployment": "/apis/apps/v1/namespaces/{ns}/deployments",
    "ReplicaSet": "/apis/apps/v1/namespaces/{ns}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{ns}/statefulsets",
    "DaemonSet": "/apis/apps/v1/namespaces/{ns}/daemonsets",
    "Job": "/apis/batch/v1/namespaces/{ns}/jobs",
    "Pod": "/api/v1/namespaces/{ns}/pods",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaimtemplates",
}


class Scenario:
    """One scenario being played in a namespace."""

    def __init__(
        self, kubeconfig: Path, namespace: str, expected: dict[str, Object], *, record: bool, real: bool
    ) -> None:
        self._connection = Connection(kubeconfig)
        self._nodes = Nodes(kubeconfig)
        self._namespace = namespace
        self._play = Play(self._connection, {"ns": namespace})
        self._expected = expected
        self._record = record
        self._real = real
        self._binds: bool | list[str] = True
        self._made: list[str] = []

    def step(self, step: Object) -> None:
        """One step, or an AssertionError that says what differs."""
        kinds = step.keys() & STEPS - ({"do"} if "each" in step else set())
        if len(kinds) != 1:
            raise ValueError(f"a step is one of {sorted(STEPS)}: {step}")
        told = substituted(step, {"ns": self._namespace})
        getattr(self, f"_{next(iter(kinds))}")(told)

    def close(self) -> None:
        """Remove the nodes of the scenario."""
        for name in self._made:
            self._nodes.remove(name)

    def _apply(self, step: Object) -> None:
        path = substituted(COLLECTIONS[step["apply"]["kind"]], {"ns": self._namespace})
        self._play.step({"do": f"POST {path}", "body": step["apply"], "status": 201})

    def _do(self, step: Object) -> None:
        self._play.step({"status": 200, **step})

    def _bind(self, step: Object) -> None:
        """From now on bind all pods, none, or those that these say by name."""
        self._binds = step["bind"]

    def _node(self, step: Object) -> None:
        """Make a node, or change or remove one that was made so."""
        name = step["node"]
        if step.get("remove"):
            self._nodes.remove(name)
            self._made.remove(name)
        elif name not in self._made:
            self._nodes.add(name, step.get("labels"))
            self._made.append(name)
        if "taints" in step:
            self._nodes.taint(name, step["taints"])
        elif name in self._made and "labels" in step:
            self._nodes.label(name, step["labels"])

    def _each(self, step: Object) -> None:
        """A request about each pod, or each object of another kind, with these labels, or about the first few."""
        kind = step.get("of", "Pod")
        found = sorted(self._objects(kind, step["each"]), key=lambda one: str(one["metadata"]["name"]))
        assert found, f"no {kind} is {step['each']}"
        for one in found[: step.get("first", len(found))]:
            action = {key: value for key, value in step.items() if key not in ("each", "first", "of")}
            name = {"pod" if kind == "Pod" else "name": one["metadata"]["name"]}
            self._play.step({"status": 200, **substituted(action, name)})

    def _until(self, step: Object) -> None:
        """Wait until an object is like this."""

        def wrong() -> str:
            answer = self._connection.request("GET", step["until"])
            return "; ".join(differences(step["is"], answer.body, "object")) or ""

        self._wait(wrong, step["until"])

    def _expect(self, step: Object) -> None:
        """Wait until the namespace is as it was on the real cluster when this was recorded."""
        name = step["expect"]
        if self._record:
            self._expected[name] = self._stable(step.get("settle", 4.0))
            return
        unsure = step.get("unsure", [])
        expected = _without_reasons(self._expected[name], unsure)

        def wrong() -> str:
            seen = _without_reasons(snapshot(self._connection, self._namespace), unsure)
            if self._real and "events" in seen:
                seen["events"] = _deletions_once(seen["events"], expected.get("events", []))
            return "" if seen == expected else _difference(expected, seen)

        self._wait(wrong, name)

    def _wait(self, wrong: Callable[[], str], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while found := wrong():
            assert time.monotonic() < end, f"{what}:\n{found}"
            self._bind_pods()
            time.sleep(0.1)

    def _stable(self, seconds: float) -> Object:
        """The namespace once it has not changed for a while."""
        last, since = snapshot(self._connection, self._namespace), time.monotonic()
        while time.monotonic() - since < seconds:
            self._bind_pods()
            time.sleep(0.1)
            seen = snapshot(self._connection, self._namespace)
            if seen != last:
                last, since = seen, time.monotonic()
        return last

    def _bind_pods(self) -> None:
        for pod in self._objects("Pod", ""):
            name = pod["metadata"]["name"]
            wanted = self._binds if isinstance(self._binds, bool) else name in self._binds
            waits = not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
            if wanted and waits and pod["status"]["phase"] == "Pending":
                self._nodes.bind(self._namespace, pod)

    def _objects(self, kind: str, labels: str) -> list[Object]:
        path = substituted(COLLECTIONS[kind], {"ns": self._namespace})
        items: list[Object] = self._connection.request("GET", f"{path}?labelSelector={labels}").body["items"]
        return items


def _without_reasons(value: Any, unsure: Collection[str]) -> Any:
    """A snapshot in which conditions of these types have neither reason nor message."""
    if isinstance(value, list):
        return [_without_reasons(one, unsure) for one in value]
    if not isinstance(value, dict):
        return value
    left_out = {"reason", "message"} if value.get("type") in unsure else set()
    return {key: _without_reasons(one, unsure) for key, one in value.items() if key not in left_out}


def _deletions_once(seen: list[str], expected: Collection[str]) -> list[str]:
    """Events as they are expected where a StatefulSet tells a deletion more often.

    The real controller deletes a pod again, and tells it again, while its watch does not show that the pod is ending.
    """
    counts = dict(map(_counted, expected))
    lines = []
    for event in seen:
        line, count = _counted(event)
        if line.startswith("StatefulSet ") and " SuccessfulDelete: " in line and line in counts:
            count = min(count, counts[line])
        lines.append(f"{line} (x{count})")
    return lines


def _counted(event: str) -> tuple[str, int]:
    """An event's words, and how often it was told."""
    line, _, count = event.removesuffix(")").rpartition(" (x")
    return line, int(count)


def _difference(expected: Any, seen: Any, where: str = "") -> str:
    """Where two snapshots differ, one line each."""
    if isinstance(expected, dict) and isinstance(seen, dict):
        keys = [*expected, *(key for key in seen if key not in expected)]
        return "".join(_difference(expected.get(key), seen.get(key), f"{where}.{key}") for key in keys)
    if isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        pairs = zip(expected, seen, strict=True)
        return "".join(_difference(one, other, f"{where}[{number}]") for number, (one, other) in enumerate(pairs))
    if expected == seen:
        return ""
    return f"{where}:\n  expected {json.dumps(expected)}\n  seen     {json.dumps(seen)}\n"
