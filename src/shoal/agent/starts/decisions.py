"""Decisions about pods that the agent makes or corrects itself, and their record on the pod."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from shoal.agent.errors import AgentError, RefusedError
from shoal.agent.node.holdings import Holding, used
from shoal.agent.node.pods import Known, NodePods
from shoal.agent.starts.choice import choose
from shoal.agent.starts.evidence.checkpoint import Checkpoint
from shoal.agent.starts.evidence.inherited import allocation_by
from shoal.agent.starts.visible import refuse_own_choice
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.resources import PODS, manifest_of
from shoal.model.allocation import Allocation, ContainerAllocation
from shoal.model.bound import recorded
from shoal.model.contract import gpushare, keti, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import ModelError
from shoal.model.manifest import read_pod
from shoal.model.request import NO_SHARE, ContainerRequest, Request

log = logging.getLogger(__name__)


class Decisions:
    """Chooses cards for pods that came without, if it may (`chooses`), and writes allocations down."""

    def __init__(
        self,
        client: Client,
        pods: NodePods,
        checkpoint: Checkpoint,
        *,
        unit: MemoryUnit,
        chooses: bool,
        now_ns: Callable[[], int],
    ) -> None:
        self.chooses = chooses
        self._client = client
        self._pods = pods
        self._checkpoint = checkpoint
        self._unit = unit
        self._now_ns = now_ns
        self._choosing = asyncio.Lock()

    async def inherit(self) -> None:
        """Write down what pods have from another plugin that nobody wrote down, so that schedulers know of it.

        AgentError if kubelet's record cannot be read.
        """
        self._checkpoint.records()
        for known in list(self._pods):
            holding = known.holding
            if known.given or holding.allocation is not None or holding.problem:
                continue
            try:
                await self._inherited(known)
            except AgentError as error:
                log.warning("pod %s: %s", "/".join(known.key), error)

    async def _inherited(self, known: Known) -> bool:
        """Whether the pod has its cards from another plugin; that is written down then."""
        given = allocation_by(self._checkpoint.of(known.uid), known.holding, self._pods.node)
        if given is not None:
            await self.write_down(known, given)
            self._pods.give(self._pods.get(known.uid) or known)
            log.info("pod %s has its cards from another plugin: written down", "/".join(known.key))
        return given is not None

    async def decided(self, known: Known) -> Known:
        """The pod with an allocation: its own, or one that is chosen and written down now."""
        holding = known.holding
        if holding.allocation is not None or holding.problem:
            return known
        if not holding.request.containers:
            raise RefusedError("the pod asks for no cards that the agent counts: delete it")
        if await self._inherited(known):
            return self._pods.get(known.uid) or known
        if not self.chooses:
            raise RefusedError(
                "nobody has chosen cards for this pod: let Shoal's scheduler place it, or run the agent with "
                "withoutAllocation: choose"
            )
        async with self._choosing:
            known = self._pods.get(known.uid) or known
            if known.holding.allocation is None:
                taken = used(one.holding for one in self._pods if one.counts and one.uid != known.uid)
                holding = known.holding
                chosen = choose(
                    holding.request,
                    node=self._pods.node,
                    taken=taken,
                    slicing=self._pods.slicing,
                    sliced=holding.sliced,
                )
                await self.write_down(known, chosen)
                log.info("pod %s came without an allocation: cards were chosen here", "/".join(known.key))
        return self._pods.get(known.uid) or known

    async def keep_to_booked(self, known: Known, container: str) -> None:
        """RefusedError if a container would see other cards than those decided on: without CDI its pod can say so."""
        await refuse_own_choice(self._client, known, container)

    async def write_down(self, known: Known, allocation: Allocation) -> None:
        """Put an allocation on a pod. From now on it counts, also while the write is on its way."""
        annotations = self.annotations(allocation, known.holding)
        self._pods.assume(known.uid, allocation)
        meta = known.pod.metadata
        # The uid makes the server refuse when another pod has taken the name.
        patch = {"metadata": {"uid": meta.uid, "annotations": annotations}}
        try:
            self._pods.written(await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace))
        except KubeError as error:
            self._pods.assume(known.uid, None)
            raise RefusedError(f"the choice of cards could not be written down: {error}") from error

    def is_written(self, known: Known, allocation: Allocation) -> bool:
        """Whether the pod's record says this, in the words of whichever family."""
        try:
            pod = read_pod(manifest_of(known.pod))
            asked = replace(Request(), containers=tuple(map(_asked, allocation.containers)))
            present = recorded(pod, request=asked, node=self._pods.node, unit=self._unit)
        except ModelError:
            return False
        return present is not None and present.containers == allocation.containers

    def annotations(self, allocation: Allocation, holding: Holding) -> dict[str, str]:
        """The decision in the words of all families. Replicas have none but Shoal's."""
        theirs = replace(
            allocation, containers=tuple(one for one in allocation.containers if one.name not in holding.sliced)
        )
        return {
            **gpushare.encode(
                theirs,
                container_names=holding.app_names,
                node=self._pods.node,
                unit=self._unit,
                assume_time_ns=self._now_ns(),
            ),
            **keti.encode(theirs),
            shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(allocation),
        }


def _asked(entry: ContainerAllocation) -> ContainerRequest:
    """What a container that was given this has asked for."""
    share = next((card.share for card in entry.cards), NO_SHARE)
    return ContainerRequest(entry.name, len(entry.cards), share, entry.kind, entry.memory_limit_mib)
