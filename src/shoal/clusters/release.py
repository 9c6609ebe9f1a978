"""Opens pods at home that were held for a manager that is no more.

A pod that was sent to a cluster may run there: opened here as well, it would run twice. It is left alone unless that is
asked for. Every write is conditional on the version that was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from shoal.clusters.siblings import sent_of
from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, InvalidError, NotFoundError
from shoal.kube.resources import LEASES, PODS, RawObject
from shoal.model.contract import clusters as contract
from shoal.model.contract.kubernetes import FINISHED_PHASES

#: What a holder that says nothing else is given.
_USUAL_SECONDS: Final = 15
_LONGEST_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Release:
    """What becomes of a held pod: a JSON patch and its meaning, or only why nothing is done."""

    patch: tuple[dict[str, Any], ...]
    words: str


def release_of(pod: RawObject, *, sent_too: bool) -> Release | None:
    """How a pod is released; None if it is not held. `sent_too`: also those that may run in another cluster."""
    meta, spec = pod["metadata"], pod["spec"]
    gates = [gate.get("name") for gate in spec.get("schedulingGates") or ()]
    finalizers = list(meta.get("finalizers") or ())
    gated, kept = contract.GATE_HOME in gates, contract.FINALIZER_HOME in finalizers
    if not gated and not kept:
        return None
    over = (pod.get("status") or {}).get("phase") in FINISHED_PHASES
    sent = sent_of(meta)
    # What cannot be read may say anything.
    written = (meta.get("annotations") or {}).get(contract.ANNOTATION_DISPATCH) is not None
    elsewhere = written and (sent is None or bool(sent.cluster)) and gated
    if elsewhere and not over and not sent_too:
        where = f"cluster {sent.cluster}" if sent else "a cluster"
        return Release((), f"left alone: it was sent to {where} and may run there; see --sent")
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}
    ]
    # What is over or being deleted is not opened: its gate keeps it from ever running here.
    opens = gated and not over and not meta.get("deletionTimestamp")
    if opens:
        patch.append({"op": "remove", "path": f"/spec/schedulingGates/{gates.index(contract.GATE_HOME)}"})
    if opens and written:
        path = contract.ANNOTATION_DISPATCH.replace("~", "~0").replace("/", "~1")
        patch.append({"op": "remove", "path": f"/metadata/annotations/{path}"})
    if kept:
        patch.append({"op": "remove", "path": f"/metadata/finalizers/{finalizers.index(contract.FINALIZER_HOME)}"})
    if len(patch) == 1:
        return Release((), "left alone: it is over, and nothing keeps it")
    return Release(tuple(patch), "opened: it runs here" if opens else "let go: its finalizer is gone")


async def released(client: Client, pod: RawObject, *, sent_too: bool) -> str:
    """Release a pod, and say what was done; empty if it is not held."""
    release = release_of(pod, sent_too=sent_too)
    if release is None:
        return ""
    if not release.patch:
        return release.words
    meta = pod["metadata"]
    try:
        await client.patch(PODS.raw, meta["name"], release.patch, namespace=meta["namespace"], kind="json")
    except NotFoundError:
        return "gone by itself"
    except (ConflictError, InvalidError):  # a test that fails is 422
        return "left alone: it has changed meanwhile; run the command again"
    return release.words


async def living_manager(client: Client, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> str:
    """Who leads as the manager, in words; empty if nobody does.

    No clock is compared with another: a holder lives that renews its Lease within the time it promised.
    """
    first = await _leases(client)
    held = {key: spec for key, spec in first.items() if spec.get("holderIdentity")}
    if not held:
        return ""
    longest = max(int(spec.get("leaseDurationSeconds") or _USUAL_SECONDS) for spec in held.values())
    await sleep(min(longest, _LONGEST_SECONDS) + 1)
    for key, spec in (await _leases(client)).items():
        if spec.get("holderIdentity") and spec != first.get(key):
            return f"{spec['holderIdentity']} (Lease {key[1]} in namespace {key[0]})"
    return ""


async def _leases(client: Client) -> dict[tuple[str, str], dict[str, Any]]:
    found = await client.list(LEASES.raw, fields=f"metadata.name={contract.NAME_MANAGER}")
    return {(one["metadata"]["namespace"], one["metadata"]["name"]): one.get("spec") or {} for one in found.items}
