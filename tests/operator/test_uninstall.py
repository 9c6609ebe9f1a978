"""The plan of an uninstall, played on a model of a cluster: its DaemonSets, pods and nodes do what real ones do."""

from __future__ import annotations

import copy
import datetime
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import yaml

from shoal.kube.objects.meta import ObjectMeta, OwnerReference
from shoal.kube.objects.node import Node, NodeCondition, NodeSpec, NodeStatus, Taint
from shoal.kube.objects.pod import Pod, PodCondition, PodStatus
from shoal.kube.resources import RawObject
from shoal.model.contract import decisions, discovery, load, mechanisms, nvidia, operator, shoal
from shoal.model.contract.discovery import ANNOTATION_FACTS, NAME_WORKERS_CARDS
from shoal.model.contract.operator import (
    ANNOTATION_UPGRADE,
    ANNOTATION_VALIDATION,
    FINALIZER,
    LABEL_CLEANUP,
    LABEL_POLICY,
    NAME_CLEANUP,
    NAME_DRIVER,
    NAME_MPS,
    NAME_TOOLKIT,
    NAME_VALIDATOR,
    TAINT_STARTING,
    UpgradeMark,
    encode_upgrade,
)
from shoal.operator import nodes as deploy
from shoal.operator import uninstall
from shoal.operator.actions import Action, Apply, Delete, PatchNode, SetFinalizer, Tell
from shoal.operator.cluster_removal import pinned_cleanup
from shoal.operator.manifests import digest_of
from shoal.operator.uninstall import CLEAN_SECONDS, KEEP_VALIDATIONS, STOP_SECONDS, UNREADY_SECONDS
from shoal.operator.world import World

NAMESPACE = "gpu-operator"
START = 1_800_000_000.0
OPERANDS = (shoal.NAME_AGENT, NAME_MPS, NAME_WORKERS_CARDS, NAME_VALIDATOR, NAME_TOOLKIT, NAME_DRIVER)
#: Labels of an administrator, and of discovery, whose leader goes on.
FOREIGN = {
    "zone": "a",
    nvidia.LABEL_PRESENT: "true",
    nvidia.deploy_label("dcgm-exporter"): "false",
}
CLEANUP: RawObject = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": NAME_CLEANUP},
    "spec": {"template": {"spec": {"initContainers": [{"name": "files", "args": ["uninstall", "--node"]}]}}},
}


@dataclass
class Machine:
    """A node of the model: what runs there, and whether there are files of Shoal."""

    ready: bool = True
    files: bool = True
    #: Pods by DaemonSet, and whether they are ready.
    pods: dict[str, bool] = field(default_factory=dict)
    #: Operands that do not end.
    stuck: frozenset[str] = frozenset()
    #: No pod of the clean-up comes to its end here.
    unclean: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()

    def node(self, name: str) -> Node:
        condition = NodeCondition(type="Ready", status="True" if self.ready else "Unknown")
        return Node(
            metadata=ObjectMeta(name=name, uid=f"uid-{name}", labels=self.labels, annotations=self.annotations),
            spec=NodeSpec(taints=tuple(Taint(key=key, effect="NoSchedule") for key in self.taints)),
            status=NodeStatus(conditions=(condition,)),
        )


class Cluster:
    """The model. `tick` lets a second pass for its controllers and kubelets."""

    def __init__(self, nodes: int = 3, *, policies: int = 1) -> None:
        self.now = START
        self.machines = {f"n{number}": served() for number in range(nodes)}
        self.machines["plain"] = Machine(files=False, labels={"zone": "b"})
        self.objects: dict[tuple[str, str], RawObject] = {}
        for name in OPERANDS:
            self._make({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}})
        for name in (nvidia.RUNTIME_CLASS, nvidia.RUNTIME_CLASS_CDI):
            self._make({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}})
        self._make({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": shoal.NAME_AGENT}})
        self.policies: dict[str, RawObject] = {
            f"p{number}": {"metadata": {"name": f"p{number}", "uid": f"p{number}", "finalizers": [FINALIZER]}}
            for number in range(policies)
        }
        self.operands: dict[str, tuple[RawObject, ...]] = {"cleanup": (CLEANUP,)}
        self.nvidia: tuple[RawObject, ...] = ()
        self.told: list[Tell] = []
        self.writes = 0
        self.users: dict[str, tuple[Pod, ...]] = {}

    def delete_policies(self, *names: str) -> None:
        for name in names or tuple(self.policies):
            self.policies[name]["metadata"]["deletionTimestamp"] = _text(self.now)

    def world(self) -> World:
        return World(
            namespace=NAMESPACE,
            now=self.now,
            policies=tuple(copy.deepcopy(list(self.policies.values()))),
            nvidia_policies=self.nvidia,
            nodes={name: machine.node(name) for name, machine in self.machines.items()},
            operand_pods={name: tuple(_pods(machine)) for name, machine in self.machines.items()},
            gpu_pods=self.users,
            owned=copy.deepcopy(self.objects),
            operands=self.operands,
        )

    def carry_out(self, action: Action) -> None:
        self.writes += 1
        match action:
            case Apply(manifest):
                self._make(copy.deepcopy(dict(manifest)))
            case Delete(_, kind, name, _, uid):
                found = self.objects.get((kind, name))
                if found is not None and found["metadata"]["uid"] == uid:
                    del self.objects[kind, name]
            case PatchNode(name, uid):
                assert uid == f"uid-{name}"
                machine = self.machines[name]
                machine.labels = _merged(machine.labels, action.labels)
                machine.annotations = _merged(machine.annotations, action.annotations)
                machine.taints = tuple(key for key in machine.taints if key not in action.remove_taints)
            case SetFinalizer(name, _, present):
                assert not present
                del self.policies[name]
            case Tell():
                self.told.append(action)
            case _:
                raise AssertionError(action)

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        for machine in self.machines.values():
            if not machine.ready:
                continue
            for name in [name for name in machine.pods if ("DaemonSet", name) not in self.objects]:
                if name not in machine.stuck:
                    del machine.pods[name]
            if machine.pods.get(NAME_CLEANUP) is False and not machine.unclean:
                busy = set(machine.pods) - {NAME_CLEANUP, NAME_DRIVER} - machine.stuck
                assert not busy, f"files are removed while {busy} run"
                machine.files = False
                machine.pods[NAME_CLEANUP] = True
            wanted = machine.labels.get(LABEL_CLEANUP) == "true" and ("DaemonSet", NAME_CLEANUP) in self.objects
            if wanted:
                machine.pods.setdefault(NAME_CLEANUP, False)
            else:
                machine.pods.pop(NAME_CLEANUP, None)

    def run(self, *, die_after: int | None = None) -> None:
        """Look and act until nothing is left to do. An operator that has died begins again a while later."""
        for _ in range(1000):
            step = uninstall.plan(self.world())
            if step.done:
                return
            for action in step.actions:
                if self.writes == die_after:
                    die_after = None
                    break
                self.carry_out(action)
            self.tick()
        raise AssertionError(f"no end: {step}")

    def _make(self, manifest: RawObject) -> None:
        kind, meta = manifest["kind"], manifest["metadata"]
        known = self.objects.get((kind, meta["name"]))
        meta["uid"] = known["metadata"]["uid"] if known else f"{kind}-{meta['name']}-{self.__dict__.get('writes', 0)}"
        meta["creationTimestamp"] = known["metadata"]["creationTimestamp"] if known else _text(self.now)
        self.objects[kind, meta["name"]] = manifest

    def assert_clean(self, *, files: tuple[str, ...] = ()) -> None:
        """Nothing of Shoal is there but the files of these nodes."""
        assert not self.objects
        assert not self.policies
        for name, machine in self.machines.items():
            assert machine.labels == ({"zone": "b"} if name == "plain" else FOREIGN)
            assert machine.annotations == ({} if name == "plain" else {"theirs": "x"})
            assert machine.taints == (() if name == "plain" else ("theirs",))
            assert machine.files is (name in files)
            if machine.ready:
                assert not set(machine.pods) - machine.stuck


def served() -> Machine:
    return Machine(
        pods=dict.fromkeys(OPERANDS, True),
        labels={**FOREIGN, **{key: "true" for key in deploy.LABELS_DEPLOY if key not in FOREIGN}},
        annotations={"theirs": "x", shoal.ANNOTATION_GPUS: "{}", ANNOTATION_FACTS: "{}", ANNOTATION_VALIDATION: "{}"},
        taints=("theirs", TAINT_STARTING),
    )


def _pods(machine: Machine) -> list[Pod]:
    pods = []
    for name, ready in machine.pods.items():
        meta = ObjectMeta(name=f"{name}-x", owner_references=(OwnerReference(kind="DaemonSet", name=name),))
        condition = PodCondition(type="Ready", status="True" if ready else "False")
        pods.append(Pod(metadata=meta, status=PodStatus(phase="Running", conditions=(condition,))))
    return pods


def _merged(old: dict[str, str], changes: Any) -> dict[str, str]:
    return {key: value for key, value in {**old, **changes}.items() if value is not None}


def _text(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat().replace("+00:00", "Z")


def test_all_of_it_goes() -> None:
    cluster = Cluster()
    cluster.delete_policies()
    cluster.run()
    cluster.assert_clean()
    assert cluster.now - START < STOP_SECONDS, "nothing is waited for that is not needed"
    assert not cluster.told


def test_killed_between_any_two_writes() -> None:
    whole = Cluster(nodes=2)
    whole.delete_policies()
    whole.run()
    assert whole.writes > 15
    for die_after in range(whole.writes):
        cluster = Cluster(nodes=2)
        cluster.delete_policies()
        cluster.run(die_after=die_after)
        cluster.assert_clean()
        assert cluster.writes == whole.writes, f"nothing is done twice after {die_after} writes"


def test_killed_after_each_write() -> None:
    cluster = Cluster()
    cluster.delete_policies()
    while not (step := uninstall.plan(cluster.world())).done:
        for action in step.actions[:1]:
            cluster.carry_out(action)
        cluster.tick()
    cluster.assert_clean()


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_the_driver_ends_after_those_who_use_it(order: str) -> None:
    cluster = Cluster(nodes=1)
    if order == "backwards":
        cluster.objects = dict(reversed(cluster.objects.items()))
    cluster.delete_policies()
    while ("DaemonSet", NAME_DRIVER) in cluster.objects:
        assert NAME_DRIVER in cluster.machines["n0"].pods
        for action in uninstall.plan(cluster.world()).actions:
            if isinstance(action, Delete) and action.name == NAME_DRIVER:
                assert set(cluster.machines["n0"].pods) <= {NAME_DRIVER, NAME_CLEANUP}
            cluster.carry_out(action)
        cluster.tick()


def test_a_node_that_is_not_ready_holds_nothing_up_for_ever_and_is_told() -> None:
    cluster = Cluster()
    cluster.machines["n1"].ready = False
    cluster.delete_policies()
    cluster.run()
    cluster.assert_clean(files=("n1",))
    assert UNREADY_SECONDS <= cluster.now - START < CLEAN_SECONDS
    (told,) = cluster.told
    assert (told.kind, told.name, told.reason) == ("Node", "n1", uninstall.REASON_LEFT)
    assert "shoal uninstall --node" in told.message


def test_a_node_that_comes_back_in_time_is_cleaned() -> None:
    cluster = Cluster()
    cluster.machines["n1"].ready = False
    cluster.delete_policies()
    for _ in range(10):
        for action in uninstall.plan(cluster.world()).actions:
            cluster.carry_out(action)
        cluster.tick()
    cluster.machines["n1"].ready = True
    cluster.run()
    cluster.assert_clean()
    assert not cluster.told


def test_a_node_whose_files_cannot_be_removed_is_given_up_and_told() -> None:
    cluster = Cluster()
    cluster.machines["n0"].unclean = True
    cluster.delete_policies()
    cluster.run()
    cluster.assert_clean(files=("n0",))
    assert [told.name for told in cluster.told] == ["n0"]
    assert cluster.now - START >= CLEAN_SECONDS


def test_a_pod_that_does_not_end_is_waited_for_a_while() -> None:
    cluster = Cluster()
    cluster.machines["n0"].stuck = frozenset({shoal.NAME_AGENT})
    cluster.delete_policies()
    cluster.run()
    cluster.assert_clean()
    assert STOP_SECONDS <= cluster.now - START < CLEAN_SECONDS


def test_a_node_that_vanishes_meanwhile() -> None:
    cluster = Cluster()
    cluster.machines["n1"].unclean = True
    cluster.delete_policies()
    for _ in range(5):
        for action in uninstall.plan(cluster.world()).actions:
            cluster.carry_out(action)
        cluster.tick()
    del cluster.machines["n1"]
    cluster.run()
    cluster.assert_clean()


def test_without_a_manifest_of_the_clean_up_files_stay_and_are_told() -> None:
    cluster = Cluster()
    cluster.operands = {}
    cluster.delete_policies()
    cluster.run()
    cluster.assert_clean(files=("n0", "n1", "n2"))
    assert {told.name for told in cluster.told} == {"n0", "n1", "n2"}


def test_while_another_policy_goes_on_nothing_is_taken_away() -> None:
    cluster = Cluster(policies=2)
    cluster.delete_policies("p0")
    world = cluster.world()
    assert not uninstall.is_due(world)
    assert uninstall.released(world) == (SetFinalizer("p0", "p0", present=False),)
    cluster.delete_policies("p1")
    assert uninstall.is_due(cluster.world())
    assert uninstall.released(cluster.world()) == ()
    cluster.run()
    cluster.assert_clean()


@pytest.mark.parametrize("beside", [True, False])
def test_a_policy_that_comes_meanwhile_has_nodes_without_the_label(beside: bool) -> None:
    """Else the next uninstall would remove files while operands still write them."""
    machine = served()
    machine.labels[LABEL_CLEANUP] = "true"
    (patch,) = deploy.plan([machine.node("n0")], beside_nvidia=beside)
    assert patch.labels == {LABEL_CLEANUP: None}


def test_beside_nvidias_operator_its_labels_and_files_are_left_to_it() -> None:
    cluster = Cluster(nodes=1)
    cluster.nvidia = ({"metadata": {"name": "cluster-policy"}},)
    cluster.machines["n0"].labels[nvidia.LABEL_UPGRADE_STATE] = "upgrade-done"
    labels = dict(cluster.machines["n0"].labels)
    cluster.delete_policies()
    (applied,) = [action for action in uninstall.plan(cluster.world()).actions if isinstance(action, Apply)]
    (container,) = applied.manifest["spec"]["template"]["spec"]["initContainers"]
    assert container["args"] == ["uninstall", "--node", KEEP_VALIDATIONS]
    cluster.run()
    assert cluster.machines["n0"].labels == labels
    assert cluster.machines["n0"].annotations == {"theirs": "x"}
    assert not cluster.objects


def test_what_is_applied_runs_on_chosen_nodes_and_belongs_to_the_policy() -> None:
    cluster = Cluster()
    cluster.delete_policies()
    (applied,) = [action for action in uninstall.plan(cluster.world()).actions if isinstance(action, Apply)]
    assert applied.manifest["metadata"] == {
        "name": NAME_CLEANUP,
        "namespace": NAMESPACE,
        "labels": {LABEL_POLICY: "p0"},
    }
    assert applied.manifest["spec"]["template"]["spec"]["nodeSelector"] == {LABEL_CLEANUP: "true"}
    assert CLEANUP["metadata"] == {"name": NAME_CLEANUP}, "the manifest itself stays as it was"


def test_pods_that_have_cards_are_told_once() -> None:
    cluster = Cluster()
    pods = tuple(
        Pod(metadata=ObjectMeta(name=f"train-{n}", namespace="team"), status=PodStatus(phase=phase))
        for n, phase in enumerate(["Running", "Pending", "Running", "Running", "Running", "Succeeded"])
    )
    cluster.users = {"n0": pods}
    cluster.delete_policies()
    cluster.run()
    (told,) = cluster.told
    assert (told.kind, told.name, told.reason) == ("ClusterPolicy", "p0", uninstall.REASON_USED)
    assert told.message.startswith("5 pods have cards and go on running")
    assert "team/train-0, team/train-1, team/train-2 and 2 more" in told.message


@pytest.mark.parametrize("cordoned", [True, False])
def test_an_upgrade_that_nobody_ends_any_more(cordoned: bool) -> None:
    """A node that the operator cordoned for it takes pods again; one that an administrator cordoned does not."""
    mark = encode_upgrade(UpgradeMark(state="pod-deletion-required", since=1, cordoned=cordoned))
    meta = ObjectMeta(
        name="n",
        uid="u",
        labels={nvidia.LABEL_UPGRADE_STATE: "pod-deletion-required"},
        annotations={ANNOTATION_UPGRADE: mark, nvidia.ANNOTATION_UPGRADE_INITIAL: "true"},
    )
    node = Node(metadata=meta, spec=NodeSpec(unschedulable=True))
    patch = uninstall.removal(node)
    assert patch is not None
    assert patch.labels == {nvidia.LABEL_UPGRADE_STATE: None}
    assert patch.annotations == {ANNOTATION_UPGRADE: None, nvidia.ANNOTATION_UPGRADE_INITIAL: None}
    assert patch.unschedulable is (False if cordoned else None)


def test_everything_that_is_named_ours_is_known() -> None:
    """Each name under shoal.dev/ that a contract has is one that uninstalling takes off nodes, or stands elsewhere."""
    named = set()
    for module in (shoal, decisions, discovery, load, mechanisms, operator, nvidia):
        values = (value for key, value in vars(module).items() if key.startswith(("ANNOTATION_", "LABEL_", "TAINT_")))
        named |= {value for value in values if isinstance(value, str) and value.startswith("shoal.dev/")}
    on_nodes = {*uninstall.NODE_ANNOTATIONS, LABEL_CLEANUP, TAINT_STARTING}
    on_pods = {shoal.ANNOTATION_ALLOCATION, shoal.ANNOTATION_ISOLATION}
    on_leases = {load.ANNOTATION_LOAD}
    by_users = {
        *(shoal.ANNOTATION_POLICY, shoal.ANNOTATION_USE_MODEL, shoal.ANNOTATION_AVOID_MODEL),
        *(shoal.ANNOTATION_USE_UUID, shoal.ANNOTATION_AVOID_UUID, shoal.ANNOTATION_SIMULATE),
        *(shoal.ANNOTATION_SIMULATE_PREFIX, shoal.LABEL_ADMISSION, shoal.LABEL_MPS, decisions.LABEL_VISIBLE_DEVICES),
    }
    assert named - on_pods - on_leases - by_users - {LABEL_POLICY} == on_nodes


def test_a_cluster_with_nothing_on_its_nodes() -> None:
    cluster = Cluster(nodes=0)
    cluster.delete_policies()
    cluster.run()
    cluster.assert_clean()


def test_time_begins_when_it_is_asked_for_without_policies() -> None:
    """As `shoal uninstall` does it where no policy is left."""
    cluster = Cluster(nodes=1, policies=0)
    cluster.operands = {}
    cluster.machines["n0"].stuck = frozenset({shoal.NAME_AGENT})
    world = cluster.world()
    assert uninstall.plan(world, began=world.now).waiting
    later = replace(world, now=world.now + STOP_SECONDS)
    assert any(isinstance(action, PatchNode) for action in uninstall.plan(later, began=world.now).actions)


def test_many_nodes_have_more_time() -> None:
    cluster = Cluster(nodes=2000)
    for name, machine in cluster.machines.items():
        if name not in ("n0", "plain"):
            machine.labels, machine.annotations, machine.taints, machine.files = dict(FOREIGN), {}, (), False
    cluster.machines["n0"].unclean = True
    cluster.delete_policies()
    for action in uninstall.plan(cluster.world()).actions:
        cluster.carry_out(action)
    cluster.objects = {key: obj for key, obj in cluster.objects.items() if key[1] == NAME_CLEANUP}
    cluster.machines["n0"].pods = {NAME_CLEANUP: False}
    cluster.machines["n0"].labels[LABEL_CLEANUP] = "true"
    cluster.now += CLEAN_SECONDS + 90
    assert uninstall.plan(cluster.world()).waiting == "node n0: its files"
    cluster.now += 60
    assert uninstall.plan(cluster.world()).left


def test_operands_with_other_names_are_known_by_their_labels() -> None:
    """As deploy/keti has them; a pod that is no DaemonSet's is nobody's operand, whatever it is labelled."""
    labels = {"app.kubernetes.io/name": shoal.NAME_AGENT}
    owners = (OwnerReference(kind="DaemonSet", name="keti-gpu-device-plugin"),)
    assert uninstall.operand_of(Pod(metadata=ObjectMeta(labels=labels, owner_references=owners))) == shoal.NAME_AGENT
    assert uninstall.operand_of(Pod(metadata=ObjectMeta(labels=labels))) == ""
    assert uninstall.operand_of(Pod(metadata=ObjectMeta(owner_references=owners))) == ""


def test_the_command_takes_the_charts_manifest_only_with_the_digest_of_the_deployment() -> None:
    """Who may edit ConfigMaps, and no more, brings nothing onto nodes by an uninstall either."""
    data = {"cleanup.yaml": yaml.safe_dump(CLEANUP), "agent.yaml": ""}
    digest = digest_of({name: text.encode() for name, text in data.items()})
    assert pinned_cleanup(data, digest) == (CLEANUP,)
    for changed in ({**data, "cleanup.yaml": data["cleanup.yaml"] + "\n"}, {**data, "more.yaml": ""}, {}):
        assert pinned_cleanup(changed, digest) == ()
    # Without an operator nobody says which manifest was installed.
    assert pinned_cleanup(data, "") == ()
