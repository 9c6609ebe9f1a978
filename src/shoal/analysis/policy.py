"""The policy in force: which one it is, where that is known from, its weights, and which pods it has placed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from shoal.analysis.snapshot import ClusterSnapshot
from shoal.kube.resources import key_of
from shoal.model.contract import keti, kubernetes, shoal
from shoal.model.errors import CodecError
from shoal.placement.policies import Policy, policy_named
from shoal.scheduler.keti_policy import KetiPolicyReader


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """The policy that decides, where that is known from, and KETI's values when they are what decides."""

    policy: Policy
    known_from: str
    keti: keti.KetiPolicy | None = None
    problems: tuple[str, ...] = ()


def in_force(snapshot: ClusterSnapshot) -> PolicyInForce:
    """KETI's policy where its ConfigMap is, else the configured one."""
    settings = snapshot.settings
    configured = policy_named(settings.policy)
    follower = KetiPolicyReader(configured, namespaces=settings.policy_namespaces)
    policy, problems = configured, list[str]()
    for configmap in snapshot.config_maps:
        if follower.concerns(configmap):
            outcome = follower.apply(configmap)
            policy = outcome.policy or policy
            problems += [f"ConfigMap {'/'.join(key_of(configmap))}: {problem}" for problem in outcome.problems]
    if follower.settings is None:
        return PolicyInForce(configured, settings.policy_from)
    return PolicyInForce(policy, "KETI's ConfigMap", follower.settings, tuple(problems))


def policy_asked_for(snapshot: ClusterSnapshot, name: str) -> PolicyInForce:
    """The policy of that name; KETI's with the values of its ConfigMap, where there is one."""
    found = in_force(snapshot)
    policy = found.policy if found.policy.name == name else policy_named(name)
    return PolicyInForce(policy, "asked for", found.keti if policy is found.policy else None)


class PolicyWeight(msgspec.Struct, frozen=True):
    """A score of the policy: of what it is, its name and its weight."""

    of: str
    score: str
    weight: float


class PolicyDescription(msgspec.Struct, frozen=True, rename="camel"):
    """Everything `shoal policy show` tells."""

    policy: str
    known_from: str
    #: How the cards of a node are chosen.
    cards: str
    weights: tuple[PolicyWeight, ...]
    #: Sums of scores closer than this are equal.
    grain: float
    #: The values of KETI's ConfigMap, where it decides.
    keti: dict[str, str]
    problems: tuple[str, ...]
    #: How many pods each policy has placed.
    decisions: dict[str, int]


def describe_policy(snapshot: ClusterSnapshot) -> PolicyDescription:
    """The policy in force in a cluster."""
    found = in_force(snapshot)
    chosen = found.policy
    weights = tuple(
        PolicyWeight(of, type(score).__name__, weight)
        for of, scores in (
            ("node", chosen.scores),
            ("card", chosen.card_scores),
            ("pressure", chosen.pressures),
            ("tie, node", chosen.ties),
            ("tie, card", chosen.card_ties),
        )
        for weight, score in scores
    )
    return PolicyDescription(
        policy=chosen.name,
        known_from=found.known_from,
        cards=type(chosen.cards).__name__,
        weights=weights,
        grain=chosen.grain,
        keti={} if found.keti is None else keti.encode_policy(found.keti),
        problems=found.problems,
        decisions=dict(_decisions(snapshot)),
    )


def _decisions(snapshot: ClusterSnapshot) -> Counter[str]:
    """How many of the pods that are there each policy has placed."""
    counts: Counter[str] = Counter()
    for pod in snapshot.pods:
        record = pod.metadata.annotations.get(shoal.ANNOTATION_ALLOCATION)
        if record is None or pod.status.phase in kubernetes.FINISHED_PHASES:
            continue
        try:
            counts[shoal.decode_allocation(record).policy or "not told"] += 1
        except CodecError:
            counts["not readable"] += 1
    return counts
