"""`shoal up --clusters`: what is submitted to the first cluster runs in the one that serves it, and is seen here."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, RawObject, Resource
from shoal.model.contract.clusters import ANNOTATION_DISPATCH, ANNOTATION_ORIGIN, GATE_HOME
from tests.cli.shoal_up import running
from tests.testbed import binaries

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"
JOBS: Resource[RawObject] = Resource("batch", "v1", "jobs", "Job", dict)
DEPLOYMENTS: Resource[RawObject] = Resource("apps", "v1", "deployments", "Deployment", dict)
NAMES = ("cluster1", "cluster2", "cluster3")


class Clusters:
    """Three clusters of one node with one card of 16 GiB each."""

    def __init__(self, kubeconfig: Path, clients: dict[str, Client]) -> None:
        self.kubeconfig = kubeconfig
        self.clients = clients

    @property
    def home(self) -> Client:
        return self.clients["cluster1"]

    async def pods(self, cluster: str) -> list[Pod]:
        return (await self.clients[cluster].list(PODS, namespace="default")).items

    async def where(self, prefix: str) -> dict[str, str]:
        """By name, the cluster in which each pod has its node."""
        found = {}
        for name in NAMES:
            for pod in await self.pods(name):
                if pod.metadata.name.startswith(prefix) and pod.spec.node_name:
                    assert pod.metadata.name not in found, "it runs twice"
                    found[pod.metadata.name] = name
        return found

    def shoal(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "shoal"), *arguments, f"--kubeconfig={self.kubeconfig}"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def logs(self, pod: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
        """`shoal logs` of somebody with these contexts, and with kubectl on the path."""
        path = f"{binaries.find('kubectl').parent}:{os.environ['PATH']}"
        command = [str(Path(sys.executable).parent / "shoal"), "logs", pod]
        environ = os.environ | {"PATH": path, "KUBECONFIG": str(kubeconfig)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)

    def only(self, name: str) -> Path:
        """A kubeconfig with one of the contexts."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["contexts"] = [one for one in config["contexts"] if one["name"] == name]
        path = self.kubeconfig.with_name(f"only-{name}")
        path.write_text(yaml.safe_dump(config))
        return path


@pytest.fixture
async def three() -> AsyncIterator[Clusters]:
    with running("--clusters", "3", "--nodes", "1", "--gpus", "1xT4", "--no-metrics") as (_, said):
        assert "3 clusters are joined to cluster1" in said
        kubeconfig = Path(re.findall(r"KUBECONFIG=(\S+)", said)[-1])
        async with contextlib.AsyncExitStack() as stack:
            clients = {}
            for name in NAMES:
                access = load_kubeconfig([kubeconfig], environ={}, explicit=True, context=name)
                clients[name] = await stack.enter_async_context(Client(access))
            yield Clusters(kubeconfig, clients)


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    end = time.monotonic() + 300
    while not await holds():
        assert time.monotonic() < end, f"not within 300 s: {what}"
        await asyncio.sleep(0.1)


async def test_the_examples(three: Clusters) -> None:
    """A Job by name, and pods that go where they fit: one card each, so one cluster each."""
    (job,) = yaml.safe_load_all((EXAMPLES / "01-by-name.yaml").read_text())
    await three.home.create(JOBS, job, namespace="default")

    async def runs() -> bool:
        return set((await three.where("nbody-cluster2")).values()) == {"cluster2"}

    await eventually(runs, "in cluster2")

    async def complete() -> bool:
        status = (await three.home.get(JOBS, "nbody-cluster2", namespace="default")).get("status", {})
        return any(one["type"] == "Complete" and one["status"] == "True" for one in status.get("conditions", ()))

    await eventually(complete, "its Job is complete at home")
    settings, reader = yaml.safe_load_all((EXAMPLES / "03-with-its-settings.yaml").read_text())
    await three.home.create(CONFIG_MAPS.raw, settings, namespace="default")
    await three.home.create(JOBS, reader, namespace="default")

    async def goes_along() -> bool:
        found = (await three.clients["cluster3"].list(CONFIG_MAPS, namespace="default")).items
        return any(one.metadata.name.endswith(".training") and one.data == {"EPOCHS": "3"} for one in found)

    await eventually(goes_along, "the ConfigMap is in cluster3")
    await three.home.delete(JOBS, "train-cluster3", namespace="default", propagation="Background")

    async def is_gone_again() -> bool:
        return not await goes_along()

    await eventually(is_gone_again, "it is gone with the pod of the Job")
    (deployment,) = yaml.safe_load_all((EXAMPLES / "02-where-it-fits.yaml").read_text())
    await three.home.create(DEPLOYMENTS, deployment, namespace="default")

    async def ready() -> bool:
        found = await three.home.get(DEPLOYMENTS, "anywhere", namespace="default")
        return bool(found.get("status", {}).get("readyReplicas") == 3)

    await eventually(ready, "three replicas are ready at home")
    assert Counter((await three.where("anywhere")).values()) == {"cluster1": 1, "cluster2": 1, "cluster3": 1}
    for pod in await three.pods("cluster1"):
        sent = pod.metadata.annotations.get(ANNOTATION_DISPATCH)
        if pod.metadata.name.startswith("anywhere") and sent is not None:
            raw = await three.home.get(PODS.raw, pod.metadata.name, namespace="default")
            assert "podIP" not in raw["status"], "it would stand in EndpointSlices"
            where = (await three.where(pod.metadata.name))[pod.metadata.name]
            assert json.loads(sent)["cluster"] == where
            told = three.shoal("why", pod.metadata.name)
            assert f"was sent to cluster {where}." in told.stdout
            assert f"of cluster {where}" in told.stdout, "its node there is told"

    listed = three.shoal("clusters", "list", "-o", "json")
    assert listed.returncode == 0, listed.stderr
    assert {one["name"] for one in json.loads(listed.stdout)["clusters"]} >= {"cluster2", "cluster3"}


async def test_a_pod_that_is_deleted_here_ends_there_and_one_that_fits_nowhere_waits(three: Clusters) -> None:
    await three.home.create(PODS.raw, gpu_pod("first", clusterName="cluster3"), namespace="default")

    async def is_there() -> bool:
        return await three.where("first") == {"first": "cluster3"}

    await eventually(is_there, "in cluster3")
    (copy,) = await three.pods("cluster3")
    assert ANNOTATION_ORIGIN in copy.metadata.annotations
    await three.home.create(PODS.raw, gpu_pod("second", clusterName="cluster3"), namespace="default")
    await three.home.create(PODS.raw, gpu_pod("lost", clusterName="nowhere"), namespace="default")

    async def told() -> bool:
        events = {pod.metadata.name: pod for pod in await three.pods("cluster1")}
        said = {name: [one.message or "" for one in pod.status.conditions] for name, pod in events.items()}
        return any("cluster1, cluster2, cluster3" in words for words in said["lost"]) and any(said["second"])

    await eventually(told, "told what it waits for, and the known clusters")
    assert set(await three.where("")) == {"first"}
    await three.home.delete(PODS, "first", namespace="default")

    async def is_gone() -> bool:
        names = {pod.metadata.name for name in NAMES for pod in await three.pods(name)}
        return "first" not in names and await three.where("second") == {"second": "cluster3"}

    await eventually(is_gone, "gone on both sides, and the next one has its card")


async def test_a_tenant_opens_no_gate(three: Clusters) -> None:
    await three.home.create(PODS.raw, gpu_pod("held", clusterName="nowhere"), namespace="default")
    pod = await three.home.get(PODS, "held", namespace="default")
    assert [gate.name for gate in pod.spec.scheduling_gates] == [GATE_HOME]
    token = await three.home.request(
        "POST",
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        body=b'{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}',
    )
    binding = {
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    }
    bindings: Resource[RawObject] = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", dict)
    await three.home.create(bindings, binding, namespace="default")
    config = yaml.safe_load(three.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": json.loads(token)["status"]["token"]}
    path = three.kubeconfig.with_name("tenant")
    path.write_text(yaml.safe_dump(config))
    async with Client(load_kubeconfig([path], environ={}, explicit=True)) as tenant:
        with pytest.raises(ForbiddenError, match="only the cluster manager removes scheduling gate"):
            await tenant.patch(PODS, "held", {"spec": {"schedulingGates": []}}, namespace="default")


def gpu_pod(name: str, **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }


@pytest.mark.kube
async def test_logs_are_those_of_the_container_wherever_it_runs(three: Clusters) -> None:
    """By the caller's own kubectl, context and credentials."""
    await three.home.create(PODS.raw, gpu_pod("told", clusterName="cluster2"), namespace="default")

    async def runs() -> bool:
        found = await three.home.get(PODS, "told", namespace="default")
        return found.status.phase == "Running"

    await eventually(runs, "running, as home shows it")
    followed = three.logs("told", three.kubeconfig)
    assert followed.returncode == 0, followed.stderr
    assert "NVIDIA_VISIBLE_DEVICES=GPU-" in followed.stdout
    refused = three.logs("told", three.only("cluster1"))
    assert refused.returncode == 1
    assert "the pod is in cluster cluster2" in refused.stderr
    assert "add your own kubeconfig of that cluster to KUBECONFIG" in refused.stderr


async def test_namespaces_take_part_by_label(three: Clusters) -> None:
    """One that is not labelled is left alone: its pods run at home."""
    await three.home.create(NAMESPACES.raw, {"metadata": {"name": "alone"}})
    await three.home.create(PODS.raw, gpu_pod("own", **{"shoal.dev/clusters": "cluster2"}), namespace="alone")

    async def runs() -> bool:
        return bool((await three.home.get(PODS, "own", namespace="alone")).spec.node_name)

    await eventually(runs, "at home")
    pod = await three.home.get(PODS, "own", namespace="alone")
    assert ANNOTATION_DISPATCH not in pod.metadata.annotations
    assert not pod.metadata.finalizers, "nobody held it"
