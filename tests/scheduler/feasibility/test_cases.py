"""Filters and preferences as data: a cluster and a pod in, nodes and reasons out.

A file of `cases/` holds a list of cases. A case:

    name, why    what is shown, and the rule behind it
    nodes        by name: labels, taints (`key=value:Effect`), cordoned, has (8 cores, 16 GiB, 110 pods unless told);
                 the label kubernetes.io/hostname is there by itself
    namespaces   labels by name
    there        pods on nodes: `on` a node, and as `pod`; `leaving` for one that is being deleted
    volumes      objects as manifests, by kind: volumes, claims, classes
    pod          labels, annotations, namespace (default), uid and name; the rest is its spec. `cpu`, `memory` are
                 requests of its only container
    allowed      the nodes it may run on
    refused      by node: what refuses it first, as [filter, reason, resolvable]; several for several short resources
    favour       by node: the preference; null when there must be none
    without      by node: uids that are taken away, and whether the pod fits then
    decides      by node: what must be written for claims: `claim: volume`, or `claim: null` for one to be made
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.scheduler.feasibility import reference
from tests.scheduler.feasibility.rows import Rows, pod_of
from tests.scheduler.feasibility.world import Manifest, World

Case = dict[str, Any]
_OF_METADATA = ("labels", "annotations", "namespace", "uid", "name", "deletionTimestamp")


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in sorted((Path(__file__).parent / "cases").glob("*.yaml"))
        for case in read_cases(path)
    ]


def pod(told: Case, name: str) -> Manifest:
    told = dict(told)
    requests = {key: told.pop(key) for key in ("cpu", "memory") if key in told}
    metadata = {"name": name, "namespace": "default", "uid": name}
    metadata |= {key: told.pop(key) for key in _OF_METADATA if key in told}
    container = {"name": "main", "resources": {"requests": requests}}
    return {"metadata": metadata, "spec": {"containers": [container], **told}}


def node(name: str, told: Case | None) -> Manifest:
    told = told or {}
    labels = {"kubernetes.io/hostname": name, **told.get("labels", {})}
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110", **told.get("has", {})}
    taints = []
    for text in told.get("taints", ()):
        rest, _, effect = text.partition(":")
        key, _, value = rest.partition("=")
        taints.append({"key": key, "value": value, "effect": effect})
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": told.get("cordoned", False)},
        "status": {"allocatable": amounts},
    }


def world_of(case: Case) -> World:
    world = World(nodes={name: node(name, told) for name, told in case["nodes"].items()})
    for name, labels in case.get("namespaces", {}).items():
        world.namespaces[name] = {"metadata": {"name": name, "labels": labels}}
    for number, told in enumerate(case.get("there", ())):
        told = dict(told)
        on, leaving = told.pop("on"), told.pop("leaving", False)
        made = pod(told, f"there-{number}")
        made["spec"]["nodeName"] = on
        if leaving:
            made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.pods[made["metadata"]["uid"]] = made
    for manifest in case.get("volumes", ()):
        world.volumes[manifest["metadata"]["name"]] = manifest
    for manifest in case.get("claims", ()):
        manifest = {**manifest, "metadata": {"namespace": "default", **manifest["metadata"]}}
        world.claims[manifest["metadata"]["namespace"], manifest["metadata"]["name"]] = manifest
    for manifest in case.get("classes", ()):
        world.classes[manifest["metadata"]["name"]] = manifest
    return world


@pytest.mark.parametrize("case", cases())
def test_case(case: Case) -> None:
    world, asked = world_of(case), pod(case["pod"], "asked")
    rows = Rows(world)
    verdict = rows.verdict(asked)
    assert rows.names(verdict.allowed) == set(case["allowed"])
    if not case.get("beyond_reference"):
        assert reference.allowed(world, asked) == set(case["allowed"]), "the plain loops say otherwise"
    for name, reasons in case.get("refused", {}).items():
        found = [
            [item.filter, item.reason, item.resolvable] for item in verdict.rejections if item.rows[rows.rows[name]]
        ]
        assert found == (reasons if isinstance(reasons[0], list) else [reasons])
    if "favour" in case:
        if case["favour"] is None:
            assert verdict.favour is None
        else:
            assert verdict.favour is not None
            assert {name: round(float(verdict.favour[rows.rows[name]]), 3) for name in case["favour"]} == case["favour"]
    for name, (uids, fits) in case.get("without", {}).items():
        assert rows.feasibility.fits_without(pod_of(asked), rows.rows[name], uids) is fits
    for name, wanted in case.get("decides", {}).items():
        decisions = rows.feasibility.volume_decisions(pod_of(asked), name)
        assert {item.node for item in decisions} <= {name}
        assert {
            item.claim.metadata.name: None if item.volume is None else item.volume.metadata.name for item in decisions
        } == wanted


def test_there_are_cases_for_every_filter() -> None:
    told = {
        reason[0]
        for param in cases()
        for reasons in param.values[0].get("refused", {}).values()
        for reason in (reasons if isinstance(reasons[0], list) else [reasons])
    }
    assert told == {
        "NodeUnschedulable",
        "NodeName",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "VolumeRestrictions",
        "VolumeBinding",
        "VolumeZone",
        "PodTopologySpread",
        "InterPodAffinity",
    }
