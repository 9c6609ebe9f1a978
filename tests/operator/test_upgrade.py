"""Driver upgrades on a cluster in memory: the promise of maxUnavailable, and every fault on the way."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.objects.pod import Pod
from shoal.model.contract import nvidia
from shoal.model.contract.operator import ANNOTATION_UPGRADE, ANNOTATION_VALIDATION, decode_upgrade
from shoal.operator.actions import DeletePod, Evict, PatchNode, Tell
from shoal.operator.node_state import Grade, trouble_of
from shoal.operator.policy import DrainFields, PodDeletionFields, UpgradePolicyFields, WaitForCompletionFields
from shoal.operator.reconcile import merged
from shoal.operator.uninstall import removal
from shoal.operator.upgrade import count, due, plan, stuck
from shoal.operator.upgrade_node import RETRY_SECONDS, progress, version_of
from tests.operator.upgrade_model import DEPLOY, OUT_OF_SERVICE, STATE, Cluster

SKIP = nvidia.LABEL_UPGRADE_SKIP


def names(count: int) -> list[str]:
    return [f"n{number:02}" for number in range(count)]


def policy(**fields: object) -> UpgradePolicyFields:
    return UpgradePolicyFields(**{"max_parallel_upgrades": 0, **fields})  # type: ignore[arg-type]


def upgraded(cluster: Cluster, but: tuple[str, ...] = ()) -> bool:
    return all(cluster.up_to_date(name) for name in cluster.nodes if name not in but)


def at_peace(cluster: Cluster) -> None:
    """Everything is upgraded and in service, nothing is left behind, and nothing is written any more."""
    assert upgraded(cluster), {name: node.state for name, node in cluster.nodes.items()}
    for node in cluster.nodes.values():
        assert node.state in ("", "upgrade-done")
        assert node.unschedulable == node.admin_cordoned
    assert cluster.leftovers() == []
    assert cluster.operate() == []


def test_nothing_is_written_where_nothing_is_to_do() -> None:
    cluster = Cluster(names(3))
    cluster.operate()  # whose the upgrades are
    cluster.writes = 0
    cluster.run(1000)
    assert cluster.writes == 0
    assert due(cluster.world(), cluster.policy) is None


def test_a_node_goes_through_nvidias_states_in_order() -> None:
    cluster = Cluster(["n0"])
    pod = cluster.add_pod("web-1", "n0")
    cluster.new_driver("b")
    states: list[str] = []
    for _ in range(100):
        cluster.operate()
        if cluster.nodes["n0"].state != (states or [""])[-1]:
            states.append(cluster.nodes["n0"].state)
        cluster.tick(10)
    assert states == [
        *("cordon-required", "pod-deletion-required", "pod-restart-required", "validation-required"),
        *("uncordon-required", "upgrade-done"),
    ] or states == [
        *("upgrade-required", "cordon-required", "pod-deletion-required", "pod-restart-required"),
        *("validation-required", "uncordon-required", "upgrade-done"),
    ]
    assert pod.uid not in cluster.pods
    at_peace(cluster)
    assert [event.reason for event in cluster.told] == ["DriverUpgradeStarted", "DriverUpgradeDone"]


@pytest.mark.parametrize(("value", "limit"), [("25%", 13), (7, 7), ("1", 1), ("1%", 1), ("100%", 50)])
def test_fifty_nodes_are_never_beyond_max_unavailable(value: int | str, limit: int) -> None:
    cluster = Cluster(names(50), policy(max_unavailable=value))
    for name in names(50):
        cluster.add_pod(f"web-{name}", name)
    cluster.new_driver("b")
    most = 0
    while not upgraded(cluster) or cluster.leftovers():
        cluster.operate()
        most = max(most, len(cluster.unavailable()))
        cluster.tick(10)
    assert most == limit
    at_peace(cluster)


def test_max_parallel_upgrades_bounds_too() -> None:
    cluster = Cluster(names(50), policy(max_parallel_upgrades=2))
    cluster.new_driver("b")
    most = 0
    for _ in range(20):
        cluster.operate()
        most = max(most, sum(node.state in OUT_OF_SERVICE for node in cluster.nodes.values()))
        cluster.tick(10)
    assert most == 2


def test_a_driver_that_fails_on_one_node_of_fifty_holds_up_no_other() -> None:
    cluster = Cluster(names(50), policy())
    cluster.nodes["n00"].broken = True
    cluster.drivers["n00"].ready_at = 0
    cluster.new_driver("b")
    cluster.run(6000)
    assert upgraded(cluster, but=("n00",))
    assert cluster.nodes["n00"].state == "upgrade-failed"
    assert cluster.unavailable() == ["n00"]
    failure = next(event for event in cluster.told if event.reason == "DriverUpgradeFailed")
    assert failure.name == "n00"
    assert failure.warning
    assert "restarted 11 times" in failure.message

    cluster.nodes["n00"].broken = False
    cluster.run(1000)
    at_peace(cluster)


def test_failed_nodes_count_until_they_shall_be_skipped() -> None:
    """One place, and it is taken by a failed node: the promise holds, the status tells, and there is a way out."""
    cluster = Cluster(names(4), policy(max_unavailable=1))
    cluster.nodes["n00"].broken = True
    cluster.new_driver("b")
    cluster.run(3000)
    assert [name for name in cluster.nodes if cluster.up_to_date(name)] == []
    assert cluster.policy is not None
    counted = count(cluster.world(), cluster.policy)
    assert "maxUnavailable lets 1 of 4 nodes be down, and n00 are" in stuck(cluster.world(), cluster.policy)
    assert counted.failed == ("n00",)
    assert counted.waiting == ("n01", "n02", "n03")

    cluster.nodes["n00"].labels[SKIP] = "true"
    cluster.run(3000)
    assert upgraded(cluster, but=("n00",))
    assert stuck(cluster.world(), cluster.policy) == ""


def test_a_newer_driver_repairs_failed_nodes() -> None:
    cluster = Cluster(names(4), policy(max_unavailable=1))
    cluster.nodes["n00"].broken = True
    cluster.new_driver("b")
    cluster.run(3000)
    cluster.nodes["n00"].broken = False
    cluster.drivers["n00"].ready_at = float("inf")
    cluster.new_driver("c")
    cluster.run(3000)
    at_peace(cluster)


def test_nodes_that_are_down_already_count() -> None:
    cluster = Cluster(names(8), policy(max_unavailable=3))
    cluster.nodes["n06"].ready = False
    cluster.nodes["n07"].unschedulable = cluster.nodes["n07"].admin_cordoned = True
    cluster.new_driver("b")
    most = 0
    for _ in range(200):
        cluster.operate()
        most = max(most, len(cluster.unavailable()))
        cluster.tick(10)
    assert most == 3
    assert upgraded(cluster, but=("n06",))
    cluster.nodes["n06"].ready = True
    cluster.run(1000)
    at_peace(cluster)


def test_a_node_that_an_administrator_cordoned_is_upgraded_without_a_place_and_stays_cordoned() -> None:
    cluster = Cluster(names(2), policy(max_unavailable=1))
    node = cluster.nodes["n01"]
    node.unschedulable = node.admin_cordoned = True
    cluster.new_driver("b")
    cluster.operate()
    cluster.operate()
    assert node.annotations[nvidia.ANNOTATION_UPGRADE_INITIAL] == "true"
    cluster.run(1000)
    assert cluster.up_to_date("n01")
    assert node.unschedulable
    assert not cluster.up_to_date("n00")  # its place is taken
    node.unschedulable = node.admin_cordoned = False
    cluster.run(1000)
    at_peace(cluster)


def test_an_administrator_who_cordons_between_look_and_write_keeps_his_cordon() -> None:
    cluster = Cluster(names(1), policy())
    cluster.new_driver("b")
    cluster.operate()
    cluster.operate()
    asked = plan(cluster.world(), cluster.policy)
    node = cluster.nodes["n00"]
    node.unschedulable = node.admin_cordoned = True
    node.version += 1
    for action in asked:
        cluster.do(action)
    cluster.run(1000)
    at_peace(cluster)
    assert node.unschedulable


# Pods


@pytest.mark.parametrize(
    "resource",
    [
        *("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "keti.com/mpsgpu", "nvidia.com/gpu"),
        *("nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "shoal.dev/gpu"),
    ],
)
def test_pods_of_every_family_are_evicted(resource: str) -> None:
    cluster = Cluster(["n00", "n01"], policy())
    pod = cluster.add_pod("web-1", "n00", resource=resource)
    cluster.new_driver("b")
    cluster.run(2000)
    assert pod.uid not in cluster.pods
    at_peace(cluster)


def test_pods_of_daemon_sets_mirror_pods_finished_ones_and_those_that_say_so_stay() -> None:
    cluster = Cluster(["n00"], policy())
    stay = [
        cluster.add_pod("exporter", "n00", owner=("DaemonSet", "exporter")),
        cluster.add_pod("static", "n00", owner=("Node", "n00"), mirror=True),
        cluster.add_pod("job", "n00", phase="Succeeded"),
        cluster.add_pod("shy", "n00", labels={nvidia.LABEL_UPGRADE_DRAIN_SKIP: "true"}),
    ]
    cluster.new_driver("b")
    cluster.run(1000)
    assert all(pod.uid in cluster.pods for pod in stay)
    at_peace(cluster)


def test_a_budget_that_blocks_holds_up_no_other_and_is_named() -> None:
    cluster = Cluster(names(10), policy(max_unavailable=1, pod_deletion=PodDeletionFields(timeout_seconds=100)))
    pod = cluster.add_pod("web-1", "n00", labels={"app": "web"})
    cluster.budgets["only-one"] = ("web", 1)
    cluster.new_driver("b")
    cluster.run(100)
    told = next(event for event in cluster.told if event.reason == "DriverUpgradeBlocked")
    assert "default/web-1" in told.message
    assert "only-one" in told.message
    mark = progress(cluster.world().nodes["n00"])
    assert mark is not None
    assert "only-one" in mark.why

    cluster.run(3000)
    node = cluster.nodes["n00"]
    assert node.state == "upgrade-failed"
    assert not node.unschedulable, "it serves on with its old driver"
    assert pod.uid in cluster.pods
    assert upgraded(cluster, but=("n00",))

    cluster.budgets.clear()
    cluster.run(RETRY_SECONDS + 1000)
    at_peace(cluster)


def test_a_failed_node_is_tried_again_at_once_when_its_label_is_set_back() -> None:
    cluster = Cluster(["n00", "n01"], policy(pod_deletion=PodDeletionFields(timeout_seconds=100)))
    cluster.add_pod("web-1", "n00", labels={"app": "web"})
    cluster.budgets["only-one"] = ("web", 1)
    cluster.new_driver("b")
    cluster.run(1000)
    assert cluster.nodes["n00"].state == "upgrade-failed"
    cluster.budgets.clear()
    cluster.nodes["n00"].labels[STATE] = "upgrade-required"
    cluster.run(1000)
    at_peace(cluster)


def test_without_a_time_a_budget_is_waited_for_as_long_as_it_takes() -> None:
    cluster = Cluster(["n00"], policy(pod_deletion=PodDeletionFields(timeout_seconds=0)))
    cluster.add_pod("web-1", "n00", labels={"app": "web"})
    cluster.budgets["only-one"] = ("web", 1)
    cluster.new_driver("b")
    cluster.run(20_000, step=100)
    assert cluster.nodes["n00"].state == "pod-deletion-required"
    writes = cluster.writes
    cluster.run(1000)
    assert cluster.writes == writes, "the same words are not written again"
    assert due(cluster.world(), cluster.policy) == 5


@pytest.mark.parametrize(
    ("pod", "field"),
    [({"owner": ("", "")}, "force"), ({"empty_dir": True}, "delete_empty_dir")],
)
def test_pods_that_would_lose_something_are_evicted_only_if_the_policy_says_so(pod: dict, field: str) -> None:
    cluster = Cluster(["n00", "n01"], policy(pod_deletion=PodDeletionFields(timeout_seconds=100)))
    alone = cluster.add_pod("alone", "n00", **pod)
    cluster.new_driver("b")
    cluster.run(1000)
    assert alone.uid in cluster.pods
    assert cluster.nodes["n00"].state == "upgrade-failed"
    wanted = "deleteEmptyDir" if field == "delete_empty_dir" else field
    failure = next(event for event in cluster.told if event.reason == "DriverUpgradeFailed")
    assert f"driver.upgradePolicy.podDeletion.{wanted}" in failure.message

    cluster.policy = policy(pod_deletion=PodDeletionFields(timeout_seconds=100, **{field: True}))
    cluster.run(RETRY_SECONDS + 1000)
    assert alone.uid not in cluster.pods
    at_peace(cluster)


def test_jobs_may_finish_first() -> None:
    wait = WaitForCompletionFields(pod_selector="kind in (batch, train),!spot", timeout_seconds=0)
    cluster = Cluster(["n00"], policy(wait_for_completion=wait))
    job = cluster.add_pod("job", "n00", labels={"kind": "batch"})
    cluster.new_driver("b")
    cluster.run(10_000, step=100)
    assert cluster.nodes["n00"].state == "wait-for-jobs-required"
    assert cluster.nodes["n00"].unschedulable
    job.phase = "Succeeded"
    cluster.run(1000)
    at_peace(cluster)


def test_jobs_are_waited_for_no_longer_than_the_policy_says() -> None:
    wait = WaitForCompletionFields(pod_selector="kind=batch", timeout_seconds=500)
    cluster = Cluster(["n00"], policy(wait_for_completion=wait))
    job = cluster.add_pod("job", "n00", labels={"kind": "batch"})
    cluster.new_driver("b")
    cluster.run(300)
    assert cluster.nodes["n00"].state == "wait-for-jobs-required"
    cluster.run(2000)
    assert job.uid not in cluster.pods
    at_peace(cluster)


def test_a_selector_that_cannot_be_read_waits_for_every_pod_with_a_card() -> None:
    cluster = Cluster(["n00"], policy(wait_for_completion=WaitForCompletionFields(pod_selector="kind=(")))
    cluster.add_pod("job", "n00")
    cluster.new_driver("b")
    cluster.run(1000)
    assert cluster.nodes["n00"].state == "wait-for-jobs-required"


def test_a_drain_comes_after_pods_that_would_not_go() -> None:
    rules = PodDeletionFields(timeout_seconds=100)
    drain = DrainFields(enable=True, force=True, timeout_seconds=100)
    cluster = Cluster(["n00", "n01"], policy(pod_deletion=rules, drain=drain))
    cluster.add_pod("alone", "n00", owner=("", ""))
    cluster.new_driver("b")
    states = set()
    for _ in range(100):
        cluster.operate()
        states.add(cluster.nodes["n00"].state)
        cluster.tick(10)
    assert "drain-required" in states
    at_peace(cluster)


def test_a_pod_that_comes_before_the_cordon_is_seen_is_evicted_as_well() -> None:
    cluster = Cluster(["n00"], policy())
    cluster.new_driver("b")
    while cluster.nodes["n00"].state != "pod-restart-required":
        cluster.operate()
    late = cluster.add_pod("late", "n00")
    cluster.run(1000)
    assert late.uid not in cluster.pods
    at_peace(cluster)


# Administrators, machines and clocks


def test_skipped_nodes_wait_and_a_node_in_the_midst_goes_back() -> None:
    cluster = Cluster(["n00", "n01"], policy())
    cluster.add_pod("web-1", "n01", labels={"app": "web"})
    cluster.budgets["only-one"] = ("web", 1)
    cluster.nodes["n00"].labels[SKIP] = "true"
    cluster.new_driver("b")
    cluster.run(100)
    assert cluster.nodes["n00"].state == "upgrade-required"
    assert not cluster.nodes["n00"].unschedulable
    assert cluster.nodes["n01"].state == "pod-deletion-required"
    cluster.nodes["n01"].labels[SKIP] = "true"
    cluster.run(100)
    assert cluster.nodes["n01"].state == "upgrade-required"
    assert not cluster.nodes["n01"].unschedulable
    for node in cluster.nodes.values():
        del node.labels[SKIP]
    cluster.budgets.clear()
    cluster.run(1000)
    at_peace(cluster)


STATES = [
    *("", "garbage", "upgrade-required", "upgrade-done", "upgrade-failed"),
    *OUT_OF_SERVICE,
]


@pytest.mark.parametrize("written", sorted(STATES))
@pytest.mark.parametrize("at", sorted({*OUT_OF_SERVICE, "upgrade-done"} - {"drain-required", "wait-for-jobs-required"}))
def test_an_administrator_may_write_any_state_at_any_time(at: str, written: str) -> None:
    cluster = Cluster(["n00", "n01"], policy())
    cluster.add_pod("web-1", "n00")
    cluster.new_driver("b")
    while cluster.nodes["n00"].state != at:
        cluster.operate()
        if cluster.nodes["n00"].state != at:
            cluster.tick(10)
    cluster.nodes["n00"].labels[STATE] = written
    if not written:
        del cluster.nodes["n00"].labels[STATE]
    cluster.run(6000)
    at_peace(cluster)


@pytest.mark.parametrize("at", sorted(OUT_OF_SERVICE - {"drain-required", "wait-for-jobs-required"}))
@pytest.mark.parametrize(
    "fault", ["reboot", "not-ready", "uncordon", "mark", "newer", "deploy", "deleted", "paused", "off", "report"]
)
def test_a_fault_in_the_midst_is_recovered_from(at: str, fault: str) -> None:
    cluster = Cluster(names(3), policy())
    cluster.add_pod("web-1", "n00")
    cluster.new_driver("b")
    while cluster.nodes["n00"].state != at:
        cluster.operate()
        if cluster.nodes["n00"].state != at:
            cluster.tick(10)
    node = cluster.nodes["n00"]
    match fault:
        case "reboot":
            cluster.reboot("n00")
        case "not-ready":
            node.ready = False
            cluster.run(300)
            node.ready = True
        case "uncordon":
            node.unschedulable = False
        case "mark":
            node.annotations[ANNOTATION_UPGRADE] = "{}"
        case "newer":
            cluster.new_driver("c")
        case "deploy":
            node.labels[DEPLOY] = "false"
            cluster.run(100)
            assert not node.unschedulable
            assert STATE not in node.labels
            node.labels[DEPLOY] = "true"
        case "deleted":
            cluster.delete_node("n00")
            cluster.run(100)
            cluster.add_node("n00")
        case "paused":
            key = nvidia.deploy_label("operator-validator")
            node.labels[key] = "paused-for-driver-upgrade"
            cluster.run(200)
            assert not cluster.up_to_date("n00") or node.unschedulable or node.state == "upgrade-done"
            node.labels[key] = "true"
        case "off":
            assert cluster.policy is not None
            cluster.policy = policy(auto_upgrade=False)
            cluster.run(2000)
            assert [one.name for one in cluster.nodes.values() if one.unschedulable] == []
            assert [one.name for one in cluster.nodes.values() if STATE in one.labels] == []
            assert nvidia.ANNOTATION_UPGRADE_ENABLED not in node.annotations
            cluster.policy = policy()
        case "report":
            node.annotations[ANNOTATION_VALIDATION] = "no report"
    cluster.run(6000)
    at_peace(cluster)


def test_without_auto_upgrade_nobody_is_touched() -> None:
    cluster = Cluster(["n00"], policy(auto_upgrade=False))
    cluster.new_driver("b")
    cluster.run(1000)
    assert cluster.drivers["n00"].revision == "a"
    assert cluster.writes == 0


@pytest.mark.parametrize("auto", [True, False])
def test_pods_are_evicted_when_a_driver_restarts_outside_an_upgrade(auto: bool) -> None:
    """NVIDIA's driver manager cannot unload a driver that pods use, and its account may not evict them."""
    cluster = Cluster(names(3), policy(auto_upgrade=auto))
    pods = [cluster.add_pod(f"web-{number}", "n00") for number in range(2)]
    other = cluster.add_pod("web-9", "n01")
    cluster.operate()
    cluster.restart_driver("n00")
    cluster.run(1000)
    assert not {pod.uid for pod in pods} & cluster.pods.keys()
    assert other.uid in cluster.pods
    assert [event.reason for event in cluster.told] == ["DriverUpgradeStarted", "DriverUpgradeDone"]
    at_peace(cluster)


def test_a_budget_keeps_a_driver_from_restarting_and_is_named() -> None:
    cluster = Cluster(["n0"], policy(pod_deletion=PodDeletionFields(timeout_seconds=60)))
    pod = cluster.add_pod("web-1", "n0", labels={"app": "web"})
    cluster.budgets["web"] = ("web", 1)
    cluster.operate()
    cluster.restart_driver("n0")
    cluster.run(2000)
    # There is no old driver to go back to: the node stays cordoned, and says why.
    assert cluster.nodes["n0"].state == "pod-deletion-required"
    assert cluster.nodes["n0"].unschedulable
    mark = progress(cluster.world().nodes["n0"])
    assert mark is not None
    assert "disruption budget web" in mark.why
    del cluster.budgets["web"]
    cluster.run(1000)
    assert pod.uid not in cluster.pods
    at_peace(cluster)


def test_a_driver_that_restarts_evicts_nobody_where_the_variable_says_so() -> None:
    cluster = Cluster(["n0"])
    pod = cluster.add_pod("web-1", "n0")
    cluster.operate()
    cluster.evict_at_restart = False
    cluster.restart_driver("n0")
    cluster.run(1000)
    assert pod.uid in cluster.pods
    assert cluster.nodes["n0"].state == ""
    assert not cluster.nodes["n0"].unschedulable


def test_nobody_is_evicted_where_no_driver_is_loaded() -> None:
    """On a new node and after a reboot NVIDIA's driver manager has nothing to unload."""
    cluster = Cluster(["n0"])
    pod = cluster.add_pod("web-1", "n0")
    cluster.reboot("n0")
    cluster.restart_driver("n0")
    cluster.run(1000)
    assert pod.uid in cluster.pods
    at_peace(cluster)


def test_a_driver_that_restarts_counts_against_max_unavailable() -> None:
    cluster = Cluster(names(4), policy(max_unavailable=1))
    cluster.add_pod("web-1", "n03", labels={"app": "web"})
    cluster.budgets["web"] = ("web", 1)
    cluster.operate()
    cluster.restart_driver("n03")
    cluster.run(100)
    cluster.new_driver("b")
    cluster.run(2000)
    assert not cluster.up_to_date("n00")
    del cluster.budgets["web"]
    cluster.run(4000)
    at_peace(cluster)


def test_without_a_driver_of_the_operators_nothing_stays_on_nodes() -> None:
    cluster = Cluster(names(3), policy())
    cluster.new_driver("b")
    for _ in range(4):
        cluster.operate()
    assert any(node.unschedulable for node in cluster.nodes.values())
    cluster.policy = None
    cluster.operate()
    for node in cluster.nodes.values():
        assert not node.unschedulable
        assert STATE not in node.labels
        assert nvidia.ANNOTATION_UPGRADE_ENABLED not in node.annotations
    assert cluster.leftovers() == []
    assert cluster.operate() == []


def test_what_nvidias_operator_writes_is_left_to_it() -> None:
    cluster = Cluster(["n00"], None)
    cluster.nodes["n00"].labels[STATE] = "upgrade-done"
    world = cluster.world()
    world = replace(world, nvidia_policies=({"kind": "ClusterPolicy"},))
    assert plan(world, None) == []


@pytest.mark.parametrize("jump", [-10_000_000, -100, 100, 10_000_000])
def test_a_clock_that_jumps_does_no_harm(jump: float) -> None:
    for passes in range(1, 30, 3):
        cluster = Cluster(names(3), policy())
        cluster.add_pod("web-1", "n00")
        cluster.new_driver("b")
        for _ in range(passes):
            cluster.operate()
            cluster.tick(10)
        cluster.skew = jump
        cluster.run(RETRY_SECONDS + 6000)
        at_peace(cluster)


def test_a_template_that_the_controller_has_not_seen_starts_nothing() -> None:
    cluster = Cluster(["n00"], policy())
    cluster.operate()
    cluster.new_driver("b")
    world = cluster.world()
    world.owned["DaemonSet", "shoal-driver"]["metadata"]["generation"] = 2
    assert plan(world, cluster.policy) == []


def test_the_old_driver_that_stays_loaded_is_not_taken_for_the_new_one() -> None:
    cluster = Cluster(["n00"], policy())
    cluster.image = "registry.example/nvidia/driver:570.10-ubuntu22.04"
    cluster.new_driver("b")
    cluster.run(3000)
    node = cluster.nodes["n00"]
    assert node.state == "upgrade-failed"
    assert "driver 550.90.07 is loaded, not 570.10" in decode_upgrade(node.annotations[ANNOTATION_UPGRADE]).why


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry.example/nvidia/driver:550.90.07-ubuntu22.04", "550.90.07"),
        ("registry:5000/driver:570.10", "570.10"),
        ("registry.example/nvidia/driver:535-5.15.0-69-generic-ubuntu22.04", ""),
        ("registry.example/nvidia/driver@sha256:1234", ""),
        ("registry.1.2:5000/driver", ""),
    ],
)
def test_versions_are_read_from_tags(image: str, version: str) -> None:
    assert version_of(msgspec.convert({"spec": {"containers": [{"image": image}]}}, Pod)) == version


# Killed between any two writes


def test_an_operator_killed_between_any_two_writes_comes_to_the_same_end() -> None:
    def scenario() -> Cluster:
        cluster = Cluster(names(3), policy(max_unavailable=2))
        cluster.add_pod("web-1", "n00")
        cluster.add_pod("web-2", "n00")
        cluster.add_pod("web-3", "n01", labels={"app": "web"})
        cluster.nodes["n02"].unschedulable = cluster.nodes["n02"].admin_cordoned = True
        cluster.new_driver("b")
        return cluster

    def played(kill: int) -> int:
        cluster, done = scenario(), 0
        for _ in range(120):
            asked = len(plan(cluster.world(), cluster.policy))
            room = kill - done if done <= kill < done + asked else None
            cluster.operate(room)
            done += asked if room is None else room + 1
            cluster.tick(10)
        at_peace(cluster)
        return done

    total = played(-1)
    assert total > 30
    for kill in range(total):
        played(kill)


def test_an_operator_that_is_killed_after_every_single_write_comes_to_the_same_end() -> None:
    cluster = Cluster(names(5), policy(max_unavailable=2))
    cluster.add_pod("web-1", "n00")
    cluster.new_driver("b")
    for number in range(3000):
        cluster.operate(1)
        if number % 5 == 0:
            cluster.tick(10)
    at_peace(cluster)


# Whatever happens


NODES = names(6)
ANY = st.sampled_from(NODES)
FAULTS = st.one_of(
    st.tuples(st.just("operate"), st.integers(0, 12)),
    st.tuples(st.just("tick"), st.sampled_from([1, 10, 60, 700])),
    st.tuples(
        st.sampled_from(
            [
                *("break", "mend", "down", "up", "cordon", "uncordon", "skip", "unskip", "reboot", "pod", "forget"),
                *("delete", "deploy-off", "deploy-on", "label"),
            ]
        ),
        ANY,
    ),
    st.tuples(st.just("driver"), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("write"), st.tuples(ANY, st.sampled_from(STATES))),
    st.tuples(st.just("budget"), st.booleans()),
    st.tuples(st.just("auto"), st.booleans()),
)


def inflict(cluster: Cluster, what: str, value: object) -> None:
    node = cluster.nodes.get(value) if isinstance(value, str) else None
    match what, value:
        case "operate", int(actions):
            cluster.operate(actions if actions < 12 else None)
        case "tick", int(seconds):
            cluster.tick(seconds)
        case "driver", str(revision):
            cluster.new_driver(revision)
        case "budget", bool(on):
            cluster.budgets = {"some": ("web", 100)} if on else {}
        case "auto", bool(on):
            cluster.policy = policy(max_unavailable=2, auto_upgrade=on)
        case "write", (str(name), str(state)):
            # A state without a memory means that the cordon is the upgrade's, as with NVIDIA's.
            node = cluster.nodes.get(name)
            if node is not None and state and not (node.admin_cordoned and ANNOTATION_UPGRADE not in node.annotations):
                node.labels[STATE] = state
        case "delete", _ if node is not None and len(cluster.nodes) > 3:
            cluster.delete_node(node.name)
        case _ if node is not None:
            inflict_node(cluster, what, node.name)


def inflict_node(cluster: Cluster, what: str, name: str) -> None:
    node = cluster.nodes[name]
    node.version += 1
    match what:
        case "break":
            node.broken = True
        case "mend":
            node.broken = False
        case "down":
            node.ready = False
        case "up":
            node.ready = True
        case "cordon" if not node.unschedulable and (
            node.state not in OUT_OF_SERVICE or ANNOTATION_UPGRADE in node.annotations
        ):
            node.unschedulable = node.admin_cordoned = True
        case "uncordon":
            node.unschedulable = node.admin_cordoned = False
        case "skip":
            node.labels[SKIP] = "true"
        case "unskip":
            node.labels.pop(SKIP, None)
        case "reboot":
            cluster.reboot(name)
        case "pod" if not node.unschedulable and node.ready:
            cluster.add_pod(f"web-{len(cluster.pods)}", name, labels={"app": "web"})
        case "label":
            node.labels.pop(STATE, None)
        case "deploy-off":
            node.labels[DEPLOY] = "false"
        case "deploy-on":
            node.labels[DEPLOY] = "true"


@given(st.lists(FAULTS, max_size=60))
def test_whatever_happens_the_promise_is_kept_and_all_ends_well(faults: list[tuple[str, object]]) -> None:
    cluster = Cluster(NODES, policy(max_unavailable=2))
    cluster.new_driver("b")
    for what, value in faults:
        inflict(cluster, what, value)
    for node in cluster.nodes.values():
        node.broken, node.ready = False, True
        node.labels.pop(SKIP, None)
        node.labels[DEPLOY] = "true"
    cluster.budgets = {}
    cluster.policy = policy(max_unavailable=max(2, 1 + sum(node.admin_cordoned for node in cluster.nodes.values())))
    cluster.run_until_quiet(4 * RETRY_SECONDS, step=30)
    at_peace(cluster)


def test_only_these_actions_are_ever_asked_for() -> None:
    cluster = Cluster(["n00"], policy())
    cluster.add_pod("web-1", "n00")
    cluster.new_driver("b")
    kinds = set()
    for _ in range(60):
        kinds |= {type(action) for action in cluster.operate()}
        cluster.tick(10)
    assert kinds == {PatchNode, Evict, DeletePod, Tell}


# Beside the rest of the operator


def test_writes_of_a_node_are_one_where_neither_depends_on_what_it_was() -> None:
    tell = Tell("Node", "n", "u", "R", "m")
    asked = merged(
        [
            PatchNode("n", "u", labels={"a": "1"}, remove_taints=("t",)),
            PatchNode("m", "v", labels={"a": "1"}),
            tell,
            PatchNode("n", "u", annotations={"b": None}, unschedulable=False),
            PatchNode("m", "v", unschedulable=True, resource_version="7"),
        ]
    )
    assert asked == [
        PatchNode("n", "u", labels={"a": "1"}, annotations={"b": None}, remove_taints=("t",), unschedulable=False),
        PatchNode("m", "v", labels={"a": "1"}),
        tell,
        PatchNode("m", "v", unschedulable=True, resource_version="7"),
    ]


def test_the_status_of_a_policy_tells_what_an_upgrade_waits_for() -> None:
    cluster = Cluster(["n00", "n01"], policy(pod_deletion=PodDeletionFields(timeout_seconds=100)))
    cluster.add_pod("web-1", "n00", labels={"app": "web"})
    cluster.budgets["only-one"] = ("web", 1)
    cluster.new_driver("b")
    cluster.run(80)
    waiting = trouble_of(cluster.world().nodes["n00"], (), ())
    assert waiting is not None
    assert (waiting.step, waiting.grade) == ("pod-deletion-required", Grade.WAITS)
    assert "only-one" in waiting.why
    cluster.run(200)
    failed = trouble_of(cluster.world().nodes["n00"], (), ())
    assert failed is not None
    assert (failed.step, failed.grade) == ("upgrade-failed", Grade.FAILS)
    assert "nvidia.com/gpu-driver-upgrade-state=upgrade-required" in failed.fix


def test_an_uninstall_in_the_midst_takes_cordon_and_memory_away() -> None:
    cluster = Cluster(["n00"], policy())
    cluster.new_driver("b")
    while cluster.unavailable() == []:
        cluster.operate()
    cluster.operate()
    assert cluster.nodes["n00"].unschedulable
    patch = removal(cluster.world().nodes["n00"])
    assert patch is not None
    cluster.do(patch)
    node = cluster.world().nodes["n00"]
    assert not node.spec.unschedulable
    assert node.metadata.annotations == {}
    assert STATE not in node.metadata.labels
