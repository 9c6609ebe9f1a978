"""The largest share with which a pod that fits nowhere would fit: told only when placing it that way works."""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.cli.ask.picture.picture import Picture
from shoal.kube.objects.pod import Container, Pod, Resources
from shoal.model.contract import gpushare
from shoal.model.errors import RequestError
from shoal.model.request import ContainerRequest, Share, accepts
from shoal.placement.ledger import NodeLedger

#: Amounts that are tried, the largest first.
_TRIES: Final = 8


def would_fit_mib(picture: Picture, pod: Pod) -> int | None:
    """MiB per card; None when no smaller share of memory helps, or when several containers ask for cards."""
    request = picture.check(pod)
    unit = picture.books.unit
    containers = [one for one in pod.spec.containers if gpushare.RESOURCE_MEMORY in one.resources.limits]
    if len(request.containers) != 1 or len(containers) != 1 or request.containers[0].share.exclusive:
        return None
    asked = request.containers[0]
    rooms = {unit.floor(_room(node, picture, pod, asked)) for node in picture.engine.ledger.nodes()}
    fewer = sorted((room for room in rooms if 0 < room < unit.ceil(asked.share.memory_mib)), reverse=True)
    for room in fewer[:_TRIES]:
        if _fits(picture, _asking(pod, containers[0], room * asked.gpus)):
            return unit.to_mib(room)
    return None


def _room(node: NodeLedger, picture: Picture, pod: Pod, asked: ContainerRequest) -> int:
    """What the last of the cards has free, were the best of the node taken."""
    least = Share(1, asked.share.compute, asked.share.clients)
    selector = picture.check(pod).selector
    free = sorted(
        (
            card.inventory.memory_mib - card.memory_mib
            for card in node.slots
            if accepts(selector, card.inventory) and card.refusal(least) is None
        ),
        reverse=True,
    )
    return free[asked.gpus - 1] if len(free) >= asked.gpus else 0


def _asking(pod: Pod, container: Container, units: int) -> Pod:
    """The pod with so many units of GPU memory."""
    amount = {gpushare.RESOURCE_MEMORY: units}
    given = container.resources
    resources = Resources(limits={**given.limits, **amount}, requests={**given.requests, **amount})
    smaller = msgspec.structs.replace(container, resources=resources)
    containers = tuple(smaller if one is container else one for one in pod.spec.containers)
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, uid=f"{pod.metadata.uid}-smaller"),
        spec=msgspec.structs.replace(pod.spec, containers=containers),
    )


def _fits(picture: Picture, pod: Pod) -> bool:
    try:
        placed = picture.place(pod).allocation is not None
    except RequestError:
        return False
    picture.books.take_out(pod.metadata.uid)
    return placed
