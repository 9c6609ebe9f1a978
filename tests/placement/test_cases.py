"""Placement as data: a cluster and pods in, nodes and cards out.

A file of `cases/` holds `cases` and, before them, pod `templates` that the cases refer to. A case:

    name, why     what is shown, and the rule that would be broken otherwise
    unit          what one of aliyun.com/gpu-mem stands for: GiB unless told
    policy        a name, or {keti: ConfigMap data}, or {fgd: pods like those of `demand`}; binpack unless told
    prefer        models the policy shall prefer
    nodes         by name: cores (64 unless told), gib (512), policy (the node's label), cards; or `object`, a
                  Kubernetes node. A card is a number of GiB, its index being its place, or a mapping:
                  gib or mib, index, model, links (lanes by index), numa, fault, mig, clients
    there         pods already there: node, cards (by index: gib, mib, compute, clients, whole), cores, gib
    demand        waiting pods the demand is counted from: pod, count
    pods          one after another: pod (a Kubernetes pod) and what must come of it, either
                  its `node`, with `cards` by container (indices) and, where told, `shares` by container;
                  or `refused`, by node a part of the reason, or {reason, cards: {index: a part of what the card says}};
                  `leave: n` instead takes the n-th pod away again
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from shoal.model.allocation import Allocation
from shoal.model.contract import keti
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import read_pod
from shoal.model.node import node_gpus
from shoal.model.pod import request_of
from shoal.model.request import Request, Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import Policy, fgd_policy, keti_policy, policy_named, preferring
from tests.cases import read_cases
from tests.placement.clusters import GIB, WHOLE, booking, card, ledger_of, node, refusals

Case = dict[str, Any]


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in sorted((Path(__file__).parent / "cases").glob("*.yaml"))
        for case in read_cases(path)["cases"]
    ]


def card_of(name: str, place: int, told: Case | float) -> Gpu:
    if not isinstance(told, dict):
        return card(name, place, told, model="T4")
    facts: dict[str, Any] = {key: told[key] for key in ("numa", "mig") if key in told}
    if "clients" in told:
        facts["mps_clients"] = told["clients"]
    if "fault" in told:
        facts |= {"healthy": False, "fault": told["fault"]}
    gib = told["mib"] / GIB if "mib" in told else told["gib"]
    model = told.get("model", "T4")
    return card(name, told.get("index", place), gib, links=told.get("links"), model=model, **facts)


def node_of(name: str, told: Case, unit: MemoryUnit) -> NodeGpus:
    if "object" in told:
        metadata = {"name": name, **told["object"].get("metadata", {})}
        return node_gpus({**told["object"], "metadata": metadata}, unit=unit)
    cards = [card_of(name, place, each) for place, each in enumerate(told.get("cards", ()))]
    return node(name, cards, cores=told.get("cores", 64), gib=told.get("gib", 512), policy=told.get("policy"))


def share_of(told: Case) -> Share:
    if told.get("whole"):
        return WHOLE
    memory_mib = told.get("mib", 0) + told.get("gib", 0) * GIB
    return Share(memory_mib, told.get("compute", 0), told.get("clients", 0))


def ledger_for(case: Case, unit: MemoryUnit) -> Ledger:
    ledger = ledger_of(*(node_of(name, told or {}, unit) for name, told in case["nodes"].items()))
    for place, told in enumerate(case.get("there", ())):
        shares = {index: share_of(share) for index, share in told.get("cards", {}).items()}
        cores, gib = told.get("cores", 0), told.get("gib", 0)
        ledger.confirm(booking(f"there-{place}", told["node"], shares, cores=cores, gib=gib))
    return ledger


def requests_of(told: list[Case], unit: MemoryUnit) -> Iterator[Request]:
    for item in told:
        for _ in range(item.get("count", 1)):
            yield request_of(read_pod(item["pod"]), unit=unit)


def policy_of(case: Case, unit: MemoryUnit) -> Policy:
    told = case.get("policy", "binpack")
    if isinstance(told, str):
        policy = policy_named(told)
    elif "keti" in told:
        policy = keti_policy(keti.decode_policy(told["keti"] or {}))
    else:
        policy = fgd_policy(requests_of(told["fgd"], unit))
    return preferring(policy, case["prefer"]) if "prefer" in case else policy


def count_demand(engine: Engine, requests: Iterator[Request]) -> None:
    for place, request in enumerate(requests):
        engine.demand.arrive(f"demand-{place}", engine.class_of(request))
    engine.refresh()


def check_placed(allocation: Allocation | None, told: Case) -> None:
    assert allocation is not None, "the pod was refused"
    assert allocation.node == told["node"]
    cards = {container.name: [card.index for card in container.cards] for container in allocation.containers}
    assert cards == told.get("cards", {})
    for container in allocation.containers:
        if container.name in told.get("shares", {}):
            assert {card.share for card in container.cards} == {share_of(told["shares"][container.name])}


def check_refused(engine: Engine, request: Request, told: Case) -> None:
    found = refusals(engine, request)
    assert sorted(found) == sorted(told)
    for name, expected in told.items():
        refusal = found[name]
        if isinstance(expected, str):
            assert expected in refusal.reason
            continue
        assert expected["reason"] in refusal.reason
        books = engine.ledger.node(name)
        assert books is not None
        says = {card.gpu.index: refusal.cards.get(card.gpu.uuid, "") for card in books.slots if card.gpu is not None}
        for index, part in expected["cards"].items():
            assert part in says[index], asdict(refusal)


@pytest.mark.parametrize("case", cases())
def test_case(case: Case) -> None:
    unit = MemoryUnit.parse(case.get("unit", "GiB"))
    ledger = ledger_for(case, unit)
    engine = Engine(ledger, policy_of(case, unit))
    if "demand" in case:
        count_demand(engine, requests_of(case["demand"], unit))
    for place, told in enumerate(case["pods"]):
        if "leave" in told:
            engine.remove(f"pod-{told['leave']}")
            continue
        request = request_of(read_pod(told["pod"]), unit=unit)
        allocation = engine.place(f"pod-{place}", request)
        if "refused" in told:
            assert allocation is None
            check_refused(engine, request, told["refused"])
        else:
            check_placed(allocation, told)


def test_every_case_says_why() -> None:
    told = [parameters.values[0] for parameters in cases()]
    assert all(case["why"].strip() for case in told)
    assert len({case["name"] for case in told}) == len(told)
