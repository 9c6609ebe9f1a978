"""`shoal uninstall` on a real control plane: what was there before Shoal is there after it, and nothing else.

Nodes have no machine behind them: the pods of `shoal-cleanup` are played. What these do is tried elsewhere, on files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.agent.node.object import NodeObject
from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.leader import Leader
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.lease import Election
from shoal.kube.resources import LEASES, NODES
from shoal.metrics import history_wire
from shoal.metrics.history_lease import announce
from shoal.model.allocation import Held
from shoal.model.contract import gpushare, load, nvidia, shoal
from shoal.model.contract.discovery import ANNOTATION_FACTS, encode_facts
from shoal.model.contract.operator import (
    ANNOTATION_VALIDATION,
    FINALIZER,
    LABEL_CLEANUP,
    LABEL_POLICY,
    NAME_OPERATOR,
    TAINT_STARTING,
    ValidationReport,
    encode_validation,
)
from shoal.operator import crd, uninstall
from shoal.operator import nodes as deploy_labels
from shoal.operator.cluster_removal import ClusterRemoval, RemovalSettings, cleanup_manifest, stale_resources
from shoal.operator.writes import POLICIES, Writes
from tests.deploy.test_chart_render_kube import objects, operands
from tests.discovery.facts import T4, node
from tests.discovery.site import eventually
from tests.testbed import fake_kubelet
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.fake_nodes import FakeNodes, made_up
from tests.testbed.processes import Run, TestbedError
from tests.testbed.waiting import wait_for

ROOT = Path(__file__).parents[2]
SYSTEM = "kube-system"
FOLDERS = ("admission", "scheduler", "agent", "discovery", "metrics")
MAIN = "from shoal.cli.main import main; main()"
NODES_COUNT = 4
#: Come and go by themselves.
_PASSING = {
    *("events", "events.events.k8s.io", "endpoints", "endpointslices.discovery.k8s.io"),
    "leases.coordination.k8s.io kube-node-lease",
}


class Site:
    """The cluster. `snapshot` is all that is there, as far as Shoal could change it."""

    def __init__(self, plane: ControlPlane, fakes: FakeNodes, names: list[str]) -> None:
        self.plane = plane
        self.api = plane.api
        self.fakes = fakes
        self.names = names

    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for group, version, resource in self._kinds():
            path = f"/apis/{group}/{version}/{resource}" if group else f"/api/{version}/{resource}"
            status, answer = self.api.try_request("GET", path)
            plural = f"{resource}.{group}" if group else resource
            for one in answer.get("items", ()) if status == 200 else ():
                meta = one["metadata"]
                space = meta.get("namespace", "")
                if plural in _PASSING or f"{plural} {space}" in _PASSING:
                    continue
                found[f"{plural} {space}/{meta['name']}"] = {
                    "labels": meta.get("labels", {}),
                    "annotations": meta.get("annotations", {}),
                    "finalizers": meta.get("finalizers", []),
                    "deleted": "deletionTimestamp" in meta,
                    "taints": one.get("spec", {}).get("taints", []) if resource == "nodes" else [],
                    "capacity": sorted(one.get("status", {}).get("capacity", {})) if resource == "nodes" else [],
                }
        return found

    def _kinds(self) -> Iterator[tuple[str, str, str]]:
        served = self.api.request("GET", "/apis")["groups"]
        groups = [(group["name"], group["preferredVersion"]["version"]) for group in served]
        for group, version in (("", "v1"), *groups):
            path = f"/apis/{group}/{version}" if group else f"/api/{version}"
            status, answer = self.api.try_request("GET", path)
            for one in answer.get("resources", ()) if status == 200 else ():
                if "list" in one["verbs"] and "/" not in one["name"]:
                    yield group, version, one["name"]

    def settled(self) -> dict[str, Any]:
        """What is there when nothing changes any more."""
        seen: list[dict[str, Any]] = []

        def still() -> bool:
            seen.append(self.snapshot())
            return len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]

        wait_for(still, "at rest")
        return seen[-1]

    def install(self) -> None:
        """All of deploy/, the definition and a policy, and pods that run."""
        self.api.kubectl("apply", "-f", "-", input=yaml.safe_dump(crd.definition()))
        for folder in (*FOLDERS, "uninstall"):
            self.api.kubectl("apply", "-k", str(ROOT / "deploy" / folder))
        self.api.kubectl("apply", "-f", str(ROOT / "deploy/uninstall/leases.yaml"))
        self.api.kubectl("wait", "--for=condition=Established", "crd/clusterpolicies.shoal.dev", "--timeout=120s")
        policy = {
            "apiVersion": "shoal.dev/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "cluster-policy", "finalizers": [FINALIZER]},
            "spec": {},
        }
        self.api.kubectl("apply", "-f", "-", input=yaml.safe_dump(policy))
        for name in ("shoal-agent", "shoal-metrics", "shoal-discovery-bus"):
            self._wait_ready(name)

    def _wait_ready(self, name: str) -> None:
        def ready() -> bool:
            status = json.loads(self.api.kubectl("get", "ds", name, "-n", SYSTEM, "-o", "json"))["status"]
            return bool(status.get("numberReady", 0) == NODES_COUNT == status.get("desiredNumberScheduled"))

        wait_for(ready, f"ready: {name}")

    def delete_manifests(self) -> None:
        """What users delete themselves: helm does it for those who have it."""
        self.api.kubectl("delete", "-f", str(ROOT / "deploy/uninstall/leases.yaml"), "--ignore-not-found")
        for folder in ("uninstall", *reversed(FOLDERS)):
            self.api.kubectl("delete", "-k", str(ROOT / "deploy" / folder), "--ignore-not-found")

    def start(self, *arguments: str, kubeconfig: Path | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MAIN, "uninstall", f"--kubeconfig={kubeconfig or self.api.kubeconfig()}"]
        return subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )

    def run(self, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
        process = self.start(*arguments, kubeconfig=kubeconfig)
        out, err = process.communicate()
        return process.returncode, out, err

    def as_account(self, folder: Path) -> Path:
        """A kubeconfig of the account of deploy/uninstall."""
        token = self.api.kubectl("create", "token", "shoal-uninstall", "-n", SYSTEM).strip()
        config = yaml.safe_load(self.api.kubeconfig().read_text())
        config["users"][0]["user"] = {"token": token}
        path = folder / "uninstall.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def assert_as(self, before: dict[str, Any]) -> None:
        def different() -> dict[str, Any]:
            now = self.snapshot()
            return {key: (before.get(key), now.get(key)) for key in {*before, *now} if before.get(key) != now.get(key)}

        with contextlib.suppress(TestbedError):
            wait_for(lambda: not different(), "as before")
        assert different() == {}


@pytest.fixture(scope="module")
def site(testbed_run: Run) -> Iterator[Site]:
    with own_control_plane(testbed_run, "uninstall") as plane:
        plane.start_scheduler()
        fakes = FakeNodes(testbed_run, plane.api)
        names = asyncio.run(fakes(NODES_COUNT, prefix="gpu"))
        for name in names:
            plane.api.kubectl("label", "node", name, f"{gpushare.LABEL_NODE}=true", "rack=r1")
        try:
            yield Site(plane, fakes, names)
        finally:
            fakes.stop()


@pytest.fixture
async def client(site: Site) -> AsyncIterator[Client]:
    async with Client(load_access(environ={}, home=Path("/"), kubeconfig=site.api.kubeconfig())) as client:
        yield client


async def serve(site: Site, client: Client) -> None:
    """What services write on nodes and beside them, by their own code."""
    for name in site.names:
        metadata = {
            "annotations": {
                ANNOTATION_FACTS: encode_facts(node(T4)),
                ANNOTATION_VALIDATION: encode_validation(ValidationReport(version=1, steps={})),
            },
            "labels": {nvidia.LABEL_UPGRADE_STATE: "upgrade-done"},
        }
        await client.patch(NODES, name, {"metadata": metadata})
    async with asyncio.TaskGroup() as group:
        leader = Leader(DiscoveryConfig(), client)
        leading = group.create_task(leader.run())
        await _labelled(client, site.names)
        leading.cancel()
    async with Recorder(client, NAME_OPERATOR) as recorder:
        writes = Writes(client, recorder)
        for action in deploy_labels.plan((await client.list(NODES)).items):
            assert await writes.carry_out(action)
    for name in site.names:
        agent = NodeObject(client, name)
        async with agent.reflector:
            await agent.reflector.wait_synced()
            annotations = {
                shoal.ANNOTATION_GPUS: shoal.encode_gpus(made_up(name, 2)),
                shoal.ANNOTATION_HELD: shoal.encode_held(Held({}, 1)),
                shoal.ANNOTATION_FAULTS: "{}",
            }
            amounts = {gpushare.RESOURCE_COUNT: (2, 2), gpushare.RESOURCE_MEMORY: (32, 32), nvidia.RESOURCE_GPU: (2, 2)}
            agent.publish(annotations, amounts)
            await agent.settle()
        await announce(
            client,
            history_wire.Announcement(node=name, host="h", port=1, authority=""),
            namespace=history_wire.NAMESPACE,
        )
        digest = {"metadata": {"name": name, "namespace": load.NAMESPACE}, "spec": {"holderIdentity": name}}
        await client.apply(LEASES.raw, digest, force=True)
    for name in (shoal.NAME_SCHEDULER, "shoal-discovery", "gpu-scheduler"):
        await client.create(LEASES.raw, {"metadata": {"name": name}, "spec": {}}, namespace=SYSTEM)
    made = {"metadata": {"labels": {LABEL_POLICY: "cluster-policy"}}}
    site.api.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", {**_named(made, "nvidia"), "handler": "nvidia"})
    site.api.request("POST", f"/api/v1/namespaces/{SYSTEM}/configmaps", _named(made, "made-by-the-operator"))
    site.api.kubectl("taint", "node", *site.names, f"{TAINT_STARTING}=x:NoSchedule")


def _named(made: dict[str, Any], name: str) -> dict[str, Any]:
    return {**made, "metadata": {**made["metadata"], "name": name}}


async def _labelled(client: Client, names: list[str]) -> None:
    """Until discovery's leader has labelled all nodes."""

    async def are() -> bool:
        nodes = [await client.get(NODES, name) for name in names]
        return all(node.metadata.labels.get(nvidia.LABEL_PRODUCT) == "Tesla-T4" for node in nodes)

    await eventually(are, "labelled")


async def dead_operator(client: Client) -> None:
    spec = {"holderIdentity": "gone", "leaseDurationSeconds": 3, "renewTime": "2026-01-01T00:00:00.000000Z"}
    await client.create(LEASES.raw, {"metadata": {"name": NAME_OPERATOR}, "spec": spec}, namespace=SYSTEM)


@pytest.fixture
async def installed(site: Site, client: Client) -> dict[str, Any]:
    """Shoal on the cluster; what was there before it."""
    before = site.settled()
    site.install()
    await serve(site, client)
    return before


async def test_without_an_operator_and_with_the_least_rights(
    site: Site, client: Client, installed: dict[str, Any], tmp_path: Path
) -> None:
    await dead_operator(client)
    account = site.as_account(tmp_path)
    status, out, err = site.run("-n", SYSTEM, "--dry-run")
    assert (status, err) == (0, "")
    for words in ("ClusterPolicy cluster-policy", "DaemonSet kube-system/shoal-agent", "RuntimeClass nvidia"):
        assert f"would remove {words}\n" in out
    assert "Lease shoal-load/gpu-0" in out
    status, out, err = site.run("-n", SYSTEM, "--crds", kubeconfig=account)
    assert status == 0, out + err
    assert "its Lease was not renewed for 3 s" in err
    assert "removed labels, annotations and the taint of 4 nodes" in out
    assert "removed discovery's labels of 4 nodes" in out
    assert "removed amounts of resources in the status of 4 nodes" in out
    again = site.run("-n", SYSTEM, "--crds", kubeconfig=account)
    assert again == (0, "nothing of Shoal was in this cluster\n", "")
    site.delete_manifests()
    site.assert_as(installed)


async def test_without_collectors_there_are_no_namespaces_of_theirs_and_no_rights_in_them(
    site: Site, tmp_path: Path
) -> None:
    """The chart without its exporter: a Lease in a namespace that is not there is nobody's to refuse."""
    before = site.settled()
    site.api.kubectl("apply", "-k", str(ROOT / "deploy/uninstall"))
    account = site.as_account(tmp_path)
    assert site.run("-n", SYSTEM, kubeconfig=account) == (0, "nothing of Shoal was in this cluster\n", "")
    # Somebody else's of that name: what may be in it is told, and not passed over.
    site.api.kubectl("create", "namespace", load.NAMESPACE)
    status, _, err = site.run("-n", SYSTEM, kubeconfig=account)
    assert status == 1
    assert f"failed: leases of {load.NAMESPACE}: " in err
    site.api.kubectl("delete", "namespace", load.NAMESPACE)
    site.api.kubectl("delete", "-k", str(ROOT / "deploy/uninstall"))
    site.assert_as(before)


async def test_a_policy_that_hangs_for_lack_of_an_operator(
    site: Site, client: Client, installed: dict[str, Any]
) -> None:
    await client.delete(POLICIES, "cluster-policy")
    assert (await client.get(POLICIES, "cluster-policy"))["metadata"]["deletionTimestamp"]
    status, out, err = site.run("--crds")
    assert status == 0, out + err
    assert "no operator takes the policy away (there is none)" in err
    site.delete_manifests()
    site.assert_as(installed)


async def test_a_node_that_is_not_ready_is_told(site: Site, client: Client, installed: dict[str, Any]) -> None:
    away = site.names[0]
    keeper = (await client.get(NODES, away)).metadata.labels[fake_kubelet.LABEL]
    await client.patch(NODES, away, {"metadata": {"labels": {fake_kubelet.LABEL: "nobody"}}})
    await _ready(client, away, "Unknown")
    status, out, err = site.run("--crds")
    assert status == 3, out + err
    assert f"left: node {away}: Shoal's files stay on the node, since it is not ready" in out
    assert out.count("left: ") == 1
    assert not (await client.get(NODES, away)).metadata.annotations.keys() & set(uninstall.NODE_ANNOTATIONS)
    told = json.loads(site.api.kubectl("get", "events", "-A", "-o", "json"))["items"]
    assert any(one["reason"] == uninstall.REASON_LEFT and one["involvedObject"]["name"] == away for one in told)
    await _ready(client, away, "True")
    await client.patch(NODES, away, {"metadata": {"labels": {fake_kubelet.LABEL: keeper}}})
    site.delete_manifests()
    site.assert_as(installed)


async def _ready(client: Client, name: str, status: str) -> None:
    condition = {"type": "Ready", "status": status, "reason": "Test"}
    await client.patch(NODES, name, {"status": {"conditions": [condition]}}, kind="strategic", subresource="status")


async def test_killed_at_any_time_and_run_again(site: Site, client: Client, installed: dict[str, Any]) -> None:
    for pause in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0):
        process = site.start("--crds")
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, pause)
        process.kill()
        process.communicate()
    status, out, err = site.run("--crds")
    assert status == 0, out + err
    site.delete_manifests()
    site.assert_as(installed)


async def test_an_operator_that_is_alive_does_it(site: Site, client: Client, installed: dict[str, Any]) -> None:
    """Its part; the rest is the command's."""
    steps = []

    async def operator() -> None:
        async with Recorder(client, NAME_OPERATOR) as recorder:
            writes = Writes(client, recorder)
            eyes = ClusterRemoval(client, writes, RemovalSettings(SYSTEM), clean_labels=lambda: asyncio.sleep(0, 0))
            while True:
                world = await eyes.world("shoal:1")
                if uninstall.is_due(world):
                    for action in uninstall.plan(world).actions:
                        await writes.carry_out(action)
                        steps.append(action)
                await asyncio.sleep(0.5)

    election = Election(client, namespace=SYSTEM, name=NAME_OPERATOR, identity="alive")
    leading = asyncio.create_task(election.run(operator))
    status, out, err = await asyncio.to_thread(site.run, "--crds")
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert status == 0, out + err
    assert "the operator has taken its policy away" in err
    assert len(steps) > 10
    site.api.kubectl("delete", "lease", NAME_OPERATOR, "-n", SYSTEM, "--ignore-not-found")
    site.delete_manifests()
    site.assert_as(installed)


def test_amounts_that_others_serve_stay() -> None:
    def written(manager: str, *names: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"f:status": {"f:capacity": {f"f:{name}": {} for name in names}}}
        return {"manager": manager, "subresource": "status", "fieldsV1": fields}

    def stale(capacity: dict[str, str], *entries: dict[str, Any]) -> list[str]:
        return list(stale_resources({"metadata": {"managedFields": list(entries)}, "status": {"capacity": capacity}}))

    assert stale({"nvidia.com/gpu": "2", "cpu": "4"}, written("kubelet", "nvidia.com/gpu")) == []
    assert stale({"nvidia.com/gpu": "0"}, written("kubelet", "nvidia.com/gpu")) == []
    counted = written("shoal", "aliyun.com/gpu-count")
    assert stale({"aliyun.com/gpu-count": "2", "nvidia.com/gpu": "0"}, counted) == [
        *("aliyun.com/gpu-count", "nvidia.com/gpu")
    ]
    assert stale({"aliyun.com/gpu-mem": "0", "keti.com/mpsgpu": "8"}) == ["aliyun.com/gpu-mem"]
    assert stale({"nvidia.com/mig-1g.5gb": "0", "example.com/x": "0"}, counted) == ["nvidia.com/mig-1g.5gb"]


@pytest.mark.kube
def test_the_manifest_that_is_made_without_a_chart_is_the_charts() -> None:
    (of_chart,) = operands(objects(namespace=SYSTEM))["cleanup"]
    image = of_chart["spec"]["template"]["spec"]["containers"][0]["image"]
    made = cleanup_manifest(image, SYSTEM)
    assert of_chart["spec"]["template"]["spec"].pop("nodeSelector") == {LABEL_CLEANUP: "true"}
    assert made == of_chart
