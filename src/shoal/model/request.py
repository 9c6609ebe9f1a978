"""What a pod asks for, the same for every family of resource names.

A `Request` is the whole pod: per container a number of cards and the share it takes of each. Pods made from one
template have equal requests, so a `Request` is also the key of the pod's class in `shoal.placement`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from shoal.model.gpu import Gpu

C = TypeVar("C")

#: The compute of a whole card, in percent.
FULL_COMPUTE: Final = 100


class ContainerKind(StrEnum):
    """When a container runs: this decides which shares of a pod are held at the same time."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Share:
    """What is taken of one card. A whole card is `exclusive` and carries no amounts."""

    memory_mib: int = 0
    compute: int = 0
    clients: int = 0
    exclusive: bool = False

    @property
    def unsized(self) -> bool:
        """MPS clients that book neither memory nor compute, and so are not limited to a part of the card."""
        return self.clients > 0 and not (self.memory_mib or self.compute or self.exclusive)

    def __add__(self, other: Share) -> Share:
        return Share(
            self.memory_mib + other.memory_mib,
            self.compute + other.compute,
            self.clients + other.clients,
            self.exclusive or other.exclusive,
        )

    def __or__(self, other: Share) -> Share:
        """The larger of the two in every part: what must be held so that either fits."""
        return Share(
            max(self.memory_mib, other.memory_mib),
            max(self.compute, other.compute),
            max(self.clients, other.clients),
            self.exclusive or other.exclusive,
        )


NO_SHARE = Share()


def share_words(share: Share) -> str:
    """A share of one card for a person: `whole`, or amounts such as `2048 MiB + 20 % compute + 1 MPS client`."""
    if share.exclusive:
        return f"whole, of at least {share.memory_mib} MiB" if share.memory_mib else "whole"
    return " + ".join(share_amounts(share)) or "nothing"


def share_amounts(share: Share) -> tuple[str, ...]:
    """The amounts of a share for a person, without those it has none of."""
    amounts = (
        (share.memory_mib, "MiB"),
        (share.compute, "% compute"),
        (share.clients, "MPS client" if share.clients == 1 else "MPS clients"),
    )
    return tuple(f"{amount} {unit}" for amount, unit in amounts if amount)


def mixes(taken: Share, more: Share) -> bool:
    """Whether a share would lie beside shares that it must not: MPS clients without sizes are kept apart from others.

    They may use all of a card, so that a share beside them would not be guaranteed.
    """
    return taken != NO_SHARE and taken.unsized is not more.unsized


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container: `gpus` distinct cards, `share` of each. A container without GPUs is not listed in a request."""

    name: str
    gpus: int
    share: Share
    kind: ContainerKind = ContainerKind.APP
    #: Memory the container may use of each card, where the pod says so: KETI's GPUlimits, and the memory asked for of
    #: cards that are given as a whole.
    memory_limit_mib: int | None = None


@dataclass(frozen=True, slots=True)
class CardSelector:
    """Which cards a pod accepts. Empty sets accept all; models match as `matches_model` says."""

    models: frozenset[str] = frozenset()
    not_models: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    not_uuids: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.models or self.not_models or self.uuids or self.not_uuids)


ANY_CARD = CardSelector()


def matches_model(model: str, wanted: str) -> bool:
    """Whether the words of `wanted` stand together in the card's model name, whatever their case.

    `A100` matches `NVIDIA A100-SXM4-80GB`, `A10` does not.
    """
    have, want = _words(model), _words(wanted)
    return bool(want) and any(have[i : i + len(want)] == want for i in range(len(have) - len(want) + 1))


def _words(text: str) -> list[str]:
    # ASCII before lower(), which makes ASCII letters of a few others.
    return [word.lower() for word in re.findall(r"[A-Za-z0-9]+", text)]


def accepts_model(selector: CardSelector, model: str) -> bool:
    """Whether a pod accepts cards of this model."""
    if any(matches_model(model, name) for name in selector.not_models):
        return False
    return not selector.models or any(matches_model(model, name) for name in selector.models)


def accepts(selector: CardSelector, gpu: Gpu) -> bool:
    """Whether a pod accepts this card."""
    if gpu.uuid in selector.not_uuids or (selector.uuids and gpu.uuid not in selector.uuids):
        return False
    return accepts_model(selector, gpu.model)


def fits(gpu: Gpu, taken: Share, more: Share) -> bool:
    """Whether a card that is taken so far has room for a share more."""
    if taken.exclusive or (more.exclusive and taken != NO_SHARE) or mixes(taken, more):
        return False
    total = taken + more
    if more.clients and total.clients > gpu.mps_clients:
        return False
    return total.memory_mib <= gpu.memory_mib and total.compute <= FULL_COMPUTE


@dataclass(frozen=True, slots=True)
class Request:
    """A pod's whole demand. CPU and memory are the pod's effective requests (Kubernetes' peak rule)."""

    containers: tuple[ContainerRequest, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    selector: CardSelector = ANY_CARD
    #: The policy the pod's annotation names; None leaves it to the node or the configuration.
    policy: str | None = None


def phases(containers: tuple[tuple[ContainerKind, C], ...]) -> Iterator[tuple[C, ...]]:
    """The sets of containers that hold their shares at the same time, as Kubernetes runs them.

    Init containers run one after another, each beside the sidecars started before it; at the end all sidecars and all
    ordinary containers run together. The pod needs the largest of these, not their sum.
    """
    sidecars: list[C] = []
    for kind, item in containers:
        if kind is ContainerKind.SIDECAR:
            sidecars.append(item)
        elif kind is ContainerKind.INIT:
            yield (*sidecars, item)
    yield (*sidecars, *(item for kind, item in containers if kind is ContainerKind.APP))
