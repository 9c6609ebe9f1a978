"""The simulated cluster of one run: a fresh ledger with the trace's nodes, and an engine with the run's policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from shoal.model.gpu import NodeGpus
from shoal.placement.columns import WHOLE
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES, Policy, fgd_policy
from shoal.simulate.errors import SettingsError
from shoal.simulate.trace import Workload

FGD = "fgd"
POLICY_NAMES = (*POLICIES, FGD)


def check_policy(name: str) -> None:
    """Refuse a policy that does not exist."""
    if name not in POLICY_NAMES:
        raise SettingsError(f"no policy {name!r}: choose among {', '.join(POLICY_NAMES)}")


def policy_for(name: str, workload: Workload) -> Policy:
    """The policy of that name. FGD is told the workload beforehand; the others learn or do without."""
    check_policy(name)
    if name == FGD:
        return fgd_policy([pod.request for pod in workload.pods])
    return POLICIES[name]


def new_engine(nodes: Sequence[NodeGpus], policy: Policy, rng: Random) -> Engine:
    """An engine on empty nodes, entered in random order: that is the order in which equal nodes are taken."""
    ordered = list(nodes)
    rng.shuffle(ordered)
    ledger = Ledger()
    for node in ordered:
        ledger.set_inventory(node)
    return Engine(ledger, policy, policies=(policy,), rng=rng)


@dataclass(frozen=True, slots=True)
class Idle:
    """GPUs that nobody holds, by cause; in % of all."""

    #: What is left of cards that somebody uses a part of.
    shares: float
    #: Whole cards on nodes without the CPU that the mean GPU pod wants beside them.
    no_cpu: float
    #: Whole cards that could be used.
    usable: float


def idle_now(ledger: Ledger, cores_per_card: float) -> Idle:
    """What is idle, and why."""
    columns = ledger.columns
    rows = columns.rows
    free = columns.compute_free[:rows]
    whole = columns.whole[:rows]
    served = whole
    if cores_per_card > 0:
        served = np.minimum(whole, columns.cpu_free[:rows] // (1000 * cores_per_card))
    usable = float(served.sum())
    percent = 100 / float((free >= 0).sum())
    return Idle(
        shares=float(free[(free > 0) & (free < WHOLE)].sum()) / WHOLE * percent,
        no_cpu=(float(whole.sum()) - usable) * percent,
        usable=usable * percent,
    )
