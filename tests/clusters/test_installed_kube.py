"""All of it as users install it, on two real control planes: `shoal clusters join`, the shipped policies, and each
program with the rights of its own account only. Schedulers make real offers; fake kubelets run what they bind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.clusters.members import cluster_uid
from shoal.clusters.opened import copied_name
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import CONFIG_MAPS, EVENTS, PODS, SECRETS
from shoal.model.contract.clusters import (
    ANNOTATION_MAY_USE,
    ENABLED,
    GATE_HOME,
    LABEL_ACCEPTS,
    LABEL_ACCEPTS_REFERENCES,
    LABEL_COPIES_REFERENCES,
    LABEL_DISPATCH,
    NAME_MANAGER,
    NAMESPACE_MANAGER,
    NAMESPACE_MEMBERS,
    account_name,
)
from shoal.scheduler.certificates import decode
from shoal.scheduler.config import SECRET
from tests.clusters.site import JOBS, eventually
from tests.scheduler.offer.site import token_of
from tests.scheduler.offer.test_offer_kube import running
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.fake_kubelet import RUNS_FOR
from tests.testbed.fake_nodes import FakeNodes
from tests.testbed.processes import Process, Run

pytestmark = [pytest.mark.kube, pytest.mark.min_kube("1.36")]

DEPLOY = Path(__file__).parents[2] / "deploy"
SYSTEM = "kube-system"
PROGRAM = (sys.executable, "-c", "from shoal.cli.main import main; main()")


@dataclass
class Installed:
    """Home and a member, each with one node of two cards, and the manager's process."""

    home: ControlPlane
    west: ControlPlane
    at_home: Client
    in_west: Client
    manager: Process
    namespace: str

    async def pod(self, client: Client, name: str) -> Pod | None:
        found = (await client.list(PODS, namespace=self.namespace)).items
        return next((pod for pod in found if pod.metadata.name.startswith(name)), None)

    async def shoal(self, *arguments: str) -> tuple[int, str]:
        """`shoal clusters` as home's administrator."""
        return await shoal("clusters", *arguments, f"--kubeconfig={self.home.api.kubeconfig()}")


async def shoal(*arguments: str) -> tuple[int, str]:
    """Exit status and output of a command."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.fixture(scope="module")
def planes(testbed_run: Run) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    with own_control_plane(testbed_run, "home") as home, own_control_plane(testbed_run, "west") as west:
        nodes = [FakeNodes(testbed_run, plane.api) for plane in (home, west)]
        for plane, made in zip((home, west), nodes, strict=True):
            plane.api.kubectl("apply", "-k", str(DEPLOY / "scheduler-offer"))
            asyncio.run(made(1, gpus=2))
        for name in ("namespace", "rbac", "gates", "clusters"):
            home.api.kubectl("apply", "-f", str(DEPLOY / "cluster-manager" / f"{name}.yaml"))
        yield home, west
        for made in nodes:
            made.stop()


@pytest.fixture
async def installed(
    planes: tuple[ControlPlane, ControlPlane], testbed_run: Run, tmp_path: Path
) -> AsyncIterator[Installed]:
    home, west = planes
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for plane in planes:
            access = load_kubeconfig([plane.api.kubeconfig()], environ={}, explicit=True)
            clients.append(await stack.enter_async_context(Client(access)))
        ports, authorities = [], []
        for number, client in enumerate(clients):
            offering = await stack.enter_async_context(running(client))
            bundle = decode((await client.get(SECRETS, SECRET, namespace=SYSTEM)).data)
            path = tmp_path / f"ca-{number}.crt"
            path.write_bytes(bundle.authority.certificate)
            ports.append(offering.port)
            authorities.append(path)
        status, said = await shoal(
            *("clusters", "join", "west", f"--kubeconfig={west.api.kubeconfig()}"),
            *(f"--home-kubeconfig={home.api.kubeconfig()}", "-n", NAMESPACE_MANAGER),
            *("--scheduler-namespace", SYSTEM),
            *(f"--offer-url=https://127.0.0.1:{ports[1]}", f"--offer-ca={authorities[1]}"),
        )
        assert status == 0, said
        namespace = f"team-{uuid.uuid4().hex[:6]}"
        for plane, label in ((home, LABEL_DISPATCH), (west, LABEL_ACCEPTS)):
            plane.api.create_namespace(namespace)
            plane.api.kubectl("label", "namespace", namespace, f"{label}={ENABLED}")
        settings = tmp_path / "manager.yaml"
        settings.write_text(
            yaml.safe_dump(
                {
                    "namespace": NAMESPACE_MANAGER,
                    "schedulerNamespace": SYSTEM,
                    "offerUrl": f"https://127.0.0.1:{ports[0]}",
                    "offerCa": str(authorities[0]),
                    "host": "127.0.0.1",
                    "refusedSeconds": 3,
                    "probePort": 0,
                    "metricsPort": 0,
                }
            )
        )
        config = yaml.safe_load(home.api.kubeconfig().read_text())
        token = await token_of(clients[0], NAME_MANAGER, namespace=NAMESPACE_MANAGER)
        config["users"][0]["user"] = {"token": token}
        kubeconfig = tmp_path / "manager.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        command = [*PROGRAM, "cluster-manager", f"--config={settings}", f"--kubeconfig={kubeconfig}"]
        manager = testbed_run.process(f"manager-{uuid.uuid4().hex[:6]}", command)
        manager.start()
        stack.callback(manager.stop)
        yield Installed(home, west, clients[0], clients[1], manager, namespace)


def job(name: str, limits: dict[str, str], **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name},
        "spec": {
            "template": {
                "metadata": {"annotations": {RUNS_FOR: "3", **annotations}},
                "spec": {"restartPolicy": "Never", "schedulerName": "gpu-scheduler", "containers": [container]},
            }
        },
    }


async def test_jobs_run_where_they_are_sent_and_where_they_fit(installed: Installed) -> None:
    namespace = installed.namespace
    by_name = job("named", {"keti.com/mpsgpu": "1"}, clusterName="west")
    await installed.at_home.create(JOBS, by_name, namespace=namespace)

    async def is_in_west() -> bool:
        pod = await installed.pod(installed.in_west, "named")
        return pod is not None and bool(pod.spec.node_name)

    await eventually(is_in_west, "its copy has a node in west")

    async def complete(name: str = "named") -> bool:
        status = (await installed.at_home.get(JOBS, name, namespace=namespace)).get("status", {})
        return any(one["type"] == "Complete" and one["status"] == "True" for one in status.get("conditions", ()))

    await eventually(complete, "complete at home, where its controller counts")
    pod = await installed.pod(installed.at_home, "named")
    assert pod is not None
    assert not pod.spec.node_name, "it never ran at home"
    # Four whole cards are there in all, two in each cluster: none waits while another has room.
    for number in range(4):
        whole = job(f"whole-{number}", {"nvidia.com/gpu": "1"}, **{RUNS_FOR: "600"})
        await installed.at_home.create(JOBS, whole, namespace=namespace)

    async def all_run() -> bool:
        nodes: list[str] = []
        for client in (installed.at_home, installed.in_west):
            found = (await client.list(PODS, namespace=namespace)).items
            nodes += [
                pod.spec.node_name for pod in found if pod.metadata.name.startswith("whole") and pod.spec.node_name
            ]
        return len(nodes) == 4

    await eventually(all_run, "four of four")
    where = {
        pod.metadata.name: json.loads(pod.metadata.annotations["shoal.dev/dispatch"])["cluster"]
        for pod in (await installed.at_home.list(PODS, namespace=namespace)).items
        if pod.metadata.name.startswith("whole") and "shoal.dev/dispatch" in pod.metadata.annotations
    }
    assert list(where.values()) == ["west", "west"], "two were opened at home, and carry no dispatch"

    fifth = job("fifth", {"nvidia.com/gpu": "1"})
    await installed.at_home.create(JOBS, fifth, namespace=namespace)

    async def is_told() -> bool:
        pod = await installed.pod(installed.at_home, "fifth")
        return pod is not None and any(
            "no cluster has room now" in (one.message or "") for one in pod.status.conditions
        )

    await eventually(is_told, "the fifth is told that no cluster has room")
    pod = await installed.pod(installed.at_home, "fifth")
    assert pod is not None
    status, said = await installed.shoal(
        "explain", pod.metadata.name, "-n", namespace, "--manager-namespace", NAMESPACE_MANAGER
    )
    assert status == 0, said
    assert "it waits: no cluster has room now" in said
    assert "#Best Cluster Is:  { 0}" in said
    # A card is freed in west: who waits is woken by its room.
    sent = next(name for name, cluster in where.items() if cluster == "west")
    await installed.at_home.delete(JOBS, sent.rsplit("-", 1)[0], namespace=namespace, propagation="Background")

    async def fifth_ran() -> bool:
        return await complete("fifth")

    await eventually(fifth_ran, "the fifth has run")
    assert await installed.pod(installed.in_west, sent) is None
    for number in range(4):
        if f"whole-{number}" != sent.rsplit("-", 1)[0]:
            await installed.at_home.delete(JOBS, f"whole-{number}", namespace=namespace, propagation="Background")

    async def nothing_runs() -> bool:
        found = [
            pod
            for client in (installed.at_home, installed.in_west)
            for pod in (await client.list(PODS, namespace=namespace)).items
        ]
        return not any(pod.metadata.name.startswith("whole") for pod in found)

    await eventually(nothing_runs, "gone on both sides")


async def test_the_manager_is_killed_and_goes_on(installed: Installed) -> None:
    namespace = installed.namespace
    for number in range(6):
        shared = job(f"shared-{number}", {"aliyun.com/gpu-mem": "2"}, clusterName="west")
        await installed.at_home.create(JOBS, shared, namespace=namespace)
        if number % 2:
            installed.manager.kill()
            installed.manager.start()

    async def all_complete() -> bool:
        found = [(await installed.at_home.get(JOBS, f"shared-{number}", namespace=namespace)) for number in range(6)]
        return all(one.get("status", {}).get("succeeded") == 1 for one in found)

    await eventually(all_complete, "each once")
    status, said = await installed.shoal("list", "-n", NAMESPACE_MANAGER)
    assert status == 0, said
    assert "west" in said


KINDS = ("configmaps", "secrets")


async def test_a_pod_that_uses_what_is_not_open_is_told_and_kept(installed: Installed) -> None:
    """The member's policy refuses it; its source pod shows the words and the fix, and waits."""
    made = job("urgent", {"keti.com/mpsgpu": "1"}, clusterName="west")
    made["spec"]["template"]["spec"]["priorityClassName"] = "system-cluster-critical"
    await installed.at_home.create(JOBS, made, namespace=installed.namespace)
    words = "priorityclasses/system-cluster-critical is not open to dispatched pods: kubectl annotate --overwrite"

    async def is_told() -> bool:
        pod = await installed.pod(installed.at_home, "urgent")
        events = (await installed.at_home.list(EVENTS, namespace=installed.namespace)).items
        return (
            pod is not None
            and any(words in (one.message or "") for one in pod.status.conditions)
            and any(one.reason == "DispatchRefused" and words in one.message for one in events)
        )

    await eventually(is_told, "the refusal is shown")
    pod = await installed.pod(installed.at_home, "urgent")
    assert pod is not None
    assert (pod.status.phase, [one.name for one in pod.spec.scheduling_gates]) == ("Pending", [GATE_HOME])
    assert await installed.pod(installed.in_west, "urgent") is None
    await installed.at_home.delete(JOBS, "urgent", namespace=installed.namespace, propagation="Background")


def bind(plane: ControlPlane, namespace: str, role: str, account: str) -> None:
    """A namespace gives a right."""
    command = ("create", "rolebinding", "shoal-references", f"--clusterrole={role}", f"--serviceaccount={account}")
    plane.api.kubectl("-n", namespace, *command)


async def test_what_a_job_names_goes_with_it(installed: Installed) -> None:
    """First it waits in words for what nobody copies; then both namespaces allow it."""
    namespace, home = installed.namespace, await cluster_uid(installed.at_home)
    name = account_name(home)
    bind(installed.west, namespace, f"{name}-references", f"{NAMESPACE_MEMBERS}:{name}")
    for resource, key in ((CONFIG_MAPS.raw, "data"), (SECRETS.raw, "stringData")):
        await installed.at_home.create(resource, {"metadata": {"name": "given"}, key: {"A": "1"}}, namespace=namespace)
    made = job("reader", {"keti.com/mpsgpu": "1"}, clusterName="west", **{RUNS_FOR: "600"})
    sources = [{"configMapRef": {"name": "given"}}, {"secretRef": {"name": "given"}}]
    made["spec"]["template"]["spec"]["containers"][0]["envFrom"] = sources
    await installed.at_home.create(JOBS, made, namespace=namespace)

    async def is_told() -> bool:
        pod = await installed.pod(installed.at_home, "reader")
        words = [f"add {kind}/given to annotation {ANNOTATION_MAY_USE} of namespace {namespace}" for kind in KINDS]
        told = "" if pod is None else " ".join(one.message or "" for one in pod.status.conditions)
        return all(one in told for one in words)

    await eventually(is_told, "it is told what is missing")
    bind(installed.home, namespace, f"{NAME_MANAGER}-references", f"{NAMESPACE_MANAGER}:{NAME_MANAGER}")
    for plane, label in ((installed.home, LABEL_COPIES_REFERENCES), (installed.west, LABEL_ACCEPTS_REFERENCES)):
        plane.api.kubectl("label", "namespace", namespace, f"{label}={ENABLED}")

    async def runs() -> bool:
        pod = await installed.pod(installed.in_west, "reader")
        return pod is not None and pod.status.phase == "Running"

    await eventually(runs, "it runs in west")
    for kind in (CONFIG_MAPS, SECRETS):
        copy = await installed.in_west.get(kind.raw, copied_name(home, "given"), namespace=namespace)
        assert list(copy["data"]) == ["A"]
    await installed.at_home.delete(JOBS, "reader", namespace=namespace, propagation="Background")

    async def gone() -> bool:
        found = [one.metadata.name for kind in (CONFIG_MAPS, SECRETS) for one in await listed(kind)]
        return copied_name(home, "given") not in found

    async def listed(kind: Any) -> list[Any]:
        return list((await installed.in_west.list(kind, namespace=namespace)).items)

    await eventually(gone, "nothing of it is left in west")
