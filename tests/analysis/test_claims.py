"""Pods with claims of devices in `why`, `what-if`, snapshots and inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from shoal.analysis.dry_run import DryRun
from shoal.analysis.inspect.claims import CLAIM
from shoal.analysis.inspect.document import document
from shoal.analysis.inspect.objects import PartialClaim, PartialNode, PartialPod
from shoal.analysis.inspect.reader import UseReader
from shoal.analysis.manifests import ManifestWorkload
from shoal.analysis.snapshot import ClusterSnapshot
from shoal.analysis.snapshot_file import load
from shoal.analysis.what_if import try_workload
from shoal.analysis.why import explain_pod
from shoal.cli.inspect.tables import details, wide
from shoal.kube.objects.claims import (
    ConsumerReference,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from shoal.kube.objects.pod import Pod
from shoal.model.allocation import CardShare, Held
from shoal.model.contract import dra, gpushare, mechanisms, shoal
from shoal.model.request import Share
from tests.analysis.small import Small
from tests.scheduler.claims.world import CLASS, asks, slice_of

GIB = 1024


MADE = {
    "annotations": {dra.ANNOTATION_EXTENDED_RESOURCE: "true"},
    "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}],
}


def cluster(gib: int, *, allocated: int = 0, made: dict[str, Any] | None = None) -> ClusterSnapshot:
    """One node of one card of 16 GiB, a template for claims of `gib`, and a claim that has so much already.

    `made` is in the claim's metadata.
    """
    small = Small({"n1": {"gpus": 1}})
    (node,) = small.snapshot.nodes
    (card,) = shoal.decode_gpus(node.metadata.annotations[shoal.ANNOTATION_GPUS])
    template = {
        "metadata": {"name": "share", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [asks(memory=f"{gib}Gi")]}}},
    }
    claims: list[ResourceClaim] = []
    if allocated:
        result = {
            "request": "gpu",
            "driver": dra.DRIVER,
            "pool": "n1",
            "device": dra.device_name(card.uuid),
            "shareID": "s",
            "consumedCapacity": {"memory": f"{allocated}Gi"},
        }
        claim: dict[str, Any] = {
            "metadata": {"name": "taken", "namespace": "default", "uid": "c1", **(made or {})},
            "spec": {"devices": {"requests": [asks(memory=f"{allocated}Gi")]}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        claims.append(msgspec.convert(claim, ResourceClaim))
    return msgspec.structs.replace(
        small.snapshot,
        resource_slices=(msgspec.convert(slice_of("n1", [card]), ResourceSlice),),
        device_classes=(msgspec.convert(CLASS, DeviceClass),),
        claim_templates=(msgspec.convert(template, ResourceClaimTemplate),),
        resource_claims=tuple(claims),
    )


def pod(name: str, node: str = "", **source: str) -> Pod:
    spec = {
        "schedulerName": "gpu-scheduler",
        "nodeName": node,
        "containers": [{"name": "main"}],
        "resourceClaims": [{"name": "gpu", **source}],
    }
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}, Pod)


def test_why_tells_where_a_pod_with_a_claim_would_go() -> None:
    told = explain_pod(DryRun(cluster(4)), pod("p", resourceClaimTemplateName="share"), details=3)
    assert told.asks == "4096 MiB of 1 card"
    assert told.would_go is not None
    assert (told.would_go.node, told.would_go.indices) == ("n1", (0,))


def test_why_tells_which_card_is_too_full_for_a_claim() -> None:
    told = explain_pod(DryRun(cluster(4, allocated=14)), pod("p", resourceClaimTemplateName="share"), details=3)
    assert told.unplaced is not None
    assert "2048 MiB free of 16384, 4096 wanted" in told.unplaced.message
    (node,) = told.unplaced.nodes
    assert node.cards[0].free_mib == 2 * GIB


def test_why_tells_who_gives_way_to_a_pod_with_a_claim() -> None:
    full = cluster(4, allocated=14)
    (claim,) = full.resource_claims
    user = pod("user", "n1", resourceClaimName="taken")
    reserved = (ConsumerReference(resource="pods", name="user", uid=user.metadata.uid),)
    claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=reserved))
    there = msgspec.structs.replace(full, resource_claims=(claim,), pods=(user,))
    asking = pod("p", resourceClaimTemplateName="share")
    high = msgspec.structs.replace(asking, spec=msgspec.structs.replace(asking.spec, priority=10))
    told = explain_pod(DryRun(there), high, details=3)
    assert told.unplaced is not None
    assert told.unplaced.preempts is not None
    assert (told.unplaced.preempts.node, told.unplaced.preempts.pods) == ("n1", ("default/user",))


def test_why_tells_the_cards_of_a_placed_pod_by_its_claims() -> None:
    told = explain_pod(DryRun(cluster(4, allocated=14)), pod("p", "n1", resourceClaimName="taken"), details=3)
    assert told.placed is not None
    (card,) = told.placed.cards
    assert (card.container, card.index, card.share) == ("taken/gpu", 0, "14336 MiB")
    assert told.record == "its claims"


def test_why_tells_that_nobody_publishes_what_the_claim_accepts() -> None:
    bare = msgspec.structs.replace(cluster(4), resource_slices=())
    told = explain_pod(DryRun(bare), pod("p", resourceClaimTemplateName="share"), details=3)
    assert told.unplaced is not None
    assert "1 node(s) publish no devices of gpu.shoal.dev that the claims accept" in told.unplaced.message


def test_why_refuses_a_claim_of_a_template_that_is_not_there() -> None:
    told = explain_pod(DryRun(cluster(4)), pod("p", resourceClaimTemplateName="none"), details=3)
    assert told.refused == "there is no claim template default/none: create it"


def test_what_if_places_pods_with_claims_until_the_card_is_full() -> None:
    pods = tuple(pod(f"p{number}", resourceClaimTemplateName="share") for number in range(5))
    told = try_workload(DryRun(cluster(4)), ManifestWorkload("Job", "many", pods), details=3)
    assert (told.pods, told.fits) == (5, 4)
    assert told.unplaced is not None


def test_a_snapshot_file_gives_the_same_answers(tmp_path: Path) -> None:
    small = Small({"n1": {"gpus": 1}})
    small.snapshot = cluster(4, allocated=14)
    read = load(small.save(tmp_path / "snapshot.json")).snapshot
    asked = pod("p", resourceClaimTemplateName="share")
    before, after = (explain_pod(DryRun(one), asked, details=3) for one in (small.snapshot, read))
    assert before == after


CARD = "n1's"


def holding(**claims: tuple[CardShare, ...]) -> tuple[PartialNode, str]:
    """A node that says that claims hold this of its card; their UIDs have `_` for `-`. And the card."""
    (node,) = cluster(4).nodes
    raw = msgspec.to_builtins(node)
    (card,) = shoal.decode_gpus(node.metadata.annotations[shoal.ANNOTATION_GPUS])
    own = {
        uid.replace("_", "-"): tuple(CardShare(card.uuid, 0, one.share) for one in some) for uid, some in claims.items()
    }
    raw["metadata"]["annotations"][shoal.ANNOTATION_HELD] = shoal.encode_held(Held({}, 1, own))
    return msgspec.convert(raw, PartialNode), card.uuid


def share(gib: int) -> tuple[CardShare, ...]:
    return (CardShare(CARD, 0, Share(gib * GIB)),)


def claim_of(name: str, *pods: str, namespace: str = "default", resource: str = "pods") -> PartialClaim:
    reserved = [{"resource": resource, "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return msgspec.convert({"metadata": meta, "status": {"reservedFor": reserved}}, PartialClaim)


def running(name: str, node: str = "n1", namespace: str = "default") -> PartialPod:
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    status = {"phase": "Running"}
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": node}, "status": status}, PartialPod)


def test_inspect_shows_claims_of_which_nothing_is_known_by_their_uids() -> None:
    node, card = holding(claim_uid=share(3))
    (one,) = UseReader().of([node], []).nodes
    assert one.held == {card: Share(3 * GIB)}
    assert [(pod.namespace, pod.name) for pod in one.pods] == [(CLAIM, "claim-uid")]


def test_inspect_shows_claims_by_the_pods_that_use_them() -> None:
    node, card = holding(uid_one=share(3), uid_two=share(2), uid_shared=share(4))
    claims = [claim_of("one", "a"), claim_of("two", "a"), claim_of("shared", "b", "c")]
    cluster_use = UseReader().of([node], [running("a"), running("b"), running("c"), running("other")], claims)
    (one,) = cluster_use.nodes
    assert one.held == {card: Share(9 * GIB)}, "a claim that two pods share counts once"
    assert [(pod.name, pod.held[card].memory_mib // GIB, pod.claims) for pod in one.pods] == [
        ("a", 5, ("one", "two")),
        ("b", 4, ("shared",)),
        ("c", 4, ("shared",)),
    ]
    assert (one.pending, cluster_use.waiting) == ((), ())
    (gpu,) = document(cluster_use)["nodes"][0]["gpus"]
    assert [(pod["name"], pod["claims"]) for pod in gpu["pods"]] == [
        ("a", ["one", "two"]),
        ("b", ["shared"]),
        ("c", ["shared"]),
    ]
    assert "default/b (shared)=4" in wide(cluster_use)
    assert "a (one, two)" in details(cluster_use.sharing, cluster_use.unit)


def test_inspect_believes_no_claim_about_pods_that_cannot_use_it() -> None:
    """Pods of other namespaces and nodes, what is no pod, and pods that nobody knows."""
    node, card = holding(uid_far=share(1), uid_other=share(1), uid_thing=share(1), uid_gone=share(1))
    claims = [
        claim_of("far", "far"),
        claim_of("other", "other", namespace="elsewhere"),
        claim_of("thing", "thing", resource="gizmos"),
        claim_of("gone", "gone"),
    ]
    pods = [running("far", node="n2"), running("other"), running("thing")]
    cluster_use = UseReader().of([node], pods, claims)
    (one,) = cluster_use.nodes
    assert one.held == {card: Share(4 * GIB)}
    assert [(pod.namespace, pod.name) for pod in one.pods] == [
        ("default", "(claim) far"),
        ("default", "(claim) gone"),
        ("default", "(claim) thing"),
        ("elsewhere", "(claim) other"),
    ]
    assert (one.pending, cluster_use.waiting) == ((), ())


def test_a_node_is_the_same_until_who_uses_its_claims_changes() -> None:
    reader = UseReader()
    node, _ = holding(uid_one=share(3))
    pods, claims = [running("a")], [claim_of("one", "a")]
    assert reader.holds_claims([node])
    (first,) = reader.of([node], pods, claims).nodes
    (again,) = reader.of([node], pods, claims).nodes
    (later,) = reader.of([node], pods, [claim_of("one")]).nodes
    assert again is first
    assert [pod.name for pod in later.pods] == ["(claim) one"]


def by_name(node: str = "") -> Pod:
    """A pod that asks by number; on its node it has a claim that was made of that."""
    limits = {gpushare.RESOURCE_MEMORY: "14"}
    spec = {
        "schedulerName": "gpu-scheduler",
        "nodeName": node,
        "containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}],
    }
    mapping = {"containerName": "main", "resourceName": gpushare.RESOURCE_MEMORY, "requestName": "gpu"}
    made = {"resourceClaimName": "taken", "requestMappings": [mapping]}
    status = {"phase": "Pending", **({"extendedResourceClaimStatus": made} if node else {})}
    meta = {"name": "p", "namespace": "default", "uid": "uid-p"}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Pod)


def serving(snapshot: ClusterSnapshot, mechanism: str) -> ClusterSnapshot:
    """The cluster, whose node serves memory by another mechanism than devices."""
    (node,) = snapshot.nodes
    said = {
        **node.metadata.annotations,
        mechanisms.ANNOTATION_MECHANISMS: f'{{"{gpushare.RESOURCE_MEMORY}": "{mechanism}"}}',
    }
    allocatable = {**node.status.allocatable, gpushare.RESOURCE_MEMORY: "0"}
    node = msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, annotations=said),
        status=msgspec.structs.replace(node.status, allocatable=allocatable),
    )
    return msgspec.structs.replace(snapshot, nodes=(node,))


def test_why_tells_what_a_change_of_mechanism_waits_for(tmp_path: Path) -> None:
    small = Small({"n1": {"gpus": 1}})
    small.snapshot = serving(cluster(4), "to-claims")
    for snapshot in (small.snapshot, load(small.save(tmp_path / "snapshot.json")).snapshot):
        told = explain_pod(DryRun(snapshot), by_name(), details=3)
        assert told.unplaced is not None
        assert "wait for the last pods with devices of it to end" in told.unplaced.message


def test_why_knows_names_by_claims(tmp_path: Path) -> None:
    """Of which kubelet counts nothing; and the cards of a pod that has them so."""
    told = explain_pod(DryRun(serving(cluster(4), "claims")), by_name(), details=3)
    assert told.would_go is not None
    small = Small({"n1": {"gpus": 1}})
    small.snapshot = serving(cluster(4, allocated=14, made=MADE), "claims")
    for snapshot in (small.snapshot, load(small.save(tmp_path / "snapshot.json")).snapshot):
        told = explain_pod(DryRun(snapshot), by_name("n1"), details=3)
        assert told.placed is not None
        (card,) = told.placed.cards
        assert (card.container, card.index, card.share) == ("taken/gpu", 0, "14336 MiB")
        assert told.record == "its claims"


def test_why_shows_no_claim_that_was_not_made_for_the_pod() -> None:
    """Others than the scheduler can write the status that names it."""
    told = explain_pod(DryRun(serving(cluster(4, allocated=14), "claims")), by_name("n1"), details=3)
    assert told.record != "its claims"
    assert told.placed is None or not told.placed.cards


def test_a_pod_is_shown_by_the_mechanism_of_its_node() -> None:
    """Whatever its status says: as served through a claim where the node does that, else as waiting for devices."""
    pod = msgspec.convert(msgspec.to_builtins(by_name("n1")), PartialPod)
    for mechanism, asked in (("claims", 0), ("to-devices", 0), ("to-claims", 14 * GIB), ("devices", 14 * GIB)):
        (node,) = serving(cluster(4), mechanism).nodes
        partial = msgspec.convert(msgspec.to_builtins(node), PartialNode)
        (use,) = UseReader().of([partial], [pod]).nodes
        assert [one.asked_mib for one in use.pending] == [asked], mechanism
