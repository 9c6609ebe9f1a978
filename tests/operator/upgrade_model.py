"""A cluster in memory that plays an upgrade's actions: nodes, an OnDelete DaemonSet, kubelets that take time, budgets.

It is the other side of the border that `shoal.operator.upgrade` plans across: what API server, controllers and kubelets
do with each action, in seconds of its own clock.
"""

from dataclasses import dataclass, field, replace

import msgspec

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.model.contract import nvidia
from shoal.model.contract.operator import (
    ANNOTATION_UPGRADE,
    ANNOTATION_VALIDATION,
    NAME_DRIVER,
    NAME_VALIDATOR,
    StepReport,
    ValidationReport,
    encode_validation,
)
from shoal.operator.actions import Action, DeletePod, Evict, PatchNode, Tell
from shoal.operator.policy import UpgradePolicyFields
from shoal.operator.upgrade import plan
from shoal.operator.world import World

NAMESPACE = "gpu-operator"
STATE = nvidia.LABEL_UPGRADE_STATE
DEPLOY = nvidia.deploy_label("driver")
CLIENT = nvidia.deploy_label("client")
OUT_OF_SERVICE = {
    *("cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required"),
    *("pod-restart-required", "validation-required", "uncordon-required"),
}
#: Seconds that a pod takes to end, a driver to be ready, and a validator to see it.
ENDS, STARTS, VALIDATES = 10, 60, 20
#: Seconds between two restarts of a driver that fails.
RESTARTS = 60


@dataclass
class ModelNode:
    name: str
    uid: str
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    ready: bool = True
    version: int = 1
    boot: str = "boot-0"
    #: New drivers do not start here.
    broken: bool = False
    #: What an administrator wants.
    admin_cordoned: bool = False
    #: A driver is loaded.
    loaded: bool = False

    @property
    def state(self) -> str:
        return self.labels.get(STATE, "")


@dataclass
class ModelPod:
    name: str
    uid: str
    node: str
    born: float
    namespace: str = "default"
    labels: dict[str, str] = field(default_factory=dict)
    resource: str = "aliyun.com/gpu-mem"
    owner: tuple[str, str] = ("ReplicaSet", "web")
    #: When it began to end.
    ended: float | None = None
    revision: str = ""
    empty_dir: bool = False
    mirror: bool = False
    phase: str = "Running"
    ready_at: float = 0.0
    restarts: int = 0
    #: Of a driver's pod: NVIDIA's driver manager has not unloaded the old driver yet.
    unloads: bool = False


class Cluster:
    """The model. `pods` are those with cards, `drivers` those of the driver's DaemonSet, by node."""

    def __init__(self, names: list[str], policy: UpgradePolicyFields | None = None) -> None:
        self.now = 1_700_000_000.0
        #: How far the operator's clock is off.
        self.skew = 0.0
        self.policy: UpgradePolicyFields | None = policy or UpgradePolicyFields()
        self.evict_at_restart = True
        self.revision = "a"
        self.image = "registry.example/nvidia/driver:550.90.07-ubuntu22.04"
        self.nodes: dict[str, ModelNode] = {}
        self.drivers: dict[str, ModelPod] = {}
        self.pods: dict[str, ModelPod] = {}
        #: Name, label `app` of the pods, and how many must stay.
        self.budgets: dict[str, tuple[str, int]] = {}
        self.refusals: dict[str, str] = {}
        self.told: list[Tell] = []
        self.writes = 0
        self._count = 0
        for name in names:
            self.add_node(name)
        self.settle(200)

    # What others do

    def add_node(self, name: str) -> ModelNode:
        self._count += 1
        node = ModelNode(name, f"node-{self._count}", {nvidia.LABEL_PRESENT: "true", DEPLOY: "true"})
        self.nodes[name] = node
        return node

    def add_pod(self, name: str, node: str, **more: object) -> ModelPod:
        self._count += 1
        pod = ModelPod(name, f"pod-{self._count}", node, self.now, **more)  # type: ignore[arg-type]
        self.pods[pod.uid] = pod
        return pod

    def delete_node(self, name: str) -> None:
        del self.nodes[name]
        self.drivers.pop(name, None)
        self.pods = {uid: pod for uid, pod in self.pods.items() if pod.node != name}

    def new_driver(self, revision: str) -> None:
        self.revision = revision

    def reboot(self, name: str) -> None:
        """Containers start anew; what the validator said is of another boot."""
        node = self.nodes[name]
        node.boot = f"{node.boot}x"
        node.version += 1
        node.loaded = False
        if name in self.drivers:
            self.drivers[name].ready_at = self.now + STARTS

    def restart_driver(self, name: str) -> None:
        """Somebody deletes the driver's pod."""
        self.drivers[name].ended = self.now

    def tick(self, seconds: float) -> None:
        """Time passes; controllers and kubelets do what is theirs."""
        self.now += seconds
        for name, driver in list(self.drivers.items()):
            node = self.nodes[name]
            gone = node.labels.get(DEPLOY) != "true"
            if gone and driver.ended is None:
                driver.ended = self.now
            if driver.ended is not None and node.ready and self.now - driver.ended >= ENDS:
                del self.drivers[name]
            elif node.broken and not self._is_ready(driver):
                driver.restarts = int((self.now - driver.born) // RESTARTS)
        for uid, pod in list(self.pods.items()):
            if pod.ended is not None and self.nodes[pod.node].ready and self.now - pod.ended >= ENDS:
                del self.pods[uid]
                self._made_anew(pod)
        for node in self.nodes.values():
            if node.labels.get(DEPLOY) == "true" and node.name not in self.drivers:
                self._count += 1
                name = f"{NAME_DRIVER}-{self._count}"
                self.drivers[node.name] = ModelPod(
                    *(name, f"pod-{self._count}", node.name, self.now, NAMESPACE),
                    owner=("DaemonSet", NAME_DRIVER),
                    revision=self.revision,
                    resource="",
                    ready_at=self.now + STARTS,
                    unloads=True,
                )
            self._unload(node)
            self._validate(node)

    def _unload(self, node: ModelNode) -> None:
        """NVIDIA's driver manager: where a driver is loaded it pauses operands and waits for pods that use it."""
        driver = self.drivers.get(node.name)
        if driver is None:
            return
        if not driver.unloads:
            node.loaded |= self._is_ready(driver)
            return
        held = node.loaded and bool(self._in_use(node.name))
        driver.unloads = held
        if held:
            driver.ready_at = self.now + STARTS
        else:
            node.loaded = False
        wanted = "paused-for-driver-upgrade" if held else "true"
        if node.labels.get(CLIENT, "true") != wanted:
            node.labels[CLIENT] = wanted
            node.version += 1

    def _in_use(self, name: str) -> list[str]:
        """The pods that an upgrade evicts and that are on a node."""
        return [
            pod.name
            for pod in self.pods.values()
            if pod.node == name
            and pod.owner[0] != "DaemonSet"
            and not pod.mirror
            and pod.phase == "Running"
            and pod.labels.get(nvidia.LABEL_UPGRADE_DRAIN_SKIP) != "true"
        ]

    def _made_anew(self, pod: ModelPod) -> None:
        """A ReplicaSet puts another in its place, wherever it may go."""
        room = [node for node in self.nodes.values() if node.ready and not node.unschedulable]
        if pod.owner[0] == "ReplicaSet" and room:
            others = [sum(other.node == node.name for other in self.pods.values()) for node in room]
            self._count += 1
            new = replace(
                pod,
                name=f"{pod.owner[1]}-{self._count}",
                uid=f"pod-{self._count}",
                node=room[others.index(min(others))].name,
                born=self.now,
                ended=None,
            )
            self.pods[new.uid] = new

    def _is_ready(self, driver: ModelPod) -> bool:
        return not self.nodes[driver.node].broken and driver.ended is None and self.now >= driver.ready_at

    def _validate(self, node: ModelNode) -> None:
        driver = self.drivers.get(node.name)
        well = driver is not None and self._is_ready(driver) and self.now >= driver.ready_at + VALIDATES
        since = int(driver.ready_at) if well and driver is not None else int(self.now)
        report = ValidationReport(
            version=1,
            boot=node.boot,
            driver_version="550.90.07" if well else "",
            steps={"driver": StepReport(ready=well, since=since, why="" if well else "no driver")},
        )
        text = encode_validation(report)
        before = node.annotations.get(ANNOTATION_VALIDATION, "")
        if ('"ready":true' in before) != well or f'"{node.boot}"' not in before:
            node.annotations[ANNOTATION_VALIDATION] = text
            node.version += 1

    def settle(self, seconds: float, step: float = 10) -> None:
        """Time passes without an operator."""
        for _ in range(int(seconds / step)):
            self.tick(step)

    # What the operator sees and does

    def world(self) -> World:
        operand: dict[str, tuple[Pod, ...]] = {name: (self._pod(pod),) for name, pod in self.drivers.items()}
        gpu: dict[str, tuple[Pod, ...]] = {}
        for pod in self.pods.values():
            gpu[pod.node] = (*gpu.get(pod.node, ()), self._pod(pod))
        owned = {
            ("DaemonSet", NAME_DRIVER): {"metadata": {"generation": 1}, "status": {"observedGeneration": 1}},
            ("DaemonSet", NAME_VALIDATOR): {},
        }
        return World(
            NAMESPACE,
            self.now + self.skew,
            nodes={name: self._node(node) for name, node in self.nodes.items()},
            operand_pods=operand,
            gpu_pods=gpu,
            refusals=dict(self.refusals),
            revisions={NAME_DRIVER: self.revision},
            owned=owned,
        )

    def _node(self, node: ModelNode) -> Node:
        manifest = {
            "metadata": {
                "name": node.name,
                "uid": node.uid,
                "labels": node.labels,
                "annotations": node.annotations,
                "resourceVersion": str(node.version),
            },
            "spec": {"unschedulable": node.unschedulable},
            "status": {
                "conditions": [{"type": "Ready", "status": "True" if node.ready else "Unknown"}],
                "nodeInfo": {"bootID": node.boot},
            },
        }
        return msgspec.convert(manifest, Node)

    def _pod(self, pod: ModelPod) -> Pod:
        ready = self._is_ready(pod) if pod.revision else True
        kind, owner = pod.owner
        status = {"name": "main", "ready": ready, "restartCount": pod.restarts}
        labels = {"controller-revision-hash": pod.revision} if pod.revision else pod.labels
        manifest = {
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "labels": labels,
                "creationTimestamp": f"{pod.born:020.3f}",
                "deletionTimestamp": None if pod.ended is None else f"{pod.ended:020.3f}",
                "ownerReferences": [{"kind": kind, "name": owner, "controller": True}] if kind else [],
                "annotations": {"kubernetes.io/config.mirror": "x"} if pod.mirror else {},
            },
            "spec": {
                "nodeName": pod.node,
                "containers": [
                    {
                        "name": "main",
                        "image": self.image,
                        "resources": {"limits": {pod.resource: "1"} if pod.resource else {}},
                    }
                ],
                "volumes": [{"name": "scratch", "emptyDir": {}}] if pod.empty_dir else [],
            },
            "status": {
                "phase": pod.phase,
                "containerStatuses": [status],
                "initContainerStatuses": [{"name": "manager", "ready": not pod.unloads}] if pod.revision else [],
            },
        }
        return msgspec.convert(manifest, Pod)

    def do(self, action: Action) -> None:
        """What the API server does with one action."""
        match action:
            case PatchNode():
                self._patch(action)
            case Evict():
                self._evict(action)
            case DeletePod():
                for driver in self.drivers.values():
                    if driver.uid == action.uid and driver.ended is None:
                        self.check_may_restart(driver)
                        driver.ended = self.now
                        self.writes += 1
            case Tell():
                self.told.append(action)
            case _:
                raise AssertionError(f"an upgrade asks for no {action}")

    def check_may_restart(self, driver: ModelPod) -> None:
        """A driver is replaced on cordoned nodes without pods that should have been evicted."""
        node = self.nodes[driver.node]
        assert node.unschedulable, f"{node.name} is not cordoned"
        left = self._in_use(node.name)
        assert not left, f"{left} still run on {node.name}"

    def _patch(self, patch: PatchNode) -> None:
        node = self.nodes.get(patch.name)
        if node is None or node.uid != patch.uid:
            return
        if patch.resource_version and patch.resource_version != str(node.version):
            return
        # A driver that is being unloaded takes its node out of service by itself.
        driver = self.drivers.get(patch.name)
        down = driver is not None and driver.unloads
        began = patch.labels.get(STATE) == "cordon-required" and not node.unschedulable and not down
        for values, changes in ((node.labels, patch.labels), (node.annotations, patch.annotations)):
            for key, value in changes.items():
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
        if patch.unschedulable is not None:
            node.unschedulable = patch.unschedulable
        node.version += 1
        self.writes += 1
        if began:
            self.check_promise()
        assert node.unschedulable or not node.admin_cordoned, f"{node.name} was cordoned by an administrator"

    def _evict(self, action: Evict) -> None:
        pod = self.pods.get(action.uid)
        if pod is None or pod.ended is not None:
            return
        assert pod.owner[0] != "DaemonSet"
        assert not pod.mirror
        for name, (app, least) in self.budgets.items():
            healthy = [other for other in self.pods.values() if other.labels.get("app") == app and other.ended is None]
            if pod.labels.get("app") == app and len(healthy) - 1 < least:
                self.refusals[pod.uid] = f"The disruption budget {name} needs {least} healthy pods"
                return
        self.refusals.pop(pod.uid, None)
        pod.ended = self.now
        self.writes += 1

    def operate(self, actions: int | None = None) -> list[Action]:
        """One pass of the operator, killed after so many actions."""
        asked = plan(self.world(), self.policy, evict_at_restart=self.evict_at_restart)
        for action in asked[:actions]:
            self.do(action)
        return asked

    def run(self, seconds: float = 4000, step: float = 10) -> None:
        """Time passes with an operator."""
        for _ in range(int(seconds / step)):
            self.operate()
            self.tick(step)

    def run_until_quiet(self, seconds: float, step: float) -> None:
        """Time passes with an operator, until it has nothing more to do, but for so long at most."""
        for _ in range(int(seconds / step)):
            if not self.operate() and not self.leftovers() and all(self.up_to_date(name) for name in self.nodes):
                return
            self.tick(step)

    # What is asked of it

    @property
    def limit(self) -> int:
        assert self.policy is not None
        value = str(self.policy.max_unavailable)
        managed = sum(node.labels.get(DEPLOY) == "true" for node in self.nodes.values())
        return -(-managed * int(value[:-1]) // 100) if value.endswith("%") else int(value)

    def unavailable(self) -> list[str]:
        """The nodes out of service, by what can be seen from outside."""
        return [
            node.name
            for node in self.nodes.values()
            if node.labels.get(DEPLOY) == "true"
            and (node.unschedulable or not node.ready or node.state in OUT_OF_SERVICE)
        ]

    def check_promise(self) -> None:
        """After a node in service was taken out of it. Failed nodes that shall be skipped do not count."""
        down = [name for name in self.unavailable() if not self._is_given_up(name)]
        assert len(down) <= self.limit, f"{len(down)} of {self.limit} are down: {down}"

    def _is_given_up(self, name: str) -> bool:
        node = self.nodes[name]
        return node.state == "upgrade-failed" and node.labels.get(nvidia.LABEL_UPGRADE_SKIP) == "true"

    def up_to_date(self, name: str) -> bool:
        driver = self.drivers.get(name)
        return driver is not None and driver.revision == self.revision and self._is_ready(driver)

    def leftovers(self) -> list[str]:
        """Nodes that remember an upgrade."""
        return [
            node.name
            for node in self.nodes.values()
            if ANNOTATION_UPGRADE in node.annotations or nvidia.ANNOTATION_UPGRADE_INITIAL in node.annotations
        ]
