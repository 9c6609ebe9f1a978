"""Worlds for the operator's pure parts: policies, nodes, pods, and the manifests of operands."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from shoal.kube.objects.meta import ObjectMeta, OwnerReference
from shoal.kube.objects.node import Node, NodeCondition, NodeInfo, NodeSpec, NodeStatus, Taint
from shoal.kube.objects.pod import Pod, PodCondition, PodSpec, PodStatus
from shoal.model.contract.operator import (
    ANNOTATION_VALIDATION,
    Step,
    StepReport,
    ValidationReport,
    encode_validation,
)
from shoal.operator.components import COMPONENTS
from shoal.operator.nodes import DEPLOYED
from shoal.operator.validation import STEPS
from shoal.operator.world import World

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE = "gpu-operator"
PREFIX = "nvidia.com/gpu.deploy."
PRESENT = {"nvidia.com/gpu.present": "true"}
LABELLED = PRESENT | {PREFIX + name: "true" for name in DEPLOYED}
NOW = 1_800_000_000.0

_NVIDIA = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: shoal-driver, labels: {app.kubernetes.io/name: shoal-driver}}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: shoal-driver}}
  template:
    metadata: {labels: {app.kubernetes.io/name: shoal-driver}}
    spec:
      serviceAccountName: shoal-driver
      hostPID: true
      nodeSelector: {nvidia.com/gpu.deploy.driver: "true"}
      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: []}}
      initContainers:
      - {name: k8s-driver-manager, image: "example.org/driver-manager:1", args: [uninstall_driver]}
      containers:
      - name: nvidia-driver-ctr
        image: example.org/driver:550
        args: [init]
        startupProbe: {exec: {command: [sh, /probe.sh]}, periodSeconds: 5}
      volumes:
      - {name: driver, hostPath: {path: /run/nvidia/driver/lib}}
      - {name: host-root, hostPath: {path: /}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: shoal-toolkit, labels: {app.kubernetes.io/name: shoal-toolkit}}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: shoal-toolkit}}
  template:
    metadata: {labels: {app.kubernetes.io/name: shoal-toolkit}}
    spec:
      automountServiceAccountToken: false
      initContainers:
      - {name: wait-driver-ready, image: "shoal:0.1.0", args: [validator, wait, driver-ready]}
      containers:
      - name: nvidia-container-toolkit-ctr
        image: example.org/toolkit:1
        args: [/bin/entrypoint.sh]
        env: [{name: ROOT, value: /usr/local/nvidia}]
        volumeMounts: [{name: install-dir, mountPath: /usr/local/nvidia}]
      volumes:
      - {name: install-dir, hostPath: {path: /usr/local/nvidia}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: shoal-validator, labels: {app.kubernetes.io/name: shoal-validator}}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: shoal-validator}}
  template:
    metadata: {labels: {app.kubernetes.io/name: shoal-validator}}
    spec:
      serviceAccountName: shoal-validator
      containers:
      - {name: validator, image: "shoal:0.1.0", args: [validator, node]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: shoal-validator-runtime, labels: {app.kubernetes.io/name: shoal-validator-runtime}}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: shoal-validator-runtime}}
  template:
    metadata: {labels: {app.kubernetes.io/name: shoal-validator-runtime}}
    spec:
      serviceAccountName: shoal-validator
      automountServiceAccountToken: false
      containers:
      - {name: validator, image: "shoal:0.1.0", args: [validator, runtime]}
"""


@functools.cache
def _documents() -> tuple[dict[str, Any], ...]:
    texts = [_NVIDIA]
    for folder in ("agent", "agent-mps", "discovery", "metrics"):
        texts += [path.read_text() for path in sorted((DEPLOY / folder).glob("*.yaml")) if "kustom" not in path.name]
    return tuple(one for text in texts for one in yaml.load_all(text, yaml.CSafeLoader) if one)


@functools.cache
def _operands() -> dict[str, tuple[dict[str, Any], ...]]:
    documents = [one for one in _documents() if one["kind"] in ("DaemonSet", "ConfigMap")]
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for component in COMPONENTS:
        own = [one for one in documents if one["metadata"]["name"] == component.daemon_set]
        found[component.operand] = tuple(own)
    return found


def operands() -> dict[str, tuple[dict[str, Any], ...]]:
    """The manifests of all operands: those of deploy/, and small ones of what it has not."""
    return copy.deepcopy(_operands())


def policy(name: str = "cluster-policy", *, born: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    """A ClusterPolicy with these sections."""
    return {
        "apiVersion": "shoal.dev/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": born, "generation": 1},
        "spec": spec,
    }


def nvidia_policy(**sections: Any) -> dict[str, Any]:
    """NVIDIA's ClusterPolicy with these sections."""
    return {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy", "uid": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": sections,
    }


def validation(
    ready: int = len(STEPS), *, boot: str = "", since: int = 1_799_999_000, why: str = "", fix: str = ""
) -> str:
    """The annotation of a node whose first steps are ready, and the next is not."""
    steps: dict[Step, StepReport] = {}
    for number, step in enumerate(STEPS[: ready + 1]):
        done = number < ready
        steps[step] = StepReport(ready=done, since=since, why="" if done else why, fix="" if done else fix)
    return encode_validation(ValidationReport(version=1, boot=boot, steps=steps))


def node(
    name: str = "n1",
    labels: Mapping[str, str] = LABELLED,
    *,
    valid: str = "",
    taints: tuple[str, ...] = (),
    ready: bool = True,
    boot: str = "",
    system: str = "",
) -> Node:
    """A node."""
    condition = NodeCondition(
        type="Ready",
        status="True" if ready else "Unknown",
        reason="KubeletReady" if ready else "NodeStatusUnknown",
        last_transition_time="2026-01-02T00:00:00Z",
    )
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=f"uid-{name}",
            resource_version="1",
            labels=dict(labels),
            annotations={ANNOTATION_VALIDATION: valid} if valid else {},
        ),
        spec=NodeSpec(taints=tuple(Taint(key=key, effect="NoSchedule") for key in taints)),
        status=NodeStatus(conditions=(condition,), node_info=NodeInfo(boot_id=boot, os_image=system)),
    )


def operand_pod(daemon_set: str, on: str, *, ready: bool = True, **status: Any) -> Pod:
    """The pod of an operand on a node."""
    conditions = (
        PodCondition(type="Ready", status="True" if ready else "False", last_transition_time="2026-01-03T00:00:00Z"),
    )
    return Pod(
        metadata=ObjectMeta(
            name=f"{daemon_set}-{on}",
            namespace=NAMESPACE,
            uid=f"uid-{daemon_set}-{on}",
            creation_timestamp="2026-01-03T00:00:00Z",
            owner_references=(OwnerReference(kind="DaemonSet", name=daemon_set, uid=f"uid-{daemon_set}"),),
        ),
        spec=PodSpec(node_name=on),
        status=PodStatus(**{"phase": "Running" if ready else "Pending", "conditions": conditions, **status}),
    )


def world(*nodes: Node, **parts: Any) -> World:
    """A world with a policy, these nodes, and all manifests."""
    return World(
        **{
            "namespace": NAMESPACE,
            "now": NOW,
            "policies": (policy(),),
            "nodes": {one.metadata.name: one for one in nodes},
            "operands": operands(),
            **parts,
        }
    )
