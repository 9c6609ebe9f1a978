"""Where a dispatched pod is, for somebody who wants to follow it there with credentials of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.clusters.members import cluster_uid
from shoal.kube.access.kubeconfig import ContextEntry, load_contexts
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.objects.pod import Pod
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ANNOTATION_DISPATCH, GATE_HOME, Sent
from shoal.model.errors import CodecError

_SECONDS: Final = 10.0


class NotFollowedError(KubeError):
    """A pod that is nowhere yet, or in a cluster for which there are no credentials."""


@dataclass(frozen=True, slots=True)
class OwnContext:
    """A context of somebody's own kubeconfig."""

    kubeconfig: Path
    context: str


def sent_to(pod: Pod) -> Sent | None:
    """Where a pod was sent; None if it runs at home, or will. Raises NotFollowedError if it is nowhere yet."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if GATE_HOME not in (gate.name for gate in pod.spec.scheduling_gates):
        return None
    written = pod.metadata.annotations.get(ANNOTATION_DISPATCH, "")
    try:
        sent = clusters.decode(Sent, written, what=f"{ANNOTATION_DISPATCH} of {name}") if written else None
    except CodecError as error:
        raise NotFollowedError(str(error)) from error
    if sent is None or not sent.cluster:
        said = next((one.message for one in pod.status.conditions if one.type == clusters.CONDITION_DISPATCHED), None)
        why = f" ({said})" if said else ""
        raise NotFollowedError(f"{name} waits for a cluster{why}: shoal clusters explain {pod.metadata.name}")
    return sent


async def own_context(sent: Sent, paths: Sequence[Path], *, environ: Mapping[str, str]) -> OwnContext:
    """The first context of these files that leads to the cluster. Raises NotFollowedError if none does."""
    listing = load_contexts(paths, environ=environ)
    usable = [one for one in listing.entries if one.access is not None]
    found = await asyncio.gather(*(_identity(one) for one in usable))
    for one, (uid, _) in zip(usable, found, strict=True):
        if uid == sent.uid:
            return OwnContext(one.path, one.context)
    said = [f"{one.context}: {why}" for one, (_, why) in zip(usable, found, strict=True) if why]
    said += listing.problems.values()
    rest = f" Not reached: {'; '.join(said)}" if said else ""
    raise NotFollowedError(
        f"the pod is in cluster {sent.cluster} (UID {sent.uid}), and none of the {len(usable)} contexts of "
        f"{', '.join(map(str, paths)) or 'no file'} leads there: add your own kubeconfig of that cluster to KUBECONFIG."
        f"{rest}"
    )


async def _identity(entry: ContextEntry) -> tuple[str, str]:
    """The identity of a context's cluster, or why it is not known."""
    assert entry.access is not None
    try:
        async with asyncio.timeout(_SECONDS), Client(entry.access) as client:
            return await cluster_uid(client), ""
    except TimeoutError:
        return "", f"no answer in {_SECONDS:g} s"
    except KubeError as error:
        return "", str(error)
