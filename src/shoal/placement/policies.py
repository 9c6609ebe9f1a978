"""The ways to choose, by name: each a card rule and weighted scores.

A policy is data. The highest sum of its scores wins; with a `grain`, sums within one grain are equal and the `ties`
decide; what is still equal goes to the node seen first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.model.contract.keti import DEFAULT_POLICY, KetiPolicy
from shoal.model.request import Request
from shoal.placement import weights
from shoal.placement.baselines import BestFit, DotProduct, GpuClustering, GpuPacking, Gradient, TypicalPods
from shoal.placement.cards import AnyCard, LeastFree, LeastRegret, MostFree
from shoal.placement.errors import PolicyError
from shoal.placement.filters import CardFit, NodeResources
from shoal.placement.keti import KetiScores
from shoal.placement.scores import CardLeft, CpuLeft, FreeShare, ModelPreference, NodeWorth, Regret, Stranding, Topology
from shoal.placement.trial import CardRule, CardScore, NodeFilter, Score
from shoal.placement.worth.pressures import BrokenBlock, Pressure, ScarceModel

#: What every policy asks of a node, in this order; a filter added here is obeyed by all of them.
FILTERS: tuple[NodeFilter, ...] = (NodeResources(), CardFit())


@dataclass(frozen=True)
class Policy:
    """A named way to choose."""

    name: str
    cards: CardRule
    scores: tuple[tuple[float, Score], ...] = ()
    card_scores: tuple[tuple[float, CardScore], ...] = ()
    pressures: tuple[tuple[float, Pressure], ...] = ()
    grain: float = 0.0
    ties: tuple[tuple[float, Score], ...] = ()
    card_ties: tuple[tuple[float, CardScore], ...] = ()
    filters: tuple[NodeFilter, ...] = FILTERS
    #: The policy looks at what is in demand; the others do without.
    learns: bool = False
    #: The policy weighs measured load: nodes are looked at again when it has changed.
    measures: bool = False
    #: Take the best node (0), or the second best (1) where there is one.
    rank: int = 0
    #: Any node that fits will do.
    random: bool = False


def keti_policy(settings: KetiPolicy = DEFAULT_POLICY) -> Policy:
    """The policy a KETI ConfigMap asks for."""
    scores = KetiScores(settings)
    return Policy(
        "keti",
        scores,
        ((-1.0 if settings.least_score_node else 1.0, scores),),
        measures=True,
        rank=1 if settings.avoid_best_node else 0,
    )


def fgd_policy(requests: Iterable[Request]) -> Policy:
    """FGD for a workload whose pods are known."""
    gradient = Gradient(TypicalPods(requests))
    return Policy("fgd", gradient, ((1.0, gradient),))


FRAGMENTATION = Policy(
    "fragmentation",
    LeastRegret(),
    scores=((weights.STRANDING, Stranding()),),
    card_scores=((weights.REGRET, Regret()),),
    pressures=((weights.SCARCE_MODEL, ScarceModel()), (weights.BLOCK, BrokenBlock())),
    grain=weights.GRAIN,
    ties=((weights.TIE_NODE_WORTH, NodeWorth()), (weights.TIE_CPU_LEFT, CpuLeft())),
    card_ties=((weights.TIE_CARD_LEFT, CardLeft()),),
    learns=True,
)
#: Nobody chooses by it: what a place costs beside the pod itself, in whole GPUs (`Engine.efficiency`).
COST = Policy(
    "cost",
    LeastRegret(),
    scores=FRAGMENTATION.scores,
    card_scores=(*FRAGMENTATION.card_scores, (-weights.CARD_LEFT, CardLeft())),
    pressures=FRAGMENTATION.pressures,
    learns=True,
)
BINPACK = Policy(
    "binpack", LeastFree(), scores=((weights.NODE_FREE, FreeShare()),), card_scores=((weights.CARD_FREE, CardLeft()),)
)
SPREAD = Policy("spread", MostFree(), ((1.0, FreeShare()),))
BEST_FIT = Policy("best-fit", LeastFree(), ((1.0, BestFit()),))
DOT_PRODUCT = Policy("dot-product", LeastFree(), ((1.0, DotProduct()),))
GPU_PACKING = Policy("gpu-packing", LeastFree(), ((1.0, GpuPacking()),))
GPU_CLUSTERING = Policy("gpu-clustering", LeastFree(), ((1.0, GpuClustering()),))
TOPOLOGY = Policy(
    "topology",
    LeastFree(),
    scores=((weights.LINKED_CARDS, Topology()), (weights.NODE_FREE, FreeShare())),
    card_scores=((weights.CARD_FREE, CardLeft()),),
)
RANDOM = Policy("random", AnyCard(), random=True)

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        FRAGMENTATION,
        BINPACK,
        SPREAD,
        TOPOLOGY,
        keti_policy(),
        BEST_FIT,
        DOT_PRODUCT,
        GPU_PACKING,
        GPU_CLUSTERING,
        RANDOM,
    )
}


def policy_named(name: str) -> Policy:
    """The policy of that name."""
    try:
        return POLICIES[name]
    except KeyError:
        raise PolicyError(f"no policy {name!r}: choose one of {', '.join(sorted(POLICIES))}") from None


def preferring(policy: Policy, models: Sequence[str], *, weight: float = weights.MODEL_PREFERENCE) -> Policy:
    """The policy, with a preference for these models, the first one most."""
    return replace(policy, scores=(*policy.scores, (weight, ModelPreference(models))))
