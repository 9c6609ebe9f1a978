"""Volumes that wait for their first consumer: what must be written for a pod's claims before the pod is bound.

The claim is told the node (a provisioner makes the volume there), or a volume that exists is promised to the claim; the
volume controller does the rest, and the pod is bound when its claims are.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from shoal.kube.client import Client
from shoal.kube.errors import ApiError, KubeError
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.storage import PersistentVolumeClaim
from shoal.kube.resources import CLAIMS, VOLUMES
from shoal.kube.store import Change
from shoal.model.contract import kubernetes
from shoal.scheduler.errors import ClaimError
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.feasibility.filters.volumes import VolumeDecision
from shoal.scheduler.feasibility.tables import ClusterTables

log = logging.getLogger(__name__)

#: As long as kube-scheduler waits.
_SECONDS: Final = 600.0


class VolumeClaims:
    """Has the claims of pods bound to volumes before the pods are bound."""

    def __init__(self, client: Client, tables: ClusterTables, feasibility: Feasibility) -> None:
        self._client = client
        self._tables = tables
        self._feasibility = feasibility
        self._changed = asyncio.Event()

    def on_claim(self, change: Change[PersistentVolumeClaim]) -> None:
        """A claim changed: somebody may wait for it."""
        self._changed.set()
        self._changed = asyncio.Event()

    def decisions(self, pod: Pod, node: str) -> list[VolumeDecision]:
        """What must be written for the claims of a pod on this node; nothing for most pods."""
        return self._feasibility.volume_decisions(pod, node) if pod.spec.volumes else []

    async def make_ready(self, decisions: list[VolumeDecision]) -> None:
        """Write the decisions and wait until their claims are bound. Raises ClaimError."""
        try:
            for decision in decisions:
                await self._write(decision)
            async with asyncio.timeout(_SECONDS):
                for decision in decisions:
                    await self._wait(decision.claim)
        except TimeoutError:
            raise ClaimError(f"its volumes were not bound within {_SECONDS:.0f} s: see their events") from None
        except KubeError as error:
            raise ClaimError(error.message if isinstance(error, ApiError) else str(error)) from error

    async def _write(self, decision: VolumeDecision) -> None:
        """Write one decision. The answer goes into the tables at once: the next pod must not choose the same volume."""
        if decision.volume is not None:
            name = decision.volume.metadata.name
            self._tables.set_volume(await self._client.patch(VOLUMES, name, decision.patch()))
            return
        claim = decision.claim.metadata
        answer = await self._client.patch(CLAIMS, claim.name, decision.patch(), namespace=claim.namespace)
        self._tables.set_claim(answer)

    async def _wait(self, claim: PersistentVolumeClaim) -> None:
        meta = claim.metadata
        while True:
            changed = self._changed
            now = self._tables.storage.claims.get((meta.namespace, meta.name))
            if now is None or now.metadata.uid != meta.uid:
                raise ClaimError(f"claim {meta.namespace}/{meta.name} is gone")
            if kubernetes.ANNOTATION_BIND_COMPLETED in now.metadata.annotations and now.spec.volume_name:
                return
            await changed.wait()
