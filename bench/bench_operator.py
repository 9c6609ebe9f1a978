"""The operator: from nothing to ready on 1,000 fake nodes against raw DaemonSets, its memory, its writes at rest; and
the chart on a real node: from `helm upgrade --install` to a running share, and the agent's memory in its container.

Both ways over fake nodes label the nodes and have four DaemonSets with a pod on each, in the same run; raw they are
made by a client that does nothing else, once with the smallest pods there are and once with the pods that the operator
made. The operator's time is from its start until its policy says ready. Fake nodes say of themselves that they are
validated. One etcd (without fsync), the control plane and the client share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import bench.results as results
from bench.usage import cpu_seconds, megabytes, resident
from deploy.image import build as image
from shoal import __version__
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import NODES
from shoal.model.contract import gpushare, nvidia, operator
from tests.deploy.chart_bed import CHART, NAMESPACE, POLICY, WITH_TOOLKIT, chart_bed, run_share
from tests.testbed import binaries
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.fake_nodes import FakeNodes, each
from tests.testbed.processes import Process, Run

#: Four DaemonSets run on every node with these.
FOUR = ("sharing.mps=false", "gfd.enabled=false", "nfd.enabled=false")
#: What the raw way labels nodes with: as many as the operator does.
DEPLOYED = (
    "driver",
    "container-toolkit",
    "device-plugin",
    "gpu-feature-discovery",
    "dcgm-exporter",
    "operator-validator",
    "client",
)
RAW = ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "operator-validator")


def rendered(*values: str) -> list[dict[str, Any]]:
    """The objects of the chart."""
    given = [word for value in values for word in ("--set", value)]
    command = [str(binaries.find("helm")), "template", "shoal", str(CHART), "-n", NAMESPACE, "--include-crds", *given]
    text = subprocess.run([*command, "--no-hooks"], check=True, capture_output=True, text=True).stdout
    return [one for one in yaml.safe_load_all(text) if one]


def raw_daemon_set(name: str) -> dict[str, Any]:
    """A DaemonSet with a pod on each labelled node."""
    pod = {
        "nodeSelector": {nvidia.deploy_label(name): "true"},
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "none:1"}],
    }
    spec = {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "raw"}, "spec": spec}


def validated() -> str:
    """What a validated node says of itself."""
    done = operator.StepReport(ready=True, since=1)
    steps: dict[operator.Step, operator.StepReport] = dict.fromkeys(("driver", "toolkit", "cuda", "plugin"), done)
    return operator.encode_validation(operator.ValidationReport(version=1, driver_version="580.95.05", steps=steps))


async def until(ready: Any, patience: float = 1200, *, alive: Process | None = None) -> float:
    """Seconds until something holds. A program that ends meanwhile is started anew, as kubelet would."""
    start = time.perf_counter()
    async with asyncio.timeout(patience):
        while True:
            if await asyncio.to_thread(ready):
                return time.perf_counter() - start
            if alive is not None and not alive.alive:
                alive.start()
            await asyncio.sleep(0.2)


def like_the_operators(plane: ControlPlane) -> list[dict[str, Any]]:
    """The DaemonSets that the operator made, for another namespace, without its marks."""
    found = []
    for one in plane.api.request("GET", daemon_sets(NAMESPACE))["items"]:
        template = one["spec"]["template"]
        for name in ("serviceAccount", "serviceAccountName"):
            template["spec"].pop(name, None)  # accounts that the other namespace has not
        spec = {name: one["spec"][name] for name in ("selector", "template", "updateStrategy")}
        metadata = {"name": one["metadata"]["name"], "namespace": "raw"}
        found.append({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})
    return found


def daemon_sets(namespace: str) -> str:
    """The path of a namespace's DaemonSets."""
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets"


async def raw(plane: ControlPlane, client: Client, names: list[str], made: list[dict[str, Any]]) -> float:
    """Seconds for labels and DaemonSets, until all pods are available; then all of it is taken away."""
    labels = {nvidia.deploy_label(name): "true" for name in DEPLOYED}
    start = time.perf_counter()
    await each(names, lambda name: client.patch(NODES, name, {"metadata": {"labels": labels}}))
    for one in made:
        plane.api.request("POST", daemon_sets("raw"), one)

    def available() -> bool:
        found = plane.api.request("GET", daemon_sets("raw"))["items"]
        return all(one["status"].get("numberAvailable", 0) == len(names) for one in found)

    await until(available)
    seconds = time.perf_counter() - start
    await take_away(plane, client, names, "raw")
    return seconds


async def take_away(plane: ControlPlane, client: Client, names: list[str], namespace: str) -> None:
    """Delete the DaemonSets of a namespace, and the labels of nodes that they go by."""
    for one in plane.api.request("GET", daemon_sets(namespace))["items"]:
        plane.api.request("DELETE", f"{daemon_sets(namespace)}/{one['metadata']['name']}")
    await until(lambda: not plane.api.request("GET", f"/api/v1/namespaces/{namespace}/pods?limit=1")["items"])
    labels = {nvidia.deploy_label(name): None for name in DEPLOYED}
    await each(names, lambda name: client.patch(NODES, name, {"metadata": {"labels": labels}}))


@contextmanager
def running_operator(run: Run, plane: ControlPlane) -> Iterator[Process]:
    """`shoal operator` over the objects of the chart."""
    folder = run.folder("operands")
    for one in rendered(*FOUR):
        kind, name = one["kind"], one["metadata"]["name"]
        if (kind, name) == ("ConfigMap", operator.NAME_OPERANDS):
            for path, text in one["data"].items():
                (folder / path).write_text(text)
        elif kind == "CustomResourceDefinition" or (
            kind == "ServiceAccount" and one["metadata"]["namespace"] == NAMESPACE
        ):
            plane.api.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(one))
    plane.api.kubectl("wait", "--for=condition=Established", f"crd/{POLICY}", "--timeout=60s")
    (policy,) = [one for one in rendered(*FOUR) if one["kind"] == "ClusterPolicy"]
    plane.api.kubectl("apply", "-f", "-", input=json.dumps(policy))
    program = str(Path(sys.executable).parent / "shoal")
    command = [program, "operator", f"--kubeconfig={plane.api.kubeconfig()}"]
    command += [f"--namespace={NAMESPACE}", f"--operands={folder}", "--probe-port=0", "--metrics-port=0"]
    process = run.process("operator", command)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def writes(plane: ControlPlane) -> float:
    """Writes that the API server has taken so far, but for Leases and Events."""
    path = "/metrics"
    text = plane.api.try_request("GET", path)[1]["message"]
    total = 0.0
    for line in text.splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if labels["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE") and labels["resource"] not in (
            *("leases", "events", "subjectaccessreviews", "tokenreviews", "selfsubjectaccessreviews"),
            *("serviceaccounts",),  # whose token is asked for
        ):
            total += float(line.rsplit(" ", 1)[1])
    return total


async def scale(run: Run, count: int, rest: float, limit: float, *, compare: bool) -> list[results.Row]:
    """The operator over so many fake nodes."""
    rows: list[results.Row] = []
    with own_control_plane(run, f"scale-{count}") as plane:
        plane.start_scheduler()
        nodes = FakeNodes(run, plane.api)
        names = await nodes(count, gpus=8)
        access = load_kubeconfig([plane.api.kubeconfig()], environ={}, explicit=True)
        async with Client(access) as client:
            meta = {"labels": {nvidia.LABEL_PRESENT: "true"}}
            meta_of: Mapping[str, object] = {**meta, "annotations": {operator.ANNOTATION_VALIDATION: validated()}}
            await each(names, lambda name: client.patch(NODES, name, {"metadata": meta_of}))
            plane.api.create_namespace("raw")
            seconds = await raw(plane, client, names, [raw_daemon_set(name) for name in RAW]) if compare else 0.0
        plane.api.create_namespace(NAMESPACE)
        with running_operator(run, plane) as process:
            start = time.perf_counter()

            def ready() -> bool:
                found = plane.api.request("GET", f"/apis/shoal.dev/v1/clusterpolicies/{operator.NAME_POLICY}")
                status = found.get("status", {})
                return bool(status.get("state") == "ready" and status.get("ready") == f"{count}/{count}")

            await until(ready, alive=process)
            took = time.perf_counter() - start
            rows.append(results.Row(f"the operator, {count} nodes", took, "s"))
            rows.append(results.Row("the operator's CPU by then", cpu_seconds(process.pid), "s"))
            if compare:
                rows += [
                    results.Row(f"labels and four raw DaemonSets of the smallest pods, {count} nodes", seconds, "s"),
                    results.Row("the operator by those", took / seconds, ""),
                ]
            await asyncio.sleep(10)  # controllers of Kubernetes tell of the last pods
            before = await asyncio.to_thread(writes, plane)
            await asyncio.sleep(rest)
            after = await asyncio.to_thread(writes, plane)
            rows.append(results.below(f"writes in {rest:.0f} s at rest, {count} nodes", after - before, "", 0))
            rows.append(results.below(f"the operator's memory, {count} nodes", resident(process.pid), "MB", limit))
        if compare:
            async with Client(access) as client:
                made = like_the_operators(plane)
                await take_away(plane, client, names, NAMESPACE)
                seconds = await raw(plane, client, names, made)
            rows.append(results.Row("labels and raw DaemonSets of the operator's pods", seconds, "s"))
            rows.append(results.below("the operator by those", took / seconds, "", 1.3))
        nodes.stop()
    return rows


def on_a_node(run: Run) -> list[results.Row]:
    """The image, and the chart on a real node with a driver of its own."""
    archive = run.folder("image") / "shoal.oci.tar"
    start = time.perf_counter()
    image.build(image.ARCHITECTURES["amd64"], __version__, archive)
    built = time.perf_counter() - start
    with chart_bed(run, "bench", archive) as bed:
        bed.cards.install_driver()
        start = time.perf_counter()
        bed.install(*WITH_TOOLKIT)
        run_share(bed, "share", {gpushare.RESOURCE_MEMORY: 3})
        bed.kubectl("wait", "--for=condition=Ready", "pod/share", "--timeout=600s")
        installed = time.perf_counter() - start
        pid = bed.node.run(["sh", "-c", "pgrep -f 'run.py agent --config.*--dev' | head -1"]).strip()
        agent = megabytes(bed.node.run(["cat", f"/proc/{pid}/status"]))
    return [
        results.below("the image, built", built, "s", 90),
        results.below("the image, packed", archive.stat().st_size / 1e6, "MB", 60),
        results.below("from helm upgrade --install to a running share", installed, "s", 60),
        results.below("the agent's memory in its container", agent, "MB", 80),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rest", type=float, default=60.0, metavar="S", help="how long nothing changes")
    parser.add_argument("--nodes", type=int, default=1_000, metavar="N", help="fake nodes that are compared")
    parser.add_argument("--many", type=int, default=5_000, metavar="N", help="fake nodes of the memory alone; 0: none")
    parser.add_argument("--only", choices=["scale", "node"], help="one half of it")
    arguments = parser.parse_args()
    rows: list[results.Row] = []
    if arguments.only != "scale":
        with Run() as run:
            rows += on_a_node(run)
    if arguments.only != "node":
        with Run() as run:
            rows += asyncio.run(scale(run, arguments.nodes, arguments.rest, 150, compare=True))
        if arguments.many:
            with Run() as run:
                rows += asyncio.run(scale(run, arguments.many, arguments.rest, 400, compare=False))
    results.report("operator", rows)


if __name__ == "__main__":
    main()
