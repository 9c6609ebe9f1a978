"""The chart on a real node, from nothing to pods on shared cards and back to nothing.

One installation is shared by the tests of this file, which run in the order they stand here: each leaves it serving.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.model.contract import gpushare, keti, nvidia, operator, shoal
from tests.deploy.chart_bed import (
    BROKEN_DRIVER,
    CHART,
    DRIVER,
    NEWER_DRIVER,
    POLICY,
    ROOT,
    WITH_DRIVER,
    WITH_TOOLKIT,
    ChartBed,
    chart_bed,
    environment_of,
    is_ready,
    run_share,
    snapshot,
)
from tests.testbed import binaries
from tests.testbed.processes import Run

#: Before 1.36 no policy can send pods to the scheduler.
SENDS_PODS = int(binaries.kube_version().split(".")[1]) >= 36
VALUES = (
    *WITH_DRIVER,
    *WITH_TOOLKIT,
    f"admission.scheduler={json.dumps(SENDS_PODS)}",
    "operator.cleanupCRD=true",
    "gfd.settings.intervalSeconds=5",
)
ON_NODES = {"shoal-agent", "shoal-metrics", "shoal-discovery-cards", "shoal-validator", "shoal-validator-runtime"}


@pytest.fixture(scope="module")
def bed(testbed_run: Run, shoal_image: tuple[Path, str]) -> Iterator[ChartBed]:
    with chart_bed(testbed_run, "chart", shoal_image[0]) as bed:
        yield bed


@pytest.fixture(scope="module")
def before(bed: ChartBed) -> dict[str, set[str]]:
    """What was there before anything was installed."""
    return snapshot(bed)


@pytest.fixture(scope="module")
def installed(bed: ChartBed, before: dict[str, set[str]]) -> ChartBed:
    """Installed with NVIDIA's driver and toolkit, and ready."""
    assert before["objects"]
    bed.install(*VALUES)
    bed.wait_ready()
    return bed


def daemons(bed: ChartBed) -> dict[str, dict[str, Any]]:
    """DaemonSets of the chart's namespace, by name."""
    return {one["metadata"]["name"]: one for one in bed.get("daemonsets", "-n", bed.namespace)["items"]}


def test_the_first_example_runs_on_what_was_installed(installed: ChartBed) -> None:
    example = yaml.safe_load((ROOT / "examples" / "01-binpack.yaml").read_text())
    if not SENDS_PODS:
        example["spec"]["template"]["spec"]["schedulerName"] = keti.SCHEDULER_NAME
    installed.kubectl("apply", "-f", "-", input=yaml.safe_dump(example))

    def running() -> list[dict[str, Any]]:
        return [pod for pod in installed.get("pods", "-l", "app=binpack-1")["items"] if is_ready(pod)]

    installed.wait(lambda: len(running()) == 3, "three pods that run")
    cards = set()
    for pod in running():
        text = pod["metadata"]["annotations"][shoal.ANNOTATION_ALLOCATION]
        ((card,),) = [one.cards for one in shoal.decode_allocation(text).containers]
        cards.add(card.uuid)
        told = environment_of(installed, pod["metadata"]["name"])
        assert told[gpushare.NAME_INDEX] == str(card.index)
        assert told[gpushare.ENV_CONTAINER] == "3"
    assert len(cards) == 1, "they share one"
    installed.kubectl("delete", "statefulset", "binpack-1", "--cascade=orphan")
    installed.kubectl("delete", "pods", "-l", "app=binpack-1", "--grace-period=1")


def test_two_shares_on_one_card_have_that_card_and_their_limits_each(installed: ChartBed) -> None:
    run_share(installed, "four", {gpushare.RESOURCE_MEMORY: 4})
    run_share(installed, "six", {gpushare.RESOURCE_MEMORY: 6})
    installed.kubectl("wait", "--for=condition=Ready", "pod/four", "pod/six", "--timeout=300s")
    found = {}
    for name, amount in (("four", 4), ("six", 6)):
        pod = installed.get("pod", name)
        allocation = shoal.decode_allocation(pod["metadata"]["annotations"][shoal.ANNOTATION_ALLOCATION])
        ((card,),) = [one.cards for one in allocation.containers]
        told = environment_of(installed, name)
        assert told[gpushare.NAME_INDEX] == str(card.index)
        assert told[gpushare.ENV_CONTAINER] == str(amount)
        devices = installed.kubectl("exec", name, "--", "ls", "/dev").split()
        numbered = [one for one in devices if re.fullmatch(r"nvidia\d+", one)]
        assert numbered == [f"nvidia{card.index}"], "its card's device, and no other's"
        found[name] = card.uuid
    assert found["four"] == found["six"]
    installed.kubectl("delete", "pod", "four", "six")


def test_nvidias_guide(installed: ChartBed) -> None:
    """Every step of its installation guide, as written, with the name of this chart and kind."""
    off = [f"{name}.enabled=false" for name in ("migManager", "vgpuManager", "vgpuDeviceManager", "vfioManager")]
    tolerations = "daemonsets.tolerations[0].key=nvidia.com/gpu,daemonsets.tolerations[0].operator=Exists"
    workers = tolerations.replace("daemonsets.", "node-feature-discovery.worker.")
    installed.change("nfd.enabled=true", *off, tolerations, workers)
    installed.kubectl("taint", "node", installed.node.name, "nvidia.com/gpu=present:NoSchedule")
    try:
        follow_the_guide(installed)
    finally:
        installed.kubectl("taint", "node", installed.node.name, "nvidia.com/gpu-")


def follow_the_guide(installed: ChartBed) -> None:
    installed.wait_ready()
    assert "cluster-policy" in installed.kubectl("get", POLICY)
    shown = installed.kubectl("get", "pod", "-o", "wide", "-n", installed.namespace)
    assert all(name in shown for name in ("shoal-operator-", "shoal-driver-", "shoal-toolkit-", "shoal-agent-"))
    columns = r"custom-columns=NAME:.metadata.name,GPU:.status.allocatable.nvidia\.com/gpu"
    assert installed.kubectl("get", "nodes", "-o", columns).split() == ["NAME", "GPU", installed.node.name, "2"]
    assert {"nvidia", "nvidia-cdi", "nvidia-legacy"} <= installed.names("runtimeclass")
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    run_share(installed, "guide", {nvidia.RESOURCE_GPU: 1}, tolerations=[toleration])
    installed.kubectl("wait", "--for=condition=Ready", "pod/guide", "--timeout=300s")
    assert environment_of(installed, "guide")
    installed.kubectl("delete", "pod", "guide")


def test_the_status_is_for_people(installed: ChartBed) -> None:
    for kind in (POLICY, operator.SHORT_NAME):
        head, line = installed.kubectl("get", kind).splitlines()
        assert head.split() == ["NAME", "STATUS", "READY", "WAITING-FOR", "AGE"]
        assert line.split()[:3] == ["cluster-policy", "ready", "1/1"]
    status = installed.status()
    parts = {one["name"]: one["state"] for one in status["components"]}
    assert parts["driver"] == parts["toolkit"] == parts["devicePlugin"] == "ready"
    labels = installed.node_object()["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "Tesla-T4"
    assert labels["nvidia.com/cuda.driver-version.full"] == DRIVER
    assert installed.kubectl("explain", f"{POLICY}.spec.driver.upgradePolicy.maxUnavailable")


def test_every_object_is_valid_strictly(installed: ChartBed) -> None:
    """Those of the chart, and the operands that it hands to the operator: helm itself lets unknown fields pass."""
    given = [word for value in VALUES for word in ("--set", value)]
    options = ("--no-hooks", "--kube-version", binaries.kube_version())
    text = installed.helm("template", "shoal", str(CHART), "-n", installed.namespace, *options, *given)
    operands = installed.get("configmap", "shoal-operands", "-n", installed.namespace)["data"]
    assert len(operands) >= 8
    check = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    for one in (text, *operands.values()):
        assert installed.kubectl(*check, input=one)


def test_helm_tests_it(installed: ChartBed) -> None:
    assert "Phase:          Succeeded" in installed.helm("test", "shoal", "-n", installed.namespace)


#: (account, verb, what, namespace or - for the whole cluster, whether it may)
RIGHTS = (
    ("shoal-operator", "patch", "daemonsets.apps", "own", True),
    ("shoal-operator", "create", "configmaps", "own", True),
    ("shoal-operator", "patch", "nodes", "-", True),
    ("shoal-operator", "create", "pods/eviction", "default", True),
    ("shoal-operator", "create", "runtimeclasses.node.k8s.io", "-", True),
    ("shoal-operator", "patch", "daemonsets.apps", "default", False),
    ("shoal-operator", "create", "pods", "own", False),
    ("shoal-operator", "get", "secrets", "own", False),
    ("shoal-operator", "create", "clusterrolebindings.rbac.authorization.k8s.io", "-", False),
    ("shoal-operator", "create", "roles.rbac.authorization.k8s.io", "own", False),
    ("shoal-operator", "create", "serviceaccounts", "own", False),
    ("shoal-operator", "delete", "nodes", "-", False),
    ("shoal-operator", "update", "customresourcedefinitions.apiextensions.k8s.io", "-", False),
    ("shoal-operator", "create", "validatingadmissionpolicies.admissionregistration.k8s.io", "-", False),
    ("shoal-validator", "patch", "nodes", "-", True),
    ("shoal-validator", "list", "pods", "default", False),
    ("shoal-validator", "get", "configmaps", "own", False),
    ("shoal-validator", "get", "secrets", "own", False),
    ("shoal-agent", "patch", "nodes/status", "-", True),
    ("shoal-agent", "list", "pods", "-", True),
    ("shoal-agent", "delete", "pods", "default", False),
    ("shoal-agent", "get", "secrets", "own", False),
    ("shoal-scheduler", "create", "pods/binding", "default", True),
    ("shoal-scheduler", "get", "secrets", "default", False),
    ("shoal-scheduler", "patch", "nodes", "-", False),
    ("shoal-metrics", "list", "pods", "-", True),
    ("shoal-metrics", "delete", "pods", "default", False),
    ("shoal-metrics", "get", "secrets", "own", False),
    ("shoal-discovery", "patch", "nodes", "-", True),
    ("shoal-discovery", "list", "pods", "default", False),
    ("shoal-discovery-worker", "patch", "nodes", "-", True),
    ("shoal-discovery-worker", "get", "secrets", "own", False),
    ("shoal-driver", "patch", "nodes", "-", True),
    ("shoal-driver", "list", "pods", "-", True),
    ("shoal-driver", "create", "pods/eviction", "default", False),
    ("shoal-driver", "get", "secrets", "own", False),
    ("default", "list", "nodes", "-", False),
)


def test_accounts_may_what_they_need_and_no_more(installed: ChartBed) -> None:
    wrong = []
    for account, verb, what, where, may in RIGHTS:
        who = f"--as=system:serviceaccount:{installed.namespace}:{account}"
        names = {"-": (), "own": ("-n", installed.namespace)}.get(where, ("-n", where))
        kind, _, part = what.partition("/")
        asked = (verb, kind, *((f"--subresource={part}",) if part else ()))
        said = installed.kubectl("auth", "can-i", *asked, *names, who, check=False).splitlines()
        if ("yes" in said) != may:
            wrong.append(f"{account} {verb} {what} {where}: {said}")
    assert not wrong
    accounts = installed.names("serviceaccounts", "-n", installed.namespace)
    assert {account for account, *_ in RIGHTS} <= accounts, "those of the table are there"


def test_drift_is_repaired(installed: ChartBed) -> None:
    """Of every object of the operator's own: removed, and changed by somebody."""
    own = f"{operator.LABEL_POLICY}=cluster-policy"
    seen = {
        (one["kind"], one["metadata"]["name"]): one
        for kind in ("daemonsets", "configmaps")
        for one in installed.get(kind, "-n", installed.namespace, "-l", own)["items"]
    }
    assert {name for kind, name in seen if kind == "DaemonSet"} >= ON_NODES
    installed.kubectl("delete", "daemonset", "shoal-metrics", "-n", installed.namespace)
    installed.kubectl("delete", "configmap", "shoal-agent", "-n", installed.namespace)
    installed.kubectl("delete", "runtimeclass", "nvidia-cdi")
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "agent", "image": "shoal:somebody-else"}]}}}}
    installed.kubectl("patch", "daemonset", "shoal-agent", "-n", installed.namespace, "-p", json.dumps(patch))
    installed.kubectl("label", "node", installed.node.name, "nvidia.com/gpu.deploy.dcgm-exporter-")

    def repaired() -> bool:
        there = daemons(installed)
        if "shoal-metrics" not in there:
            return False
        (container,) = there["shoal-agent"]["spec"]["template"]["spec"]["containers"]
        labels = installed.node_object()["metadata"]["labels"]
        return (
            container["image"] != "shoal:somebody-else"
            and "shoal-agent" in installed.names("configmaps", "-n", installed.namespace)
            and "nvidia-cdi" in installed.names("runtimeclasses")
            and labels.get("nvidia.com/gpu.deploy.dcgm-exporter") == "true"
        )

    installed.wait(repaired, "repaired")
    installed.wait_ready()


@pytest.mark.parametrize(
    ("value", "names"),
    [("dcgmExporter.enabled", {"shoal-metrics"}), ("gfd.enabled", {"shoal-discovery-cards"})],
    ids=["metrics", "gfd"],
)
def test_a_component_goes_off_and_on(installed: ChartBed, value: str, names: set[str]) -> None:
    installed.change(f"{value}=false")
    installed.wait(lambda: not names & set(daemons(installed)), f"rid of {names}")
    installed.wait_ready()
    installed.change(f"{value}=true")
    installed.wait(lambda: names <= set(daemons(installed)), f"{names}")
    installed.wait_ready()


def test_without_the_agent_no_card_is_served(installed: ChartBed) -> None:
    installed.change("devicePlugin.enabled=false")

    def served() -> str:
        return str(installed.node_object()["status"]["allocatable"].get(gpushare.RESOURCE_MEMORY, "0"))

    installed.wait(lambda: "shoal-agent" not in daemons(installed) and served() == "0", "rid of the agent")
    installed.change("devicePlugin.enabled=true")
    installed.wait(lambda: served() == "30", "served again")
    installed.wait_ready()


def test_after_a_reboot_the_steps_are_taken_anew(installed: ChartBed) -> None:
    """/run is empty, and all pods of the node start again."""
    installed.node.run(["sh", "-c", "rm -rf /run/nvidia/validations/* /run/nvidia/validations/.[!.]*"])
    installed.kubectl(
        "delete", "pods", "-n", installed.namespace, "-l", "app.kubernetes.io/part-of=shoal", "--wait=false"
    )

    def validated() -> bool:
        there = installed.node.run(["ls", "-A", "/run/nvidia/validations"], check=False).split()
        return {".driver-ctr-ready", "driver-ready", "toolkit-ready", "plugin-ready"} <= set(there)

    installed.wait(validated, "validated again")
    installed.wait_ready()


def test_a_driver_that_fails_is_told_with_its_node_and_what_to_do(installed: ChartBed) -> None:
    """While gates wait for it, containerd restarts. The driver before it comes back."""
    installed.change(f"driver.version={BROKEN_DRIVER}")
    driver = ("-l", "app.kubernetes.io/name=shoal-driver")

    def broken() -> bool:
        return any(
            f":{BROKEN_DRIVER}" in container["image"]
            for pod in installed.pods(*driver)
            for container in pod["spec"]["containers"]
        )

    installed.wait(broken, "upgraded to the driver that fails")

    def troubled() -> bool:
        nodes = {one["name"]: one for one in installed.status().get("nodes", ())}
        told = nodes.get(installed.node.name, {})
        return bool(told.get("step") and told.get("why") and told.get("fix"))

    installed.wait(troubled, "told")
    assert installed.status()["state"] == "notReady"
    installed.node.containerd.restart()
    said = installed.kubectl("get", POLICY)
    assert "0/1" in said
    doctor = doctor_of(installed)
    assert installed.node.name in doctor
    installed.change(f"driver.version={NEWER_DRIVER}")
    installed.wait_ready()
    labels = installed.node_object()["metadata"]["labels"]
    installed.wait(
        lambda: installed.node_object()["metadata"]["labels"]["nvidia.com/cuda.driver-version.full"] == NEWER_DRIVER,
        f"labelled anew: {labels}",
    )


def doctor_of(bed: ChartBed) -> str:
    """What `shoal doctor` says, from the operator's image."""
    deployment = ("-n", bed.namespace, "deployment/shoal-operator")
    command = ("/usr/bin/python3.11", "/opt/shoal/run.py", "doctor")
    return bed.kubectl("exec", *deployment, "--", *command, check=False)


def test_the_oldest_of_two_policies_holds(installed: ChartBed) -> None:
    spec = installed.get(POLICY, "cluster-policy")["spec"]
    second = {"apiVersion": "shoal.dev/v1", "kind": "ClusterPolicy", "metadata": {"name": "second"}, "spec": spec}
    installed.kubectl("apply", "-f", "-", input=json.dumps(second))
    installed.wait(lambda: installed.status("second").get("state") == "ignored", "told that it is ignored")
    assert installed.status()["state"] == "ready"
    installed.kubectl("delete", POLICY, "second", "--timeout=60s")
    assert set(daemons(installed)) >= ON_NODES, "which took nothing with it"
    installed.wait_ready()


NVIDIA_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {
        "group": "nvidia.com",
        "scope": "Cluster",
        "names": {"plural": "clusterpolicies", "singular": "clusterpolicy", "kind": "ClusterPolicy"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@contextlib.contextmanager
def nvidias_policy(bed: ChartBed) -> Iterator[None]:
    """NVIDIA's kind, which goes again."""
    bed.kubectl("apply", "-f", "-", input=json.dumps(NVIDIA_CRD))
    bed.kubectl("wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com", "--timeout=60s")
    try:
        yield
    finally:
        bed.kubectl("delete", "crd", "clusterpolicies.nvidia.com")


def test_beside_nvidias_operator(installed: ChartBed) -> None:
    """With its plugin Shoal serves no card and says so; without it, it does, on NVIDIA's driver and toolkit."""

    def apply(plugin: bool) -> None:
        off = {"enabled": False}
        spec = {"driver": off, "toolkit": off, "devicePlugin": {"enabled": plugin}, "gfd": off, "dcgmExporter": off}
        theirs = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
        installed.kubectl("apply", "-f", "-", input=json.dumps({**theirs, "spec": spec}))

    def part(name: str) -> str:
        return str({one["name"]: one["state"] for one in installed.status()["components"]}.get(name))

    with nvidias_policy(installed):
        apply(plugin=True)
        installed.wait(lambda: "shoal-agent" not in daemons(installed), "rid of the agent")
        installed.wait(lambda: part("devicePlugin") == "nvidia", "told whose plugin it is")
        assert "NVIDIA" in json.dumps(installed.status())
        apply(plugin=False)
        installed.wait(lambda: "shoal-agent" in daemons(installed), "served again")
        installed.wait_ready()
    installed.wait_ready()


def test_jobs_that_a_queue_lets_go_are_placed(installed: ChartBed) -> None:
    """Shoal's half of `examples/kueue`: a queue of others unsuspends Jobs."""
    jobs = list(yaml.safe_load_all((ROOT / "examples" / "kueue" / "jobs.yaml").read_text()))
    (queue,) = [
        one
        for one in yaml.safe_load_all((ROOT / "examples" / "kueue" / "queues.yaml").read_text())
        if one["kind"] == "ClusterQueue"
    ]
    (resource,) = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    wants = [one["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] for one in jobs]
    assert resource["nominalQuota"] // wants[0][resource["name"]] == 2 < len(jobs)
    installed.kubectl("apply", "-f", str(ROOT / "examples" / "kueue" / "jobs.yaml"))
    for job in jobs[:2]:
        name = job["metadata"]["name"]
        installed.kubectl("patch", "job", name, "-p", json.dumps({"spec": {"suspend": False}}))

    def running() -> list[str]:
        items = installed.get("pods", "-l", "batch.kubernetes.io/job-name")["items"]
        return [pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] for pod in items if is_ready(pod)]

    installed.wait(lambda: sorted(running()) == ["train-1", "train-2"], "placed")
    installed.kubectl("delete", "-f", str(ROOT / "examples" / "kueue" / "jobs.yaml"))


def test_uninstalling_leaves_nothing(installed: ChartBed, before: dict[str, set[str]]) -> None:
    run_share(installed, "stays", {gpushare.RESOURCE_MEMORY: 2})
    installed.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=300s")
    installed.helm("uninstall", "shoal", "-n", installed.namespace, "--wait")
    installed.wait_clean(before)
    assert installed.get("pod", "stays")["status"]["phase"] == "Running", "a share goes on"
    installed.kubectl("delete", "pod", "stays")
    installed.kubectl("delete", "namespace", installed.namespace)


def test_uninstalling_without_an_operator(bed: ChartBed, before: dict[str, set[str]]) -> None:
    """In another namespace, and with a driver that the node has itself. The operator is gone before."""
    other = ChartBed(bed.plane, bed.node, bed.cards, "kube-system")
    bed.cards.install_driver()
    try:
        other.install("operator.cleanupCRD=true", "driver.enabled=false", *WITH_TOOLKIT)
        other.wait_ready()
        run_share(other, "elsewhere", {gpushare.RESOURCE_MEMORY: 3})
        other.kubectl("wait", "--for=condition=Ready", "pod/elsewhere", "--timeout=300s")
        other.kubectl("delete", "pod", "elsewhere")
        other.kubectl("scale", "deployment", "shoal-operator", "-n", other.namespace, "--replicas=0")
        other.wait(lambda: not other.pods("-l", "app.kubernetes.io/name=shoal-operator"), "without an operator")
        other.helm("uninstall", "shoal", "-n", other.namespace, "--wait")
        other.wait_clean(before)
    finally:
        bed.cards.remove_driver()
