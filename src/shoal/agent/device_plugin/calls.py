"""The calls of kubelet's device plugin API: a container gets the cards of its own allocation, or does not start.

Each answer to Allocate names a CDI device of its own. kubelet keeps the answer in its record, beside pod and container.
When PreStartContainer comes with device IDs, the record tells which containers have them and the CDI device that each
will ask the runtime for; a spec is written for every one of them. Containers that share devices (an init container, and
the one that takes its devices over) need not be told apart and cannot be mixed up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from typing import Final

from shoal.agent.device_plugin.decisions import Decisions
from shoal.agent.device_plugin.edits import DeviceListStrategy, given_cards
from shoal.agent.device_plugin.matching import MatchByAmount
from shoal.agent.device_plugin.specs import CdiSpecs, device_name, own_names, qualified
from shoal.agent.device_plugin.start_check import StartCheck
from shoal.agent.errors import AgentError, IdentityError, RecordError, RefusedError
from shoal.agent.limits.tiers import weakest
from shoal.agent.node.checkpoint import DeviceRecord, KubeletCheckpoint, holders
from shoal.agent.node.pods import NodePod, NodePods
from shoal.agent.nvidia import partitions
from shoal.agent.nvidia.partitions import PartitionStarts
from shoal.kube.events import Recorder, reference_to
from shoal.kube.resources import PODS
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.cdi import ContainerEdits
from shoal.kubelet.errors import PodResourcesError
from shoal.kubelet.pod_resources import PodResourcesClient
from shoal.model.contract import nvidia, shoal
from shoal.model.gpu import LimitedBy

log = logging.getLogger(__name__)

REASON: Final = "GpuRefused"
#: kubelet waits 30 s for PreStartContainer.
_POD_SECONDS: Final = 15.0
#: After this time kubelet has recorded an answer, and has not created the container yet.
_AHEAD_SECONDS: Final = 0.1
_ANNOTATION: Final = nvidia.ANNOTATION_CDI_PREFIX + "shoal_"


def recorded_names(record: DeviceRecord) -> list[str]:
    """The agent's CDI devices that an answer to Allocate names, in its field or in annotations."""
    response = record.response()
    names = [device.name for device in response.cdi_devices]
    names += [
        name
        for key, value in response.annotations.items()
        if key.startswith(nvidia.ANNOTATION_CDI_PREFIX)
        for name in value.split(",")
    ]
    return own_names(names)


class DevicePluginCalls:
    """Answers Allocate and PreStartContainer of every resource."""

    def __init__(
        self,
        recorder: Recorder,
        pods: NodePods,
        specs: CdiSpecs,
        checkpoint: KubeletCheckpoint,
        pod_resources: PodResourcesClient,
        check: StartCheck,
        decisions: Decisions,
        answers: MatchByAmount,
        partition_starts: PartitionStarts,
        *,
        strategy: DeviceListStrategy,
        nonce: Callable[[], str],
    ) -> None:
        self._recorder = recorder
        self._pods = pods
        self._specs = specs
        self._checkpoint = checkpoint
        self._pod_resources = pod_resources
        self._check = check
        self._decisions = decisions
        self._by_amount = answers
        self._partitions = partition_starts
        self._strategy = strategy
        self._nonce = nonce
        self._expecting = asyncio.Event()
        #: By pod UID, the CDI devices that have a file.
        self._named: dict[str, set[str]] = {}

    async def inherit(self) -> None:
        """Learn what pods were given before, by this plugin or another. AgentError if that cannot be read."""
        self._pods.recall()
        await self._decisions.inherit()
        written = self._specs.names()
        for known in list(self._pods):
            holding = known.holding
            if known.given or holding.allocation is None or holding.problem:
                continue
            # Started by an agent whose file of it is lost: the pod's record is what remains.
            if any(self._has_cards(record, written) for record in self._checkpoint.of(known.uid)):
                self._pods.give(known)

    def _has_cards(self, record: DeviceRecord, written: Container[str]) -> bool:
        """Whether a container with this record was told its cards."""
        names = recorded_names(record)
        if names:
            return any(name in written for name in names)
        return bool(given_cards(record.response(), self._pods.node))

    def record(self, known: NodePod) -> dict[str, str]:
        """The annotations that tell what a pod was given; empty if the pod has them."""
        allocation = known.holding.allocation
        if not known.given or allocation is None or self._decisions.is_written(known, allocation):
            return {}
        return self._decisions.annotations(allocation, known.holding)

    async def allocate(self, resource: str, ids: Sequence[str]) -> api.ContainerAllocateResponse:
        """Answer Allocate. Nothing is booked: kubelet may still refuse the pod.

        With CDI the answer names a device whose spec is written at PreStartContainer; otherwise it holds the cards.
        """
        if not self._strategy.by_cdi:
            named = partitions.named_by(ids)
            return self._partitions.answer(ids) if named else await self._by_amount.allocate(resource, ids)
        self._expecting.set()
        name = device_name(resource, ids, self._nonce())
        response = api.ContainerAllocateResponse()
        if self._strategy is DeviceListStrategy.CDI_ANNOTATIONS:
            response.annotations[_ANNOTATION + name] = qualified(name)
        else:
            response.cdi_devices.add(name=qualified(name))
        return response

    async def look_ahead(self) -> None:
        """Ask kubelet's PodResources in the time between Allocate and PreStartContainer, until cancelled."""
        while True:
            await self._expecting.wait()
            await asyncio.sleep(_AHEAD_SECONDS)
            self._expecting.clear()
            try:
                self._checkpoint.records()
                await self._pod_resources.ask_ahead()
            except (IdentityError, PodResourcesError) as error:
                log.debug("not asked ahead: %s", error)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Answer PreStartContainer: let the containers with these devices start. AgentError keeps all of them back.

        RecordError: kubelet's record is not the newest, and will be after its next write.
        """
        wanted = frozenset(ids)
        records = holders(self._checkpoint.records(), resource, wanted)
        since = max(map(self._checkpoint.since, records))
        known = await self._pods.find(records[0].pod_uid, _POD_SECONDS)
        try:
            strangers = await self._pod_resources.pods_with(resource, wanted, since=since) - {known.key}
        except PodResourcesError as error:
            raise IdentityError(str(error)) from error
        if strangers:
            namespace, name = min(strangers)
            raise RecordError(
                f"kubelet's record gives devices of {resource} to {'/'.join(known.key)}, its PodResources to "
                f"{namespace}/{name}: restart kubelet"
            )
        try:
            if not partitions.named_by(ids):
                known = await self._decisions.decided(known)
            await self._grant(known, records)
        except AgentError as error:
            log.warning("pod %s does not start: %s", "/".join(known.key), error)
            self._recorder.record(reference_to(PODS, known.pod), "Warning", REASON, str(error))
            raise

    async def _grant(self, known: NodePod, records: Sequence[DeviceRecord]) -> None:
        """Give the containers of these records their cards. A container that is refused gets no spec."""
        refusals: list[RefusedError] = []
        new = not known.given
        for record in records:
            names = recorded_names(record)
            try:
                if not names:
                    await self._by_amount.refuse_own_choice(known, record.container)
                if partitions.named_by(record.ids):
                    self._give_partitions(known, record, names)
                elif names:
                    await self._describe(known, record, names)
                else:
                    await self._by_amount.verify(known, record)
                    self._pods.give(self._pods.get(known.uid) or known)
            except RefusedError as error:
                refusals.append(error)
                for name in names:
                    self._specs.remove(name)
        if len(refusals) == len(records):
            if new:
                self._pods.take_back(known.uid)
            raise refusals[0]

    async def _describe(self, known: NodePod, record: DeviceRecord, names: Sequence[str]) -> None:
        entry = self._check.entry(known, record.container)
        # Taken before anything is awaited, so that no other container gets the same room.
        self._pods.give(known)
        edits = self._check.edits(known, entry)
        await self._check.prepare(known, entry)
        self._write(known, names, edits)
        cards = ", ".join(f"{card.index} ({card.uuid})" for card in entry.cards)
        log.info("pod %s container %s gets card %s", "/".join(known.key), record.container, cards)

    def _write(self, known: NodePod, names: Sequence[str], edits: ContainerEdits) -> None:
        if not self._pods.alive(known.uid):
            raise RefusedError("the pod is over")  # its files were removed, and would not be removed again
        self._named.setdefault(known.uid, set()).update(names)
        for name in names:
            self._specs.write(name, edits)

    def isolation(self, pod_uid: str) -> LimitedBy | None:
        """What limits a pod to its shares: the weakest of its containers. None if it is not known."""
        found: list[LimitedBy] = []
        for record in self._checkpoint.of(pod_uid):
            said = [self._specs.isolation(name) for name in recorded_names(record)]
            said = said or [record.response().envs.get(shoal.ENV_ISOLATION, "")]
            found += [limited for limited in map(LimitedBy.read, said) if limited is not None]
        return weakest(found)

    def _give_partitions(self, known: NodePod, record: DeviceRecord, names: Sequence[str]) -> None:
        if not names:
            self._partitions.verify(known, record)
        edits = self._partitions.edits(known, record)
        self._write(known, names, edits)
        log.info("pod %s container %s gets %s", "/".join(known.key), record.container, ", ".join(sorted(record.ids)))

    def forget(self, pod_uid: str) -> None:
        """The pod is over: remove its files."""
        gone = self._named.pop(pod_uid, ())
        for name in gone:
            self._specs.remove(name)
        if gone:
            log.info("removed %d CDI files of a pod that is over", len(gone))

    def sweep(self) -> None:
        """Remove the files of all pods but those that are not over."""
        self._named = {uid: names for uid, names in self._named.items() if self._pods.alive(uid)}
        for record in self._checkpoint.records():
            if self._pods.alive(record.pod_uid):
                self._named.setdefault(record.pod_uid, set()).update(recorded_names(record))
        gone = self._specs.keep_only(name for names in self._named.values() for name in names)
        if gone:
            log.info("removed %d CDI files of pods that are over", len(gone))
