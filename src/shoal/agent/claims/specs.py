"""The CDI files of claims: one for each claim, with a device for each of its requests, and one for all of them.

A container gets the devices of the requests that it uses, and of equal variables the value that comes last. So a device
tells of all requests that its containers use together (`results.views_of`), while device nodes are each request's own.
The device for all comes last, under a request of which no container can ask: those get it that ask for none by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from shoal.agent.claims.devices import NodeDevices
from shoal.agent.claims.records import ClaimRecord
from shoal.agent.claims.results import ALL, ClaimResult, card_shares, requests_of
from shoal.agent.device_plugin.edits import NodeContext, device_nodes, environment, vendor_edits_of
from shoal.agent.device_plugin.specs import CdiSpecs
from shoal.agent.errors import RefusedError
from shoal.agent.limits import ContainerStart, ShareLimits
from shoal.kubelet import cdi
from shoal.kubelet.cdi import ContainerEdits, Device, Spec
from shoal.kubelet.dra import PreparedDevice
from shoal.kubelet.errors import CdiError
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import dra, nvidia
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import shown
from shoal.model.gpu import Gpu, NodeGpus

_OWN: Final = cdi.file_name(dra.CDI_KIND, "").removesuffix(".json")


def device_of(uid: str, request: str) -> str:
    """The CDI device of a claim's request, without its kind."""
    return f"{uid}.all" if request == ALL else f"{uid}-{request}"


def parts_of(record: ClaimRecord) -> tuple[str, ...]:
    """The requests of a claim that have a CDI device, and `ALL` if there are several."""
    requests = requests_of(record.results)
    return (*requests, ALL) if len(requests) > 1 else requests


def remove_claim_specs(folder: Path, *, but: Collection[str] = ()) -> None:
    """Remove the files of claims from a folder, and drafts of them, but those of some names."""
    try:
        listed = list(folder.iterdir())
    except FileNotFoundError:
        return
    for path in listed:
        if path.name.startswith((_OWN, f".{_OWN}")) and path.name not in but:
            path.unlink(missing_ok=True)


def answer_for(record: ClaimRecord) -> tuple[PreparedDevice, ...]:
    """What kubelet is told of a prepared claim: the CDI device of a request with its first result."""

    def told(request: str, one: ClaimResult, *, named: bool) -> PreparedDevice:
        names = (f"{dra.CDI_KIND}={device_of(record.claim.uid, request)}",) if named else ()
        return PreparedDevice((request,), record.node, one.device, names, one.share_id)

    seen: set[str] = set()
    devices = []
    for one in record.results:
        devices.append(told(one.request, one, named=one.request not in seen))
        seen.add(one.request)
    if ALL in parts_of(record):
        devices.append(told(ALL, record.results[0], named=True))
    return tuple(devices)


class ClaimSpecs:
    """The CDI files of the claims of one node."""

    def __init__(
        self,
        folder: Path,
        specs: CdiSpecs,
        limits: ShareLimits,
        node: Callable[[], NodeGpus],
        *,
        unit: MemoryUnit,
        isolated: Callable[[], bool] = lambda: True,
    ) -> None:
        """`specs` knows NVIDIA's own files and the host's device nodes; `isolated` whether shares are limited."""
        self._isolated = isolated
        self._folder = folder
        self._specs = specs
        self._limits = limits
        self._node = node
        self._unit = unit

    def write(self, record: ClaimRecord) -> None:
        """Write a claim's file. RefusedError if a card is gone, or a limit cannot be had."""
        devices = tuple(
            Device(device_of(record.claim.uid, request), self._edits(record, request)) for request in parts_of(record)
        )
        if not devices:
            return
        try:
            cdi.write(self._folder, Spec(cdi_version=cdi.VERSION, kind=dra.CDI_KIND, devices=devices), record.claim.uid)
        except CdiError as error:
            raise RefusedError(str(error)) from error

    def exists(self, uid: str) -> bool:
        """Whether a claim has a file that runtimes can read."""
        try:
            cdi.read(self._path(uid))
        except CdiError:
            return False
        return True

    def remove(self, uid: str) -> None:
        """Remove a claim's file, if there is one."""
        self._path(uid).unlink(missing_ok=True)

    def keep_only(self, uids: Iterable[str]) -> None:
        """Remove the files of all other claims, and drafts."""
        remove_claim_specs(self._folder, but={self._path(uid).name for uid in uids})

    def _path(self, uid: str) -> Path:
        return self._folder / cdi.file_name(dra.CDI_KIND, Path(uid).name)

    async def prepare(self, record: ClaimRecord) -> None:
        """Make everything ready that the edits refer to. RefusedError if that cannot be now."""
        for start in self.starts(record):
            await self._limits.prepare(start)

    def starts(self, record: ClaimRecord) -> Iterator[ContainerStart]:
        """What containers with the claim's requests have, as `shoal.agent.limits` takes it."""
        for request in parts_of(record):
            yield self._start(record, request, ContainerEdits())

    def _start(self, record: ClaimRecord, request: str, vendor: ContainerEdits) -> ContainerStart:
        gpus = {gpu.uuid: gpu for gpu in self._node().gpus}
        cards = card_shares(_seen(record, request), {uuid: gpu.index for uuid, gpu in gpus.items()})
        claim = record.claim
        entry = _entry(record, request, cards)
        found = [gpus[card.uuid] for card in cards if card.uuid in gpus]
        beside = frozenset(one.uuid for one in record.results if not one.partition)
        return ContainerStart(claim.namespace, claim.name, claim.uid, entry, found, hooks=vendor.hooks, beside=beside)

    def _environment(self, record: ClaimRecord, request: str, context: NodeContext) -> dict[str, str]:
        if request in record.names:
            return _names_environment(record, request, context)
        uuids = dict.fromkeys(one.uuid for one in _seen(record, request))
        return {nvidia.ENV_VISIBLE_DEVICES: ",".join(uuids)}

    def _edits(self, record: ClaimRecord, request: str) -> ContainerEdits:
        node = self._node()
        devices = NodeDevices.of(node.gpus)
        own = [one for one in record.results if one.request == request]
        cards = list({gpu.uuid: gpu for gpu in (_card(one, devices) for one in own)}.values())
        context = NodeContext(
            node=node,
            unit=self._unit,
            device_nodes=self._specs.device_nodes(cards),
            vendor=self._specs.vendor(),
            isolated=self._isolated(),
        )
        seen = _seen(record, request)
        vendor = vendor_edits_of([_spellings(one, devices) for one in own], context.vendor)
        given = {one.path for one in vendor.device_nodes}
        edits = vendor + ContainerEdits(
            env=tuple(f"{name}={value}" for name, value in self._environment(record, request, context).items()),
            device_nodes=tuple(one for one in device_nodes(cards, context) if one.path not in given) if cards else (),
        )
        everything = vendor_edits_of([_spellings(one, devices) for one in seen], context.vendor)
        return edits + self._limits.edits(self._start(record, request, everything))


def _names_environment(record: ClaimRecord, request: str, context: NodeContext) -> dict[str, str]:
    """The variables of a request's resource name, as containers have them that get it by devices."""
    indices = {gpu.uuid: gpu.index for gpu in context.node.gpus}
    entries = {
        one: _entry(record, one, card_shares([r for r in record.results if r.request == one], indices))
        for one in requests_of(record.results)
    }
    allocation = Allocation(record.node, tuple(entries.values()))
    return environment(entries[request], allocation, record.names[request].resource, context)


def _entry(record: ClaimRecord, request: str, cards: tuple[CardShare, ...]) -> ContainerAllocation:
    """A request as a container's allocation, with what its container asked for by number.

    The limit comes from the pod, the amounts from the claim's allocation: a limit is never above them.
    """
    named = record.names.get(request)
    if named is None:
        return ContainerAllocation(request, cards)
    limit = named.memory_limit_mib
    if limit is not None:
        limit = min((limit, *(card.share.memory_mib for card in cards if card.share.memory_mib)))
    return ContainerAllocation(request, cards, named.kind, limit)


def _seen(record: ClaimRecord, request: str) -> list[ClaimResult]:
    """The results that a request's CDI device tells of."""
    together = record.views.get(request, (request,))
    return [one for one in record.results if request == ALL or one.request in together]


def _card(one: ClaimResult, devices: NodeDevices) -> Gpu:
    """The card of a result. RefusedError if the node does not have it any more."""
    part = devices.partitions.get(one.device)
    gpu = part[0] if part is not None else devices.gpus.get(one.device)
    if gpu is None:
        raise RefusedError(f"device {shown(one.device)} is not there any more: delete the pod")
    return gpu


def _spellings(one: ClaimResult, devices: NodeDevices) -> tuple[str, str]:
    """The names by which NVIDIA's own CDI spec may know a device."""
    part = devices.partitions.get(one.device)
    gpu = _card(one, devices)
    return one.uuid, str(gpu.index) if part is None else f"{gpu.index}:{part[1]}"
