"""What must hold of the containers that run, whatever anybody wrote: by the cards they see and the limits they have.

What a container may have is what its pod asked for when it was created. Its annotations and its labels of today are
not looked at.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.model.quantity import mebibytes
from tests.attacks.arena import Given, Object

MEMORY, WHOLE, CLIENTS = "aliyun.com/gpu-mem", "nvidia.com/gpu", "keti.com/mpsgpu"
COUNT = "aliyun.com/gpu-count"
#: Of each card, in MiB, and of the unit that pods ask in.
CARD, UNIT = 24 * 1024, 1024


@dataclass(frozen=True)
class Asked:
    """What one container may have: so many cards, and so much memory of all of them together; None for all of it."""

    cards: int
    memory: int | None


def asked(pod: Object, claim: Object | None = None) -> dict[str, Asked]:
    """What the containers of a pod ask for, as it is created; its first one by a claim, if it has one."""
    spec, labels = pod["spec"], pod["metadata"].get("labels") or {}
    found = {}
    for one in [*spec.get("initContainers", ()), *spec["containers"]]:
        limits = (one.get("resources") or {}).get("limits") or {}
        if MEMORY in limits:
            count = int(labels.get(COUNT, "1"))
            found[one["name"]] = Asked(count, int(limits[MEMORY]) * UNIT)
        elif WHOLE in limits:
            found[one["name"]] = Asked(int(limits[WHOLE]), None)
        elif CLIENTS in limits:
            memory = (pod["metadata"].get("annotations") or {}).get("GPUlimits", "")
            each = int(memory.removesuffix("Gi")) * UNIT if memory else None
            count = int(limits[CLIENTS])
            found[one["name"]] = Asked(count, None if each is None else each * count)
    if claim is not None:
        (request,) = claim["spec"]["devices"]["requests"]
        count = request["exactly"].get("count", 1)
        memory = request["exactly"].get("capacity", {}).get("requests", {}).get("memory")
        found[spec["containers"][0]["name"]] = Asked(count, None if memory is None else count * mebibytes(memory))
    return found


def thefts(given: Iterable[Given], allowed: Mapping[str, Mapping[str, Asked]]) -> list[str]:
    """What containers have that is not theirs, in words; `allowed` by the UID of the pod and the container."""
    given = list(given)
    return [*_beyond_request(given, allowed), *over_full(given)]


def _beyond_request(given: Iterable[Given], allowed: Mapping[str, Mapping[str, Asked]]) -> list[str]:
    found = []
    for one in given:
        may = allowed.get(one.uid, {}).get(one.container)
        name = f"{one.namespace}/{one.pod}/{one.container}"
        if may is None:
            found.append(f"{name} asked for no card and sees {sorted(one.limits)}")
            continue
        if len(one.limits) != may.cards:
            found.append(f"{name} asked for {may.cards} cards and sees {len(one.limits)}")
        if may.memory is None:
            continue
        amounts = list(one.limits.values())
        if None in amounts:
            found.append(f"{name} asked for {may.memory} MiB and nothing limits it: {dict(one.limits)}")
        elif sum(amount or 0 for amount in amounts) > may.memory:
            found.append(f"{name} asked for {may.memory} MiB and may take {dict(one.limits)}")
    return found


def over_full(given: Iterable[Given]) -> list[str]:
    """Cards that were given to more than they have room for, in words."""
    on_card: dict[str, list[Given]] = {}
    for one in given:
        for uuid in one.limits:
            on_card.setdefault(uuid, []).append(one)
    found = []
    for uuid, holders in on_card.items():
        amounts = [CARD if (amount := one.limits[uuid]) is None else amount for one in holders]
        if sum(amounts) > CARD:
            names = [f"{one.namespace}/{one.pod}" for one in holders]
            found.append(f"card {uuid} of {CARD} MiB is given to {list(zip(names, amounts, strict=True))}")
    return found
