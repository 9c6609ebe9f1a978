"""`cases.yaml` and `changes.yaml` as objects. A case is a pod, and every kind that holds a template of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.model.contract.gpushare import MemoryUnit
from tests.cases import read_cases

Object = dict[str, Any]
#: Every kind the policies look at: its group, its plural, and the policy.
KINDS = {
    "Pod": ("", "pods", "shoal-gpu-requests"),
    "Deployment": ("apps", "deployments", "shoal-gpu-requests-templates"),
    "StatefulSet": ("apps", "statefulsets", "shoal-gpu-requests-templates"),
    "DaemonSet": ("apps", "daemonsets", "shoal-gpu-requests-templates"),
    "ReplicaSet": ("apps", "replicasets", "shoal-gpu-requests-templates"),
    "Job": ("batch", "jobs", "shoal-gpu-requests-templates"),
    "CronJob": ("batch", "cronjobs", "shoal-gpu-requests-cronjobs"),
}
TEMPLATES = [kind for kind in KINDS if kind != "Pod"]
_LABELS = {"app": "web"}


@dataclass(frozen=True)
class Case:
    """One pod, and what becomes of it."""

    name: str
    unit: MemoryUnit
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Object
    #: What shoal.model says; empty when it takes the pod.
    refused: str
    #: What kube-apiserver says by itself.
    server: str
    #: Why the policies let through what shoal.model refuses.
    scheduler: str

    @property
    def denied(self) -> bool:
        """Whether it is the policies that refuse."""
        return bool(self.refused) and not self.server and not self.scheduler

    def object(self, kind: str) -> Object:
        """The pod itself, or an object of the kind that makes such pods."""
        return manifest(kind, labels=self.labels, annotations=self.annotations, spec=self.spec)


def manifest(kind: str, *, labels: Mapping[str, str], annotations: Mapping[str, str], spec: Object) -> Object:
    """An object of a kind with this pod, or with a template of it."""
    group = KINDS[kind][0]
    metadata = {"labels": {**_LABELS, **labels}, "annotations": dict(annotations)}
    head = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "metadata": {"name": "web"}}
    if kind == "Pod":
        return {**head, "metadata": {**metadata, "name": "web"}, "spec": spec}
    if kind in ("Job", "CronJob"):
        job = {"template": {"metadata": metadata, "spec": {**spec, "restartPolicy": "Never"}}}
        return {**head, "spec": job if kind == "Job" else {"schedule": "@daily", "jobTemplate": {"spec": job}}}
    return {**head, "spec": {"selector": {"matchLabels": _LABELS}, "template": {"metadata": metadata, "spec": spec}}}


def denial(kind: str, why: str) -> Object:
    """The whole answer of an API server whose policy refuses an object named web."""
    group, plural, policy = KINDS[kind]
    message = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {why}"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'{plural}{"." if group else ""}{group} "web" is forbidden: {message}',
        "reason": "Forbidden",
        "details": {
            "name": "web",
            **({"group": group} if group else {}),
            "kind": plural,
            "causes": [{"message": message}],
        },
        "code": 403,
    }


def _case(told: Mapping[str, Any]) -> Case:
    containers = told.get("containers", [{"name": "web", "resources": {"limits": told.get("ask", {})}}])
    spec = {"containers": [{"image": "x", **container} for container in containers]}
    if "init" in told:
        spec["initContainers"] = [{"image": "x", **container} for container in told["init"]]
    case = Case(
        name=told["name"],
        unit=MemoryUnit.parse(told.get("unit", "GiB")),
        labels=told.get("labels", {}),
        annotations={key: _text(value) for key, value in told.get("annotations", {}).items()},
        spec=spec,
        refused=told.get("refused", ""),
        server=told.get("server", ""),
        scheduler=told.get("scheduler", ""),
    )
    # A case that says nothing, or two things, would test nothing.
    assert bool(case.refused) is not bool(told.get("admitted")), case.name
    return case


def _text(value: str | Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else value["repeat"] * value["times"] + value["then"]


@dataclass(frozen=True)
class Change:
    """A change of an object, and what becomes of it."""

    name: str
    kind: str
    before: Object
    patch: Object
    refused: str


def _change(told: Mapping[str, Any]) -> Change:
    limits = {"aliyun.com/gpu-mem": told["from"]}
    spec = {"containers": [{"name": "web", "image": "x", "resources": {"limits": limits}}]}
    before = manifest(told["kind"], labels={}, annotations={}, spec=spec)
    before["metadata"]["finalizers"] = told.get("finalizers", [])
    return Change(told["name"], told["kind"], before, told["patch"], told.get("refused", ""))


_HERE = Path(__file__).parent
CASES = [_case(told) for told in read_cases(_HERE / "cases.yaml")]
every_case = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
CHANGES = [_change(told) for told in read_cases(_HERE / "changes.yaml")]
every_change = pytest.mark.parametrize("change", [pytest.param(change, id=change.name) for change in CHANGES])
