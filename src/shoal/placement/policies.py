"""The ways to choose, by name: each a card rule and weighted scores.

A policy is data. The highest sum of its scores wins; with a `grain`, sums within one grain are equal and the `ties`
decide; what is still equal goes to the node seen first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.placement import weights
from shoal.placement.baselines.best_fit import BestFit
from shoal.placement.baselines.dot_product import DotProduct
from shoal.placement.baselines.gpu_clustering import GpuClustering
from shoal.placement.baselines.gpu_packing import GpuPacking
from shoal.placement.cards.any import AnyCard
from shoal.placement.cards.free import LeastFree, MostFree
from shoal.placement.cards.regret import LeastRegret
from shoal.placement.errors import PolicyError
from shoal.placement.policy import Policy
from shoal.placement.scores.keti import keti_policy
from shoal.placement.scores.leftovers import CardLeft, CpuLeft, NodeWorth
from shoal.placement.scores.model_preference import ModelPreference
from shoal.placement.scores.regret import Regret
from shoal.placement.scores.spread import FreeShare
from shoal.placement.scores.stranding import Stranding
from shoal.placement.scores.topology import Topology
from shoal.placement.worth.pressures import BrokenBlock, ScarceModel

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
