"""Kubernetes' own code agrees: on what selectors say, and that every allocation made here is one it would make.

The program of `tests/testbed/go/dra` runs the packages of the stock scheduler. For random clusters and claims it is
given what was allocated before, and the claim with each request pinned to the devices that were chosen for it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from shoal.model import quantity
from shoal.model.contract import dra
from shoal.model.gpu import Gpu, MigInstance
from shoal.scheduler.claims.allocator import ClaimDecision, ClaimsPlan
from tests.scheduler.claims.test_selectors import CASES, TABLE, answer
from tests.scheduler.claims.world import CLASS, World, asks
from tests.soak import times
from tests.testbed import binaries
from tests.testbed.processes import Run

Manifest = dict[str, Any]


class Reference:
    """The program, asked one question after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, question: Manifest) -> Manifest:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answered: Manifest = json.loads(self._process.stdout.readline())
        return answered


@pytest.fixture(scope="module")
def reference(testbed_run: Run) -> Iterator[Reference]:
    process = subprocess.Popen(
        [binaries.find("dra-reference")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield Reference(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.min_kube("1.36")
def test_selectors_say_what_kubernetes_says(reference: Reference) -> None:
    differ = []
    for device, _, expression in CASES:
        said = reference.ask({"expression": expression, **TABLE["devices"][device]}).get("result", "error")
        if said != answer(expression, device):
            differ.append((expression, said))
    assert differ == []


@pytest.mark.min_kube("1.36")
@pytest.mark.parametrize("seed", range(times(20)))
def test_every_allocation_is_one_that_the_stock_allocator_makes(reference: Reference, seed: int) -> None:
    rng = Random(seed)
    world = World(rng.choice(["fragmentation", "binpack", "spread"]))
    for number in range(rng.randint(1, 3)):
        _add_node(world, f"n{number}", rng)
    allocated: list[Manifest] = []
    placed = 0
    # Something can be had in every world.
    world.add_node("plain", [Gpu("GPU-plain", 0, 16 * 1024, "A")])
    for number in range(20):
        requests, devices = _wishes(rng) if number else ([asks("a", memory="1Gi")], {})
        claim = world.claim(*requests, **devices)
        pod = world.pod(claim)
        plan = world.place(pod)
        if plan is None:
            _check_waits(reference, world, requests, devices, allocated)
            continue
        placed += 1
        (decision,) = plan.decisions
        own = _allocated(world, decision)
        said = reference.ask(
            {
                "node": plan.node,
                "slices": list(world.slices.values()),
                "classes": [CLASS],
                "allocated": allocated,
                "claims": [{"metadata": own["metadata"], "spec": _pinned(world, decision, plan)}],
            }
        )
        assert said.get("error") is None, said
        assert said.get("allocations"), (plan, requests, devices)
        _check_same(own, said["allocations"][0])
        allocated.append(own)
    assert placed


def _check_waits(
    reference: Reference, world: World, requests: list[Manifest], devices: Manifest, allocated: list[Manifest]
) -> None:
    """A claim of partitions that got none gets none of the stock allocator either.

    Of cards that is not so: what takes all memory of one takes it alone here. Nor of `distinctAttribute`, which the
    stock allocator does not keep within a request.
    """
    kinds = [
        any('type == "mig"' in one["cel"]["expression"] for one in request["exactly"].get("selectors", ()))
        for request in requests
    ]
    if not all(kinds) or "distinctAttribute" in json.dumps(devices):
        return
    spec: Manifest = json.loads(json.dumps({"devices": {"requests": requests, **devices}}))
    for request in spec["devices"]["requests"]:
        request["exactly"].setdefault("allocationMode", "ExactCount")
        request["exactly"].setdefault("count", 1)
    for node in {one["spec"]["nodeName"] for one in world.slices.values()}:
        question = {
            "node": node,
            "slices": list(world.slices.values()),
            "classes": [CLASS],
            "allocated": allocated,
            "claims": [{"metadata": {"name": "waits", "namespace": "default", "uid": "waits"}, "spec": spec}],
        }
        assert not reference.ask(question).get("allocations"), (node, spec)


def _add_node(world: World, name: str, rng: Random) -> None:
    gpus = [_card(name, i, rng) for i in range(rng.randint(1, 5))]
    taint = {"key": "sick", "value": "yes", "effect": rng.choice(["NoSchedule", "NoExecute"])}
    tainted = {gpu.uuid: [taint] for gpu in gpus if rng.random() < 0.2}
    world.add_node(name, gpus, taints=tainted)


def _card(node: str, index: int, rng: Random) -> Gpu:
    """A card; some are cut into partitions, of which the counters do not always allow all at once."""
    size = rng.choice([16, 24, 40]) * 1024
    made = Gpu(f"GPU-{node}-{index}", index, size, rng.choice(["A", "B"]), numa=index % 2)
    if rng.random() < 0.6:
        return made
    profiles = [rng.choice([1, 2, 3]) for _ in range(rng.randint(1, 5))]
    parts = tuple(
        MigInstance(f"MIG-{node}-{index}-{number}", f"{slices}g", slices * size // 7)
        for number, slices in enumerate(profiles)
    )
    return replace(made, mig=True, mig_instances=parts)


def _wishes(rng: Random) -> tuple[list[Manifest], Manifest]:
    domain = f'device.attributes["{dra.DRIVER}"]'
    requests = []
    for name in ("a", "b", "c")[: rng.choice([1, 1, 1, 2, 3])]:
        body: Manifest = {}
        if rng.random() < 0.8:
            body["memory"] = rng.choice(["1Gi", "3000Mi", "5Gi", "100k", "1", "16Gi", "2500000000", "7.5Gi"])
        if rng.random() < 0.5:
            body["compute"] = rng.choice(["0", "10", "33", "500m"])
        if rng.random() < 0.2:
            body["count"] = 2
        if rng.random() < 0.3:
            body["select"] = [rng.choice([f'{domain}.productName == "A"', f"{domain}.index < 2"])]
        if rng.random() < 0.5:
            # The stock allocator gives up where a device lacks a capacity that is asked for.
            kind = "gpu" if "compute" in body else rng.choice(["gpu", "mig", "mig"])
            body["select"] = [*body.get("select", []), f'{domain}.type == "{kind}"']
            if kind == "mig" and rng.random() < 0.5:
                body["select"].append(f'{domain}.profile in ["1g", "{rng.choice([2, 3])}g"]')
            if kind == "mig":
                body["memory"] = rng.choice(["1Gi", "3000Mi", "5Gi"])
        if rng.random() < 0.2:
            body["tolerations"] = [{"key": "sick", "operator": "Exists"}]
        requests.append(asks(name, **body))
    constraints = []
    if rng.random() < 0.4:
        kind = rng.choice(["matchAttribute", "distinctAttribute"])
        constraints = [{kind: f"{dra.DRIVER}/{rng.choice(['numaNode', 'uuid', 'productName', 'parentUUID'])}"}]
    return requests, {"constraints": constraints} if constraints else {}


def _allocated(world: World, decision: ClaimDecision) -> Manifest:
    now = world.state.claims.find("default", decision.claim.metadata.name)
    assert now is not None
    raw: Manifest = json.loads(_encode(now))
    return {"metadata": raw["metadata"], "spec": raw["spec"], "status": raw["status"]}


def _encode(claim: object) -> bytes:
    import msgspec

    return msgspec.json.encode(claim)


def _pinned(world: World, decision: ClaimDecision, plan: ClaimsPlan) -> Manifest:
    """The claim's spec, each request for just the devices that were chosen for it."""
    spec: Manifest = json.loads(json.dumps(world.specs[decision.claim.metadata.name]))
    for request in spec["devices"]["requests"]:
        chosen = [fit.device.uuid for wish, fit in decision.results if wish.name == request["name"]]
        expression = f'device.attributes["{dra.DRIVER}"].uuid in {json.dumps(chosen)}'
        exactly = request["exactly"]
        exactly["selectors"] = [*exactly.get("selectors", []), {"cel": {"expression": expression}}]
        # The API server fills these in.
        exactly.setdefault("allocationMode", "ExactCount")
        exactly.setdefault("count", 1)
    return spec


def _check_same(own: Manifest, said: Manifest) -> None:
    mine, stock = (one["devices"]["results"] for one in (own["status"]["allocation"], said))
    assert sorted(_amounts(one) for one in mine) == sorted(_amounts(one) for one in stock)
    assert own["status"]["allocation"]["nodeSelector"] == said["nodeSelector"]


def _amounts(result: Manifest) -> tuple[str, str, list[tuple[str, str]]]:
    assert ("shareID" in result) is not dra.is_partition(result["device"])
    consumed = {name: str(quantity.parse(amount)) for name, amount in result.get("consumedCapacity", {}).items()}
    return result["request"], result["device"], sorted(consumed.items())
