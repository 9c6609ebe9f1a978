"""The objects that the operator wants: manifests of operands, changed where a policy says something.

Pure. A manifest comes as the chart rendered it, with or without what belongs to the operator (node selector, runtime
class, the container that waits): what is missing is added, so that manifests for use without an operator do as well.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from shoal.kube.objects.node import Node
from shoal.kube.resources import RawObject, meta_of
from shoal.model.contract import nvidia
from shoal.model.contract.kubernetes import LABEL_REVISION
from shoal.model.contract.operator import GROUP, KIND, LABEL_POLICY, NAME_DRIVER, TAINT_STARTING, VERSION, Step
from shoal.operator.components import Component, wanted
from shoal.operator.drift import ANNOTATION_APPLIED, digest, is_as_wanted, stamped
from shoal.operator.fields import PolicyProblem
from shoal.operator.nodes import DEPLOY, is_gpu_node
from shoal.operator.nvidia import NvidiaOperator
from shoal.operator.policy import (
    ClusterPolicySpec,
    EnvironmentVariable,
    ImageFields,
    components,
    image_reference,
    unavailable_nodes,
)
from shoal.operator.validation import is_validated
from shoal.operator.world import World, is_ready

#: On the pods of an operand: the hash of its settings, so that pods are replaced when those change.
ANNOTATION_SETTINGS: Final = "shoal.dev/settings"
_VALIDATIONS: Final = "validations"
_WAIT: Final = ["validator", "wait"]
_MPS_ROOT: Final = "/tmp/nvidia-mps"
_MPS_LOGS: Final = "/var/log/nvidia-mps"
_MPS_SHARED_MEMORY: Final = "/run/shoal/shm"
#: What manifests have where a policy says nothing of hosts.
_KUBELET: Final = "/var/lib/kubelet"
_DRIVER_ROOT: Final = "/run/nvidia/driver"
_TOOLKIT: Final = "/usr/local/nvidia"
#: How NVIDIA's driver images call systems, by what nodes call themselves.
_SYSTEMS: Final = (
    (re.compile(r"Ubuntu (\d+\.\d+)"), "ubuntu"),
    (re.compile(r"Red Hat Enterprise Linux(?: CoreOS)? (\d+\.\d+)"), "rhel"),
    (re.compile(r"Rocky Linux (\d+\.\d+)"), "rocky"),
    (re.compile(r"Debian GNU/Linux (\d+)"), "debian"),
)
#: The step that writes a file which pods wait for.
_GATES: Final[Mapping[str, Step]] = {nvidia.VALIDATION_DRIVER: "driver", nvidia.VALIDATION_TOOLKIT: "toolkit"}
_NFD_SYSTEM: Final = (
    "feature.node.kubernetes.io/system-os_release.ID",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID",
)


def desired(world: World, policy: RawObject, spec: ClusterPolicySpec, beside: NvidiaOperator) -> list[RawObject]:
    """Everything that the operator wants to be there, in the order in which it is made."""
    made = [_owned(manifest, policy, spec) for manifest in _runtime_classes(world, spec, beside)]
    settings: dict[str, str] = {}
    daemon_sets: list[RawObject] = []
    for component in wanted(spec, beside):
        for manifest in world.operands.get(component.operand, ()):
            if manifest.get("kind") == "ConfigMap":
                config_map = _config_map(manifest, component, spec, world.namespace)
                settings[meta_of(config_map).name] = digest(config_map.get("data"))
                made.append(_owned(config_map, policy, spec))
            elif manifest.get("kind") == "DaemonSet":
                daemon_sets.append(_DaemonSet(manifest, component, spec, world).made())
    for daemon_set in daemon_sets:
        _mark_settings(daemon_set, settings)
        made.append(_owned(daemon_set, policy, spec))
    return [stamped(manifest) for manifest in made]


def missing(world: World, spec: ClusterPolicySpec, beside: NvidiaOperator) -> tuple[str, ...]:
    """The operands that shall run and of which there is no DaemonSet among the manifests.

    The chart leaves out the worker that reads the bus where NFD does that (`nfd.enabled: false`).
    """
    return tuple(
        component.operand
        for component in wanted(spec, beside)
        if component.operand != "discovery-bus"
        and not any(one.get("kind") == "DaemonSet" for one in world.operands.get(component.operand, ()))
    )


def needs_write(found: RawObject | None, manifest: RawObject) -> bool:
    """Whether an object is not there, not as it is wanted, or not what was wanted last."""
    if found is None:
        return True
    applied = manifest["metadata"]["annotations"][ANNOTATION_APPLIED]
    if (meta_of(found).annotations or {}).get(ANNOTATION_APPLIED) != applied:
        return True
    return not is_as_wanted(found, manifest)


def identity(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and name of an object."""
    return str(manifest.get("kind", "")), meta_of(dict(manifest)).name


# --- RuntimeClasses -----------------------------------------------------------------------------------------------


def _runtime_classes(world: World, spec: ClusterPolicySpec, beside: NvidiaOperator) -> Iterator[RawObject]:
    """Those that users of NVIDIA's operator look for. One that somebody else made is left alone."""
    if beside.is_there or not spec.operator.runtime_class:
        return
    names = [spec.operator.runtime_class]
    if spec.cdi.enabled:
        names += [nvidia.RUNTIME_CLASS_CDI, nvidia.RUNTIME_CLASS_LEGACY]
    for name in dict.fromkeys(names):
        if name not in world.runtime_classes or ("RuntimeClass", name) in world.owned:
            yield {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "shoal"}},
                "handler": name,
            }


# --- settings -----------------------------------------------------------------------------------------------------


def _config_map(manifest: RawObject, component: Component, spec: ClusterPolicySpec, namespace: str) -> RawObject:
    made = copy.deepcopy(manifest)
    made.setdefault("metadata", {})["namespace"] = namespace
    changes = _settings(component, spec, namespace)
    data = made.get("data") or {}
    name = f"{component.operand}.yaml"
    if changes and isinstance(data.get(name), str):
        read = yaml.safe_load(data[name]) or {}
        merged = {key: value for key, value in _merged(read, changes).items() if value is not None}
        made["data"] = {**data, name: yaml.safe_dump(merged, sort_keys=True, default_flow_style=None)}
    return made


def _merged(read: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        inner = read.get(key)
        read[key] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return read


def _settings(component: Component, spec: ClusterPolicySpec, namespace: str) -> dict[str, Any]:
    """What a policy says of a service's settings; None takes one away."""
    match component.operand:
        case "agent":
            return _agent_settings(spec, namespace)
        case "metrics":
            return _metrics_settings(spec, namespace)
        case _:
            return {}


def _agent_settings(spec: ClusterPolicySpec, namespace: str) -> dict[str, Any]:
    sharing, config = spec.sharing, spec.device_plugin.config
    return {
        "memoryUnit": sharing.memory_unit,
        "resources": list(sharing.resources),
        "claims": True if sharing.claims else None,
        "mpsClients": sharing.mps_clients,
        "isolation": sharing.isolation,
        "counting": sharing.counting,
        "deviceListStrategy": sharing.device_list_strategy,
        "withoutAllocation": sharing.without_allocation,
        "nvidiaConfigMap": f"{namespace}/{config.name}" if config.name else None,
        "nvidiaConfigDefault": config.default or None if config.name else None,
        "migStrategy": spec.mig.strategy,
        "mpsProgram": "nvidia-cuda-mps-control" if sharing.mps else None,
        "mpsStart": False if sharing.mps else None,
        "mpsSharedMemory": _MPS_SHARED_MEMORY if sharing.mps else None,
    }


def _metrics_settings(spec: ClusterPolicySpec, namespace: str) -> dict[str, Any]:
    section = spec.dcgm_exporter
    collector = section.settings
    found: dict[str, Any] = {
        "memoryUnit": spec.sharing.memory_unit,
        "intervalSeconds": collector.interval_seconds,
        "overuseGraceSeconds": collector.overuse_grace_seconds,
    }
    if collector.influx.url:
        influx = {
            "url": collector.influx.url,
            "api": collector.influx.api,
            "database": collector.influx.database,
            "retention": collector.influx.retention,
            "username": collector.influx.username,
            "passwordFile": collector.influx.password_file,
            "org": collector.influx.org,
            "bucket": collector.influx.bucket,
            "tokenFile": collector.influx.token_file,
            "caFile": collector.influx.ca_file,
        }
        found["influx"] = {key: value for key, value in influx.items() if value}
    exporter: dict[str, Any] = {"podLabels": collector.pod_labels}
    if section.host_network:
        exporter["networkPolicy"] = False  # a NetworkPolicy does not cover pods in the network of the host
    if section.config.name:
        exporter["countersConfigMap"] = f"{namespace}:{section.config.name}"
    if section.enable_pod_uid:
        exporter["podUid"] = True
    found["exporter"] = exporter
    return found


def _mark_settings(daemon_set: RawObject, settings: Mapping[str, str]) -> None:
    """Put the hash of its settings on the pods of a DaemonSet."""
    template = daemon_set["spec"]["template"]
    names = [str((volume.get("configMap") or {}).get("name")) for volume in template["spec"].get("volumes") or ()]
    found = [settings[name] for name in names if name in settings]
    if found:
        meta = template.setdefault("metadata", {})
        meta["annotations"] = {**(meta.get("annotations") or {}), ANNOTATION_SETTINGS: digest(found)}


# --- DaemonSets ---------------------------------------------------------------------------------------------------


class _DaemonSet:
    """A DaemonSet's manifest on its way to what is wanted."""

    def __init__(self, manifest: RawObject, component: Component, spec: ClusterPolicySpec, world: World) -> None:
        self._made = copy.deepcopy(manifest)
        self._component = component
        self._spec = spec
        self._world = world
        self._section = dict(components(spec))[component.section]
        self._template = self._made["spec"]["template"]
        self._pod: dict[str, Any] = self._template["spec"]
        self._containers: list[dict[str, Any]] = self._pod["containers"]
        #: The image that the manifest names for the component itself.
        self._image = str(self._containers[0].get("image", ""))

    def made(self) -> RawObject:
        """The DaemonSet as it is wanted."""
        self._made.setdefault("metadata", {})["namespace"] = self._world.namespace
        self._choose_nodes()
        self._tolerate()
        self._update()
        self._wait()
        self._mps()
        self._images()
        self._container()
        self._driver()
        self._toolkit()
        self._arguments()
        self._host_paths()
        self._pods()
        return self._made

    def _choose_nodes(self) -> None:
        if not self._component.parts:
            return
        selector = dict(self._pod.get("nodeSelector") or {})
        selector |= {nvidia.deploy_label(part): DEPLOY for part in self._component.parts}
        self._pod["nodeSelector"] = selector
        affinity = self._pod.get("affinity")
        if isinstance(affinity, dict):
            # The selector has taken its place; rules about other pods stay.
            affinity.pop("nodeAffinity", None)
            if not affinity:
                del self._pod["affinity"]

    def _tolerate(self) -> None:
        found = list(self._pod.get("tolerations") or ())
        wished = [one.written() for one in self._spec.daemonsets.tolerations]
        for one in (*wished, {"key": TAINT_STARTING, "operator": "Exists"}):
            if one not in found:
                found.append(one)
        self._pod["tolerations"] = found

    def _update(self) -> None:
        wished = self._spec.daemonsets
        if self._component.on_delete or wished.update_strategy == "OnDelete":
            self._made["spec"]["updateStrategy"] = {"type": "OnDelete"}
            return
        most = rollout_room(self._world, self._component, wished.rolling_update.max_unavailable)
        number = int(most) if str(most).isdigit() else most
        self._made["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": number}}

    def _wait(self) -> None:
        """The container that waits for the step before."""
        first: list[dict[str, Any]] = self._pod.setdefault("initContainers", [])
        if self._component.waits_for and not any(one.get("args", [])[:2] == _WAIT for one in first):
            first.insert(0, _waiting(self._component.waits_for, self._image))
            self._volume(_VALIDATIONS, nvidia.VALIDATIONS_DIRECTORY)
        for one in first:
            if one.get("args", [])[:2] == _WAIT:
                self._imaged(one, self._spec.validator)
        if not first:
            del self._pod["initContainers"]

    def _mps(self) -> None:
        """The agent with MPS has the daemon's folders, and the program that asks it."""
        if self._component.operand != "agent" or not self._spec.sharing.mps:
            return
        for name, path in (("mps", _MPS_ROOT), ("mps-logs", _MPS_LOGS)):
            self._volume(name, path)
            mounts = self._containers[0].setdefault("volumeMounts", [])
            if not any(one.get("name") == name for one in mounts):
                mounts.append({"name": name, "mountPath": path})
        capabilities = {"name": nvidia.ENV_DRIVER_CAPABILITIES, "value": "utility,compute"}
        env = [one for one in self._containers[0].get("env") or () if one.get("name") != capabilities["name"]]
        self._containers[0]["env"] = [*env, capabilities]

    def _volume(self, name: str, path: str) -> None:
        volumes = self._pod.setdefault("volumes", [])
        if not any(one.get("name") == name for one in volumes):
            volumes.append({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}})

    def _images(self) -> None:
        """The component's image for its own containers; secrets of all of them."""
        for container in (*(self._pod.get("initContainers") or ()), *self._containers):
            if container.get("image") == self._image and container.get("args", [])[:2] != _WAIT:
                self._imaged(container, self._section, self._suffix())
        secrets = [one.get("name") for one in self._pod.get("imagePullSecrets") or ()]
        secrets += [*self._section.image_pull_secrets, *self._spec.validator.image_pull_secrets]
        if secrets:
            self._pod["imagePullSecrets"] = [{"name": name} for name in dict.fromkeys(secrets)]

    def _suffix(self) -> str:
        if self._component.operand != "driver":
            return ""
        system = _driver_system(self._world)
        return "" if not system or self._section.version.endswith(system) else system

    @staticmethod
    def _imaged(container: dict[str, Any], image: ImageFields, suffix: str = "") -> None:
        whole = image_reference(image, str(container.get("image", "")), suffix=suffix)
        if whole is not None:
            container["image"] = whole
        container["imagePullPolicy"] = image.image_pull_policy

    def _container(self) -> None:
        """What the section says of its container. Of two in one section one is meant, for some of it."""
        container, section = self._containers[0], self._section
        if self._component.operand == "mps":
            return  # what clients of MPS share is counted as its own
        resources = container.get("resources") or {}
        for kind, amounts in section.resources.written().items():
            resources = {**resources, kind: {**(resources.get(kind) or {}), **amounts}}
        if resources:
            container["resources"] = resources
        if self._component.operand != "validator-runtime":
            _append(container, section.args)
        _set_env(container, section.env)

    def _driver(self) -> None:
        if self._component.operand != "driver":
            return
        section = self._spec.driver
        main = self._containers[0]
        _set_env(main, (EnvironmentVariable(name="KERNEL_MODULE_TYPE", value=section.kernel_module_type),))
        if section.secret_env:
            main["envFrom"] = [{"secretRef": {"name": section.secret_env}}]
        for name, probe in (
            ("startupProbe", section.startup_probe),
            ("livenessProbe", section.liveness_probe),
            ("readinessProbe", section.readiness_probe),
        ):
            if name in main:
                main[name] = {**main[name], **probe.written()}
        for one in self._pod.get("initContainers") or ():
            if one.get("name") == "k8s-driver-manager":
                self._imaged(one, section.manager)
                # The operator evicts: the manager's account cannot.
                never = (nvidia.ENV_GPU_POD_EVICTION, nvidia.ENV_AUTO_DRAIN)
                _set_env(one, (*section.manager.env, *(EnvironmentVariable(name=n, value="false") for n in never)))

    def _toolkit(self) -> None:
        if self._component.operand != "toolkit":
            return
        section = self._spec.toolkit
        main = self._containers[0]
        variables = {"ROOT": section.install_dir}
        if self._spec.operator.runtime_class:
            variables["CONTAINERD_RUNTIME_CLASS"] = self._spec.operator.runtime_class
        variables["CDI_ENABLED"] = "true" if self._spec.cdi.enabled else "false"
        own = {one.name for one in section.env}
        _set_env(main, tuple(EnvironmentVariable(name=k, value=v) for k, v in variables.items() if k not in own))
        for mount in main.get("volumeMounts") or ():
            if mount.get("mountPath") == _TOOLKIT:
                mount["mountPath"] = section.install_dir

    def _arguments(self) -> None:
        """What services take as flags, which win over their settings."""
        spec, main = self._spec, self._containers[0]
        if self._component.operand in ("discovery-cards", "discovery-bus"):
            flags = [f"--interval-seconds={spec.gfd.settings.interval_seconds:g}"]
            config = spec.device_plugin.config
            if self._component.operand == "discovery-cards":
                flags.append(f"--mig-strategy={spec.mig.strategy}")
            if config.name and self._component.operand == "discovery-cards":
                flags.append(f"--nvidia-config-map={self._world.namespace}/{config.name}")
                flags += [f"--nvidia-config-default={config.default}"] if config.default else []
            _append(main, flags)
        if self._component.operand == "validator":
            paths = spec.host_paths
            moved = {
                "--root-path": (paths.root_fs, "/"),
                "--driver-install-dir": (paths.driver_install_dir, _DRIVER_ROOT),
            }
            _append(main, [f"{flag}={path}" for flag, (path, usual) in moved.items() if path != usual])
        checks = {"validator": ("driver", "plugin"), "validator-runtime": ("toolkit", "cuda")}
        for check in checks.get(self._component.operand, ()):
            _set_env(main, getattr(spec.validator, check).env)

    def _host_paths(self) -> None:
        paths = self._spec.host_paths
        moved = {_KUBELET: paths.kubelet_root_dir, _DRIVER_ROOT: paths.driver_install_dir}
        if self._component.operand == "toolkit":
            moved[_TOOLKIT] = self._spec.toolkit.install_dir
        for volume in self._pod.get("volumes") or ():
            host = volume.get("hostPath")
            if not isinstance(host, dict):
                continue
            path = str(host.get("path", ""))
            if path == "/":
                host["path"] = paths.root_fs
            for old, new in moved.items():
                if path == old or path.startswith(f"{old}/"):
                    host["path"] = new.rstrip("/") + path.removeprefix(old)

    def _pods(self) -> None:
        wished = self._spec.daemonsets
        meta = self._template.setdefault("metadata", {})
        # The labels by which a DaemonSet knows its pods are its own.
        meta["labels"] = {**wished.labels, **(meta.get("labels") or {})}
        annotations = {**(meta.get("annotations") or {}), **wished.annotations}
        if self._component.operand == "metrics":
            annotations |= self._spec.dcgm_exporter.annotations
        if annotations:
            meta["annotations"] = annotations
        if wished.priority_class_name:
            self._pod["priorityClassName"] = wished.priority_class_name
        if self._section.host_network:
            self._pod["hostNetwork"] = True
            self._pod.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
        self._pod.pop("runtimeClassName", None)
        if self._component.reads_cards and self._spec.operator.runtime_class:
            self._pod["runtimeClassName"] = self._spec.operator.runtime_class


def rollout_room(world: World, component: Component, most: int | str) -> int | str:
    """How many pods of a DaemonSet may be down while it is rolled out.

    Pods that wait on a node without a driver or a toolkit are down whatever is rolled out: Kubernetes counts them, and
    without more room one such node would hold up all others.
    """
    found = world.owned.get(("DaemonSet", component.daemon_set))
    newest = world.revisions.get(component.daemon_set)
    if found is None or newest is None or component.waits_for not in _GATES:
        return most
    status = found.get("status") or {}
    desired, updated = status.get("desiredNumberScheduled"), status.get("updatedNumberScheduled", 0)
    if not isinstance(desired, int) or not isinstance(updated, int) or updated >= desired:
        return most
    behind, held = False, 0
    for name, pods in world.operand_pods.items():
        for pod in pods:
            if not any(owner.name == component.daemon_set for owner in pod.metadata.owner_references):
                continue
            behind |= pod.metadata.labels.get(LABEL_REVISION) != newest
            held += not is_ready(pod) and _is_gated(world.nodes.get(name), component)
    return unavailable_nodes(most, desired) + held if behind and held else most


def _is_gated(node: Node | None, component: Component) -> bool:
    """Whether a node has not taken the step that a component waits for."""
    return node is not None and not is_validated(node, (_GATES[component.waits_for],))


def _append(container: dict[str, Any], arguments: Iterable[str]) -> None:
    """Add arguments at the end, unless they are there: the chart may have rendered them."""
    there, more = list(container.get("args") or ()), list(arguments)
    if more and there[-len(more) :] != more:
        container["args"] = [*there, *more]


def _set_env(container: dict[str, Any], variables: Iterable[EnvironmentVariable]) -> None:
    env = {one.get("name"): one for one in container.get("env") or ()}
    for variable in variables:
        env[variable.name] = {"name": variable.name, "value": variable.value}
    if env:
        container["env"] = list(env.values())


def _waiting(file: str, image: str) -> dict[str, Any]:
    return {
        "name": f"wait-{file}",
        "image": image,
        "args": [*_WAIT, file],
        "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {
                "name": _VALIDATIONS,
                "mountPath": nvidia.VALIDATIONS_DIRECTORY,
                "readOnly": True,
                "mountPropagation": "HostToContainer",
            }
        ],
    }


def _owned(manifest: RawObject, policy: RawObject, spec: ClusterPolicySpec) -> RawObject:
    """The object as the operator's own: it says which policy it belongs to, and goes with it."""
    meta = meta_of(policy)
    metadata = dict(manifest.get("metadata") or {})
    metadata["labels"] = {**spec.operator.labels, **(metadata.get("labels") or {}), LABEL_POLICY: meta.name}
    if spec.operator.annotations:
        metadata["annotations"] = {**spec.operator.annotations, **(metadata.get("annotations") or {})}
    metadata["ownerReferences"] = [
        {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "name": meta.name, "uid": meta.uid, "controller": True}
    ]
    return {**manifest, "metadata": metadata}


# --- systems of nodes ---------------------------------------------------------------------------------------------


def system_of(nodes: Iterable[Node], image: str = "") -> str:
    """What NVIDIA's driver images call the system that most GPU nodes have; empty if it is not known.

    Of several with equally many nodes the one that `image` is for, then the first by name: one node that says something
    else of itself does not change the driver of the others.
    """
    found = Counter(name for node in nodes if is_gpu_node(node.metadata.labels) and (name := _system(node)))
    return min(found, key=lambda name: (-found[name], not image.endswith(f"-{name}"), name)) if found else ""


def _driver_system(world: World) -> str:
    """The system that the driver's image is made for."""
    present = world.owned.get(("DaemonSet", NAME_DRIVER)) or {}
    containers = (((present.get("spec") or {}).get("template") or {}).get("spec") or {}).get("containers") or [{}]
    return system_of(world.nodes.values(), str(containers[0].get("image", "")))


def _system(node: Node) -> str:
    labels = node.metadata.labels
    identifier, version = (labels.get(key, "") for key in _NFD_SYSTEM)
    if identifier and version:
        return f"{identifier}{version}"
    for pattern, name in _SYSTEMS:
        if found := pattern.match(node.status.node_info.os_image):
            return f"{name}{found[1]}"
    return ""


def other_systems(world: World, spec: ClusterPolicySpec, beside: NvidiaOperator) -> tuple[PolicyProblem, ...]:
    """A problem where one driver image shall serve nodes of several systems."""
    section = spec.driver
    if not any(one.operand == "driver" for one in wanted(spec, beside)) or not section.repository:
        return ()
    found = sorted(
        {name for node in world.nodes.values() if is_gpu_node(node.metadata.labels) if (name := _system(node))}
    )
    if len(found) < 2 or section.version.startswith("sha256:"):
        return ()
    chosen = _driver_system(world)
    others = ", ".join(name for name in found if name != chosen)[:200]
    why = f"GPU nodes have several systems, and the image is for {chosen}"
    fix = f"install the driver on nodes with {others} by other means, and label them nvidia.com/gpu.deploy.driver=false"
    return (PolicyProblem("spec.driver.version", f"'{section.version}'", why, fix),)
