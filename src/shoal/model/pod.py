"""What a pod asks for, by the names of its resources, annotations and labels.

Three families of names end in one `Request`. Per container:

- `aliyun.com/gpu-mem`, and `aliyun.com/gpu-core.percentage` beside it or alone: a share of one card. The pod label
  `aliyun.com/gpu-count: N` splits both evenly over N cards; the resource of that name gives no card and is passed over.
  The pod label `ack.gpushare.placement: require-whole-device` makes the cards the pod's alone; the memory asked for
  then stands in `memory_limit_mib`, since a whole card carries no amounts.
- `keti.com/mpsgpu: N`: one MPS client on each of N cards, with the larger of annotations `GPUrequest` and `GPUlimits`
  booked as its memory. Without them it is a client without sizes (`Share.unsized`).
- `nvidia.com/gpu: N`: N whole cards.

`nvidia.com/mig-*`, `nvidia.com/gpu.shared` and `aliyun.com/gpu-core.tflops` are no shares of Shoal's and are passed
over: kubelet and kube-scheduler count them. Whether a decision exists for the request is not asked here.

CPU and memory are what the pod needs of its node by Kubernetes' rules. A container that names only a limit requests
that much. The pod needs the largest of its phases, or what `spec.resources` says for the whole pod, and its overhead on
top. Amounts are added exactly and rounded up once, at the end. A resize of a running pod that its status tells about is
not looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from shoal.model import quantity
from shoal.model.contract import gpushare, keti, kubernetes, nvidia, shoal, text
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, QuantityError, RequestError, shown
from shoal.model.gpu import MAX_CARD_MIB, Gpu
from shoal.model.manifest import Fields, PodContainer, PodParts, check_names
from shoal.model.request import (
    ANY_CARD,
    FULL_COMPUTE,
    CardSelector,
    ContainerRequest,
    Request,
    Share,
    accepts,
    matches_model,
    phases,
)

MAX_CARDS: Final = shoal.MAX_CARDS
#: Containers of a pod that can ask for GPUs: as many as a ResourceClaim can have requests.
MAX_CONTAINERS: Final = 32

#: Besides its resources, a pod's request depends on these annotations and labels and on no others.
ANNOTATIONS_READ: Final = (
    keti.ANNOTATION_MEMORY_REQUEST,
    keti.ANNOTATION_MEMORY_LIMIT,
    shoal.ANNOTATION_POLICY,
    shoal.ANNOTATION_USE_MODEL,
    shoal.ANNOTATION_AVOID_MODEL,
    shoal.ANNOTATION_USE_UUID,
    shoal.ANNOTATION_AVOID_UUID,
)
LABELS_READ: Final = (gpushare.LABEL_POD_COUNT, gpushare.LABEL_POD_PLACEMENT)

#: Larger amounts are not exact as floats, and no node has them.
_MAX_AMOUNT: Final = 2**53
#: Larger amounts are refused at once: the integers of the admission policies end not much above.
_FAR_TOO_MUCH: Final = 10**15
_OF_KETI: Final = (keti.ANNOTATION_MEMORY_REQUEST, keti.ANNOTATION_MEMORY_LIMIT)
_FAMILIES: Final = {
    gpushare.RESOURCE_MEMORY: "gpushare",
    gpushare.RESOURCE_COMPUTE: "gpushare",
    keti.RESOURCE_MPS: "keti",
    nvidia.RESOURCE_GPU: "nvidia",
}
#: Suffixes with which sizes are written in bytes. Not `k`: the API server itself turns 16000 into 16k.
_SIZE = re.compile(r"[0-9.][MGTPE](i?)$")


@dataclass(frozen=True, slots=True)
class _Split:
    """What the labels of a pod say about its gpushare containers."""

    cards: int
    whole: bool


def request_of(pod: PodParts, *, unit: MemoryUnit) -> Request:
    """The pod's request. `unit` is what one of `aliyun.com/gpu-mem` stands for in this cluster.

    Raises RequestError, and nothing else, when the pod asks for what cannot be given as written.
    """
    asked = gpus_of(pod, unit=unit)
    return Request(
        containers=asked.containers,
        cpu_milli=_cpu_milli(pod),
        memory_mib=_memory_mib(pod),
        selector=asked.selector,
        policy=asked.policy,
    )


def gpus_of(pod: PodParts, *, unit: MemoryUnit) -> Request:
    """What the pod asks of GPUs alone, without CPU and memory. Admission refuses what this refuses.

    The policies in `deploy/admission` make the same checks in the same order and say the same words; a change here is
    a change there. `tests/admission` holds them together.
    """
    check_names(pod.containers)
    amounts = [(container, _amounts(container)) for container in pod.containers]
    asking = sum(bool(amount) for _, amount in amounts)
    if not asking:
        return Request()
    if asking > MAX_CONTAINERS:
        raise RequestError(
            f"{asking} containers ask for GPUs, and at most {MAX_CONTAINERS} of a pod can: make several pods"
        )
    for container, amount in amounts:
        if len({_FAMILIES[resource] for resource in amount}) > 1:
            raise RequestError(
                f"container {shown(container.name)} asks for {' and '.join(amount)}: keep one kind of GPU per container"
            )
    families = {_FAMILIES[resource] for _, amount in amounts for resource in amount}
    split = _split(pod) if "gpushare" in families else _Split(1, whole=False)
    _check_printable(pod, keti_too="keti" in families)
    try:
        memory = keti.decode_memory(pod.annotations) if "keti" in families else keti.MemoryPerCard()
        selector = shoal.decode_selector(pod.annotations)
        policy = shoal.decode_policy(pod.annotations)
    except CodecError as error:
        raise RequestError(str(error)) from error
    _check_selector(selector)
    return Request(
        containers=tuple(
            _container_request(container, amount, split=split, memory=memory, unit=unit)
            for container, amount in amounts
            if amount
        ),
        selector=selector or ANY_CARD,
        policy=policy,
    )


def check_cluster(annotations: Mapping[str, str], cluster: str) -> None:
    """Refuse a pod that asks for another cluster than this one. A cluster without a name takes every pod."""
    wanted = annotations.get(keti.ANNOTATION_CLUSTER, "").strip()
    if cluster and wanted and wanted != cluster:
        raise RequestError(
            f"annotation {keti.ANNOTATION_CLUSTER} asks for cluster {shown(wanted)}, this is {shown(cluster)}: create "
            "the pod there, or remove the annotation"
        )


def check_fits_some_card(request: Request, cards: Iterable[Gpu]) -> None:
    """Refuse a request that no card could meet, even if it were empty. Unhealthy cards count: they may recover.

    Whether the cards are free, or on one node, is for `shoal.placement` to say.
    """
    if not request.containers:
        return
    usable = [card for card in cards if not card.mig and accepts(request.selector, card)]
    if not usable:
        wish = (
            " that the pod's selectors accept: change its annotations" if request.selector else ": add a node with GPUs"
        )
        raise RequestError(f"there is no card{wish}")
    for container in request.containers:
        share = container.share
        if share.clients and not any(card.mps_clients >= share.clients for card in usable):
            raise RequestError(
                f"container {shown(container.name)} asks for an MPS client, no card serves any: "
                f"run the agent with MPS on, or ask for {gpushare.RESOURCE_MEMORY}"
            )
        memory = container.memory_limit_mib or 0 if share.exclusive else share.memory_mib
        largest = max(card.memory_mib for card in usable)
        if memory > largest:
            split = (
                "" if share.clients else f", or split it over several cards with pod label {gpushare.LABEL_POD_COUNT}"
            )
            raise RequestError(
                f"container {shown(container.name)} asks for {_size(memory)} of one card, the largest holds "
                f"{_size(largest)}: ask for less{split}"
            )


def _size(mib: int) -> str:
    return f"{mib} MiB" if mib % 1024 or not mib else f"{mib} MiB ({mib // 1024} GiB)"


def _amounts(container: PodContainer) -> dict[str, int]:
    """The amounts of the GPU resources that the container asks for."""
    return {resource: amount for resource in _FAMILIES if (amount := _amount(container, resource))}


def _amount(container: PodContainer, resource: str) -> int:
    limit, request = container.limits.get(resource), container.requests.get(resource)
    value = request if limit is None else limit
    if value is None:
        return 0
    who = f"container {shown(container.name)} asks for {shown(value)} of {resource}"
    try:
        amount = quantity.parse(value)
        other = amount if request is None else quantity.parse(request)
    except QuantityError as error:
        raise RequestError(f"container {shown(container.name)}: {resource} cannot be read: {error}") from error
    if other != amount:
        raise RequestError(f"{who} as limit and {shown(request)} as request: make both the same")
    if amount < 0:
        raise RequestError(f"{who}, which is negative: write a whole number, such as 1")
    if amount.denominator != 1:
        raise RequestError(f"{who}, which is not a whole number: write {math.ceil(amount)}")
    if amount > _FAR_TOO_MUCH:
        raise RequestError(
            f"container {shown(container.name)} asks for more than 1P of {resource}: write a plain number, such as 1"
        )
    return amount.numerator


def _too_much(container: PodContainer, units: int, unit: MemoryUnit) -> RequestError:
    """The error for an amount of memory that no card has. Most often it was written in bytes."""
    resource = gpushare.RESOURCE_MEMORY
    who = f"container {shown(container.name)} asks for"
    written = quantity.stored(container.limits.get(resource, container.requests.get(resource)))
    match = _SIZE.search(written)
    if match is None:
        return RequestError(
            f"{who} {units} of {resource}, which is more than any card holds: write the number of {unit.value} needed"
        )
    # 10G and 10Gi are both meant as 10 of the G that GPUs are sold by.
    kilo = 1024 if match[1] else 1000
    meant = -(-units // (kilo**3 if unit is MemoryUnit.GIB else kilo**2))
    return RequestError(
        f"{who} {written} of {resource}, which counts {unit.value}, not bytes: write {meant} for {meant} {unit.value}"
    )


def _split(pod: PodParts) -> _Split:
    placement = pod.labels.get(gpushare.LABEL_POD_PLACEMENT)
    if placement is not None and placement != gpushare.REQUIRE_WHOLE_DEVICE:
        raise RequestError(
            f"pod label {gpushare.LABEL_POD_PLACEMENT} is {shown(placement)}: write {gpushare.REQUIRE_WHOLE_DEVICE} "
            "or remove it"
        )
    count = pod.labels.get(gpushare.LABEL_POD_COUNT, 1)
    cards = _label_number(count)
    if not 1 <= cards <= MAX_CARDS:
        raise RequestError(
            f"pod label {gpushare.LABEL_POD_COUNT} is {shown(count)}: write the number of cards, from 1 to {MAX_CARDS}"
        )
    return _Split(cards, whole=placement is not None)


def _label_number(value: object) -> int:
    """The number in a label, 0 if it is none. An unchecked manifest may hold a bare number in place of text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return text.integer(value, what="the label") if isinstance(value, str) else 0
    except CodecError:
        return 0


def _container_request(
    container: PodContainer,
    amounts: Mapping[str, int],
    *,
    split: _Split,
    memory: keti.MemoryPerCard,
    unit: MemoryUnit,
) -> ContainerRequest:
    if count := amounts.get(keti.RESOURCE_MPS):
        share = Share(memory_mib=memory.booked_mib, clients=1)
        cards = _cards(container, keti.RESOURCE_MPS, count)
        return ContainerRequest(container.name, cards, share, container.kind, memory.limit_mib)
    if count := amounts.get(nvidia.RESOURCE_GPU):
        cards = _cards(container, nvidia.RESOURCE_GPU, count)
        return ContainerRequest(container.name, cards, Share(exclusive=True), container.kind)
    units = amounts.get(gpushare.RESOURCE_MEMORY, 0)
    if units > unit.floor(MAX_CARD_MIB) * split.cards:
        raise _too_much(container, units, unit)
    memory_mib = unit.to_mib(_per_card(container, gpushare.RESOURCE_MEMORY, amounts, split))
    compute = _per_card(container, gpushare.RESOURCE_COMPUTE, amounts, split)
    if compute > FULL_COMPUTE:
        raise RequestError(
            f"container {shown(container.name)} asks for {compute} percent of a card ({gpushare.RESOURCE_COMPUTE}): "
            f"write at most {FULL_COMPUTE} per card, or more cards with pod label {gpushare.LABEL_POD_COUNT}"
        )
    if split.whole:
        return ContainerRequest(container.name, split.cards, Share(exclusive=True), container.kind, memory_mib or None)
    return ContainerRequest(container.name, split.cards, Share(memory_mib, compute), container.kind)


def _per_card(container: PodContainer, resource: str, amounts: Mapping[str, int], split: _Split) -> int:
    amount = amounts.get(resource, 0)
    each, rest = divmod(amount, split.cards)
    if rest:
        raise RequestError(
            f"container {shown(container.name)} asks for {amount} of {resource} over {split.cards} cards, which does "
            f"not divide: write {amount + split.cards - rest}, or change pod label {gpushare.LABEL_POD_COUNT}"
        )
    return each


def _cards(container: PodContainer, resource: str, count: int) -> int:
    if count > MAX_CARDS:
        raise RequestError(
            f"container {shown(container.name)} asks for {count} of {resource}: write the number of cards, at most "
            f"{MAX_CARDS}"
        )
    return count


def _check_printable(pod: PodParts, *, keti_too: bool) -> None:
    """Refuse annotations with characters that cannot be printed: messages repeat them."""
    for key in ANNOTATIONS_READ:
        value = pod.annotations.get(key)
        if isinstance(value, str) and not value.strip().isprintable() and (keti_too or key not in _OF_KETI):
            raise RequestError(
                f"annotation {key} holds a line break or another character that cannot be printed: write it on one line"
            )


def _check_selector(selector: CardSelector) -> None:
    both = sorted(selector.uuids & selector.not_uuids)
    if both:
        raise RequestError(
            f"card {shown(both[0])} stands in {shoal.ANNOTATION_USE_UUID} and in {shoal.ANNOTATION_AVOID_UUID}: "
            "remove it from one"
        )
    for name in sorted(selector.models | selector.not_models):
        if not matches_model(name, name):
            raise RequestError(f"GPU model {shown(name)} has no letter or digit: write a model such as A100")
    for wanted in sorted(selector.models):
        for unwanted in sorted(selector.not_models):
            if matches_model(wanted, unwanted):
                raise RequestError(
                    f"{shoal.ANNOTATION_USE_MODEL} wants {shown(wanted)}, {shoal.ANNOTATION_AVOID_MODEL} rules it out "
                    f"with {shown(unwanted)}: remove one"
                )


# CPU and memory of the node, by Kubernetes' rules


def _cpu_milli(pod: PodParts) -> int:
    """The pod's CPU in thousandths of a core, rounded up."""
    return _bounded(quantity.milli(_needed(pod, kubernetes.RESOURCE_CPU)), kubernetes.RESOURCE_CPU)


def _memory_mib(pod: PodParts) -> int:
    """The pod's memory in MiB, rounded up."""
    return _bounded(quantity.mebibytes(_needed(pod, kubernetes.RESOURCE_MEMORY)), kubernetes.RESOURCE_MEMORY)


def _needed(pod: PodParts, resource: str) -> Fraction:
    whole_pod = _node_amount(pod.pod_requests, resource, "the pod")
    if whole_pod is None:
        each = tuple((container.kind, _requested(container, resource)) for container in pod.containers)
        whole_pod = max(sum(phase, Fraction(0)) for phase in phases(each))
    if not whole_pod:
        # As the API server fills it in: a pod-level limit stands in for requests nobody made.
        whole_pod = _node_amount(pod.pod_limits, resource, "the pod") or Fraction(0)
    return whole_pod + (_node_amount(pod.overhead, resource, "the pod's overhead") or 0)


def _requested(container: PodContainer, resource: str) -> Fraction:
    try:
        request = _node_amount(container.requests, resource, "the container")
        if request is None:
            request = _node_amount(container.limits, resource, "the container")
    except RequestError as error:
        raise RequestError(f"container {shown(container.name)}: {error}") from error
    return request or Fraction(0)


def _node_amount(amounts: Fields, resource: str, where: str) -> Fraction | None:
    value = amounts.get(resource)
    if value is None:
        return None
    try:
        amount = quantity.parse(value)
    except QuantityError as error:
        raise RequestError(f"{resource} of {where} cannot be read: {error}") from error
    if amount < 0:
        raise RequestError(f"{resource} of {where} is {shown(value)}: an amount cannot be negative, write 0 or more")
    return amount


def _bounded(amount: int, resource: str) -> int:
    if amount > _MAX_AMOUNT:
        raise RequestError(f"{resource} of the pod adds up to more than any node has: lower the requests")
    return amount
