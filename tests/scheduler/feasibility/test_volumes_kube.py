"""What `volume_decisions` says, written to a real cluster: its controllers do the rest."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from shoal.kube.client import Client
from shoal.kube.errors import ConflictError
from shoal.kube.objects.storage import PersistentVolumeClaim
from shoal.kube.resources import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from shoal.model.contract import kubernetes
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.feasibility.tables import ClusterTables
from tests.scheduler.feasibility.made_up import HOST, claim, storage_classes, volume
from tests.scheduler.feasibility.world import Manifest
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import FakeNodes


async def read(client: Client) -> tuple[ClusterTables, list[str]]:
    cluster = ClusterTables()
    nodes = (await client.list(NODES)).items
    for row, node in enumerate(nodes):
        cluster.set_node(row, node)
    for storage_class in (await client.list(STORAGE_CLASSES)).items:
        cluster.set_storage_class(storage_class)
    for found in (await client.list(VOLUMES)).items:
        cluster.set_volume(found)
    for wanted in (await client.list(CLAIMS)).items:
        cluster.set_claim(wanted)
    return cluster, [node.metadata.name for node in nodes]


def without_uid(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "uid"}
    return {**manifest, "metadata": metadata}


async def test_waiting_claims_get_what_was_decided(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client
) -> None:
    room = f"volumes-{uuid.uuid4().hex[:6]}"
    control_plane.api.create_namespace(room)
    _, second = await fake_nodes(2, prefix=room)
    names = {kind: f"{kind}-{room}" for kind in ("local", "made")}
    for storage_class in storage_classes()[:2]:
        name = names[storage_class["metadata"]["name"]]
        await client.create(STORAGE_CLASSES.raw, {**storage_class, "metadata": {"name": name}})
    disk = volume(f"disk-{room}", names["local"], "2Gi", {HOST: [second]})
    await client.create(VOLUMES.raw, disk)
    for name, kind in (("here", "local"), ("new", "made")):
        await client.create(CLAIMS.raw, without_uid(claim(name, room, names[kind], "1Gi")))
    mounts = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("here", "new")]
    spec = {"containers": [{"name": "c", "image": "none"}], "volumes": mounts, "schedulerName": "nobody"}
    pod = await client.create(PODS, {"metadata": {"name": "p", "namespace": room}, "spec": spec})
    found = await client.get(VOLUMES, disk["metadata"]["name"])
    while found.status.phase != "Available":
        await asyncio.sleep(0.1)
        found = await client.get(VOLUMES, disk["metadata"]["name"])

    # A new node is tainted until the controllers have seen that it is ready.
    home = await client.get(NODES, second)
    while home.spec.taints:
        await asyncio.sleep(0.1)
        home = await client.get(NODES, second)

    cluster, rows = await read(client)
    feasibility = Feasibility(cluster)
    assert [rows[row] for row in feasibility.verdict(pod).allowed.nonzero()[0]] == [second]
    decisions = {item.claim.metadata.name: item for item in feasibility.volume_decisions(pod, second)}
    promised = decisions["here"].volume
    assert promised is not None
    assert decisions["new"].volume is None
    written = await client.patch(VOLUMES, promised.metadata.name, decisions["here"].patch())
    cluster.set_volume(written)
    cluster.set_claim(await client.patch(CLAIMS, "new", decisions["new"].patch(), namespace=room))
    assert [rows[row] for row in feasibility.verdict(pod).allowed.nonzero()[0]] == [second]
    again = {item.claim.metadata.name: item.volume for item in feasibility.volume_decisions(pod, second)}
    assert again["here"] == written

    bound: PersistentVolumeClaim = await client.get(CLAIMS, "here", namespace=room)
    while kubernetes.ANNOTATION_BIND_COMPLETED not in bound.metadata.annotations:
        await asyncio.sleep(0.1)
        bound = await client.get(CLAIMS, "here", namespace=room)
    assert bound.spec.volume_name == promised.metadata.name
    asked = await client.get(CLAIMS, "new", namespace=room)
    assert asked.metadata.annotations[kubernetes.ANNOTATION_SELECTED_NODE] == second
    with pytest.raises(ConflictError):
        await client.patch(VOLUMES, promised.metadata.name, decisions["here"].patch())

    await client.delete(PODS, "p", namespace=room, grace_seconds=0)
    for name in ("here", "new"):
        await client.delete(CLAIMS, name, namespace=room)
    await client.delete(VOLUMES, promised.metadata.name)
    for name in names.values():
        await client.delete(STORAGE_CLASSES, name)
