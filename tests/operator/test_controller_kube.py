"""The operator on a real control plane with fake nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFoundError
from shoal.kube.resources import CONFIG_MAPS, EVENTS, LEASES, NODES, RawObject, Resource
from shoal.model.contract.operator import FINALIZER, NAME_CLEANUP, NAME_OPERATOR
from shoal.operator.components import COMPONENTS
from shoal.operator.nvidia import NVIDIA_POLICIES
from shoal.operator.writes import DAEMON_SETS, POLICIES, RUNTIME_CLASSES
from tests.operator.scene import PREFIX, operands, validation
from tests.operator.site import CRDS, Site, eventually
from tests.testbed import fake_kubelet
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.fake_nodes import FakeNodes
from tests.testbed.fake_nodes import node as fake_node
from tests.testbed.processes import Run


@pytest.fixture(scope="module")
def plane(testbed_run: Run) -> Iterator[ControlPlane]:
    """A control plane of this module's own: the operator looks at all nodes."""
    with own_control_plane(testbed_run, "operator") as plane:
        plane.start_scheduler()
        yield plane


@pytest.fixture
async def site(testbed_run: Run, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Site]:
    """A namespace with manifests, and nodes that come and go with the test."""
    nodes = FakeNodes(testbed_run, plane.api)
    access = load_access(environ={}, home=Path("/"), kubeconfig=plane.api.kubeconfig())
    async with Client(access) as client:
        site = Site(plane, client, nodes, tmp_path)
        await site.begin()
        async with site.validators.pods:
            try:
                yield site
            finally:
                await site.end()
                await nodes.remove()
                nodes.stop()


def settings_map(name: str) -> RawObject:
    return {"metadata": {"name": name}, "data": {"any": "version: v1\n"}}


async def test_from_nothing_to_ready_and_then_no_write(site: Site) -> None:
    names = await site.gpu_nodes(5)
    await site.fake_nodes(2, prefix="plain")
    async with site.operator() as operator:
        await site.wish()
        found = await site.until("ready", "5/5")
        assert {one["state"] for one in found["components"]} == {"ready"}
        assert set(await site.daemon_sets()) == {one.daemon_set for one in COMPONENTS}
        assert (await site.client.get(RUNTIME_CLASSES, "nvidia"))["handler"] == "nvidia"
        assert (await site.client.get(POLICIES, "cluster-policy"))["metadata"]["finalizers"] == [FINALIZER]
        for name in names:
            assert (await site.labels(name))[PREFIX + "device-plugin"] == "true"
        assert PREFIX + "client" not in await site.labels("plain-5")
        # The agents' pods are on these nodes alone, the others' readers of the bus elsewhere.
        sets = await site.daemon_sets()
        assert sets["shoal-agent"]["status"]["numberReady"] == 5
        assert sets["shoal-discovery-bus"]["status"]["numberReady"] == 2
        await at_rest(site, operator.controller.metrics.writes)


async def at_rest(site: Site, writes: Any) -> None:
    """Nothing is written for a while, though nodes say that they live."""

    async def versions() -> dict[str, str]:
        found = {}
        for resource, namespace in (
            (NODES.raw, ""),
            (DAEMON_SETS, site.namespace),
            (CONFIG_MAPS.raw, site.namespace),
            (POLICIES, ""),
            (RUNTIME_CLASSES, ""),
            (EVENTS.raw, "default"),
        ):
            for one in (await site.client.list(resource, namespace=namespace)).items:
                found[f"{resource.plural} {one['metadata']['name']}"] = one["metadata"]["resourceVersion"]
        return found

    # Kubernetes' own controllers may still be at it, later on a busy machine.
    for _ in range(15):
        before, counted = await versions(), dict(writes._values)
        await asyncio.sleep(2)
        if (await versions(), dict(writes._values)) == (before, counted):
            break
    await asyncio.sleep(5)
    assert await versions() == before
    assert dict(writes._values) == counted


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("driver", {"shoal-driver"}),
        ("toolkit", {"shoal-toolkit"}),
        ("devicePlugin", {"shoal-agent", "shoal-mps"}),
        ("gfd", {"shoal-discovery-cards"}),
        ("dcgmExporter", {"shoal-metrics"}),
    ],
)
async def test_a_component_off_and_on(site: Site, section: str, names: set[str]) -> None:
    await site.gpu_nodes(1)
    every = {one.daemon_set for one in COMPONENTS}
    async with site.operator():
        await site.wish()
        await site.until("ready", "1/1")
        off: dict[str, Any] = {section: {"enabled": False}}
        await site.wish(**off)
        await site.until("ready", "1/1")
        assert set(await site.daemon_sets()) == every - names
        await site.wish()
        await site.until("ready", "1/1")
        assert set(await site.daemon_sets()) == every


async def test_drift_of_every_object_is_repaired(site: Site) -> None:
    (name,) = await site.gpu_nodes(1)
    async with site.operator():
        await site.wish()
        await site.until("ready", "1/1")
        wanted: list[tuple[Resource[RawObject], str, RawObject]] = []
        for resource, namespace in (
            (DAEMON_SETS, site.namespace),
            (CONFIG_MAPS.raw, site.namespace),
            (RUNTIME_CLASSES, ""),
        ):
            found = (await site.client.list(resource, namespace=namespace)).items
            own = [one for one in found if "shoal.dev/policy" in (one["metadata"].get("labels") or {})]
            wanted += [(resource, namespace, one) for one in own]
        assert len(wanted) == len(COMPONENTS) + 2 + 3
        for resource, namespace, one in wanted:
            patch: dict[str, Any] = {"metadata": {"labels": {"shoal.dev/policy": "elsewhere"}}}
            if resource is DAEMON_SETS:
                patch["spec"] = {
                    "template": {"spec": {"priorityClassName": "system-cluster-critical", "nodeSelector": None}}
                }
            elif resource.kind == "ConfigMap":
                patch["data"] = dict.fromkeys(one["data"], "broken")
            await site.client.patch(resource, one["metadata"]["name"], patch, namespace=namespace)

        def same(found: RawObject, one: RawObject) -> bool:
            return (
                found["metadata"]["labels"] == one["metadata"]["labels"]
                and found.get("data") == one.get("data")
                and found.get("spec", {}).get("template") == one.get("spec", {}).get("template")
            )

        for resource, namespace, one in wanted:

            async def repaired(resource=resource, namespace=namespace, one=one) -> bool:
                found = await site.client.get(resource, one["metadata"]["name"], namespace=namespace)
                return same(found, one)

            await eventually(repaired, f"repaired: {resource.kind} {one['metadata']['name']}")
        # And what is deleted comes back.
        for resource, namespace, one in wanted:
            await site.client.delete(resource, one["metadata"]["name"], namespace=namespace)
        for resource, namespace, one in wanted:

            async def back(resource=resource, namespace=namespace, one=one) -> bool:
                found = await site.client.get(resource, one["metadata"]["name"], namespace=namespace)
                return bool(found["metadata"]["uid"] != one["metadata"]["uid"])

            await eventually(back, f"back: {resource.kind} {one['metadata']['name']}")
        await site.client.patch(NODES, name, {"metadata": {"labels": {PREFIX + "client": None}}})

        async def labelled() -> bool:
            return (await site.labels(name)).get(PREFIX + "client") == "true"

        await eventually(labelled, "labelled again")
        await site.until("ready", "1/1")


async def test_an_administrators_labels(site: Site) -> None:
    names = await site.gpu_nodes(2)
    async with site.operator():
        await site.wish()
        await site.until("ready", "2/2")
        await site.client.patch(NODES, names[0], {"metadata": {"labels": {PREFIX + "dcgm-exporter": "false"}}})

        async def fewer() -> bool:
            return bool((await site.daemon_sets())["shoal-metrics"]["status"]["desiredNumberScheduled"] == 1)

        await eventually(fewer, "metrics on one node")
        await site.until("ready", "2/2")
        assert (await site.labels(names[0]))[PREFIX + "dcgm-exporter"] == "false"
        # All of it off.
        await site.client.patch(NODES, names[1], {"metadata": {"labels": {PREFIX + "operands": "false"}}})
        await site.until("ready", "1/1")
        assert [key for key in await site.labels(names[1]) if key.startswith(PREFIX)] == [PREFIX + "operands"]
        await site.client.patch(NODES, names[1], {"metadata": {"labels": {PREFIX + "operands": None}}})
        await site.until("ready", "2/2")


async def test_labels_of_nfd_vanish_and_return(site: Site) -> None:
    names = await site.gpu_nodes(2)
    async with site.operator():
        await site.wish()
        await site.until("ready", "2/2")
        for name in names:
            await site.client.patch(NODES, name, {"metadata": {"labels": {"nvidia.com/gpu.present": "false"}}})
        found = await site.until("notReady", "0/0")
        assert found["waitingFor"] == "a GPU node"
        for name in names:
            await site.client.patch(NODES, name, {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
        await site.until("ready", "2/2")


async def test_a_node_is_deleted_and_made_anew(site: Site) -> None:
    names = await site.gpu_nodes(2)
    async with site.operator():
        await site.wish()
        await site.until("ready", "2/2")
        old = await site.client.get(NODES, names[0])
        await site.client.delete(NODES, names[0])
        await site.until("ready", "1/1")
        made = fake_node(names[0], 0, old.metadata.labels[fake_kubelet.LABEL])
        made["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
        await site.client.create(NODES, made)
        await site.until("ready", "2/2")
        assert (await site.client.get(NODES, names[0])).metadata.uid != old.metadata.uid


async def test_the_start_up_taint_is_lifted_when_the_node_is_validated(site: Site) -> None:
    (name,) = await site.gpu_nodes(1)
    site.validators.words[name] = validation(1, why="no runtime", fix="wait")
    taints = [
        {"key": "shoal.dev/starting", "effect": "NoSchedule"},
        {"key": "shoal.dev/starting", "effect": "NoExecute", "value": "x"},
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    ]
    await site.client.patch(NODES, name, {"spec": {"taints": taints}})
    async with site.operator():
        await site.wish(operator={"startupTaint": True})
        found = await site.until("notReady", "0/1")

        async def told() -> bool:
            found.update(await site.status())
            return bool(found.get("nodes")) and found["nodes"][0]["why"] == "no runtime"

        await eventually(told, "told why")
        assert (found["nodes"][0]["step"], found["nodes"][0]["fix"]) == ("toolkit", "wait")
        assert len((await site.client.get(NODES, name)).spec.taints) == 3
        site.validators.words.clear()
        await site.validators.tell(name)
        await site.until("ready", "1/1")
        assert [taint.key for taint in (await site.client.get(NODES, name)).spec.taints] == ["nvidia.com/gpu"]


async def test_two_policies(site: Site) -> None:
    await site.gpu_nodes(1)
    async with site.operator():
        await site.wish("b-first")
        await site.until("ready", "1/1", "b-first")
        await asyncio.sleep(1.1)  # ages are told in seconds
        await site.wish("a-second", devicePlugin={"enabled": False})

        async def ignored() -> bool:
            return (await site.status("a-second")).get("state") == "ignored"

        await eventually(ignored, "ignored")
        assert "b-first" in (await site.status("a-second"))["waitingFor"]
        assert "shoal-agent" in await site.daemon_sets()
        await site.client.delete(POLICIES, "b-first")
        await site.until("ready", "1/1", "a-second")
        assert "shoal-agent" not in await site.daemon_sets()


async def test_what_is_wrong_with_a_policy_is_told_and_the_rest_goes_on(site: Site) -> None:
    await site.gpu_nodes(1)
    async with site.operator():
        await site.wish(
            devicePlugin={"config": {"name": "absent"}},
            migManager={"enabled": True},
            daemonsets={"rollingUpdate": {"maxUnavailable": "50%"}},
        )
        found = await site.until("ready", "1/1")
        fields = {one["field"]: one for one in found["problems"]}
        assert "absent" in fields["spec.devicePlugin.config.name"]["fix"]
        assert fields["spec.migManager.enabled"]["effect"] == "ignored"
        await site.client.create(CONFIG_MAPS.raw, settings_map("absent"), namespace=site.namespace)

        async def better() -> bool:
            problems = (await site.status()).get("problems") or ()
            return "spec.devicePlugin.config.name" not in {one["field"] for one in problems}

        await eventually(better, "without the problem")


async def test_manifests_change_and_break(site: Site) -> None:
    await site.gpu_nodes(1)
    async with site.operator():
        await site.wish()
        await site.until("ready", "1/1")
        documents = operands()["metrics"]
        for one in documents:
            if one["kind"] == "DaemonSet":
                one["spec"]["template"]["spec"]["containers"][0]["image"] = "shoal:2"
        site.write_operand("metrics", *documents)

        async def newer() -> bool:
            pod = (await site.daemon_sets())["shoal-metrics"]["spec"]["template"]["spec"]
            return bool(pod["containers"][0]["image"] == "shoal:2")

        await eventually(newer, "the new image")
        (site.folder / "metrics.yaml").write_text("{")

        async def told() -> bool:
            conditions = (await site.status())["conditions"]
            return any(one["reason"] == "OperandsRefused" and "metrics.yaml" in one["message"] for one in conditions)

        await eventually(told, "told")
        assert await newer()
        site.write_operand("metrics", *documents)
        await site.until("ready", "1/1")


async def test_manifests_with_another_digest_are_not_applied(site: Site) -> None:
    """Who may edit ConfigMaps of the operator's namespace, and no more, brings nothing onto nodes."""
    await site.gpu_nodes(1)
    trusted = site.digest()
    privileged = operands()["metrics"]
    for one in privileged:
        if one["kind"] == "DaemonSet":
            pod = one["spec"]["template"]["spec"]
            pod["containers"][0]["securityContext"] = {"privileged": True}
            pod["volumes"].append({"name": "root", "hostPath": {"path": "/"}})

    async def refused() -> bool:
        conditions = (await site.status()).get("conditions", ())
        message = "".join(one.get("message", "") for one in conditions if one["reason"] == "OperandsRefused")
        return all(word in message for word in ("shoal-operands", trusted, site.digest(), "helm upgrade"))

    async def images() -> dict[str, str]:
        return {
            name: one["metadata"]["uid"] + str(one["spec"]["template"]["spec"]["containers"][0].get("securityContext"))
            for name, one in (await site.daemon_sets()).items()
        }

    async with site.operator(operands_digest=trusted):
        await site.wish()
        await site.until("ready", "1/1")
        before = await images()
        site.write_operand("metrics", *privileged)
        await eventually(refused, "refused")
        assert await images() == before
    # An operator that starts meanwhile has no manifests: it says so, and removes nothing.
    async with site.operator(operands_digest=trusted) as operator:
        await site.client.patch(POLICIES, "cluster-policy", {"status": None}, subresource="status")
        await eventually(refused, "refused from the start")
        assert "shoal-operands" in operator.controller.not_ready()
        assert await images() == before
        site.write_operand("metrics", *operands()["metrics"])
        await site.until("ready", "1/1")
    # Whoever changes the Deployment too is obeyed.
    site.write_operand("metrics", *privileged)
    async with site.operator(operands_digest=site.digest()):

        async def changed() -> bool:
            return "privileged" in (await images())["shoal-metrics"]

        await eventually(changed, "applied")


def nvidia_definition() -> RawObject:
    """NVIDIA's kind, without its schema."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "metadata": {"name": "clusterpolicies.nvidia.com"},
        "spec": {
            "group": "nvidia.com",
            "scope": "Cluster",
            "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


async def test_nvidias_operator_comes_and_goes(site: Site) -> None:
    await site.gpu_nodes(1)
    async with site.operator():
        await site.wish()
        await site.until("ready", "1/1")
        await site.client.create(CRDS, nvidia_definition())
        try:

            async def made() -> bool:
                with contextlib.suppress(KubeError):
                    policy = {"metadata": {"name": "cluster-policy"}, "spec": {"driver": {"enabled": True}}}
                    await site.client.create(NVIDIA_POLICIES, policy)
                    return True
                return False

            await eventually(made, "made")

            async def left() -> bool:
                return not {"shoal-driver", "shoal-toolkit", "shoal-agent"} & set(await site.daemon_sets())

            await eventually(left, "left to NVIDIA's operator")
            found = await site.until("notReady")
            assert "device plugin" in found["waitingFor"]
            await site.client.patch(NVIDIA_POLICIES, "cluster-policy", {"spec": {"devicePlugin": {"enabled": False}}})
            await site.until("ready", "1/1")
            assert "shoal-agent" in await site.daemon_sets()
            assert "shoal-driver" not in await site.daemon_sets()
        finally:
            await site.client.delete(CRDS, "clusterpolicies.nvidia.com")

        async def alone() -> bool:
            return {one.daemon_set for one in COMPONENTS} == set(await site.daemon_sets())

        await eventually(alone, "alone again")
        await site.until("ready", "1/1")


def cleanup() -> RawObject:
    """A DaemonSet in the place of the one that removes files."""
    name = {"app.kubernetes.io/name": NAME_CLEANUP}
    pod = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "done", "image": "shoal:0.1.0"}],
        "tolerations": [{"operator": "Exists"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME_CLEANUP, "labels": name},
        "spec": {"selector": {"matchLabels": name}, "template": {"metadata": {"labels": name}, "spec": pod}},
    }


async def test_a_deleted_policy_takes_everything_with_it(site: Site) -> None:
    names = await site.gpu_nodes(3)
    site.write_operand("cleanup", cleanup())
    before = {name: set(await site.labels(name)) for name in names}
    async with site.operator():
        await site.wish()
        await site.until("ready", "3/3")
        await site.client.delete(POLICIES, "cluster-policy")

        async def gone() -> bool:
            return not (await site.client.list(POLICIES)).items

        await eventually(gone, "gone")
        assert not await site.daemon_sets()
        assert not (await site.client.list(RUNTIME_CLASSES)).items
        maps = (await site.client.list(CONFIG_MAPS, namespace=site.namespace)).items
        assert [one.metadata.name for one in maps] == ["kube-root-ca.crt"]
        for name in names:
            node = await site.client.get(NODES, name)
            assert set(node.metadata.labels) == before[name]
            assert not [key for key in node.metadata.annotations if key.startswith(("shoal.dev/", "nvidia.com/"))]
        # And a new wish brings it all back.
        await site.wish()
        await site.until("ready", "3/3")


async def test_the_leader_is_killed(site: Site) -> None:
    await site.gpu_nodes(2)
    first = site.replica()

    async def leader() -> str:
        with contextlib.suppress(NotFoundError):
            lease = await site.client.get(LEASES, NAME_OPERATOR, namespace=site.namespace)
            return lease.spec.holder_identity or ""
        return ""

    await eventually(leader, "led")
    held = await leader()
    site.replica()
    await site.wish()
    await site.until("ready", "2/2")
    assert await leader() == held
    first.kill()
    await site.wish(dcgmExporter={"enabled": False})
    await site.until("ready", "2/2")
    assert await leader() != held
    assert "shoal-metrics" not in await site.daemon_sets()


async def test_the_api_server_is_started_anew(site: Site) -> None:
    """It may be away for longer than a Lease lasts: then the operator ends, and kubelet starts it again."""
    await site.gpu_nodes(2)
    async with site.restarted_operator():
        await site.wish()
        await site.until("ready", "2/2")
        site.plane.api.kill()
        await asyncio.to_thread(site.plane.api.start)

        async def wished() -> bool:
            with contextlib.suppress(KubeError):
                await site.wish(gfd={"enabled": False})
                return True
            return False

        await eventually(wished, "wished")
        await site.until("ready", "2/2")
        assert "shoal-discovery-cards" not in await site.daemon_sets()
