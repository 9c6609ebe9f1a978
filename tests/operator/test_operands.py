"""What the operator wants, from manifests and a policy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from shoal.agent.config import AgentConfig
from shoal.metrics.config import MetricsConfig
from shoal.operator.components import COMPONENTS
from shoal.operator.drift import ANNOTATION_APPLIED
from shoal.operator.nvidia import NvidiaOperator
from shoal.operator.operands import (
    ANNOTATION_SETTINGS,
    desired,
    missing,
    needs_write,
    other_systems,
    rollout_room,
    system_of,
)
from shoal.operator.policy import read_policy
from shoal.operator.validation import STEPS
from shoal.operator.world import World
from tests.operator.scene import LABELLED, NAMESPACE, node, operand_pod, operands, policy, validation, world

ALONE = NvidiaOperator()


def made(beside: NvidiaOperator = ALONE, nodes: tuple = (), **spec: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects that a policy wants, by kind and name."""
    wish = policy(**spec)
    found = desired(world(*nodes, policies=(wish,)), wish, read_policy(wish).spec, beside)
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pod_of(objects: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, Any]:
    spec: dict[str, Any] = objects["DaemonSet", name]["spec"]["template"]["spec"]
    return spec


def settings_of(objects: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, Any]:
    (text,) = objects["ConfigMap", name]["data"].values()
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def test_by_default_everything_is_wanted() -> None:
    found = made()
    assert {name for kind, name in found if kind == "DaemonSet"} == {one.daemon_set for one in COMPONENTS}
    assert {name for kind, name in found if kind == "RuntimeClass"} == {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert ("ConfigMap", "shoal-agent") in found
    for (kind, _), one in found.items():
        meta = one["metadata"]
        assert meta["labels"]["shoal.dev/policy"] == "cluster-policy"
        assert meta["ownerReferences"][0]["uid"] == "uid-cluster-policy"
        assert meta["annotations"][ANNOTATION_APPLIED]
        assert meta.get("namespace", "") == ("" if kind == "RuntimeClass" else NAMESPACE)


@pytest.mark.parametrize("component", [one for one in COMPONENTS if one.parts], ids=lambda one: one.operand)
def test_nodes_are_chosen_by_deploy_labels_alone(component: Any) -> None:
    pod = pod_of(made(), component.daemon_set)
    assert pod["nodeSelector"] == {f"nvidia.com/gpu.deploy.{part}": "true" for part in component.parts}
    assert "nodeAffinity" not in pod.get("affinity", {})
    assert pod.get("runtimeClassName") == ("nvidia" if component.reads_cards else None)
    assert {"key": "shoal.dev/starting", "operator": "Exists"} in pod["tolerations"]
    assert any(one["key"] == "nvidia.com/gpu" for one in pod["tolerations"])
    assert pod["priorityClassName"] == "system-node-critical"
    first = pod.get("initContainers", ())
    waits = [one["args"][2:] for one in first if one.get("args", [])[:2] == ["validator", "wait"]]
    assert waits == ([[component.waits_for]] if component.waits_for else [])


def test_what_keeps_the_driver_open_goes_when_its_manager_asks() -> None:
    # NVIDIA's driver manager waits only for pods of DaemonSets whose nodeSelector names this label.
    found = made()
    for component in COMPONENTS:
        if component.reads_cards:
            assert pod_of(found, component.daemon_set)["nodeSelector"]["nvidia.com/gpu.deploy.client"] == "true"


def test_the_bus_is_read_on_all_other_nodes() -> None:
    pod = pod_of(made(), "shoal-discovery-bus")
    assert "nodeSelector" not in pod
    assert pod["affinity"]["nodeAffinity"]


def test_rules_about_other_pods_stay() -> None:
    assert "podAntiAffinity" in pod_of(made(), "shoal-driver")["affinity"]


@pytest.mark.parametrize(
    ("spec", "gone"),
    [
        ({"driver": {"enabled": False}}, {"shoal-driver"}),
        ({"toolkit": {"enabled": False}}, {"shoal-toolkit"}),
        ({"devicePlugin": {"enabled": False}}, {"shoal-agent", "shoal-mps"}),
        ({"sharing": {"mps": False}}, {"shoal-mps"}),
        ({"gfd": {"enabled": False}}, {"shoal-discovery-cards"}),
        ({"dcgmExporter": {"enabled": False}}, {"shoal-metrics"}),
    ],
)
def test_a_component_off(spec: dict[str, Any], gone: set[str]) -> None:
    every = {one.daemon_set for one in COMPONENTS}
    assert {name for kind, name in made(**spec) if kind == "DaemonSet"} == every - gone


@pytest.mark.parametrize(
    ("sections", "gone"),
    [
        ({"driver"}, {"shoal-driver"}),
        ({"toolkit"}, {"shoal-toolkit"}),
        ({"devicePlugin"}, {"shoal-agent", "shoal-mps"}),
        ({"gfd"}, {"shoal-discovery-cards"}),
        ({"dcgmExporter"}, {"shoal-metrics"}),
    ],
)
def test_what_nvidias_operator_does_is_left_to_it(sections: set[str], gone: set[str]) -> None:
    found = made(NvidiaOperator("theirs", frozenset(sections)))
    every = {one.daemon_set for one in COMPONENTS}
    assert {name for kind, name in found if kind == "DaemonSet"} == every - gone
    assert not [name for kind, name in found if kind == "RuntimeClass"]


def test_runtime_classes() -> None:
    found = made(operator={"runtimeClass": "mine"}, cdi={"enabled": False})
    assert [name for kind, name in found if kind == "RuntimeClass"] == ["mine"]
    assert found["RuntimeClass", "mine"]["handler"] == "mine"
    assert pod_of(found, "shoal-agent")["runtimeClassName"] == "mine"
    found = made(operator={"runtimeClass": ""})
    assert not [name for kind, name in found if kind == "RuntimeClass"]
    assert "runtimeClassName" not in pod_of(found, "shoal-agent")


def test_a_runtime_class_of_somebody_else_is_left_alone() -> None:
    wish = policy()
    spec = read_policy(wish).spec
    there = world(runtime_classes=frozenset(["nvidia", "nvidia-cdi"]), owned={("RuntimeClass", "nvidia-cdi"): {}})
    names = [one["metadata"]["name"] for one in desired(there, wish, spec, ALONE) if one["kind"] == "RuntimeClass"]
    assert names == ["nvidia-cdi", "nvidia-legacy"]


def test_image_of_three_parts() -> None:
    parts = {"repository": "example.org/x", "image": "shoal", "version": "2", "imagePullSecrets": ["s"]}
    pod = pod_of(made(dcgmExporter=parts | {"imagePullPolicy": "Always"}), "shoal-metrics")
    assert pod["containers"][0]["image"] == "example.org/x/shoal:2"
    assert pod["containers"][0]["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "s"}]
    # Its own init container has the same image; the one that waits has the validator's.
    images = {one["name"]: one["image"] for one in pod["initContainers"]}
    assert images == {"wait-toolkit-ready": "shoal:0.1.0", "history-folder": "example.org/x/shoal:2"}


def test_half_an_image_changes_nothing() -> None:
    pod = pod_of(made(devicePlugin={"repository": "example.org/x"}), "shoal-agent")
    assert pod["containers"][0]["image"] == "shoal:0.1.0"


def test_digest() -> None:
    version = "sha256:" + "0" * 64
    pod = pod_of(made(toolkit={"repository": "r.example", "image": "t", "version": version}), "shoal-toolkit")
    assert pod["containers"][0]["image"] == f"r.example/t@{version}"


def test_a_drivers_image_has_the_system_of_the_nodes() -> None:
    parts = {"repository": "example.org", "image": "driver", "version": "595.1"}
    nodes = tuple(
        node(f"n{n}", system=system) for n, system in enumerate(["Ubuntu 24.04.1 LTS"] * 2 + ["Ubuntu 22.04"])
    )
    pod = pod_of(made(nodes=nodes, driver=parts), "shoal-driver")
    assert pod["containers"][0]["image"] == "example.org/driver:595.1-ubuntu24.04"
    assert pod_of(made(driver=parts), "shoal-driver")["containers"][0]["image"] == "example.org/driver:595.1"
    named = parts | {"version": "595.1-ubuntu24.04"}
    pod = pod_of(made(nodes=nodes, driver=named), "shoal-driver")
    assert pod["containers"][0]["image"] == "example.org/driver:595.1-ubuntu24.04"
    (problem,) = other_systems(world(*nodes), read_policy(policy(driver=parts)).spec, ALONE)
    assert "ubuntu22.04" in problem.fix
    labels = LABELLED | {
        "feature.node.kubernetes.io/system-os_release.ID": "rhel",
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": "9.4",
    }
    assert system_of([node(labels=labels)]) == "rhel9.4"


def test_one_node_of_two_does_not_change_the_drivers_image_of_the_other() -> None:
    """What a node says of its system is its kubelet's to write."""
    parts = {"repository": "example.org", "image": "driver", "version": "595.1"}
    honest = node("honest", system="Ubuntu 22.04.5 LTS")
    before = made(nodes=(honest, node("other", system="Ubuntu 22.04.5 LTS")), driver=parts)
    wish = policy(driver=parts)
    for system in ("Debian GNU/Linux 12 (bookworm)", "Ubuntu 99.04"):
        there = world(honest, node("other", system=system), policies=(wish,), owned=before)
        found = {
            (one["kind"], one["metadata"]["name"]): one for one in desired(there, wish, read_policy(wish).spec, ALONE)
        }
        assert pod_of(found, "shoal-driver")["containers"][0]["image"] == "example.org/driver:595.1-ubuntu22.04"


def test_driver() -> None:
    found = made(
        driver={
            "kernelModuleType": "open",
            "secretEnv": "token",
            "startupProbe": {"failureThreshold": 7},
            "manager": {
                "repository": "r.example",
                "image": "m",
                "version": "3",
                "env": [{"name": "A", "value": "b"}, {"name": "ENABLE_GPU_POD_EVICTION", "value": "true"}],
            },
        },
        hostPaths={"driverInstallDir": "/opt/driver", "rootFS": "/host-root"},
    )
    daemon_set = found["DaemonSet", "shoal-driver"]
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
    pod = pod_of(found, "shoal-driver")
    main = pod["containers"][0]
    assert {"name": "KERNEL_MODULE_TYPE", "value": "open"} in main["env"]
    assert main["envFrom"] == [{"secretRef": {"name": "token"}}]
    assert main["startupProbe"]["failureThreshold"] == 7
    assert main["startupProbe"]["exec"]
    manager = pod["initContainers"][0]
    assert manager["image"] == "r.example/m:3"
    # Its account may not evict, whatever the policy says: the operator does.
    env = {"A": "b", "ENABLE_GPU_POD_EVICTION": "false", "ENABLE_AUTO_DRAIN": "false"}
    assert manager["env"] == [{"name": name, "value": value} for name, value in env.items()]
    assert [one["hostPath"]["path"] for one in pod["volumes"]] == ["/opt/driver/lib", "/host-root"]


def test_toolkit() -> None:
    pod = pod_of(made(toolkit={"installDir": "/opt/nvidia"}, cdi={"enabled": False}), "shoal-toolkit")
    main = pod["containers"][0]
    env = {one["name"]: one["value"] for one in main["env"]}
    assert env == {"ROOT": "/opt/nvidia", "CONTAINERD_RUNTIME_CLASS": "nvidia", "CDI_ENABLED": "false"}
    assert main["volumeMounts"][0]["mountPath"] == pod["volumes"][0]["hostPath"]["path"] == "/opt/nvidia"
    own = made(toolkit={"env": [{"name": "CDI_ENABLED", "value": "mine"}]})
    assert {"name": "CDI_ENABLED", "value": "mine"} in pod_of(own, "shoal-toolkit")["containers"][0]["env"]


def test_container_fields() -> None:
    found = made(
        devicePlugin={
            "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1"}},
            "env": [{"name": "NEW", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}],
            "args": ["--log-level=debug"],
            "hostNetwork": True,
        }
    )
    pod = pod_of(found, "shoal-agent")
    main = pod["containers"][0]
    assert main["resources"] == {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
    assert main["args"][-1] == "--log-level=debug"
    assert {"name": "NEW", "value": "1"} in main["env"]
    assert next(one for one in main["env"] if one["name"] == "NVIDIA_VISIBLE_DEVICES")["value"] == "none"
    assert pod["hostNetwork"]
    # The daemon beside it is another container, whose memory is its clients' too.
    mps = pod_of(found, "shoal-mps")["containers"][0]
    assert mps["resources"] == {"requests": {"cpu": "20m", "memory": "64Mi"}}
    assert "--log-level=debug" not in mps["args"]


def test_what_the_chart_has_rendered_is_not_doubled() -> None:
    wish = policy(devicePlugin={"args": ["--a", "--b"]}, gfd={"settings": {"intervalSeconds": 7}})
    spec = read_policy(wish).spec
    first = desired(world(policies=(wish,)), wish, spec, ALONE)
    files = {
        component.operand: tuple(one for one in first if one["metadata"]["name"] == component.daemon_set)
        for component in COMPONENTS
    }
    second = desired(world(policies=(wish,), operands=files), wish, spec, ALONE)
    pods = [one["spec"]["template"]["spec"] for one in first if one["kind"] == "DaemonSet"]
    assert [one["spec"]["template"]["spec"] for one in second if one["kind"] == "DaemonSet"] == pods


def test_daemon_sets() -> None:
    found = made(
        daemonsets={
            "labels": {"team": "gpu", "app.kubernetes.io/name": "other"},
            "annotations": {"note": "x"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "priorityClassName": "mine",
            "rollingUpdate": {"maxUnavailable": "10%"},
        },
        operator={"labels": {"cost": "1"}, "annotations": {"by": "me"}},
    )
    agent = found["DaemonSet", "shoal-agent"]
    template = agent["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "gpu"
    # By this label the DaemonSet knows its pods.
    assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "shoal-agent"
    assert template["metadata"]["annotations"]["note"] == "x"
    assert {"key": "dedicated", "operator": "Exists"} in template["spec"]["tolerations"]
    assert template["spec"]["priorityClassName"] == "mine"
    assert agent["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    assert found["DaemonSet", "shoal-mps"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert agent["metadata"]["labels"]["cost"] == "1"
    assert agent["metadata"]["annotations"]["by"] == "me"
    on_delete = made(daemonsets={"updateStrategy": "OnDelete"})
    assert on_delete["DaemonSet", "shoal-agent"]["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_the_validator_is_told_where_the_driver_is() -> None:
    pod = pod_of(made(hostPaths={"driverInstallDir": "/opt/driver", "rootFS": "/real"}), "shoal-validator")
    assert {"--driver-install-dir=/opt/driver", "--root-path=/real"} <= set(pod["containers"][0]["args"])
    plain = pod_of(made(), "shoal-validator")["containers"][0]["args"]
    assert not [flag for flag in plain if flag.startswith(("--driver-install-dir", "--root-path"))]


def test_validators() -> None:
    found = made(
        validator={"args": ["--interval-seconds=5"], "driver": {"env": [{"name": "A", "value": "1"}]}},
        hostPaths={"rootFS": "/r", "driverInstallDir": "/d"},
    )
    node, runtime = (pod_of(found, name)["containers"][0] for name in ("shoal-validator", "shoal-validator-runtime"))
    assert node["args"] == ["validator", "node", "--interval-seconds=5", "--root-path=/r", "--driver-install-dir=/d"]
    assert node["env"] == [{"name": "A", "value": "1"}]
    assert runtime["args"] == ["validator", "runtime"]
    assert "env" not in runtime


def test_host_paths() -> None:
    pod = pod_of(made(hostPaths={"kubeletRootDir": "/data/kubelet/"}), "shoal-agent")
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert paths["device-plugins"] == "/data/kubelet/device-plugins"
    assert paths["pod-resources"] == "/data/kubelet/pod-resources"
    assert paths["dev"] == "/dev"


def test_settings_of_the_agent_can_be_read_by_it() -> None:
    found = made(
        sharing={"memoryUnit": "MiB", "mpsClients": 4, "resources": ["aliyun.com/gpu-mem"]},
        devicePlugin={"config": {"name": "slices", "default": "any"}},
    )
    read = settings_of(found, "shoal-agent")
    assert (read["memoryUnit"], read["mpsClients"], read["port"]) == ("MiB", 4, 9402)
    assert read["nvidiaConfigMap"] == f"{NAMESPACE}/slices"
    assert read["nvidiaConfigDefault"] == "any"
    assert read["migStrategy"] == "single"
    assert read["mpsProgram"]
    agent = msgspec.convert({**read, "nodeName": "n"}, AgentConfig, strict=False)
    assert agent.mps_start is False
    pod = pod_of(found, "shoal-agent")
    assert {one["name"] for one in pod["volumes"]} >= {"mps", "mps-logs"}
    without = settings_of(made(sharing={"mps": False}), "shoal-agent")
    assert not {"mpsProgram", "mpsStart", "nvidiaConfigMap"} & set(without)


def test_settings_of_metrics_can_be_read_by_them() -> None:
    found = made(
        dcgmExporter={
            "config": {"name": "fields"},
            "enablePodUID": True,
            "annotations": {"scrape": "yes"},
            "settings": {"intervalSeconds": 2, "influx": {"url": "http://influxdb:8086"}},
        }
    )
    read = settings_of(found, "shoal-metrics")
    config = msgspec.convert({**read, "nodeName": "n"}, MetricsConfig, strict=False)
    assert config.interval_seconds == 2
    assert config.exporter is not None
    assert (config.exporter.counters_config_map, config.exporter.pod_uid) == (f"{NAMESPACE}:fields", True)
    assert config.influx is not None
    assert found["DaemonSet", "shoal-metrics"]["spec"]["template"]["metadata"]["annotations"]["scrape"] == "yes"


@pytest.mark.parametrize(
    ("section", "names_pods"),
    [
        ({}, True),
        # No NetworkPolicy covers the network of the host, whatever the manifest says.
        ({"hostNetwork": True}, False),
        ({"hostNetwork": True, "settings": {"podLabels": "always"}}, True),
        ({"settings": {"podLabels": "never"}}, False),
    ],
)
def test_metrics_name_pods_only_on_a_port_that_a_network_policy_covers(
    section: dict[str, Any], names_pods: bool
) -> None:
    read = settings_of(made(dcgmExporter=section), "shoal-metrics")
    config = msgspec.convert({**read, "nodeName": "n"}, MetricsConfig, strict=False)
    assert config.exporter is not None
    assert config.exporter.names_pods(authenticated=False) is names_pods


def test_changed_settings_replace_pods() -> None:
    def mark(name: str, **spec: Any) -> str:
        template = made(**spec)["DaemonSet", name]["spec"]["template"]
        text: str = template["metadata"]["annotations"][ANNOTATION_SETTINGS]
        return text

    assert mark("shoal-agent") == mark("shoal-agent")
    assert mark("shoal-agent") != mark("shoal-agent", sharing={"mpsClients": 3})
    assert mark("shoal-mps") != mark("shoal-mps", sharing={"mpsClients": 3})
    assert mark("shoal-metrics") == mark("shoal-metrics", sharing={"mpsClients": 3})


def test_discovery_has_flags() -> None:
    found = made(
        gfd={"settings": {"intervalSeconds": 30}},
        devicePlugin={"config": {"name": "slices"}},
        mig={"strategy": "mixed"},
    )
    assert pod_of(found, "shoal-discovery-cards")["containers"][0]["args"][-3:] == [
        "--interval-seconds=30",
        "--mig-strategy=mixed",
        f"--nvidia-config-map={NAMESPACE}/slices",
    ]
    assert pod_of(found, "shoal-discovery-bus")["containers"][0]["args"][-1] == "--interval-seconds=30"


def test_manifests_that_are_not_there_are_told() -> None:
    wish = policy()
    some = {key: value for key, value in operands().items() if key not in ("mps", "metrics")}
    there = world(operands=some)
    spec = read_policy(wish).spec
    assert missing(there, spec, ALONE) == ("mps", "metrics")
    assert not missing(world(), spec, ALONE)
    assert ("DaemonSet", "shoal-agent") in {
        (one["kind"], one["metadata"]["name"]) for one in desired(there, wish, spec, ALONE)
    }


def test_what_is_written() -> None:
    (agent,) = [one for (kind, name), one in made().items() if kind == "DaemonSet" and name == "shoal-agent"]
    assert needs_write(None, agent)
    assert not needs_write(agent, agent)
    drifted = {**agent, "spec": {**agent["spec"], "updateStrategy": {"type": "OnDelete"}}}
    assert needs_write(drifted, agent)
    # A field that is not wanted any more is noticed by the hash alone.
    (more,) = [
        one
        for (kind, name), one in made(devicePlugin={"env": [{"name": "A", "value": "1"}]}).items()
        if kind == "DaemonSet" and name == "shoal-agent"
    ]
    assert needs_write(more, agent)


REVISION = "controller-revision-hash"


def rolling(*ready: bool, valid: int, updated: int) -> World:
    """An agent's DaemonSet whose first pods are of the newest revision; every node has taken so many steps."""
    names = [f"n{number}" for number in range(len(ready))]
    pods = {}
    for number, (name, well) in enumerate(zip(names, ready, strict=True)):
        pod = operand_pod("shoal-agent", name, ready=well)
        labels = {REVISION: "new" if number < updated else "old"}
        pods[name] = (msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels)),)
    status = {"desiredNumberScheduled": len(ready), "updatedNumberScheduled": updated}
    stuck = {
        name: node(name, valid=validation(len(STEPS) if well else valid))
        for name, well in zip(names, ready, strict=True)
    }
    return world(
        *stuck.values(),
        operand_pods=pods,
        revisions={"shoal-agent": "new"},
        owned={("DaemonSet", "shoal-agent"): {"kind": "DaemonSet", "status": status}},
    )


@pytest.mark.parametrize(
    ("there", "most", "room"),
    [
        pytest.param(rolling(False, True, True, True, valid=0, updated=1), "1", 2, id="one has no driver"),
        pytest.param(rolling(False, False, True, True, valid=1, updated=2), "25%", 3, id="two have no toolkit"),
        pytest.param(rolling(False, True, True, True, valid=2, updated=1), "1", "1", id="the new agent does not work"),
        pytest.param(rolling(False, True, True, True, valid=0, updated=4), "1", "1", id="nothing is rolled out"),
        pytest.param(rolling(True, True, True, True, valid=4, updated=1), "1", "1", id="all are well"),
    ],
)
def test_a_node_without_a_driver_holds_up_no_rollout(there: World, most: str, room: int | str) -> None:
    (agent,) = (one for one in COMPONENTS if one.operand == "agent")
    assert rollout_room(there, agent, most) == room
    (mps,) = (one for one in COMPONENTS if one.operand == "mps")
    assert rollout_room(there, mps, most) == most, "another DaemonSet"
