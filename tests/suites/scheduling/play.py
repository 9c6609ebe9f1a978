"""Plays the steps of one scenario. `test_scenarios.py` says how a step is written."""

import uuid
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.suites.api.matching import Marker, differences, substituted
from tests.suites.scheduling import expected, shorthand
from tests.suites.scheduling.cluster import COLLECTIONS, Cluster
from tests.suites.scheduling.shorthand import Object
from tests.suites.scheduling.ways import Way

EXAMPLES = Path(__file__).parents[3] / "examples"
GIB = 1024


class Play:
    """One scenario being played on one way. Node `a` of a scenario has a name of its own, which `{a}` stands for."""

    def __init__(self, way: Way, scenario: Object) -> None:
        self._way = way
        self._mib = scenario.get("unit") == "MiB"
        self._id = uuid.uuid4().hex[:6]
        self._cluster = Cluster(way.api, f"sched-{self._id}")
        self._variables = {"ns": self._cluster.namespace, "id": self._id}
        self._nodes: dict[str, Object] = {}
        #: The cards each node has had, in MiB by UUID.
        self._sizes: dict[str, dict[str, int]] = {}
        way.run_with(scenario.get("options", ()), fresh=scenario.get("fresh", False))
        self._heard = way.scheduler.log_size()
        self._node({"node": scenario.get("nodes", {})})

    def step(self, step: Object) -> None:
        """One step, or an AssertionError that says what differs."""
        (kind, *more) = step
        if more:
            raise ValueError(f"a step has one key: {sorted(step)}")
        getattr(self, f"_{kind}")(step)

    def close(self) -> None:
        """Leave nothing."""
        self._cluster.close()

    # Steps

    def _node(self, step: Object) -> None:
        """Make nodes, or make those that exist like this."""
        for short, told in step["node"].items():
            name = self._variables.setdefault(short, f"{short}-{self._id}")
            made = shorthand.node(name, substituted(told or {}, self._variables), mib=self._mib)
            if short not in self._nodes:
                self._cluster.create({"kind": "Node", **made})
                # Every new node is tainted until a controller has seen it.
                self._cluster.patch(
                    f"{COLLECTIONS['Node']}/{name}", {"spec": {"taints": made["spec"]["taints"] or None}}
                )
            else:
                self._change_node(name, self._nodes[short], made)
            self._nodes[short] = made
            cards = (*shorthand.cards(name, (told or {}).get("gpus", 0)), *shorthand.counted(name, told or {}))
            self._sizes.setdefault(name, {}).update({card.uuid: card.memory_mib for card in cards})

    def _change_node(self, name: str, old: Object, new: Object) -> None:
        path = f"{COLLECTIONS['Node']}/{name}"
        meta = {
            part: {**dict.fromkeys(old["metadata"][part]), **new["metadata"][part]}
            for part in ("labels", "annotations")
        }
        spec = {"unschedulable": new["spec"]["unschedulable"] or None, "taints": new["spec"]["taints"] or None}
        amounts = {**dict.fromkeys(old["status"]["capacity"]), **new["status"]["capacity"]}
        self._cluster.patch(path, {"metadata": meta, "spec": spec})
        self._cluster.patch(f"{path}/status", {"status": {"capacity": amounts, "allocatable": amounts}})

    def _remove(self, step: Object) -> None:
        """Delete nodes."""
        for short in step["remove"]:
            del self._nodes[short]
            self._cluster.delete(f"{COLLECTIONS['Node']}/{self._variables[short]}")

    def _pods(self, step: Object) -> None:
        """Make pods, in this order."""
        for name, told in step["pods"].items():
            self._cluster.create(shorthand.pod(name, substituted(told or {}, self._variables)))

    def _apply(self, step: Object) -> None:
        """Make these objects."""
        told = substituted(step["apply"], self._variables)
        for manifest in told if isinstance(told, list) else [told]:
            self._cluster.create(manifest)

    def _file(self, step: Object) -> None:
        """Make what a file of `examples/` holds."""
        for manifest in yaml.safe_load_all((EXAMPLES / step["file"]).read_text()):
            self._cluster.create(manifest)

    def _patch(self, step: Object) -> None:
        """Change the object at this path."""
        told = substituted(step["patch"], self._variables)
        self._cluster.patch(told["path"], told["with"])

    def _delete(self, step: Object) -> None:
        """Delete these pods, or the objects at these paths."""
        for one in substituted(step["delete"], self._variables):
            self._cluster.delete(one if one.startswith("/") else self._cluster.pod_path(one))

    def _finish(self, step: Object) -> None:
        """Have these pods end well."""
        for name in step["finish"]:
            pod = self._cluster.pods()[name]
            path = f"{COLLECTIONS['Pod'].format(pod['metadata']['namespace'])}/{name}/status"
            self._cluster.patch(path, {"status": {"phase": "Succeeded"}})

    def _bind(self, step: Object) -> None:
        """Put pods on nodes as another scheduler does: annotations first, then a bare Binding."""
        for name, told in substituted(step["bind"], self._variables).items():
            path = self._cluster.pod_path(name)
            if told.get("annotations"):
                self._cluster.patch(path, {"metadata": {"annotations": told["annotations"]}})
            target = {"apiVersion": "v1", "kind": "Node", "name": self._variables[told["node"]]}
            self._cluster.demand("POST", f"{path}/binding", {"metadata": {"name": name}, "target": target})

    def _restart(self, step: Object) -> None:
        """Kill the scheduler, start it again, and find the same ledger."""
        before = self._way.scheduler.inspect()
        self._way.restart()
        assert self._way.scheduler.inspect() == before

    def _stop(self, step: Object) -> None:
        """Kill the scheduler; `start` starts it again."""
        self._way.scheduler.kill()

    def _start(self, step: Object) -> None:
        self._way.scheduler.start()

    # What must come

    def _expect(self, step: Object) -> None:
        """Wait until pods are where they should be, and look at their annotations."""
        for name, told in self._by_way(step["expect"]).items():
            wanted = self._with_nodes(told)
            self._cluster.wait(partial(self._wrong, name, wanted))
        self._check_annotations()

    def _wrong(self, name: str, wanted: Any) -> str:
        pods = self._cluster.pods()
        if "=" not in name:
            return self._told(name, expected.problem(wanted, pods.get(name), words=self._way.words))
        label, _, count = name.partition("*")
        key, _, value = label.partition("=")
        found = {n: pod for n, pod in pods.items() if pod["metadata"].get("labels", {}).get(key) == value}
        if len(found) != int(count):
            return f"{len(found)} pods are {label}, expected {count}"
        problems = (self._told(n, expected.problem(wanted, pod, words=self._way.words)) for n, pod in found.items())
        return "; ".join(filter(None, problems))

    def _told(self, name: str, problem: str) -> str:
        return f"pod {name} {problem}" if problem else ""

    def _with_nodes(self, told: Any) -> Any:
        """Expectations with the nodes' own names; words keep their braces filled in."""
        if isinstance(told, dict):
            return substituted(told, self._variables)
        if isinstance(told, list):
            return [self._with_nodes(one) for one in told]
        node, slash, cards = told.partition("/")
        return f"{self._variables.get(node, node)}{slash}{cards}"

    def _by_way(self, told: Object) -> Object:
        """What is said for this way alone, in place of or beside what is said for all."""
        common = {key: value for key, value in told.items() if key not in ("standalone", "extender")}
        return {**common, **told.get(self._way.words, {})}

    def _check_annotations(self) -> None:
        for name, pod in self._cluster.pods().items():
            sizes = self._sizes.get(pod["spec"].get("nodeName", ""))
            if sizes:
                wrong = list(expected.disagreements(pod, sizes, 1 if self._mib else GIB))
                assert not wrong, f"pod {name}: {wrong}"

    def _annotations(self, step: Object) -> None:
        """Annotations of pods, matched as in the API suite."""
        pods = self._cluster.pods()
        for name, told in substituted(step["annotations"], self._variables).items():
            wrong = list(differences(told, pods[name]["metadata"].get("annotations", {}), name))
            assert not wrong, wrong

    def _used(self, step: Object) -> None:
        """Wait until the ledger shows so many units in use of each card of a node."""

        def wrong() -> str:
            seen = self._way.scheduler.inspect()
            nodes = {short: _used_units(seen, self._variables[short]) for short in step["used"]}
            right = all(_like(wanted, nodes[short]) for short, wanted in step["used"].items())
            return "" if right else f"in use are {nodes}, expected {step['used']}"

        self._cluster.wait(wrong)

    def _usable(self, step: Object) -> None:
        """Wait until just these cards of a node take new pods."""

        def wrong() -> str:
            seen = {short: self._way.scheduler.usable(self._variables[short]) for short in step["usable"]}
            usable = {short: [index for index, use in sorted(by.items()) if use] for short, by in seen.items()}
            return "" if usable == step["usable"] else f"usable are {usable}, expected {step['usable']}"

        self._cluster.wait(wrong)

    def _counted(self, step: Object) -> None:
        """Wait until the ledger holds these pods of the scenario and no others."""

        def wrong() -> str:
            cards = [card for node in self._way.scheduler.inspect().values() for card in node["devs"]]
            names = {
                pod["name"] for card in cards for pod in card["pods"] if pod["namespace"] == self._cluster.namespace
            }
            return "" if names == set(step["counted"]) else f"counted are {names}, expected {step['counted']}"

        self._cluster.wait(wrong)

    def _says(self, step: Object) -> None:
        """Wait until the scheduler's log says this, after what was waited for before."""

        def wrong() -> str:
            end = self._way.scheduler.said(step["says"], self._heard)
            self._heard = self._heard if end is None else end
            return f"the scheduler did not say {step['says']!r}:\n{self._way.scheduler.log()}" if end is None else ""

        self._cluster.wait(wrong)

    def _event(self, step: Object) -> None:
        """Wait for an event about an object: its kind and name, the reason, words of the message."""
        told = substituted(step["event"], self._variables)
        namespace = told.get("namespace", "default" if told["kind"] == "Node" else self._cluster.namespace)
        about = {"kind": told["kind"], "name": self._variables.get(told["name"], told["name"])}

        def wrong() -> str:
            events = [
                event for event in self._cluster.events(namespace) if about.items() <= event["involvedObject"].items()
            ]
            said = [event["message"] for event in events if event["reason"] == told["reason"]]
            betrayed = [text for text in said if any(word in text for word in told.get("lacks", []))]
            assert not betrayed, betrayed
            if any(told["has"] in text for text in said):
                return ""
            return f"no {told['reason']} with {told['has']!r} among {[(e['reason'], e['message']) for e in events]}"

        self._cluster.wait(wrong)


def _used_units(seen: Object, node: str) -> list[int]:
    return [card["usedGPU"] for card in seen.get(node, {}).get("devs", [])]


def _like(wanted: Any, seen: list[int]) -> bool:
    """`!set [0, 8]`: in any order; `!one_of [[0, 8], [4, 4]]`: any of these."""
    if isinstance(wanted, Marker):
        return sorted(wanted.value) == sorted(seen) if wanted.tag == "!set" else seen in wanted.value
    return bool(wanted == seen)
