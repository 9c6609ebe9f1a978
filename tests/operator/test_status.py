"""What the status of a policy says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.kube.objects.pod import (
    Container,
    ContainerRunning,
    ContainerState,
    ContainerStatus,
    ContainerTerminated,
    ContainerWaiting,
    Pod,
    PodCondition,
    PodSpec,
)
from shoal.model.contract import nvidia
from shoal.model.contract.operator import ANNOTATION_UPGRADE, UpgradeMark, encode_upgrade
from shoal.operator.actions import SetStatus, Tell
from shoal.operator.components import COMPONENTS, wanted
from shoal.operator.node_state import Grade, is_served, target_of, trouble_of
from shoal.operator.nvidia import NvidiaOperator, nvidia_operator
from shoal.operator.policy import read_policy
from shoal.operator.policy_status import MAX_NODES, MAX_WORDS
from shoal.operator.status import nodes_state, plan
from shoal.operator.world import World
from tests.operator.scene import LABELLED, PREFIX, node, nvidia_policy, operand_pod, policy, validation, world

ALONE = NvidiaOperator()
EVERY = wanted(read_policy(policy()).spec, ALONE)
DRIVER = [one for one in COMPONENTS if one.operand == "driver" and one not in EVERY]
RUNNING = [one.daemon_set for one in EVERY if one.parts]


def pods_of(name: str, *without: str) -> tuple[Pod, ...]:
    """Ready pods of all operands on a node."""
    return tuple(operand_pod(one, name) for one in RUNNING if one not in without)


def daemon_sets(nodes: int = 1, **changed: dict[str, int]) -> dict[tuple[str, str], dict[str, Any]]:
    """All DaemonSets, ready on so many nodes."""
    found = {}
    for component in COMPONENTS:
        status = {
            "desiredNumberScheduled": nodes,
            "numberReady": nodes,
            "updatedNumberScheduled": nodes,
            "observedGeneration": 1,
            **changed.get(component.operand.replace("-", "_"), {}),
        }
        meta = {"name": component.daemon_set, "generation": 1, "labels": {"shoal.dev/policy": "cluster-policy"}}
        found["DaemonSet", component.daemon_set] = {"kind": "DaemonSet", "metadata": meta, "status": status}
    return found


def ready_world(*names: str, **parts: Any) -> World:
    """All is well on these nodes."""
    return world(
        *(node(name, valid=validation()) for name in names),
        **{"operand_pods": {name: pods_of(name) for name in names}, "owned": daemon_sets(len(names)), **parts},
    )


def status(there: World, wish: dict[str, Any] | None = None) -> dict[str, Any]:
    wish = wish or there.policies[0]
    reading = read_policy(wish)
    actions = plan(there, wish, reading, nvidia_operator(there.nvidia_policies))
    (found,) = [dict(one.status) for one in actions if isinstance(one, SetStatus)]
    return found


def condition(found: dict[str, Any], kind: str) -> dict[str, Any]:
    (one,) = [one for one in found["conditions"] if one["type"] == kind]
    return dict(one)


def test_ready() -> None:
    found = status(ready_world("a", "b"))
    assert (found["state"], found["ready"]) == ("ready", "2/2")
    assert not {"waitingFor", "nodes", "problems"} & set(found)
    assert condition(found, "Ready")["reason"] == "Reconciled"
    assert condition(found, "Error")["status"] == "False"
    assert condition(found, "DevicePluginReady")["status"] == "True"
    assert {one["name"]: one["state"] for one in found["components"]} == dict.fromkeys(
        ("driver", "toolkit", "validator", "devicePlugin", "gfd", "dcgmExporter"), "ready"
    )


def test_nothing_is_written_twice() -> None:
    there = ready_world("a")
    wish = {**there.policies[0], "status": status(there)}
    again = ready_world("a", policies=(wish,), now=there.now + 1000)
    assert plan(again, wish, read_policy(wish), ALONE) == []


def test_a_condition_that_changes_has_a_new_time_and_the_others_keep_theirs() -> None:
    there = ready_world("a")
    wish = {**there.policies[0], "status": status(there)}
    later = world(node("a"), policies=(wish,), now=there.now + 1000, owned=daemon_sets())
    found = status(later, wish)
    first = condition(wish["status"], "Ready")["lastTransitionTime"]
    assert condition(found, "Ready")["lastTransitionTime"] != first
    assert condition(found, "DriverReady")["lastTransitionTime"] == first
    # What is not there any more is taken away by name, or a merge patch would leave it.
    back = {**wish, "status": found}
    assert status(ready_world("a", policies=(back,)), back)["nodes"] is None


def test_never_ready_without_gpu_nodes() -> None:
    for there in (world(owned=daemon_sets(0)), world(node("a", {}), owned=daemon_sets(0))):
        found = status(there)
        assert (found["state"], found["ready"], found["waitingFor"]) == ("notReady", "0/0", "a GPU node")
        assert condition(found, "Ready")["reason"] == "NoGPUNodes"


def test_nodes_that_are_switched_off_do_not_count() -> None:
    off = node("off", LABELLED | {PREFIX + "operands": "false"})
    assert not is_served(off)
    there = ready_world("a")
    found = status(ready_world("a", nodes={**there.nodes, "off": off}))
    assert (found["state"], found["ready"]) == ("ready", "1/1")


def waits(reason: str, message: str = "") -> ContainerState:
    return ContainerState(waiting=ContainerWaiting(reason=reason, message=message))


def pod_with(daemon_set: str, *, init: bool = False, **fields: Any) -> Pod:
    one = ContainerStatus(**{"name": "main", **fields})
    pod = operand_pod(
        daemon_set, "n1", ready=False, **{"init_container_statuses" if init else "container_statuses": (one,)}
    )
    return msgspec.structs.replace(
        pod, spec=PodSpec(node_name="n1", containers=(Container(name="main", image="example.org/x:1"),))
    )


@pytest.mark.parametrize(
    ("pod", "why", "fix", "grade"),
    [
        (
            pod_with("shoal-driver", state=waits("ImagePullBackOff", "not found")),
            "image example.org/x:1 of shoal-driver cannot be pulled: not found",
            "correct repository, image and version of driver",
            Grade.FAILS,
        ),
        (
            pod_with(
                "shoal-driver",
                state=waits("CrashLoopBackOff"),
                last_state=ContainerState(
                    terminated=ContainerTerminated(exit_code=1, reason="Error", message="no\nheaders")
                ),
            ),
            "container main of shoal-driver ends again and again, the last time with 1 Error: no headers",
            "kubectl -n gpu-operator logs shoal-driver-n1 -c main --previous",
            Grade.FAILS,
        ),
        (
            pod_with("shoal-driver", state=waits("CreateContainerConfigError", 'configmap "x" not found')),
            'container main of shoal-driver cannot be created: configmap "x" not found',
            "describe pod shoal-driver-n1",
            Grade.FAILS,
        ),
        (
            operand_pod("shoal-driver", "n1", ready=False, phase="Failed", reason="Evicted", message="disk"),
            "the pod of shoal-driver has failed: Evicted disk",
            "describe",
            Grade.FAILS,
        ),
        (
            pod_with("shoal-driver", state=ContainerState(running=ContainerRunning())),
            "the pod of shoal-driver runs and is not ready",
            "logs",
            Grade.WAITS,
        ),
        (operand_pod("shoal-driver", "n1", ready=False), "the pod of shoal-driver is starting", "", Grade.BEGINS),
    ],
)
def test_why_a_node_waits_for_its_driver(pod: Pod, why: str, fix: str, grade: Grade) -> None:
    trouble = trouble_of(node(), (pod, operand_pod("shoal-validator", "n1")), EVERY)
    assert trouble is not None
    assert (trouble.step, trouble.grade) == ("driver", grade)
    assert trouble.why.startswith(why)
    assert fix in trouble.fix
    assert trouble.since == "2026-01-03T00:00:00Z"


def test_a_pod_that_finds_no_place_counts_for_the_node_it_is_for() -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
            }
        }
    }
    pod = msgspec.structs.replace(
        operand_pod("shoal-agent", "", ready=False),
        spec=PodSpec(affinity=affinity),
        status=operand_pod(
            "shoal-agent",
            "",
            ready=False,
            conditions=(
                PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message="Insufficient cpu"),
            ),
        ).status,
    )
    assert target_of(pod) == "n1"
    there = world(
        node("n1", valid=validation(3)),
        operand_pods={"n1": pods_of("n1", "shoal-agent"), "": (pod,)},
        owned=daemon_sets(),
    )
    (told,) = status(there)["nodes"]
    assert told["step"] == "plugin"
    assert "finds no place on its node: Insufficient cpu" in told["why"]
    assert "daemonsets.tolerations" in told["fix"]


def test_what_the_validator_says() -> None:
    said = validation(1, why="no runtime nvidia", fix="install the toolkit", since=1_700_000_000)
    trouble = trouble_of(node(valid=said), pods_of("n1"), EVERY)
    assert trouble is not None
    assert (trouble.step, trouble.since) == ("toolkit", "2023-11-14T22:13:20Z")
    assert (trouble.why, trouble.fix) == ("no runtime nvidia", "install the toolkit")


def test_a_pod_that_fails_tells_more_than_the_check() -> None:
    broken = pod_with("shoal-toolkit", state=waits("ErrImagePull", "denied"))
    said = validation(1, why="no runtime nvidia", fix="install the toolkit")
    trouble = trouble_of(node(valid=said), (*pods_of("n1", "shoal-toolkit"), broken), EVERY)
    assert trouble is not None
    assert "cannot be pulled: denied" in trouble.why


def test_a_pod_that_waits() -> None:
    waiting = pod_with(
        "shoal-agent", init=True, name="wait-toolkit-ready", state=ContainerState(running=ContainerRunning())
    )
    trouble = trouble_of(node(valid=validation(3)), (*pods_of("n1", "shoal-agent"), waiting), EVERY)
    assert trouble is not None
    assert (trouble.why, trouble.grade) == ("the pod of shoal-agent waits for toolkit-ready", Grade.WAITS)


def test_a_node_that_is_not_ready() -> None:
    trouble = trouble_of(node(ready=False, valid=validation()), pods_of("n1"), EVERY)
    assert trouble is not None
    assert (trouble.step, trouble.grade, trouble.since) == ("node", Grade.FAILS, "2026-01-02T00:00:00Z")
    assert "NodeStatusUnknown" in trouble.why


def test_an_operand_beyond_the_steps() -> None:
    trouble = trouble_of(node(valid=validation()), pods_of("n1", "shoal-metrics"), EVERY)
    assert trouble is not None
    assert (trouble.step, trouble.why) == ("metrics", "shoal-metrics has no pod on the node yet")


def test_an_administrators_word_is_no_trouble_and_a_pause_is() -> None:
    off = node(labels=LABELLED | {PREFIX + "dcgm-exporter": "false"}, valid=validation())
    assert trouble_of(off, pods_of("n1", "shoal-metrics"), EVERY) is None
    paused = node(labels=LABELLED | {PREFIX + "dcgm-exporter": "paused-for-driver-upgrade"}, valid=validation())
    trouble = trouble_of(paused, pods_of("n1", "shoal-metrics"), EVERY)
    assert trouble is not None
    assert "while the driver is replaced" in trouble.why
    assert f"kubectl label node n1 {PREFIX}dcgm-exporter=true" in trouble.fix


def test_a_new_driver_that_fails_is_told_before_the_upgrade_counts_as_failed() -> None:
    state = "pod-restart-required"
    upgraded = node(labels=LABELLED | {nvidia.LABEL_UPGRADE_STATE: state}, valid=validation())
    upgraded.metadata.annotations[ANNOTATION_UPGRADE] = encode_upgrade(UpgradeMark(state=state, since=1_700_000_000))
    trouble = trouble_of(upgraded, pods_of("n1", "shoal-driver"), EVERY)
    assert trouble is not None
    assert (trouble.step, trouble.grade, trouble.why) == (state, Grade.WAITS, "its driver is being replaced")
    broken = pod_with("shoal-driver", state=waits("ErrImagePull", "denied"))
    trouble = trouble_of(upgraded, (*pods_of("n1", "shoal-driver"), broken), (*EVERY, *DRIVER))
    assert trouble is not None
    assert (trouble.step, trouble.grade) == (state, Grade.FAILS)
    assert "cannot be pulled: denied" in trouble.why
    assert trouble.fix


def test_a_report_that_cannot_be_read() -> None:
    trouble = trouble_of(node(valid='{"version": 7}'), pods_of("n1"), EVERY)
    assert trouble is not None
    assert "shoal.dev/validation" in trouble.why
    assert "kubectl annotate node n1 shoal.dev/validation-" in trouble.fix


def test_a_report_of_another_boot_counts_for_nothing() -> None:
    trouble = trouble_of(node(valid=validation(boot="old"), boot="new"), pods_of("n1"), EVERY)
    assert trouble is not None
    assert trouble.step == "driver"


def test_hostile_words_are_one_line_and_short() -> None:
    pod = pod_with("shoal-driver", state=waits("ImagePullBackOff", "x\r\n\x1b[31m" * 5000))
    trouble = trouble_of(node(), (pod,), EVERY)
    assert trouble is not None
    assert trouble.why.isprintable()
    assert len(trouble.told().why) <= MAX_WORDS


def test_the_worst_come_first_and_the_rest_is_counted() -> None:
    nodes = [node(f"n{number:03}", valid=validation(number % 3)) for number in range(MAX_NODES + 20)]
    broken = node("zz", ready=False)
    found = status(world(*nodes, broken, owned=daemon_sets(1)))
    assert found["nodes"][0]["name"] == "zz"
    assert (len(found["nodes"]), found["moreNodes"]) == (MAX_NODES, 21)
    assert found["waitingFor"] == "driver on 40 nodes, toolkit on 40 nodes, cuda on 40 nodes, node on zz"


def test_components() -> None:
    there = ready_world("a", owned=daemon_sets(1, metrics={"numberReady": 0}, agent={"updatedNumberScheduled": 0}))
    found = status(there)
    assert (found["state"], found["waitingFor"]) == ("notReady", "devicePlugin, dcgmExporter")
    assert condition(found, "DcgmExporterReady")["message"] == "shoal-metrics is ready on 0 of 1 nodes"
    assert condition(found, "DevicePluginReady")["message"] == "shoal-agent is changed on 0 of 1 nodes"


def test_pods_that_nobody_replaces_keep_no_policy_from_being_ready() -> None:
    there = ready_world("a", owned=daemon_sets(1, mps={"updatedNumberScheduled": 0}))
    found = status(there)
    assert found["state"] == "ready"
    assert "when its pod is deleted" in condition(found, "DevicePluginReady")["message"]


def test_a_component_without_manifest() -> None:
    there = ready_world("a")
    some = {key: value for key, value in there.operands.items() if key != "metrics"}
    found = status(ready_world("a", operands=some))
    assert condition(found, "DcgmExporterReady")["reason"] == "OperandMissing"
    assert condition(found, "Error")["reason"] == "OperandMissing"
    assert condition(found, "DevicePluginReady")["status"] == "True"


def test_policy_and_chart_disagree_about_the_driver() -> None:
    there = ready_world("a")
    without = {key: value for key, value in there.operands.items() if key != "driver"}
    found = condition(status(ready_world("a", operands=without)), "DriverReady")
    assert (found["status"], found["reason"]) == ("False", "OperandMissing")
    assert "run helm upgrade with driver.enabled=true, or set driver.enabled to false in the policy" in found["message"]
    off = (policy(driver={"enabled": False}),)
    found = condition(status(ready_world("a", policies=off)), "DriverReady")
    assert found["reason"] == "Disabled"
    assert "ServiceAccount shoal-driver and its rights are there" in found["message"]
    assert (
        "ServiceAccount"
        not in condition(status(ready_world("a", policies=off, operands=without)), "DriverReady")["message"]
    )


def test_variables_by_which_the_driver_manager_would_evict_do_nothing() -> None:
    env = [{"name": "ENABLE_AUTO_DRAIN", "value": "true"}, {"name": "ENABLE_GPU_POD_EVICTION", "value": "false"}]
    found = status(ready_world("a", policies=(policy(driver={"manager": {"env": env}}),)))
    (problem,) = found["problems"]
    assert problem["field"] == "spec.driver.manager.env[0]"
    assert problem["effect"] == "ignored"
    assert "upgradePolicy" in problem["fix"]


def test_a_disabled_component_is_as_it_is_wanted() -> None:
    found = status(ready_world("a", policies=(policy(dcgmExporter={"enabled": False}),)))
    assert found["state"] == "ready"
    assert condition(found, "DcgmExporterReady")["reason"] == "Disabled"


def test_beside_nvidias_device_plugin_it_says_that_it_serves_nothing() -> None:
    found = status(ready_world("a", nvidia_policies=(nvidia_policy(),)))
    assert found["state"] == "notReady"
    assert "device plugin" in found["waitingFor"]
    assert "devicePlugin.enabled to false" in condition(found, "Ready")["message"]
    off = nvidia_policy(devicePlugin={"enabled": False})
    found = status(ready_world("a", nvidia_policies=(off,)))
    assert found["state"] == "ready"
    states = {one["name"]: one["state"] for one in found["components"]}
    assert states["driver"] == states["toolkit"] == "nvidia"
    assert states["devicePlugin"] == "ready"


def test_problems_of_the_policy_are_told_and_the_rest_goes_on() -> None:
    wish = policy(
        devicePlugin={"config": {"name": "absent"}},
        daemonsets={"rollingUpdate": {"maxUnavailable": "0"}},
        sandboxWorkloads={"enabled": True},
        toolkit={"repository": "example.org"},
        typo=1,
    )
    found = status(ready_world("a", policies=(wish,)))
    assert found["state"] == "ready"
    fields = {one["field"] for one in found["problems"]}
    assert fields >= {
        "spec.devicePlugin.config.name",
        "spec.daemonsets.rollingUpdate.maxUnavailable",
        "spec.sandboxWorkloads.enabled",
        "spec.toolkit",
        "spec['typo']",
    }
    assert condition(found, "Error")["reason"] == "PolicyProblem"
    there = ready_world("a", policies=(wish,), config_maps=frozenset(["absent"]))
    assert "spec.devicePlugin.config.name" not in {one["field"] for one in status(there)["problems"]}


def test_refused_writes_are_told() -> None:
    found = status(ready_world("a", failures={"DaemonSet x/shoal-agent": "403 Forbidden"}))
    assert condition(found, "Error")["reason"] == "ReconcileFailed"
    assert "shoal-agent could not be written: 403" in condition(found, "Error")["message"]


def test_events() -> None:
    broken = node("bad", ready=False)
    there = world(broken, owned=daemon_sets())
    wish = there.policies[0]
    told = [one for one in plan(there, wish, read_policy(wish), ALONE) if isinstance(one, Tell)]
    assert [(one.kind, one.name, one.warning) for one in told] == [
        ("ClusterPolicy", "cluster-policy", False),
        ("Node", "bad", True),
    ]
    # Each is told once.
    after = {**wish, "status": status(there)}
    again = world(broken, node("new"), policies=(after,), owned=daemon_sets())
    assert not [one for one in plan(again, after, read_policy(after), ALONE) if isinstance(one, Tell)]


def test_many_nodes() -> None:
    names = [f"n{number}" for number in range(5000)]
    there = ready_world(*names)
    state = nodes_state(there, read_policy(there.policies[0]).spec, ALONE)
    assert (state.served, state.ready) == (5000, 5000)
