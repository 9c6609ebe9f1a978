"""Plays one attack of the table: the pods that are there, the tenant's writes, and what must still hold.

The words of a write may hold `$node` (the node that is aimed at), `$other` (another node), `$card0` and so on (the
UUIDs of its cards by index), `$of_POD` (the first card of a pod that is there), `$beside_POD` (the other card of its
node), `$index_POD` and `$index_beside_POD` (their indices), `$node_POD` (its node), `$record_POD` (its record),
`$bloat` (a record as long as they may be). A value of an annotation that is a mapping is written as JSON.

A pod with `claim` has a ResourceClaim of its own name: `count` GPUs, whole or with `memory` and `compute` of each. The
tenant writes its status by `allocate` (`devices`, each a `card`, whole or with `amounts`) and `deallocate`.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shoal.model.contract import dra
from tests.attacks import truth
from tests.attacks.arena import JSON, MERGE, Arena, Object, Tenant
from tests.suites.connection import Answer

RECORD = "shoal.dev/allocation"
RESOURCES = {"mem": truth.MEMORY, "gpu": truth.WHOLE, "mps": truth.CLIENTS, "core": "aliyun.com/gpu-core.percentage"}
#: It only ends what would wait for ever.
PATIENCE = 300.0
_WORD = re.compile(r"\$(node_|of_|beside_|index_beside_|index_|record_)?([a-z]+[0-9]*)")
_WORKLOADS = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "Deployment": "apps/v1", "Job": "batch/v1"}


class Play:
    """One attack by one tenant, beside a neighbour who does nothing wrong."""

    def __init__(self, arena: Arena, tenant: Tenant, neighbour: Tenant) -> None:
        self.arena = arena
        self.tenant = tenant
        self.neighbour = neighbour
        #: What the pods that were created may have, by UID and container.
        self.allowed: dict[str, dict[str, truth.Asked]] = {}
        self._whose: dict[str, Tenant] = {}
        self._cards = self._read_cards()

    # What is there

    def _read_cards(self) -> dict[str, list[str]]:
        found = {}
        for name in self.arena.nodes:
            node = self.arena.api.request("GET", f"/api/v1/nodes/{name}").body
            listed = json.loads(node["metadata"]["annotations"]["shoal.dev/gpus"])["gpus"]
            found[name] = [gpu["uuid"] for gpu in sorted(listed, key=lambda gpu: gpu["index"])]
        return found

    def cards(self, node: str) -> list[str]:
        """The UUIDs of a node's cards, by index."""
        return self._cards[node]

    def allocatable(self, node: str = "") -> dict[str, str]:
        """What a node has to give."""
        status = self.arena.api.request("GET", f"/api/v1/nodes/{node or self.arena.here}").body["status"]
        return dict(status["allocatable"])

    def pod(self, name: str) -> Object:
        """A pod of either, by its name alone."""
        found = self._whose.get(name, self.tenant).pod(name)
        assert found is not None, f"there is no pod {name}"
        return found

    def runs(self, name: str) -> bool:
        """Whether a pod runs, by its status and by its node."""
        found = self._whose.get(name, self.tenant).pod(name)
        return found is not None and any(
            one["type"] == "Ready" and one["status"] == "True" for one in found["status"].get("conditions", ())
        )

    def wait(self, ready: Callable[[], bool], what: str, why: Callable[[], object] = lambda: "") -> None:
        """Wait for something that must come."""
        end = time.monotonic() + PATIENCE
        while not ready():
            self.look()
            assert time.monotonic() < end, f"not {what} after {PATIENCE:.0f} s: {why()}"
            time.sleep(0.02)

    def wait_or(self, ready: Callable[[], bool], seconds: float) -> None:
        """Give something its time; it need not come."""
        end = time.monotonic() + seconds
        while not ready() and time.monotonic() < end:
            time.sleep(0.01)

    def story(self, name: str) -> str:
        """What is known of a pod, for a message."""
        whose = self._whose.get(name, self.tenant)
        found = whose.pod(name)
        status = "gone" if found is None else json.dumps(found["status"])
        words = [f"{event.get('reason')}: {event.get('message')}" for event in whose.events(name)]
        return "\n".join([status, *words])

    # Words of the table

    def filled(self, value: Any) -> Any:
        """A value of the table with what its words stand for."""
        if isinstance(value, dict):
            return {key: self.filled(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.filled(one) for one in value]
        if isinstance(value, str):
            if value.startswith("$index_") and _WORD.fullmatch(value):
                return int(_WORD.sub(lambda match: self._word(match[1] or "", match[2]), value))
            return _WORD.sub(lambda match: self._word(match[1] or "", match[2]), value)
        return value

    def _word(self, kind: str, name: str) -> str:
        if kind == "record_":
            return str(self.pod(name)["metadata"]["annotations"][RECORD])
        if kind == "node_":
            return str(self.pod(name)["spec"]["nodeName"])
        if kind:
            record = json.loads(self.pod(name)["metadata"]["annotations"][RECORD])
            cards = self._cards[record["node"]]
            own = cards.index(record["containers"][0]["cards"][0]["uuid"])
            place = 1 - own if "beside" in kind else own
            return str(place) if kind.startswith("index") else cards[place]
        if name == "bloat":
            return bloated(self.arena.here)
        if name == "node":
            return self.arena.here
        if name == "other":
            return next((one for one in self.arena.nodes if one != self.arena.here), "elsewhere")
        assert name.startswith("card"), f"${name} stands for nothing"
        return self._cards[self.arena.here][int(name.removeprefix("card"))]

    def manifest(self, short: Object) -> Object:
        """A pod of the table's short form."""
        short = self.filled(short)
        containers = short.get("containers") or [{"name": "main", **{k: short[k] for k in RESOURCES if k in short}}]
        stubborn = "stop=never" in short.get("annotations", {}).get("shoal.dev/simulate", "")
        spec = {
            "containers": [self._container(one, stubborn) for one in containers],
            "terminationGracePeriodSeconds": 1,
            **short.get("spec", {}),
        }
        if "claim" in short:
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": short["name"]}]
            spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        if "init" in short:
            spec["initContainers"] = [self._container(one, stubborn=False) for one in short["init"]]
        if "node" in short:
            spec["nodeName"] = short["node"]
        elif "at" in short:
            spec["nodeSelector"] = {"kubernetes.io/hostname": short["at"]}
        metadata = {key: short[key] for key in ("labels", "finalizers") if key in short}
        annotations = texts(short.get("annotations", {}))
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": short["name"], "annotations": annotations, **metadata},
            "spec": spec,
        }

    def _container(self, short: Object, stubborn: bool) -> Object:
        limits = {RESOURCES[key]: str(short[key]) for key in RESOURCES if key in short}
        more = {key: short[key] for key in short if key not in {*RESOURCES, "name"}}
        made = self.arena.container(short["name"], stubborn=stubborn)
        return {**made, "resources": {"limits": limits}, **more}

    # Acts

    def create(self, short: Object, whose: Tenant) -> Answer:
        """Create a pod, and know what it may have."""
        manifest = self.manifest(short)
        if "claim" in short:
            made = whose.send("POST", whose.claims, claim_of(short["name"], **short["claim"]))
            assert made.status == 201, made
        answer = whose.send("POST", "pods", manifest)
        if answer.status == 201:
            self.know(answer.body, whose)
        return answer

    def know(self, pod: Object, whose: Tenant) -> None:
        """A pod has come: what it asks for now is what it may have."""
        self._whose[pod["metadata"]["name"]] = whose
        if pod["metadata"]["uid"] not in self.allowed:
            named = [one["resourceClaimName"] for one in pod["spec"].get("resourceClaims", ())]
            claim = whose.send("GET", f"{whose.claims}/{named[0]}").body if named else None
            self.allowed[pod["metadata"]["uid"]] = truth.asked(pod, claim)

    def place(self, short: Object, *, bound: bool = False) -> None:
        """A pod that somebody created in all honesty runs; or is `bound`, which comes first."""
        short = dict(short)
        whose = self.neighbour if short.pop("of", "tenant") == "neighbour" else self.tenant
        answer = self.create(short, whose)
        assert answer.status == 201, answer
        ready = partial(self._is_bound if bound else self.runs, short["name"])
        self.wait(ready, f"running: {short}", lambda: self.story(short["name"]))

    def _is_bound(self, name: str) -> bool:
        return RECORD in self.pod(name)["metadata"].get("annotations", {})

    def write(self, write: Object) -> list[Answer]:
        """A write of the tenant; as many answers as requests."""
        write = dict(write)
        write.pop("passes", None)
        times = write.pop("times", 0)
        if times:
            (what, short), *_ = write.items()
            assert what == "create"
            return [self.create({**short, "name": f"{short['name']}-{n}"}, self.tenant) for n in range(times)]
        (act, subject), *more = write.items()
        return [self._acts()[act](subject, **dict(more))]

    def _acts(self) -> Mapping[str, Callable[..., Answer]]:
        return {
            "create": lambda short: self.create(short, self.tenant),
            "patch": lambda name, **body: self._patch(f"pods/{name}", body),
            "patch-status": lambda name, **body: self._patch(f"pods/{name}/status", body),
            "resize": lambda name, **body: self._patch(f"pods/{name}/resize", body),
            "ephemeral": lambda name, **body: self._patch(f"pods/{name}/ephemeralcontainers", body),
            "bind": lambda name, **body: self.tenant.send("POST", f"pods/{name}/binding", self._binding(name, body)),
            "binding": lambda name, **body: self.tenant.send("POST", "bindings", self._binding(name, body)),
            "delete": lambda name, **options: self._delete(name, options),
            "apply": self._apply,
            "allocate": lambda name, **body: self._allocate(name, **body),
            "deallocate": lambda name: self._claim_status(name, {"allocation": None, "reservedFor": None}),
        }

    def _allocate(self, name: str, devices: list[Object], node: str = "$node") -> Answer:
        """Allocate devices to the claim of a pod, and reserve it for the pod."""
        node = self.filled(node)
        allocation = allocation_of(node, [self.filled(one) for one in devices])
        uid = self.pod(name)["metadata"]["uid"]
        return self._claim_status(
            name, {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": name, "uid": uid}]}
        )

    def _claim_status(self, name: str, status: Object) -> Answer:
        return self.tenant.send("PATCH", f"{self.tenant.claims}/{name}/status", {"status": status}, MERGE)

    def _patch(self, path: str, body: Object) -> Answer:
        body = self.filled(body)
        if "annotations" in body:
            body["metadata"] = {"annotations": texts(body.pop("annotations"))}
        if "labels" in body:
            body.setdefault("metadata", {})["labels"] = body.pop("labels")
        return self.tenant.send("PATCH", path, body, MERGE)

    def _binding(self, name: str, body: Object) -> Object:
        body = self.filled(body)
        metadata = {"name": name, "annotations": texts(body.get("annotations", {})), "labels": body.get("labels", {})}
        target = {"kind": "Node", "name": body.get("node", self.arena.here)}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}

    def _delete(self, name: str, options: Object) -> Answer:
        grace = "?gracePeriodSeconds=0" if options.get("force") else ""
        return self.tenant.send("DELETE", f"pods/{name}{grace}")

    def _apply(self, workload: Object) -> Answer:
        """A workload whose pods the controllers make; `kind`, `name` and the pod's short form as `template`."""
        kind, name = workload["kind"], workload["name"]
        pod = self.manifest({"name": name, **workload["template"]})
        labels = {"app": name, **pod["metadata"].get("labels", {})}
        template = {"metadata": {**pod["metadata"], "labels": labels}, "spec": pod["spec"]}
        del template["metadata"]["name"]
        spec: Object = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
        if kind == "StatefulSet":
            spec["serviceName"] = name
        if kind == "Job":
            spec = {"template": {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}}
        version = _WORKLOADS[kind]
        path = f"/apis/{version}/namespaces/{self.tenant.namespace}/{kind.lower()}s"
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.tenant.send("POST", path, body, JSON)

    def never_made(self, workload: Object, words: list[str]) -> None:
        """A controller is refused the pods of a workload, in an event with these words."""
        name = workload["name"]

        def told() -> bool:
            return any(all(word in event["message"] for word in words) for event in self.tenant.events(name))

        self.wait(told, f"refused: the pods of {name}", lambda: self.tenant.events(name))
        assert not self._pods_of(name)

    def settle(self) -> None:
        """All containers are gone, the nodes have everything to give, and the scheduler knows."""

        def free() -> bool:
            whole = (str(2 * truth.CARD // truth.UNIT), "2")
            given = [self.allocatable(node) for node in self.arena.nodes]
            left = all((one[truth.MEMORY], one[truth.WHOLE]) == whole for one in given)
            return left and not self.arena.given() and not any(self.arena.booked().values())

        self.wait(free, "as before", lambda: (self.arena.given(), self.allocatable(), self.arena.booked()))

    # What must hold

    def hold(self, step: Object) -> None:
        """One step of what must still hold."""
        ((what, value),) = step.items()
        getattr(self, f"_{what.replace('-', '_')}")(self.filled(value))

    def _runs(self, short: Object) -> None:
        """A pod of the neighbour's, created now, runs."""
        self.place({"of": "neighbour", **short})

    def _waits(self, short: Object) -> None:
        """A pod of the neighbour's, created now, is told that there is no room for it."""
        answer = self.create(short, self.neighbour)
        assert answer.status == 201, answer
        name = short["name"]

        def told() -> bool:
            assert not self.runs(name), f"{name} runs, and there is no room for it: {self.arena.given()}"
            return any(event["reason"] == "FailedScheduling" for event in self.neighbour.events(name))

        self.wait(told, f"told why {name} waits", lambda: self.story(name))

    def _judged(self, names: list[str]) -> None:
        """These pods of the tenant's run, or it was said why not."""
        for name in names:
            self.wait(partial(self._is_judged, name), f"judged: {name}", partial(self.story, name))

    def _is_judged(self, name: str) -> bool:
        if self.runs(name) or self.pod(name)["status"].get("phase") in ("Failed", "Succeeded"):
            return True
        return any(event.get("reason") == "GpuRefused" for event in self._whose.get(name, self.tenant).events(name))

    def _judged_of(self, owner: str) -> None:
        """A workload has a pod, and that one is judged."""
        self.wait(lambda: bool(self._pods_of(owner)), f"a pod of {owner}")
        for pod in self._pods_of(owner):
            self.know(pod, self.tenant)
            self._judged([pod["metadata"]["name"]])

    def _pods_of(self, owner: str) -> list[Object]:
        return [pod for pod in self.tenant.pods() if pod["metadata"]["name"].startswith(f"{owner}-")]

    def _running(self, name: str) -> None:
        """A pod that was created runs."""
        self.wait(lambda: self.runs(name), f"running: {name}", lambda: self.story(name))

    def _waiting(self, name: str) -> None:
        """A pod that was created is told that there is no room for it."""
        whose = self._whose[name]
        reasons = ("FailedScheduling",)
        self.wait(
            lambda: any(event["reason"] in reasons for event in whose.events(name)),
            f"told why {name} waits",
            lambda: self.story(name),
        )

    def _gone(self, name: str) -> None:
        """Somebody deletes a pod of theirs, and it goes."""
        whose = self._whose[name]
        assert whose.send("DELETE", f"pods/{name}").status == 200
        self.wait(lambda: whose.pod(name) is None, f"gone: {name}", lambda: self.story(name))

    def _restarts(self, name: str) -> None:
        """A pod whose container crashes is let back in."""
        before = _restarts_of(self.pod(name))
        self.arena.crash(self._whose[name].namespace, name)
        self.wait(
            lambda: _restarts_of(self.pod(name)) > before and self.runs(name),
            f"back after its crash: {name}",
            lambda: self.story(name),
        )

    def _given(self, wanted: Object) -> None:
        """What the containers of pods have, by index of cards: `pod: [amounts in MiB]`, in the order of their cards."""
        for name, amounts in wanted.items():
            self.wait(partial(self._has_cards, name), f"given: {name}", partial(self.story, name))
            assert sorted(map(str, self._limits(name))) == sorted(map(str, amounts)), name

    def _has_cards(self, name: str) -> bool:
        return bool(self._limits(name))

    def _limits(self, name: str) -> list[int | None]:
        uid = self.pod(name)["metadata"]["uid"]
        return [amount for one in self.arena.given() if one.uid == uid for amount in one.limits.values()]

    def _never_runs(self, name: str) -> None:
        """A pod has no card; the steps before have given everybody the time."""
        assert not self._limits(name), self.story(name)

    def _allocatable(self, wanted: Object) -> None:
        """What the node that was aimed at has to give."""
        wanted = {name: str(amount) for name, amount in wanted.items()}

        def found() -> dict[str, str]:
            present = self.allocatable()
            return {name: present.get(name, "") for name in wanted}

        self.wait(lambda: found() == wanted, f"allocatable {wanted}", found)

    def _inspect(self, wanted: Object) -> None:
        """What `kubectl inspect gpushare` says is allocated of all cards, in GiB."""

        def allocated() -> float:
            nodes = self.arena.inspect()["nodes"]
            return float(sum(gpu["allocatedMiB"] for node in nodes for gpu in node["gpus"]) / truth.UNIT)

        self.wait(lambda: allocated() == wanted["allocated"], f"inspected as {wanted}", allocated)

    def _told(self, names: list[str]) -> None:
        """Somebody says of these pods that their record does not count, in an event that speaks of it."""
        for name in names:
            self.wait(partial(self._is_told, name), f"told of the record of {name}", partial(self.story, name))

    def _is_told(self, name: str) -> bool:
        return any(_names_record(event) for event in self._whose[name].events(name))

    def _says(self, wanted: Object) -> None:
        """By pod of the tenant's, the words of an event of it."""
        for name, words in wanted.items():
            told = partial(self._is_said, name, words)
            self.wait(told, f"said of {name}: {words}", partial(self.story, name))

    def _is_said(self, name: str, words: str) -> bool:
        return any(words in event.get("message", "") for event in self._whose[name].events(name))

    def _agents_restart(self, _: object) -> None:
        """The agents are started again."""
        self.arena.restart_agents()

    def look(self) -> None:
        """No card is given to more than it has room for, at this moment."""
        if self.arena.watches:
            assert not (found := truth.over_full(self.arena.given())), found

    def check(self) -> None:
        """No container has what is not its own, and no card is given to more than it has room for."""
        for whose in (self.tenant, self.neighbour):
            for pod in whose.pods():
                self.know(pod, whose)
        found = truth.thefts(self.arena.given(), self.allowed)
        assert not found, found


def bloated(node: str) -> str:
    """A record as long as they may be, of cards that nobody has."""
    cards = [{"uuid": f"GPU-{number}", "index": number} for number in range(22)]
    containers = [{"name": f"c{number}", "cards": cards} for number in range(256)]
    return json.dumps({"version": 1, "node": node, "containers": containers}, separators=(",", ":"))


def claim_of(name: str, count: int = 1, **amounts: str) -> Object:
    """A claim of so many GPUs, whole or these amounts of each; Kubernetes deallocates it when its pods are gone."""
    asked: Object = {"deviceClassName": dra.DEVICE_CLASS, "count": count}
    if amounts:
        asked["capacity"] = {"requests": amounts}
    requests = [{"name": "gpu", "exactly": asked}]
    return {"metadata": {"name": name, "finalizers": [dra.FINALIZER]}, "spec": {"devices": {"requests": requests}}}


def allocation_of(node: str, devices: list[Object]) -> Object:
    """An allocation of GPUs of a node, by `card` (UUID); whole without `amounts`."""
    results = []
    for one in devices:
        shared = {"shareID": str(uuid.uuid4()), "consumedCapacity": one["amounts"]} if "amounts" in one else {}
        device = dra.device_name(one["card"])
        results.append({"request": "gpu", "driver": dra.DRIVER, "pool": node, "device": device, **shared})
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def texts(annotations: Object) -> Object:
    """Annotations as the API takes them: what is no text is JSON; None takes one away."""
    return {
        key: value if value is None or isinstance(value, str) else json.dumps(value)
        for key, value in annotations.items()
    }


def _restarts_of(pod: Object) -> int:
    return sum(one.get("restartCount", 0) for one in pod["status"].get("containerStatuses", ()))


def _names_record(event: Object) -> bool:
    words = ("record", RECORD, "ALIYUN_COM_GPU_MEM", "scheduler.framework.gpushare", "UUID")
    return event.get("type") == "Warning" and any(word in event.get("message", "") for word in words)
