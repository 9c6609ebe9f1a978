"""What helm makes of the chart: lint, words of refusal, manifests that real API servers take, and deploy/."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from deploy import generate
from shoal.agent.config import AgentConfig
from shoal.cli.settings import load
from shoal.discovery.config import DiscoveryConfig
from shoal.kubelet.host_paths import HostPaths
from shoal.metrics.config import MetricsConfig
from shoal.metrics.exporter.settings import ExporterSettings
from shoal.model.contract.operator import MAX_VALIDATION, NAME_OPERANDS, NAME_OPERATOR, NAME_POLICY
from shoal.operator.components import COMPONENTS, FILES
from shoal.operator.manifests import Manifests, read_manifests
from shoal.operator.nodes import DEPLOYED
from shoal.operator.policy import ClusterPolicySpec, read_policy
from shoal.scheduler.config import SchedulerConfig
from shoal.scheduler.kube_scheduler import MOUNTED, SchedulerMode, configuration
from tests.testbed import binaries, features
from tests.testbed.apiserver import ApiServer
from tests.testbed.helm import run_helm
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

pytestmark = pytest.mark.kube

Object = dict[str, Any]
WHOLE_DRIVER = {
    "driver.enabled": "true",
    "driver.repository": "registry.example/nvidia",
    "driver.version": "570.124.06-ubuntu22.04",
    "toolkit.enabled": "true",
    "toolkit.repository": "registry.example/nvidia",
    "toolkit.version": "v1.20.0",
}
#: Values that go together, each with a part of the chart that nothing else brings out.
COMBINATIONS: Mapping[str, Mapping[str, str]] = {
    "defaults": {},
    "the guide's": {
        "nfd.enabled": "true",
        "driver.enabled": "false",
        "migManager.enabled": "false",
        "vgpuManager.enabled": "false",
        "vgpuDeviceManager.enabled": "false",
        "vfioManager.enabled": "false",
        "daemonsets.tolerations[0].key": "nvidia.com/gpu",
        "daemonsets.tolerations[0].operator": "Exists",
        "daemonsets.tolerations[0].effect": "NoSchedule",
        "node-feature-discovery.worker.tolerations[0].key": "nvidia.com/gpu",
        "node-feature-discovery.worker.tolerations[0].operator": "Equal",
        "node-feature-discovery.worker.tolerations[0].value": "present",
        "node-feature-discovery.worker.tolerations[0].effect": "NoSchedule",
    },
    "without the operator": {"operator.enabled": "false"},
    "driver and toolkit": {**WHOLE_DRIVER, "driver.secretEnv": "licence", "cdi.enabled": "false"},
    "other images": {
        "operator.repository": "registry.example/team",
        "operator.version": f"sha256:{'0' * 64}",
        "operator.imagePullPolicy": "Always",
        "operator.imagePullSecrets[0]": "pull",
        "devicePlugin.repository": "registry.example/other",
        "devicePlugin.image": "shoal-agent",
        "devicePlugin.version": "v1",
        "devicePlugin.imagePullSecrets[0]": "other",
    },
    "second scheduler": {"scheduler.second.enabled": "true", "scheduler.service.type": "ClusterIP"},
    "plain port, MiB": {"scheduler.tls": "false", "sharing.memoryUnit": "MiB"},
    "fences and monitors": {
        "networkPolicies.enabled": "true",
        "networkPolicies.metricsFrom[0].namespaceSelector.matchLabels.name": "monitoring",
        "dcgmExporter.settings.influx.url": "http://influxdb.gpu:8086",
        "metricsScores.enabled": "true",
        "devicePlugin.config.name": "shares",
        "devicePlugin.config.create": "true",
        "devicePlugin.config.default": "some",
        "devicePlugin.config.data.some": "version: v1",
        "dcgmExporter.config.name": "counters",
    },
    "as little as can be": {
        "admission.enabled": "false",
        "scheduler.enabled": "false",
        "nfd.enabled": "false",
        "gfd.enabled": "false",
        "dcgmExporter.enabled": "false",
        "rbac.viewers": "false",
        "clusterPolicy.deployCR": "false",
    },
}
NEWEST = {"admission.scheduler": "true", "admission.slot": "true", "admission.strip": "true"}
CLAIMS = {"sharing.claims": "true", "hostPaths.kubeletRootDir": "/data/kubelet"}
PLAIN = {"operator.enabled": "false"}
#: Manifests beside those that are made.
BY_HAND = {Path("keti/namespace.yaml"), Path("keti/influxdb.yaml"), Path("keti/network.yaml")}
#: Objects that are in kube-system wherever Shoal is, and why.
FOREIGN = {
    ("Role", "shoal-scheduler"),  # gpushare's lists of cards
    ("RoleBinding", "shoal-scheduler"),
    ("RoleBinding", "gpu-scheduler-authentication"),  # Kubernetes' role for those who ask about tokens
    ("ClusterRoleBinding", "shoal-claims-allocator"),  # Kubernetes' claim controller
}
#: Accounts that are not in the namespace of the release: the viewer's is beside the Leases of collectors.
ELSEWHERE = {"shoal-metrics-viewer": "shoal-history", "resource-claim-controller": "kube-system"}


def rendered(values: Mapping[str, str] | None = None, *, namespace: str = "gpu-operator", hooks: bool = True) -> str:
    arguments = () if hooks else ("--no-hooks",)
    version = binaries.kube_version()
    helm = binaries.find("helm")
    return generate.render(helm, values, namespace=namespace, kube_version=version, arguments=arguments)


def objects(values: Mapping[str, str] | None = None, **options: Any) -> list[Object]:
    return [obj for obj in yaml.safe_load_all(rendered(values, **options)) if obj]


def one(found: list[Object], kind: str, name: str) -> Object:
    (only,) = [obj for obj in found if (obj["kind"], obj["metadata"]["name"]) == (kind, name)]
    return only


def operands(found: list[Object]) -> dict[str, list[Object]]:
    data = one(found, "ConfigMap", NAME_OPERANDS)["data"]
    return {name.removesuffix(".yaml"): list(yaml.safe_load_all(text)) for name, text in data.items()}


def is_served(api: ApiServer) -> bool:
    return api.try_request("GET", "/apis/shoal.dev/v1/clusterpolicies")[0] == 200


def test_deploy_is_made_from_the_chart() -> None:
    different = [
        str(path)
        for path, text in generate.manifests(binaries.find("helm")).items()
        if not (generate.DEPLOY / path).is_file() or (generate.DEPLOY / path).read_text() != text
    ]
    assert different == [], "run make manifests"


def test_nothing_of_deploy_is_left_from_before() -> None:
    """Every folder with a made file has no other manifests but those written by hand."""
    made = set(generate.manifests(binaries.find("helm")))
    for folder in {path.parts[0] for path in made}:
        for path in (generate.DEPLOY / folder).rglob("*.yaml"):
            below = path.relative_to(generate.DEPLOY)
            by_hand = path.name in ("kustomization.yaml", "namespace-viewer.yaml") or below in BY_HAND
            assert below in made or by_hand, f"{below} is made by nothing"
            assert (path.read_text().startswith(generate.HEADER)) == (below in made)


def test_the_chart_passes_helms_own_checks() -> None:
    helm = str(binaries.find("helm"))
    done = subprocess.run([helm, "lint", "--strict", str(generate.CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"drivr.enabled": "false"}, ["'drivr'"]),
        ({"driver.enabeld": "true"}, ["/driver", "'enabeld'"]),
        ({"devicePlugin.config.nam": "x"}, ["/devicePlugin/config", "'nam'"]),
        ({"sandboxWorkloads.enabled": "true"}, ["sandboxWorkloads.enabled", "set it to false"]),
        ({"devicePlugin.version": "v1"}, ["devicePlugin: half an image", 'version "v1"', "set repository, image and"]),
        ({"driver.repository": "r.example"}, ["driver: half an image", 'repository "r.example"']),
        ({"driver.enabled": "true"}, ["driver.enabled: no whole image", "driver.enabled=false where nodes have it"]),
        ({**WHOLE_DRIVER, "toolkit.version": ""}, ["toolkit.enabled: no whole image", "toolkit.version"]),
        ({**WHOLE_DRIVER, "operator.enabled": "false"}, ["needs operator.enabled"]),
        (
            {"daemonsets.rollingUpdate.maxUnavailable": "0"},
            ["daemonsets.rollingUpdate.maxUnavailable", '"0"', "from 1"],
        ),
        ({"driver.upgradePolicy.maxUnavailable": "0%"}, ["driver.upgradePolicy.maxUnavailable", '"0%"', "from 1"]),
        ({"mig.strategy": "double"}, ["/mig/strategy", "'none', 'single', 'mixed'"]),
        ({"scheduler.replicas": "0"}, ["/scheduler/replicas", "want 1"]),
        ({"sharing.memoryUnit": "GB"}, ["/sharing/memoryUnit", "'GiB', 'MiB'"]),
        ({"gdrcopy.enabled": "true"}, ["gdrcopy.enabled: Shoal does not run it"]),
        ({"platform.openshift": "true"}, ["platform.openshift"]),
        ({"dcgmExporter.serviceMonitor.enabled": "true"}, ["shoal-metrics", "monitoring.coreos.com/v1"]),
        ({"devicePlugin.config.create": "true"}, ["needs devicePlugin.config.name"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused_in_words(values: dict[str, str], words: list[str]) -> None:
    with pytest.raises(generate.HelmError) as refused:
        rendered(values)
    for word in words:
        assert word in str(refused.value)


def test_admission_that_needs_a_newer_kubernetes_says_so() -> None:
    with pytest.raises(generate.HelmError, match=r"need Kubernetes 1\.36 .* and this is v1\.32\.2"):
        generate.render(binaries.find("helm"), {"admission.scheduler": "true"}, kube_version="1.32.2")


def test_an_older_kubernetes_than_tested_is_refused() -> None:
    with pytest.raises(generate.HelmError, match=r"requires kubeVersion: >=1\.32"):
        generate.render(binaries.find("helm"), kube_version="1.31.9")


def test_claims_where_kubelet_has_another_folder() -> None:
    """kubelet is told of the driver's socket by its own path."""
    spec = one(objects(CLAIMS | PLAIN), "DaemonSet", "shoal-agent")["spec"]["template"]["spec"]
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    (agent,) = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert hosts["plugins"] == "/data/kubelet/plugins/gpu.shoal.dev"
    assert "--host-plugins=/data/kubelet/plugins" in agent["args"]
    sockets = HostPaths(host_plugins=Path("/data/kubelet/plugins")).driver("gpu.shoal.dev")
    assert sockets.endpoint == f"{hosts['plugins']}/dra.sock"
    assert str(sockets.calls.parent) == mounts["plugins"]
    assert str(sockets.registration.parent) == mounts["plugins-registry"]


@pytest.mark.parametrize(
    ("kube", "version"), [("1.32.2", "v1beta1"), ("1.33.4", "v1beta2"), ("1.34.1-gke.1", "v1"), ("1.36.3", "v1")]
)
def test_the_class_of_claims_has_a_version_of_its_cluster(kube: str, version: str) -> None:
    text = generate.render(binaries.find("helm"), CLAIMS, kube_version=kube)
    found = [obj for obj in yaml.safe_load_all(text) if obj]
    assert one(found, "DeviceClass", "shoal-gpu")["apiVersion"] == f"resource.k8s.io/{version}"


@pytest.mark.before_kube("1.34")
@pytest.mark.parametrize("on", [True, False])
def test_claims_on_a_server_that_has_them_only_if_switched_on(testbed_run: Run, tmp_path: Path, on: bool) -> None:
    api = ApiServer(testbed_run, f"chart-claims-{on}".lower(), features.claims() if on else features.DEFAULTS)
    try:
        said = run_helm(
            api.kubeconfig(),
            *("install", "shoal", str(generate.CHART), "--namespace=kube-system", "--dry-run=server"),
            *("--set=sharing.claims=true", "--set=clusterPolicy.deployCR=false", "--no-hooks", "--skip-crds"),
            home=tmp_path,
            check=False,
        )
    finally:
        api.stop()
    if on:
        assert "apiVersion: resource.k8s.io/v1beta1\nkind: DeviceClass" in said
    else:
        assert "--runtime-config=resource.k8s.io/v1beta1=true" in said


@pytest.mark.parametrize("namespace", ["gpu-operator", "kube-system"])
def test_a_real_api_server_takes_every_combination(new_apiserver: Callable[[], ApiServer], namespace: str) -> None:
    api = new_apiserver()
    for name in {namespace, "shoal-load", "shoal-history", "gpu"} - {"kube-system"}:
        api.kubectl("create", "namespace", name)
    api.kubectl("apply", "--server-side", "-f", str(generate.CHART / "crds"))
    wait_for(lambda: is_served(api), "ClusterPolicies are served")
    strictly = ("--validate=strict", "--warnings-as-errors")
    newest = (
        {"admission": NEWEST, "claims": CLAIMS, "claims, plain": CLAIMS | PLAIN}
        if int(binaries.kube_version().split(".")[1]) >= 36
        else {}
    )
    for name, values in {**COMBINATIONS, **newest}.items():
        said = api.kubectl(
            "apply", "--dry-run=server", *strictly, "-f", "-", input=rendered(values, namespace=namespace, hooks=False)
        )
        assert "serviceaccount/shoal-agent" in said, name
    # Accounts that are there, so that pods of hooks and tests can be.
    said = api.kubectl("apply", *strictly, "-f", "-", input=rendered(namespace=namespace))
    for made in ("job.batch/shoal-crds", "pod/shoal-test", f"clusterpolicy.shoal.dev/{NAME_POLICY}"):
        assert f"{made} created" in said


def test_a_real_api_server_takes_the_folder_of_the_operator(new_apiserver: Callable[[], ApiServer]) -> None:
    """As its first lines say."""
    api = new_apiserver()
    for command in re.findall(
        r"^# kubectl (apply .*)$", (generate.DEPLOY / "operator/kustomization.yaml").read_text(), re.MULTILINE
    ):
        words = [str(generate.ROOT / word) if "/" in word else word for word in command.split()]
        for name in ("shoal-load", "shoal-history"):
            api.kubectl("create", "namespace", name, check=False)
        said = api.kubectl(*words, "--validate=strict", "--warnings-as-errors")
        if "crds" in command:
            wait_for(lambda: is_served(api), "ClusterPolicies are served")
    assert f"clusterpolicy.shoal.dev/{NAME_POLICY} created" in said


@pytest.mark.parametrize("name", COMBINATIONS)
def test_everything_is_in_the_namespace_of_the_release(name: str) -> None:
    found = objects(COMBINATIONS[name])
    there = {
        (obj["kind"], obj["metadata"]["name"])
        for obj in found
        if obj["metadata"].get("namespace") == "kube-system" and obj["kind"] != "ConfigMap"
    }
    assert there <= FOREIGN
    for obj in found:
        for subject in obj.get("subjects") or ():
            if subject["kind"] == "ServiceAccount":
                assert subject["namespace"] == ELSEWHERE.get(subject["name"], "gpu-operator")
        text = yaml.safe_dump(obj)
        assert "serviceaccount:kube-system" not in text
        if "kube-system" in text and (obj["kind"], obj["metadata"]["name"]) not in FOREIGN:
            # Let off the policy, and the name in the extender's certificate.
            assert (
                obj["metadata"]["name"].startswith("shoal-visible-devices")
                or obj["metadata"]["name"] == "gpu-scheduler"
            )


def test_the_policy_says_what_the_values_say() -> None:
    policy = one(objects(), "ClusterPolicy", NAME_POLICY)
    reading = read_policy(policy)
    assert reading.problems == ()
    # Shoal's images come from the chart; NVIDIA's are switched off until somebody names a registry.
    assert not reading.spec.driver.enabled
    assert not reading.spec.toolkit.enabled
    assert reading.spec.sharing == ClusterPolicySpec().sharing
    changed = {
        **WHOLE_DRIVER,
        "driver.upgradePolicy.maxUnavailable": "3",
        "driver.upgradePolicy.gpuPodDeletion.force": "true",
        "daemonsets.rollingUpdate.maxUnavailable": "20%",
        "devicePlugin.env[0].name": "A",
        "devicePlugin.env[0].value": "b",
        "devicePlugin.config.name": "shares",
        "dcgmExporter.settings.influx.url": "http://influxdb.gpu:8086",
        "hostPaths.kubeletRootDir": "/data/kubelet",
        "operator.startupTaint": "true",
        "operator.runtimeClass": "other",
        "sharing.memoryUnit": "MiB",
        "migManager.enabled": "true",
        "driver.livenessProbe.periodSeconds": "7",
    }
    reading = read_policy(one(objects(changed), "ClusterPolicy", NAME_POLICY))
    assert [problem.field for problem in reading.problems] == ["spec.migManager.enabled"]
    spec = reading.spec
    driver = spec.driver
    assert (driver.repository, driver.image, driver.version) == (
        "registry.example/nvidia",
        "driver",
        "570.124.06-ubuntu22.04",
    )
    assert (driver.manager.repository, driver.manager.image) == ("registry.example/nvidia", "k8s-driver-manager")
    assert (str(driver.upgrade_policy.max_unavailable), driver.upgrade_policy.pod_deletion.force) == ("3", True)
    assert driver.liveness_probe.period_seconds == 7
    assert spec.daemonsets.rolling_update.max_unavailable == "20%"
    assert [(env.name, env.value) for env in spec.device_plugin.env] == [("A", "b")]
    assert spec.device_plugin.config.name == "shares"
    assert spec.dcgm_exporter.settings.influx.url == "http://influxdb.gpu:8086"
    assert spec.host_paths.kubelet_root_dir == "/data/kubelet"
    assert (spec.operator.startup_taint, spec.operator.runtime_class) == (True, "other")
    assert spec.sharing.memory_unit == "MiB"


def taken_by_the_operator(found: list[Object], folder: Path) -> Manifests:
    """The manifests as the operator takes them with the arguments of its Deployment."""
    for name, text in one(found, "ConfigMap", NAME_OPERANDS)["data"].items():
        (folder / name).write_text(text)
    (container,) = one(found, "Deployment", NAME_OPERATOR)["spec"]["template"]["spec"]["containers"]
    (digest,) = [word.removeprefix("--operands-digest=") for word in container["args"] if "digest" in word]
    assert digest.startswith("sha256:")
    return read_manifests(folder, digest)


def test_deploy_names_the_digest_of_its_own_manifests(tmp_path: Path) -> None:
    files = [generate.DEPLOY / "operator" / name for name in ("operands.yaml", "deployment.yaml")]
    found = [obj for path in files for obj in yaml.safe_load_all(path.read_text())]
    assert taken_by_the_operator(found, tmp_path)


def test_config_maps_that_run_on_nodes_are_guarded() -> None:
    found = objects(WHOLE_DRIVER)
    held = {obj["metadata"]["name"] for made in operands(found).values() for obj in made if obj["kind"] == "ConfigMap"}
    (condition,) = one(found, "ValidatingAdmissionPolicy", "shoal-operands")["spec"]["matchConditions"]
    assert set(re.findall(r"'(shoal-[a-z]+)'", condition["expression"])) == held | {NAME_OPERANDS}


@pytest.mark.parametrize("on", [True, False])
def test_the_drivers_account_is_there_only_where_the_driver_can_run(on: bool) -> None:
    found = objects(WHOLE_DRIVER if on else {})
    assert ("driver" in operands(found)) == on
    assert (
        any("shoal-driver" in yaml.safe_dump(obj) for obj in found if obj["kind"] != "ValidatingAdmissionPolicy") == on
    )


@pytest.mark.parametrize("name", ["defaults", "driver and toolkit", "other images", "fences and monitors"])
def test_operands_are_whole(name: str, tmp_path: Path) -> None:
    found = objects(COMBINATIONS[name])
    accounts = {obj["metadata"]["name"] for obj in found if obj["kind"] == "ServiceAccount"}
    settings = {obj["metadata"]["name"] for obj in found if obj["kind"] == "ConfigMap"}
    parts = operands(found)
    driver = set() if "driver.enabled" in COMBINATIONS[name] else {"driver"}
    assert parts.keys() == FILES.keys() - driver
    assert taken_by_the_operator(found, tmp_path).keys() == parts.keys()
    settings |= {obj["metadata"]["name"] for made in parts.values() for obj in made if obj["kind"] == "ConfigMap"}
    components = {component.operand: component for component in COMPONENTS}
    for operand, made in parts.items():
        (daemon_set,) = [obj for obj in made if obj["kind"] == "DaemonSet"]
        spec = daemon_set["spec"]
        pod = spec["template"]["spec"]
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        assert pod.get("serviceAccountName", "shoal-agent") in accounts
        assert "serviceAccountName" in pod or pod["automountServiceAccountToken"] is False
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes.keys()
            assert re.fullmatch(r"[^\s:]+(:[^\s:]+|@sha256:\w+)?(/.+)?", container["image"]), operand
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in settings
        if operand == "cleanup":
            continue
        component = components[operand]
        assert daemon_set["metadata"]["name"] == component.daemon_set
        wanted = {f"nvidia.com/gpu.deploy.{part}": "true" for part in component.parts}
        assert pod.get("nodeSelector", {}) == wanted
        assert set(component.parts) <= set(DEPLOYED)
        assert ("runtimeClassName" in pod) == component.reads_cards
        waits = [
            one["args"][-1] for one in pod.get("initContainers", ()) if one.get("args", [])[:2] == ["validator", "wait"]
        ]
        assert waits == ([component.waits_for] if component.waits_for else [])
        assert {"key": "shoal.dev/starting", "operator": "Exists"} in pod["tolerations"]


def test_services_read_their_settings(tmp_path: Path) -> None:
    for name in ("defaults", "plain port, MiB", "second scheduler", "fences and monitors", "without the operator"):
        found = objects(COMBINATIONS[name])
        inner = [obj for made in operands(found).values() for obj in made] if "operator" not in name else []
        for kind, owner, file, extra in (
            (AgentConfig, "shoal-agent", "agent.yaml", {"node_name": "n"}),
            (MetricsConfig, "shoal-metrics", "metrics.yaml", {"node_name": "n"}),
            (DiscoveryConfig, "shoal-discovery", "discovery.yaml", {}),
            (SchedulerConfig, "shoal-scheduler", "scheduler.yaml", {}),
        ):
            path = tmp_path / file
            path.write_text(one([*found, *inner], "ConfigMap", owner)["data"][file])
            settings = load(kind, path, extra, command=owner)
            unit = getattr(settings, "memory_unit", None)
            assert unit is None or unit.value == ("MiB" if "MiB" in name else "GiB")
            if isinstance(settings, SchedulerConfig):
                assert settings.election.namespace == "gpu-operator"
                assert settings.scheduler_names == (() if name == "second scheduler" else ("gpu-scheduler",))
                assert (settings.tls is None) == name.startswith("plain")
            if isinstance(settings, DiscoveryConfig):
                assert settings.lease_namespace == "gpu-operator"
            if name == "fences and monitors" and isinstance(settings, AgentConfig | DiscoveryConfig):
                assert settings.nvidia_config_map == "gpu-operator/shares"
            if name == "fences and monitors" and isinstance(settings, MetricsConfig):
                assert settings.influx is not None
                assert settings.keti is not None


def test_the_validators_fence_has_the_bound_of_the_contract() -> None:
    policy = one(objects(), "ValidatingAdmissionPolicy", "shoal-validator-own-node")
    (bound,) = [rule["expression"] for rule in policy["spec"]["validations"] if "size() <=" in rule["expression"]]
    assert bound.endswith(f"<= {MAX_VALIDATION}")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_no_part_may_do_everything(name: str) -> None:
    """No wildcard, no right to grant rights, and Secrets by their names only."""
    for role in objects(COMBINATIONS[name]):
        if role["kind"] not in ("Role", "ClusterRole"):
            continue
        for rule in role["rules"]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]), role["metadata"]["name"]
            assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"])
            assert "rbac.authorization.k8s.io" not in rule["apiGroups"] or set(rule["verbs"]) <= {
                "get",
                "list",
                "watch",
            }
            assert "secrets" not in rule["resources"] or rule.get("resourceNames")


def test_what_runs_in_the_cluster_runs_with_little() -> None:
    for obj in objects({"scheduler.second.enabled": "true"}):
        if obj["kind"] not in ("Deployment", "Job"):
            continue
        pod = obj["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        if obj["kind"] == "Job":
            assert obj["spec"]["activeDeadlineSeconds"] <= 600
            assert obj["spec"]["backoffLimit"] <= 6


def test_monitors_are_made_where_their_api_is() -> None:
    values = {f"{part}.serviceMonitor.enabled": "true" for part in ("dcgmExporter", "scheduler", "operator.metrics")}
    text = generate.render(binaries.find("helm"), values, arguments=("--api-versions=monitoring.coreos.com/v1",))
    found = [obj for obj in yaml.safe_load_all(text) if obj and obj["kind"] == "PodMonitor"]
    assert {obj["metadata"]["name"] for obj in found} == {
        "shoal-metrics",
        "shoal-scheduler",
        "shoal-agent",
        "shoal-operator",
    }


@pytest.mark.parametrize("namespace", ["gpu-operator", "kube-system"])
def test_the_second_schedulers_configuration_is_the_one_printed(namespace: str) -> None:
    found = objects({"scheduler.second.enabled": "true"}, namespace=namespace)
    data = one(found, "ConfigMap", "gpu-scheduler")["data"]["kube-scheduler-second.yaml"]
    assert data == configuration("1.36", mode=SchedulerMode.SECOND, tls=MOUNTED, namespace=namespace)


def test_network_policies_leave_open_what_is_served_and_nothing_else() -> None:
    found = objects({**COMBINATIONS["fences and monitors"], "scheduler.second.enabled": "true"})
    made = [*found, *(obj for parts in operands(found).values() for obj in parts)]
    served: dict[str, set[int]] = {}
    for obj in made:
        if obj["kind"] in ("Deployment", "DaemonSet"):
            template = obj["spec"]["template"]
            ports = [port for one in template["spec"]["containers"] for port in one.get("ports", ())]
            # kubelet reaches probes whatever policies say.
            open_ones = {port["containerPort"] for port in ports if port["name"] != "probes"}
            served[template["metadata"]["labels"]["app.kubernetes.io/name"]] = open_ones
    policies = [
        obj for obj in found if obj["kind"] == "NetworkPolicy" and obj["metadata"]["namespace"] == "gpu-operator"
    ]
    assert {obj["metadata"]["name"] for obj in policies} == {
        obj["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for obj in policies
    }
    for policy in policies:
        let = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert let <= served[policy["metadata"]["name"]], policy["metadata"]["name"]
    let_through = {
        obj["metadata"]["name"]: {port["port"] for rule in obj["spec"]["ingress"] for port in rule["ports"]}
        for obj in policies
    }
    for name in ("shoal-scheduler", "shoal-metrics", "shoal-agent"):
        assert let_through[name] == served[name]


@pytest.mark.parametrize(
    ("values", "peers", "named"),
    [
        ({}, [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}], True),
        ({"networkPolicies.metricsFrom": "null"}, None, False),
        ({"networkPolicies.metricsFrom[0].namespaceSelector": "null"}, [{"namespaceSelector": None}], False),
        ({"networkPolicies.metricsFrom[0].ipBlock.cidr": "0.0.0.0/0"}, ..., False),
        # A policy covers no pod in the network of the host.
        ({"dcgmExporter.hostNetwork": "true"}, ..., False),
        # KETI's ports are kept to KETI's namespace also where the other policies are left out.
        ({"networkPolicies.enabled": "false", "metricsScores.enabled": "true"}, None, False),
    ],
)
@pytest.mark.parametrize("operator", ["true", "false"])
def test_collectors_name_pods_only_to_the_clients_of_a_network_policy(
    operator: str, values: dict[str, str], peers: object, named: bool
) -> None:
    found = objects({"operator.enabled": operator, **values})
    if operator == "true":
        found = [*found, *operands(found)["metrics"]]
    settings = yaml.safe_load(one(found, "ConfigMap", "shoal-metrics")["data"]["metrics.yaml"])
    exporter = msgspec.convert(settings["exporter"], ExporterSettings)
    assert exporter.names_pods(authenticated=False) is named
    rules = one(found, "NetworkPolicy", "shoal-metrics")["spec"]["ingress"]
    (scrapes,) = [rule for rule in rules if {"port": 9400, "protocol": "TCP"} in rule["ports"]]
    if peers is not ...:
        assert scrapes.get("from") == peers
    for rule in rules:
        if {"port": 9323, "protocol": "TCP"} in rule["ports"]:
            assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gpu"}}}]
