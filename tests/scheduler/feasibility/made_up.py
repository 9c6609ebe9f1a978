"""Clusters and pods out of dice, as manifests that an API server takes.

Few values of everything, so that wishes meet and clash. `Dice.pod` has a part of each kind of wish now and then; most
pods have none or one of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from tests.scheduler.feasibility.world import Manifest, World

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
KEYS = (HOST, ZONE, "rack", "disk")
#: The namespaces and their labels; the API server adds the name.
NAMESPACES = {"red": {"team": "x"}, "green": {"team": "y"}, "blue": {}}
TAINTS = (("gpu", "yes"), ("gpu", "no"), ("spot", ""), ("zone", "z1"))
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
EXTENDED = "example.com/card"


class Dice:
    """Makes things up."""

    def __init__(self, seed: int, namespaces: Iterable[str] = NAMESPACES) -> None:
        self.rng = random.Random(seed)
        self.namespaces = tuple(namespaces)
        self._names = 0

    def name(self, what: str) -> str:
        self._names += 1
        return f"{what}-{self._names}"

    def chance(self, of: float) -> bool:
        return self.rng.random() < of

    def one(self, *things: Any) -> Any:
        return self.rng.choice(things)

    # Nodes

    def node(self, name: str) -> Manifest:
        labels = {HOST: name}
        if self.chance(0.9):
            labels[ZONE] = self.one("z1", "z2", "z3")
        if self.chance(0.7):
            labels["rack"] = self.one("r1", "r2", "r3", "r4")
        if self.chance(0.6):
            labels["disk"] = self.one("ssd", "hdd")
        if self.chance(0.6):
            labels["gen"] = self.one("1", "2", "3", "new")
        spec: Manifest = {"unschedulable": True} if self.chance(0.08) else {}
        if self.chance(0.25):
            chosen = dict(self.rng.sample(TAINTS, self.one(1, 1, 2)))  # no two of one key and effect
            taints = [{"key": key, "value": value, "effect": self.one(*EFFECTS)} for key, value in chosen.items()]
            spec["taints"] = taints
        amounts = {
            "cpu": self.one("4", "16", "16", "31500m"),
            "memory": self.one("8Gi", "32Gi", "64Gi"),
            "ephemeral-storage": self.one("10Gi", "40Gi"),
            "pods": self.one("5", "20", "30"),
        }
        if self.chance(0.5):
            amounts[EXTENDED] = self.one("2", "4")
        status = {"capacity": amounts, "allocatable": amounts}
        return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}

    # Pods

    def labels(self) -> dict[str, str]:
        labels = {"app": self.one("a", "b", "c")}
        if self.chance(0.5):
            labels["tier"] = self.one("front", "back")
        if self.chance(0.3):
            labels["rev"] = self.one("1", "2")
        return labels

    def pod(self, *, claims: dict[str, list[str]] | None = None, wishes: float = 1.0) -> Manifest:
        """A pod; `wishes` says how often it has each: 0 for never, 1 for now and then."""
        name = self.name("pod")
        # Most in one namespace, so that pods meet.
        namespace = self.one(*self.namespaces, self.namespaces[0], self.namespaces[0])
        spec: Manifest = {"containers": [self.container() for _ in range(self.one(1, 1, 2))]}
        if self.chance(0.15):
            spec["initContainers"] = [self.init_container(n) for n in range(self.one(1, 2))]
        if self.chance(0.1):
            spec["resources"] = {"requests": {"cpu": "7", "memory": "9Gi"}}
        makers = (self._selector, self._tolerations, self._node_affinity, self._company, self._spread, self._ports)
        for make in makers:
            if self.chance(0.3 * wishes):
                make(spec)
        if claims and claims[namespace] and self.chance(0.25 * wishes):
            chosen = self.rng.sample(claims[namespace], min(len(claims[namespace]), self.one(1, 1, 2)))
            spec["volumes"] = [
                {"name": f"v{n}", "persistentVolumeClaim": {"claimName": c}} for n, c in enumerate(chosen)
            ]
        metadata = {"name": name, "namespace": namespace, "labels": self.labels(), "uid": f"uid-{name}"}
        return {"metadata": metadata, "spec": spec}

    def container(self) -> Manifest:
        requests = {}
        if self.chance(0.7):
            requests["cpu"] = self.one("100m", "500m", "1", "1500m", "0.1")
        if self.chance(0.6):
            requests["memory"] = self.one("128Mi", "1Gi", "1500M", "2Gi")
        if self.chance(0.2):
            requests["ephemeral-storage"] = self.one("1Gi", "5Gi")
        resources: Manifest = {"requests": requests}
        if self.chance(0.2):
            count = self.one("1", "2")
            resources = {"requests": {**requests, EXTENDED: count}, "limits": {EXTENDED: count}}
        return {"name": self.name("c"), "image": "shoal.test/none:1", "resources": resources}

    def init_container(self, number: int) -> Manifest:
        made = {**self.container(), "name": f"init{number}"}
        return {**made, "restartPolicy": "Always"} if self.chance(0.5) else made

    def _selector(self, spec: Manifest) -> None:
        spec["nodeSelector"] = self.one({"disk": "ssd"}, {ZONE: "z1"}, {"rack": "r1", "disk": "hdd"}, {"gen": "2"})

    def _tolerations(self, spec: Manifest) -> None:
        spec["tolerations"] = [self.toleration() for _ in range(self.one(1, 2, 3))]

    def toleration(self) -> Manifest:
        key, value = self.one(*TAINTS)
        made: Manifest = {"key": key}
        if self.chance(0.5):
            made["operator"] = "Exists"
        elif value or self.chance(0.5):
            made["value"] = value
        if self.chance(0.5):
            made["effect"] = self.one(*EFFECTS)
        if self.chance(0.1):
            made = {"operator": "Exists"}
        if self.chance(0.1):
            made = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
        return made

    def _node_affinity(self, spec: Manifest) -> None:
        made: Manifest = {}
        if self.chance(0.7):
            terms = [self.node_term() for _ in range(self.one(1, 1, 2))]
            made["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if self.chance(0.5):
            made["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": self.one(1, 10, 50), "preference": self.node_term()} for _ in range(self.one(1, 2))
            ]
        spec.setdefault("affinity", {})["nodeAffinity"] = made

    def node_term(self) -> Manifest:
        if self.chance(0.1):
            field = {"key": "metadata.name", "operator": self.one("In", "NotIn"), "values": [self.one("n-0", "n-1")]}
            return {"matchFields": [field]}
        return {"matchExpressions": [self.node_requirement() for _ in range(self.one(1, 1, 2))]}

    def node_requirement(self) -> Manifest:
        key, values = self.one((ZONE, ["z1", "z2", "z3"]), ("rack", ["r1", "r2", "r3"]), ("disk", ["ssd", "hdd"]))
        operator = self.one("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
        if operator in ("Gt", "Lt"):
            return {"key": "gen", "operator": operator, "values": [self.one("1", "2")]}
        if operator in ("In", "NotIn"):
            return {"key": key, "operator": operator, "values": self.rng.sample(values, self.one(1, 2))}
        return {"key": key, "operator": operator}

    def pod_selector(self) -> Manifest | None:
        dice = self.rng.random()
        if dice < 0.05:
            return {}
        if dice < 0.6:
            return {"matchLabels": {"app": self.one("a", "b", "c")}}
        if dice < 0.8:
            values = self.rng.sample(["a", "b", "c"], 2)
            return {"matchExpressions": [{"key": "app", "operator": self.one("In", "NotIn"), "values": values}]}
        expression = {"key": "tier", "operator": self.one("Exists", "DoesNotExist")}
        return {"matchLabels": {"app": self.one("a", "b")}, "matchExpressions": [expression]}

    def pod_term(self) -> Manifest:
        term: Manifest = {"topologyKey": self.one(*KEYS), "labelSelector": self.pod_selector()}
        if self.chance(0.25):
            term["namespaces"] = self.rng.sample(self.namespaces, self.one(1, 2))
        if self.chance(0.25):
            term["namespaceSelector"] = self.one(
                {}, {"matchLabels": {"team": "x"}}, {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
            )
        if self.chance(0.15):
            term[self.one("matchLabelKeys", "mismatchLabelKeys")] = ["rev"]
        return term

    def _company(self, spec: Manifest) -> None:
        affinity = spec.setdefault("affinity", {})
        kind = self.one("podAffinity", "podAntiAffinity", "podAntiAffinity", "both")
        for side in ("podAffinity", "podAntiAffinity") if kind == "both" else (kind,):
            made: Manifest = {}
            if self.chance(0.7):
                terms = [self.pod_term() for _ in range(self.one(1, 1, 2))]
                made["requiredDuringSchedulingIgnoredDuringExecution"] = terms
            if self.chance(0.4):
                made["preferredDuringSchedulingIgnoredDuringExecution"] = [
                    {"weight": self.one(1, 10, 100), "podAffinityTerm": self.pod_term()} for _ in range(self.one(1, 2))
                ]
            affinity[side] = made

    def _spread(self, spec: Manifest) -> None:
        keys = self.rng.sample(KEYS, self.one(1, 1, 2, 3))
        spec["topologySpreadConstraints"] = [self.spread(key) for key in keys]

    def spread(self, key: str) -> Manifest:
        made: Manifest = {
            "topologyKey": key,
            "maxSkew": self.one(1, 1, 2),
            "whenUnsatisfiable": self.one("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"),
            "labelSelector": self.pod_selector(),
        }
        if made["whenUnsatisfiable"] == "DoNotSchedule" and self.chance(0.25):
            made["minDomains"] = self.one(1, 2, 3, 4)
        if self.chance(0.25):
            made["nodeAffinityPolicy"] = self.one("Honor", "Ignore")
        if self.chance(0.25):
            made["nodeTaintsPolicy"] = self.one("Honor", "Ignore")
        if self.chance(0.2):
            made["matchLabelKeys"] = ["rev"]
        return made

    def _ports(self, spec: Manifest) -> None:
        port: Manifest = {"containerPort": 80, "hostPort": self.one(8080, 8081)}
        if self.chance(0.3):
            port["protocol"] = self.one("TCP", "UDP")
        if self.chance(0.4):
            port["hostIP"] = self.one("0.0.0.0", "10.0.0.1", "10.0.0.2")
        spec["containers"][0]["ports"] = [port]

    # Volumes

    def storage(self, world: World, nodes: list[str]) -> None:
        """Classes, volumes and claims of each kind; what a controller would have done is done."""
        for storage_class in storage_classes():
            world.classes[storage_class["metadata"]["name"]] = storage_class
        for number in range(self.one(2, 4, 6)):
            name = f"local-{number}"
            values = [self.one(*nodes)] if self.chance(0.7) else self.rng.sample(nodes, min(2, len(nodes)))
            world.volumes[name] = volume(name, "local", self.one("1Gi", "2Gi", "5Gi"), {HOST: values})
        for namespace in self.namespaces:
            for number in range(4):
                name = f"claim-{number}"
                kind = self.one("local", "local", "made", "made-z1", "at-once")
                made = claim(name, namespace, kind, self.one("1Gi", "3Gi"))
                if self.chance(0.2):
                    made["spec"]["accessModes"] = ["ReadWriteOncePod"]
                if self.chance(0.5):
                    self._bind(world, made)
                elif self.chance(0.2):
                    chosen = self.one(*nodes)
                    made["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": chosen}
                world.claims[namespace, name] = made

    def _bind(self, world: World, made: Manifest) -> None:
        meta = made["metadata"]
        name = f"pv-{meta['namespace']}-{meta['name']}"
        where = self.one({}, {ZONE: ["z1"]}, {ZONE: ["z1", "z2"]}, {"rack": ["r1", "r2"]})
        bound = volume(name, made["spec"]["storageClassName"], "5Gi", where)
        if self.chance(0.3):
            bound["metadata"]["labels"] = {ZONE: self.one("z1", "z1__z2")}
        bound["spec"]["accessModes"] = made["spec"]["accessModes"]
        bound["spec"]["claimRef"] = {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        bound["status"] = {"phase": "Bound"}
        if self.chance(0.9):
            world.volumes[name] = bound
        made["spec"]["volumeName"] = name
        if self.chance(0.9):
            meta["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}


def storage_classes() -> list[Manifest]:
    """One of each kind."""
    zones = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z1"]}]}]
    wait = {"volumeBindingMode": "WaitForFirstConsumer"}
    return [
        {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner", **wait},
        {"metadata": {"name": "made"}, "provisioner": "shoal.test/disk", **wait},
        {"metadata": {"name": "made-z1"}, "provisioner": "shoal.test/disk", **wait, "allowedTopologies": zones},
        {"metadata": {"name": "at-once"}, "provisioner": "shoal.test/disk", "volumeBindingMode": "Immediate"},
    ]


def volume(name: str, storage_class: str, size: str, where: dict[str, list[str]]) -> Manifest:
    """A volume that can be reached from nodes with these labels."""
    spec: Manifest = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "hostPath": {"path": "/none"},
    }
    if where:
        expressions = [{"key": key, "operator": "In", "values": values} for key, values in where.items()]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}


def claim(name: str, namespace: str, storage_class: str, size: str) -> Manifest:
    """A claim nothing was done about."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
        },
        "status": {"phase": "Pending"},
    }
