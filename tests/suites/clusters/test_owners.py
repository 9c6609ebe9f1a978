"""Every kind of owner stays at home, and counts its pods by what runs elsewhere."""

from collections.abc import Mapping
from typing import Any

import pytest

from shoal.kube.resources import PODS, RawObject, Resource
from shoal.model.contract import clusters
from tests.clusters.site import DEPLOYMENTS, JOBS, STATEFUL_SETS, condition, eventually
from tests.suites.clusters.site import ClusterSite

DAEMON_SETS: Resource[RawObject] = Resource("apps", "v1", "daemonsets", "DaemonSet", dict, whole=True)
DEFINITIONS: Resource[RawObject] = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    dict,
    whole=True,
    namespaced=False,
)
TRAININGS: Resource[RawObject] = Resource("example.com", "v1", "trainings", "Training", dict, whole=True)


async def test_a_pod_runs_elsewhere_shows_it_at_home_and_ends_with_it(site: ClusterSite) -> None:
    made = await site.create(PODS.raw, site.pod("one"))
    assert clusters.FINALIZER_HOME in made["metadata"]["finalizers"], "held by the policy"

    async def runs() -> bool:
        return bool((await site.at_home(PODS.raw, "one"))["status"]["phase"] == "Running")

    await eventually(runs, "home shows that it runs")
    shown = await site.at_home(PODS.raw, "one")
    ((where, copy),) = await site.copies()
    told = condition(shown, clusters.CONDITION_DISPATCHED)["message"]
    assert copy["spec"]["nodeName"] in told
    assert f"cluster {where}" in told
    assert "podIP" not in shown["status"], "it would stand in EndpointSlices"
    assert "nodeName" not in shown["spec"]
    await site.delete(PODS, "one")
    await site.until_all_gone()
    assert not site.ledger.doubled()


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("plain", {"completions": 3, "parallelism": 2}),
        ("indexed", {"completions": 3, "parallelism": 3, "completionMode": "Indexed"}),
        ("replacing", {"completions": 1, "podReplacementPolicy": "Failed"}),
    ],
)
async def test_a_job_completes_by_what_ran_elsewhere(site: ClusterSite, name: str, spec: Mapping[str, Any]) -> None:
    template = site.pod(runs_for=0.5)
    template["spec"]["restartPolicy"] = "Never"
    await site.create(JOBS, {"metadata": {"name": name}, "spec": {"template": template, **spec}})

    async def complete() -> bool:
        status = (await site.at_home(JOBS, name)).get("status", {})
        done = any(one["type"] == "Complete" and one["status"] == "True" for one in status.get("conditions", ()))
        return done and status["succeeded"] == spec["completions"]

    await eventually(complete, "the Job is complete")
    assert len(site.ledger.placed) == spec["completions"]
    assert not site.ledger.doubled()
    await site.delete(JOBS, name)
    await site.until_all_gone()


@pytest.mark.parametrize("kind", [DEPLOYMENTS, STATEFUL_SETS], ids=["deployment", "statefulset"])
async def test_a_controller_counts_what_runs_elsewhere(site: ClusterSite, kind: Resource[RawObject]) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": site.pod(app="web")}
    named = {"serviceName": "web"} if kind is STATEFUL_SETS else {}
    await site.create(kind, {"metadata": {"name": "web"}, "spec": {**spec, **named}})

    async def ready() -> bool:
        return bool((await site.at_home(kind, "web")).get("status", {}).get("readyReplicas", 0) == 2)

    await eventually(ready, "both are ready")
    first, second = await _running(site, 2)
    await _delete_copy(site, first)

    async def replaced() -> bool:
        now = {pod["metadata"]["uid"] for pod in await _running(site, 2)}
        return first["metadata"]["uid"] not in now and second["metadata"]["uid"] in now and await ready()

    await eventually(replaced, "another took its place, and the other one stayed")
    assert not site.ledger.doubled()
    await site.delete(kind, "web")
    await site.until_all_gone()


async def test_a_daemon_set_stays_at_home(site: ClusterSite) -> None:
    template = site.pod(app="node")
    # Of the nodes of this home, one; its pods are made for it.
    spec = {"selector": {"matchLabels": {"app": "node"}}, "template": template}
    await site.create(DAEMON_SETS, {"metadata": {"name": "node"}, "spec": spec})

    async def made() -> bool:
        status = (await site.at_home(DAEMON_SETS, "node")).get("status", {})
        return bool(status.get("desiredNumberScheduled", 0)) and status.get("numberReady") == status.get(
            "desiredNumberScheduled"
        )

    await eventually(made, "its pods are ready on home's own nodes")
    for pod in await site.pods():
        assert "schedulingGates" not in pod["spec"]
        assert clusters.ANNOTATION_DISPATCH not in pod["metadata"].get("annotations", {})
        assert pod["spec"]["nodeName"]
    assert not await site.copies()
    await site.delete(DAEMON_SETS, "node")
    await site.until_all_gone()


async def test_an_owner_of_somebodys_own_kind(site: ClusterSite) -> None:
    """A controller that Kubernetes does not know makes a pod, makes another when that is over, and goes with them."""
    await _define(site)
    owner = await site.create(TRAININGS, {"metadata": {"name": "big"}, "spec": {}})
    reference = {
        "apiVersion": "example.com/v1",
        "kind": "Training",
        "name": "big",
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for attempt in range(2):
        pod = site.pod(f"big-{attempt}")
        pod["metadata"]["ownerReferences"] = [reference]
        await site.create(PODS.raw, pod)
        (runs,) = await _running(site, 1)
        ((_, copy),) = [one for one in await site.copies() if one[1]["metadata"]["name"] == runs["metadata"]["name"]]
        assert "ownerReferences" not in copy["metadata"], "its owner is at home"
        if not attempt:
            await _delete_copy(site, runs)

            async def over() -> bool:
                # By how its program took the signal.
                return (await site.at_home(PODS.raw, "big-0"))["status"]["phase"] in ("Failed", "Succeeded")

            await eventually(over, "its controller sees that it is over")
    assert not site.ledger.doubled()
    await site.delete(TRAININGS, "big")
    await site.until_all_gone()


async def _define(site: ClusterSite) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": "trainings.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "trainings", "singular": "training", "kind": "Training", "listKind": "TrainingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    await site.home.apply(DEFINITIONS, definition, force=True)

    async def established() -> bool:
        found = await site.home.get(DEFINITIONS, "trainings.example.com")
        return condition(found, "Established").get("status") == "True"

    await eventually(established, "the kind is known")


async def _running(site: ClusterSite, count: int) -> list[RawObject]:
    """The pods at home that run, once there are so many."""
    found: list[RawObject] = []

    async def enough() -> bool:
        found[:] = [
            pod
            for pod in await site.pods()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        return len(found) == count

    await eventually(enough, f"{count} run")
    return list(found)


async def _delete_copy(site: ClusterSite, pod: RawObject) -> None:
    """As somebody does where it runs."""
    name = pod["metadata"]["name"]
    (where,) = [place for place, copy in await site.copies() if copy["metadata"]["name"] == name]
    await site.clients[where].delete(PODS, name, namespace=site.namespace)
