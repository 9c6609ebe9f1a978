"""A cluster with claims as the watch would show it, and pods that are placed on it without a server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from shoal.kube.objects.claims import DeviceClass, ResourceClaim, ResourceSlice
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.contract import dra
from shoal.model.gpu import Gpu, MigInstance
from shoal.scheduler.claims.allocator import ClaimsPlan
from shoal.scheduler.claims.placing import ClaimsPlacing
from tests.scheduler.extender.scene import nobody, state_of
from tests.testbed.fake_nodes import made_up, node

Manifest = dict[str, Any]
CLASS: Manifest = {
    "metadata": {"name": dra.DEVICE_CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{dra.DRIVER}"'}}]},
}


def slice_of(
    name: str,
    cards: Sequence[Gpu],
    *,
    attributes: Manifest | None = None,
    taints: dict[str, list[Manifest]] | None = None,
) -> Manifest:
    """The slice of devices that a node with these cards publishes; beside it, `counters_of` cards in MIG mode."""
    taints = taints or {}
    return {
        "metadata": {"name": dra.slice_name(name, 0)},
        "spec": {
            "driver": dra.DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1 + any(card.mig for card in cards)},
            "devices": [
                *(_device(card, attributes or {}, taints.get(card.uuid, [])) for card in cards if not card.mig),
                *(_partition(card, part, taints.get(card.uuid, [])) for card in cards for part in card.mig_instances),
            ],
        },
    }


def counters_of(name: str, cards: Sequence[Gpu]) -> Manifest:
    """The slice with the counters of the cards that are cut into partitions."""
    sets = [
        {
            "name": dra.device_name(card.uuid),
            "counters": {dra.COUNTER_MEMORY: {"value": f"{card.memory_mib}Mi"}},
        }
        for card in cards
        if card.mig
    ]
    return {
        "metadata": {"name": dra.slice_name(name, 1)},
        "spec": {
            "driver": dra.DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 2},
            "sharedCounters": sets,
        },
    }


def _partition(card: Gpu, part: MigInstance, taints: list[Manifest]) -> Manifest:
    own = {
        dra.ATTRIBUTE_UUID: part.uuid,
        dra.ATTRIBUTE_PARENT: card.uuid,
        dra.ATTRIBUTE_PROFILE: part.profile,
        dra.ATTRIBUTE_TYPE: dra.TYPE_MIG,
        dra.ATTRIBUTE_MODEL: card.model,
    }
    memory = {dra.COUNTER_MEMORY: {"value": f"{part.memory_mib}Mi"}}
    return {
        "name": dra.device_name(part.uuid, mig=True),
        "attributes": {
            **{name: {"string": value} for name, value in own.items()},
            dra.ATTRIBUTE_INDEX: {"int": card.index},
            dra.ATTRIBUTE_NUMA: {"int": card.numa or 0},
        },
        "capacity": {dra.CAPACITY_MEMORY: {"value": f"{part.memory_mib}Mi"}},
        "consumesCounters": [{"counterSet": dra.device_name(card.uuid), "counters": memory}],
        **({"taints": taints} if taints else {}),
    }


def _device(card: Gpu, attributes: Manifest, taints: list[Manifest]) -> Manifest:
    memory = {"default": f"{card.memory_mib}Mi", "validRange": {"min": dra.MEMORY_STEP, "step": dra.MEMORY_STEP}}
    compute = {"default": "0", "validRange": {"min": "0", "step": "1"}}
    own = {
        dra.ATTRIBUTE_UUID: {"string": card.uuid},
        dra.ATTRIBUTE_INDEX: {"int": card.index},
        dra.ATTRIBUTE_MODEL: {"string": card.model},
        dra.ATTRIBUTE_NUMA: {"int": card.numa or 0},
        dra.ATTRIBUTE_TYPE: {"string": dra.TYPE_GPU},
        **attributes,
    }
    return {
        "name": dra.device_name(card.uuid),
        "allowMultipleAllocations": True,
        "attributes": own,
        "capacity": {
            dra.CAPACITY_MEMORY: {"value": f"{card.memory_mib}Mi", "requestPolicy": memory},
            dra.CAPACITY_COMPUTE: {"value": "100", "requestPolicy": compute},
        },
        **({"taints": taints} if taints else {}),
    }


def asks(name: str = "gpu", **exactly: Any) -> Manifest:
    """A request of a claim: `memory` and `compute` are its capacity, `select` its expressions."""
    capacity = {key: str(exactly.pop(key)) for key in ("memory", "compute") if key in exactly}
    select = [{"cel": {"expression": one}} for one in exactly.pop("select", [])]
    body = {"deviceClassName": dra.DEVICE_CLASS, **exactly}
    if capacity:
        body["capacity"] = {"requests": capacity}
    if select:
        body["selectors"] = select
    return {"name": name, "exactly": body}


class World:
    """Nodes, slices, claims and pods."""

    def __init__(self, policy: str = "fragmentation") -> None:
        self.state = state_of(policy)
        self.claims = ClaimsPlacing(
            nobody(), self.state, news=lambda _: None, may_write=lambda: True, now=lambda: datetime.now(UTC)
        )
        self.slices: dict[str, Manifest] = {}
        self.specs: dict[str, Manifest] = {}
        self._numbers = itertools.count(1)
        self.claims.on_class(_added(CLASS, DeviceClass))

    def add_node(
        self,
        name: str,
        cards: int | Sequence[Gpu],
        *,
        cpu_milli: int = 128_000,
        memory_mib: int = 2**20,
        **published: Any,
    ) -> None:
        gpus = made_up(name, cards) if isinstance(cards, int) else tuple(cards)
        manifest = node(name, gpus)
        for amounts in (manifest["status"]["capacity"], manifest["status"]["allocatable"]):
            amounts |= {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
        self.state.on_node(_added(manifest, Node))
        self.publish(slice_of(name, gpus, **published))
        if any(gpu.mig for gpu in gpus):
            self.publish(counters_of(name, gpus))

    def publish(self, one: Manifest) -> None:
        name = one["metadata"]["name"]
        old = None if name not in self.slices else msgspec.convert(self.slices[name], ResourceSlice)
        new = msgspec.convert(one, ResourceSlice)
        self.slices[name] = one  # only what can be read comes so far
        self.claims.on_slice(Change(ChangeType.ADDED if old is None else ChangeType.MODIFIED, old, new))

    def claim(self, *requests: Manifest, name: str = "", **devices: Any) -> ResourceClaim:
        """A claim of its own, which the watch shows."""
        number = next(self._numbers)
        name = name or f"c{number}"
        spec = {"devices": {"requests": list(requests), **devices}}
        self.specs[name] = spec
        meta = {"name": name, "namespace": "default", "uid": f"claim-{number}", "resourceVersion": str(number)}
        claim = msgspec.convert({"metadata": meta, "spec": spec}, ResourceClaim)
        self.claims.on_claim(Change(ChangeType.ADDED, None, claim))
        return claim

    def pod(self, *claims: ResourceClaim, **spec: Any) -> Pod:
        number = next(self._numbers)
        named = [{"name": f"r{i}", "resourceClaimName": one.metadata.name} for i, one in enumerate(claims)]
        meta = {"name": f"p{number}", "namespace": "default", "uid": f"pod-{number}", **spec.pop("metadata", {})}
        body = {"containers": [{"name": "main"}], "resourceClaims": named, **spec}
        return msgspec.convert({"metadata": meta, "spec": body}, Pod)

    def place(self, pod: Pod) -> ClaimsPlan | None:
        """Decide and book, and show the claims as allocated, as the writer would."""
        among = np.ones(self.state.engine.ledger.columns.rows, np.bool_)
        if self.claims.place(pod, among=among, favour=None) is None:
            return None
        plan = self.claims.plan(pod.metadata.uid)
        assert plan is not None
        for decision in plan.decisions:
            self.show(decision.claim, self.claims.status(pod, decision, plan.node))
        self.claims.bound(pod)
        return plan

    def ask(self, *requests: Manifest, **devices: Any) -> ClaimsPlan | None:
        """A pod with one claim."""
        return self.place(self.pod(self.claim(*requests, **devices)))

    def show(self, claim: ResourceClaim, status: Manifest | None) -> None:
        """The watch shows a claim with another status."""
        now = self.state.claims.find("default", claim.metadata.name)
        assert now is not None
        raw = msgspec.to_builtins(now)
        raw["metadata"]["resourceVersion"] = str(int(raw["metadata"]["resourceVersion"]) + 1000)
        raw["status"] = status or {}
        self.claims.on_claim(Change(ChangeType.MODIFIED, now, msgspec.convert(raw, ResourceClaim)))

    def claims_status(self, plan: ClaimsPlan) -> Manifest:
        """The status of the first claim of a plan, as it is shown."""
        now = self.state.claims.find("default", plan.decisions[0].claim.metadata.name)
        assert now is not None
        status: Manifest = msgspec.to_builtins(now)["status"]
        return status

    def gone(self, claim: ResourceClaim) -> None:
        self.claims.on_claim(Change(ChangeType.DELETED, claim, None))

    def used(self) -> dict[str, tuple[int, int, bool]]:
        """Memory, compute and whether it is one claim's alone, by card."""
        return {
            uuid: (card.memory_mib, card.compute, card.exclusive > 0)
            for books in self.state.engine.ledger.nodes()
            for uuid, card in books.cards.items()
            if card.pods
        }


def cards_of(plan: ClaimsPlan | None) -> list[list[str]]:
    """Per claim the cards it got."""
    assert plan is not None
    return [[fit.device.uuid for _, fit in decision.results] for decision in plan.decisions]


def _added(manifest: Manifest, kind: Any) -> Change[Any]:
    return Change(ChangeType.ADDED, None, msgspec.convert(json.loads(json.dumps(manifest)), kind))
