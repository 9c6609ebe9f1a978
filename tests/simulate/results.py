"""Short ways to write results."""

from shoal.simulate.churn import ChurnResult, Wait
from shoal.simulate.runs import Progress
from shoal.simulate.scenario import Churn, ChurnMode, Lifetimes, Start
from shoal.simulate.static import StaticResult


def ignore(progress: Progress) -> None:
    pass


def static(workload: str, policy: str, seed: int, value: float) -> StaticResult:
    return StaticResult(workload, policy, seed, value, value + 1, ())


def churned(policy: str, seed: int, alloc: float, refused: float, churn: Churn, *waits: Wait) -> ChurnResult:
    return ChurnResult("default", policy, seed, churn, alloc, refused, 3.25, waits, ())


LOSS = Churn(Lifetimes.TRACE, 0.95, ChurnMode.LOSS, Start.SAME)
QUEUE = Churn(Lifetimes.EXP, 1.0, ChurnMode.QUEUE)
