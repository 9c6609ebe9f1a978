"""Volumes once more, slowly: one pod on one node."""

from __future__ import annotations

from shoal.model.quantity import parse
from tests.scheduler.feasibility.world import Manifest, World, holds, labels_of

ZONES = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}


def notes(thing: Manifest) -> dict[str, str]:
    return thing["metadata"].get("annotations") or {}


def claims_of(world: World, pod: Manifest) -> list[Manifest] | None:
    """The pod's claims; None when one is missing or unusable."""
    found = []
    meta = pod["metadata"]
    for volume in pod["spec"].get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            claim = world.claims.get((meta["namespace"], volume["persistentVolumeClaim"]["claimName"]))
        elif "ephemeral" in volume:
            claim = world.claims.get((meta["namespace"], f"{meta['name']}-{volume['name']}"))
            if claim is not None:
                owners = claim["metadata"].get("ownerReferences") or []
                if not any(owner.get("controller") and owner["uid"] == meta["uid"] for owner in owners):
                    return None
        else:
            continue
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            return None
        if (claim.get("status") or {}).get("phase") == "Lost":
            return None
        found.append(claim)
    return found


def fits(world: World, pod: Manifest, node: Manifest) -> bool:
    claims = claims_of(world, pod)
    if claims is None:
        return False
    waiting = []
    for claim in claims:
        volume_name = claim["spec"].get("volumeName")
        if volume_name:
            volume = world.volumes.get(volume_name)
            if "pv.kubernetes.io/bind-completed" not in notes(claim) or volume is None:
                return False
            if not reachable(volume, node) or not in_zone(volume, node):
                return False
        else:
            storage_class = world.classes.get(claim["spec"].get("storageClassName") or "")
            if storage_class is None or storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
                return False
            waiting.append(claim)
    if any(taken_alone(world, pod, claim) for claim in claims):
        return False
    return waiting_fit(world, waiting, node)


def taken_alone(world: World, pod: Manifest, claim: Manifest) -> bool:
    if "ReadWriteOncePod" not in (claim["spec"].get("accessModes") or []):
        return False
    name, namespace = claim["metadata"]["name"], pod["metadata"]["namespace"]
    return any(
        (volume.get("persistentVolumeClaim") or {}).get("claimName") == name
        for other in world.pods.values()
        if other["metadata"]["namespace"] == namespace
        for volume in other["spec"].get("volumes") or []
    )


def reachable(volume: Manifest, node: Manifest) -> bool:
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    if required is None:
        return True
    return any(
        all(holds(item, labels_of(node)) for item in term["matchExpressions"]) for term in required["nodeSelectorTerms"]
    )


def in_zone(volume: Manifest, node: Manifest) -> bool:
    labels, zones = node["metadata"].get("labels") or {}, volume["metadata"].get("labels") or {}
    if not any(key in labels for key in ZONES):
        return True
    for key, newer in ZONES.items():
        if key in zones and labels.get(key, labels.get(newer)) not in zones[key].split("__"):
            return False
    return True


def waiting_fit(world: World, claims: list[Manifest], node: Manifest) -> bool:
    taken: set[str] = set()
    for claim in sorted(claims, key=lambda claim: parse(claim["spec"]["resources"]["requests"]["storage"])):
        selected = notes(claim).get("volume.kubernetes.io/selected-node")
        if selected is not None:
            if selected != node["metadata"]["name"] or not makes(world, claim, node):
                return False
            continue
        volume = smallest(world, claim, node, taken)
        if volume is not None:
            taken.add(volume["metadata"]["name"])
        elif not makes(world, claim, node):
            return False
    return True


def smallest(world: World, claim: Manifest, node: Manifest, taken: set[str]) -> Manifest | None:
    size = parse(claim["spec"]["resources"]["requests"]["storage"])
    meta, spec = claim["metadata"], claim["spec"]
    usable = []
    for volume in world.volumes.values():
        ref, offer = volume["spec"].get("claimRef"), volume["spec"]
        if volume["metadata"]["name"] in taken or parse(offer["capacity"]["storage"]) < size:
            continue
        if (offer.get("volumeMode") or "Filesystem") != (spec.get("volumeMode") or "Filesystem"):
            continue
        if offer.get("storageClassName") != spec.get("storageClassName"):
            continue
        if ref is not None:
            if (ref["namespace"], ref["name"]) == (meta["namespace"], meta["name"]):
                return volume if reachable(volume, node) else None
            continue
        modes = set(spec.get("accessModes") or []) <= set(offer.get("accessModes") or [])
        if modes and volume["status"]["phase"] == "Available" and reachable(volume, node):
            usable.append(volume)
    return min(usable, key=lambda volume: parse(volume["spec"]["capacity"]["storage"]), default=None)


def makes(world: World, claim: Manifest, node: Manifest) -> bool:
    storage_class = world.classes[claim["spec"]["storageClassName"]]
    if storage_class["provisioner"] == "kubernetes.io/no-provisioner":
        return False
    labels = node["metadata"].get("labels") or {}
    topologies = storage_class.get("allowedTopologies")
    return not topologies or any(
        all(labels.get(item["key"]) in item["values"] for item in term["matchLabelExpressions"]) for term in topologies
    )
