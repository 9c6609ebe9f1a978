"""Plays the steps of one case against an API server and checks each. `test_api.py` says how a step is written."""

import json
import time
from typing import Any

from tests.suites.api.matching import MISSING, differences, substituted
from tests.suites.connection import Answer, Connection

Step = dict[str, Any]

TYPES = {
    "json": "application/json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json-patch": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
REQUEST = {"do", "body", "raw", "type", "accept", "token", "as"}
EXPECTED = {"eventually", "status", "reason", "message", "object", "text", "header", "keep"}
WATCH = {"watch", "accept", "during", "events", "status"}


class Play:
    """One case being played, and the variables it has kept."""

    def __init__(self, connection: Connection, variables: dict[str, str]) -> None:
        self._connection = connection
        self.variables = dict(variables)

    def step(self, step: Step) -> None:
        """One step, or an AssertionError that says what differs."""
        unknown = step.keys() - (WATCH if "watch" in step else REQUEST | EXPECTED)
        if unknown:
            raise ValueError(f"a step knows no {sorted(unknown)}: {step}")
        if step.keys().isdisjoint({"status", "events"}):
            raise ValueError(f"a step without a status or events checks nothing: {step}")
        if "watch" in step:
            self._watch(step)
        elif step.get("eventually"):
            self._repeat(step)
        else:
            self._check(step, self.answer(step))

    def answer(self, step: Step) -> Answer:
        """What the server says to a step's request."""
        told = substituted({key: value for key, value in step.items() if key in REQUEST}, self.variables)
        method, path = told["do"].split(" ", 1)
        body = told["raw"].encode() if "raw" in told else json.dumps(told["body"]).encode() if "body" in told else None
        headers = {"Accept": _accept(told)}
        if "as" in told:
            headers["Impersonate-User"] = told["as"]
        if body is not None:
            headers["Content-Type"] = TYPES.get(told.get("type", "json"), told.get("type", "json"))
        return self._connection.request(method, path, body, headers, token=told.get("token"))

    def _repeat(self, step: Step) -> None:
        end = time.monotonic() + self._connection.deadline
        while True:
            try:
                return self._check(step, self.answer(step))
            except AssertionError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def _check(self, step: Step, answer: Answer) -> None:
        found: dict[str, Any] = {"status": answer.status}
        if isinstance(answer.body, dict):
            found |= {key: answer.body.get(key, MISSING) for key in ("reason", "message")}
        found |= {"object": answer.body, "text": answer.body, "header": answer.headers}
        expected = {key: step[key] for key in step.keys() & EXPECTED - {"keep", "eventually"}}
        wrong = [
            line
            for key, value in substituted(expected, self.variables).items()
            for line in differences(value, found.get(key, MISSING), key)
        ]
        # What is kept is kept of a wrong answer too: the steps after a known difference still tell something.
        for name, path in step.get("keep", {}).items():
            value = _at(answer.body, path)
            wrong += [f"{path}: is absent, to be kept"] if value is MISSING else []
            self.variables[name] = str(value)
        asked = substituted(step["do"], self.variables)
        assert not wrong, "\n  ".join([asked, *wrong, f"answer: {answer.body!r:.1500}"])

    def _watch(self, step: Step) -> None:
        told = substituted(step["watch"], self.variables)
        expected = step.get("events", [])
        seen: list[Any] = []
        with self._connection.watch(told, {"Accept": _accept(step)}) as (status, events):
            assert status == step.get("status", 200), f"GET {told}: {status} {list(events)}"
            for inner in step.get("during", ()):
                self.step(inner)
            for event in expected:
                seen.append(_next(events, told, event, seen))
        wanted = [{"type": kind, "object": object_} for event in expected for kind, object_ in event.items()]
        wrong = list(differences(substituted(wanted, self.variables), seen, "events"))
        assert not wrong, "\n  ".join([f"GET {told}", *wrong, f"events: {seen!r:.1500}"])


def _next(events: Any, path: str, expected: Any, seen: list[Any]) -> Any:
    try:
        return next(events)
    except (TimeoutError, StopIteration) as error:
        raise AssertionError(f"GET {path}: no {expected!r} ({error!r}) after {seen!r:.1500}") from error


def _accept(step: Step) -> str:
    accept = step.get("accept", "application/json")
    return TABLE if accept == "table" else str(accept)


def _at(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name, MISSING) if isinstance(body, dict) else MISSING
    return body
