"""Cards for a pod that came without an allocation: the fullest ones that have room. Pure.

Schedulers that know Shoal decide better than this; it is for pods that somebody else bound to the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.agent.errors import NoCardError
from shoal.agent.holdings import fits
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.errors import shown
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import NO_SHARE, ContainerRequest, Request, Share, accepts


def choose(request: Request, *, node: NodeGpus, taken: Mapping[str, Share]) -> Allocation:
    """An allocation for the pod; NoCardError says why there is none. `taken` is what others hold, by UUID."""
    usable = [gpu for gpu in node.gpus if gpu.healthy and not gpu.mig and accepts(request.selector, gpu)]
    placed: list[ContainerAllocation] = []
    for container in request.containers:
        options = [gpu for gpu in usable if _fits(gpu, container, placed, taken)]
        if len(options) < container.gpus:
            raise NoCardError(
                f"container {shown(container.name)} asks for {container.gpus} cards with {_words(container.share)}, "
                f"{len(options)} of {len(node.gpus)} cards on {node.name} have room: free some, or delete the pod so "
                "that it is placed elsewhere"
            )
        options.sort(key=lambda gpu: (gpu.memory_mib - taken.get(gpu.uuid, NO_SHARE).memory_mib, gpu.index))
        placed.append(_entry(container, options[: container.gpus]))
    return Allocation(node.name, tuple(placed))


def _fits(
    gpu: Gpu, container: ContainerRequest, placed: Sequence[ContainerAllocation], taken: Mapping[str, Share]
) -> bool:
    """Whether the card has room for the container beside others' and the pod's own containers."""
    whole = Allocation("", (*placed, _entry(container, [gpu]))).held()
    own = Allocation("", tuple(placed)).held().get(gpu.uuid, NO_SHARE) if placed else NO_SHARE
    if own != NO_SHARE and (own.exclusive or container.share.exclusive):
        return False
    return fits(gpu, taken.get(gpu.uuid, NO_SHARE), whole[gpu.uuid])


def _entry(container: ContainerRequest, gpus: Sequence[Gpu]) -> ContainerAllocation:
    cards = tuple(CardShare(gpu.uuid, gpu.index, container.share) for gpu in gpus)
    return ContainerAllocation(container.name, cards, container.kind, container.memory_limit_mib)


def _words(share: Share) -> str:
    if share.exclusive:
        return "nobody else on them"
    amounts = ((share.memory_mib, "MiB free"), (share.compute, "% compute free"), (share.clients, "MPS clients free"))
    return ", ".join(f"{amount} {unit}" for amount, unit in amounts if amount)
