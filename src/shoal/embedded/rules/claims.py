"""The ResourceClaims of pods: which ones a pod has, by its own words and by what is written into its status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def has_claims(pod: Mapping[str, Any]) -> bool:
    """Whether a pod names claims, or a scheduler made one of its extended resources."""
    return bool(pod["spec"].get("resourceClaims")) or extended(pod) is not None


def claim_names(pod: Mapping[str, Any]) -> list[str]:
    """The claims of a pod, as far as they are known."""
    found = [name for one in pod["spec"].get("resourceClaims") or () if (name := claim_name(pod, one))]
    made = extended(pod)
    return found if made is None else [*found, str(made["resourceClaimName"])]


def claim_name(pod: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """The claim behind an entry of a pod's `resourceClaims`; nothing while it is not made, or where none is needed."""
    if "resourceClaimName" in entry:
        return str(entry["resourceClaimName"])
    made = status_of(pod, entry["name"])
    return "" if made is None else str(made.get("resourceClaimName", ""))


def status_of(pod: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """What the status says of an entry with a template; None while nothing was made of it."""
    statuses: Iterable[Mapping[str, Any]] = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return next((one for one in statuses if one["name"] == name), None)


def extended(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The claim that a scheduler made of the pod's extended resources, with the containers that use it."""
    found: Mapping[str, Any] | None = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    return found


def served_by_claim(pod: Mapping[str, Any], container: str) -> frozenset[str]:
    """The extended resources of a container that a claim serves in the place of a device plugin."""
    mappings: Iterable[Mapping[str, Any]] = (extended(pod) or {}).get("requestMappings") or ()
    return frozenset(str(one["resourceName"]) for one in mappings if one["containerName"] == container)
