"""For runtimes without CDI: what a container gets is said in the answer to Allocate, which does not name the container.

So the answer is matched by amount, in the order pods were bound, and verified when PreStartContainer comes: kubelet's
record then tells whose answer it was. Two pods that ask for the same are interchangeable. If their answers were
swapped, their annotations are swapped too, so that every record stays true. What cannot be made true does not start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from shoal.agent.errors import RefusedError
from shoal.agent.node.pods import Known
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.cdi import ContainerEdits
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, nvidia, shoal
from shoal.model.errors import CodecError
from shoal.model.gpu import NodeGpus

VISIBLE_DIRECTORY: Final = nvidia.VISIBLE_DEVICES_DIRECTORY
_NULL: Final = "/dev/null"


@dataclass(frozen=True, slots=True)
class Offer:
    """The cards chosen for a container, to be given to it or to one that asks for the same."""

    uid: str
    container: str
    cards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """The cards an answer gave, and the container it is recorded for; empty while kubelet has not recorded it."""

    cards: tuple[str, ...]
    uid: str = ""
    container: str = ""


def still_open(offered: Iterable[Offer], given: Iterable[Given]) -> list[Offer]:
    """The offers that no answer has taken, in their order. An answer took its own container's cards if it gave them."""
    left = list(offered)
    strays = []
    for one in given:
        own = Offer(one.uid, one.container, one.cards)
        if own in left:
            left.remove(own)
        else:
            strays.append(one)
    for one in strays:
        taken = next((offer for offer in left if offer.cards == one.cards), None)
        if taken is not None:
            left.remove(taken)
    return left


def offers(pods: Iterable[Known], resource: str, count: int) -> Iterator[Offer]:
    """The containers that ask for so many units of a resource, in the order their pods were bound."""
    for known in sorted(pods, key=_bound):
        for name, asked in known.holding.resources.items():
            entry = known.holding.entry(name)
            units = 1 if resource == shoal.RESOURCE_SLOT else known.holding.counts.get(name)
            if entry is not None and not known.holding.problem and serves(resource, asked) and units == count:
                yield Offer(known.uid, name, tuple(card.uuid for card in entry.cards))


def serves(resource: str, asked: str) -> bool:
    """Whether devices of a resource stand for what a container asks for."""
    return asked == (gpushare.RESOURCE_MEMORY if resource == shoal.RESOURCE_SLOT else resource)


def _bound(known: Known) -> tuple[int, str, str]:
    meta = known.pod.metadata
    try:
        state = gpushare.decode_state(meta.annotations)
    except CodecError:
        state = None  # it comes by its creation then
    return (0 if state is None else state.assume_time_ns, meta.creation_timestamp or "", meta.uid)


def unplaced(pods: Iterable[Known], resource: str, count: int) -> Iterator[Known]:
    """The pods without an allocation that have a container with so many units of a resource, the oldest first."""
    for known in sorted(pods, key=_bound):
        holding = known.holding
        if holding.allocation is None and not holding.problem and holding.request.containers:
            asked = holding.resources.items()
            if any(serves(resource, one) and holding.counts.get(name) == count for name, one in asked):
                yield known


def answer(entry: ContainerAllocation, edits: ContainerEdits, *, by_mounts: bool) -> api.ContainerAllocateResponse:
    """The answer to Allocate that gives a container its cards."""
    return answer_with([card.uuid for card in entry.cards], edits, by_mounts=by_mounts)


def answer_with(uuids: Iterable[str], edits: ContainerEdits, *, by_mounts: bool) -> api.ContainerAllocateResponse:
    """The answer to Allocate that gives a container what these UUIDs name."""
    response = api.ContainerAllocateResponse(envs=edits.environment({}))
    for node in edits.device_nodes:
        response.devices.add(container_path=node.path, host_path=node.host_path or node.path, permissions="rw")
    if by_mounts:
        response.envs[nvidia.ENV_VISIBLE_DEVICES] = VISIBLE_DIRECTORY
        for uuid in uuids:
            response.mounts.add(container_path=f"{VISIBLE_DIRECTORY}/{uuid}", host_path=_NULL, read_only=True)
    return response


def given_cards(response: api.ContainerAllocateResponse, node: NodeGpus) -> tuple[str, ...]:
    """The cards an answer gave, by UUID in their order; none if it names none.

    It may be that of another plugin: gpushare's names cards by index, NVIDIA's in several ways.
    """
    listed = response.envs.get(nvidia.ENV_VISIBLE_DEVICES, "")
    if listed == VISIBLE_DIRECTORY:
        prefix = f"{VISIBLE_DIRECTORY}/"
        paths = (mount.container_path for mount in response.mounts)
        names = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
    else:
        names = [name for name in listed.split(",") if name]
    names = names or [device.name.partition("=")[2] for device in response.cdi_devices]
    by_index = {str(gpu.index): gpu.uuid for gpu in node.gpus}
    return tuple(by_index.get(name, name) for name in names)


def swapped(mine: Known, container: str, other: Known, other_container: str) -> tuple[Allocation, Allocation]:
    """The allocations of two pods with the cards of two of their containers exchanged."""
    if mine.uid == other.uid or mine.holding.allocation is None or other.holding.allocation is None:
        raise RefusedError("its cards were given to another container of the pod: delete the pod")
    a, b = mine.holding.entry(container), other.holding.entry(other_container)
    if a is None or b is None or not equal(a, b):
        raise RefusedError("its cards were given to a pod that asks for something else: delete the pod")
    return (
        _with(mine.holding.allocation, replace(a, cards=b.cards)),
        _with(other.holding.allocation, replace(b, cards=a.cards)),
    )


def moved(known: Known, container: str, cards: tuple[str, ...], node: NodeGpus) -> Allocation | None:
    """A pod's allocation with other cards for a container; None if it cannot have these."""
    indices = {gpu.uuid: gpu.index for gpu in node.gpus}
    entry = known.holding.entry(container)
    if known.holding.allocation is None or entry is None or len(entry.cards) != len(cards) or set(cards) - set(indices):
        return None
    shares = tuple(CardShare(uuid, indices[uuid], card.share) for uuid, card in zip(cards, entry.cards, strict=True))
    return _with(known.holding.allocation, replace(entry, cards=shares))


def equal(a: ContainerAllocation, b: ContainerAllocation) -> bool:
    """Whether two containers ask for the same."""
    shares_a, shares_b = ([card.share for card in entry.cards] for entry in (a, b))
    return shares_a == shares_b and a.memory_limit_mib == b.memory_limit_mib


def _with(allocation: Allocation, entry: ContainerAllocation) -> Allocation:
    return replace(
        allocation, containers=tuple(entry if one.name == entry.name else one for one in allocation.containers)
    )
