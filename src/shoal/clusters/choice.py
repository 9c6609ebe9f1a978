"""Which cluster a pod goes to: offers and wishes in, a ranking with reasons out. Pure.

Of the clusters that the pod's annotations allow, and, unless it may spread, that have pods of its owner or gang, the
one with the best score is chosen among those whose scheduler says that the pod fits:

    score = SCORE·offer + QUEUE/(1 + queue/QUEUE_HALF) + LOAD·(1 − load)
            − COST·bent(cost) + PREFERENCE·bent(preference)

`offer` is the score that the member gives, 0 to 1 and comparable between clusters; `queue` the pods ahead there; `load`
how busy its cards are, UNKNOWN_LOAD where nobody measures; cost and preference are the administrator's, any numbers,
bent(x) = x/(1 + |x|) so that no single one outweighs all the rest. Scores are compared as they are shown, with DIGITS
digits; equal ones go to the pod's own cluster, then by name.

A cluster without Shoal cannot say whether the pod fits: it is tried, and only if no other fits for sure. Then come,
never chosen, those that have no room now, the shortest wait first; those that did not answer; those that are ruled out.
The order in which clusters are given means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from shoal.model.contract.clusters import ClusterSelector, Offer
from shoal.model.errors import shown

SCORE: Final = 1.0
QUEUE: Final = 0.3
#: Pods ahead with which half of QUEUE is left.
QUEUE_HALF: Final = 10.0
LOAD: Final = 0.2
UNKNOWN_LOAD: Final = 0.5
COST: Final = 1.0
PREFERENCE: Final = 1.0
DIGITS: Final = 3

#: The most names and characters of foreign text in a reason.
_NAMES: Final = 20
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class Ranked:
    """A cluster in the ranking of one pod: its score if it can take the pod, and the reason in words."""

    cluster: str
    score: float | None
    why: str
    #: Whether the pod fits is not known: it would be tried.
    trial: bool = False


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The cluster that was chosen, empty if none, and all that were looked at, the best first."""

    cluster: str
    ranking: tuple[Ranked, ...]
    why: str = ""


class Unasked(Enum):
    """Why there is neither an offer nor a problem."""

    #: No Shoal there: the pod is tried.
    TRIAL = "to be tried: there is no Shoal to ask"
    #: It was tried there of late, and found no node.
    TRIED = "tried there, and no node was found: it is tried again later"


@dataclass(frozen=True, slots=True)
class ClusterCandidate:
    """A joined cluster, with what it answered: an offer, a problem in words, or why it was not asked."""

    name: str
    answer: Offer | Unasked | str
    own: bool = False
    cost: float = 0.0
    preference: float = 0.0


class _Group(Enum):
    """Clusters of one kind stand together in the ranking, in this order."""

    FITS = 0
    TRIAL = 1
    FULL = 2
    SILENT = 3
    RULED_OUT = 4


def choose(
    selector: ClusterSelector,
    candidates: Iterable[ClusterCandidate],
    *,
    siblings: Collection[str] = (),
    needed: int = 1,
) -> ClusterChoice:
    """The choice for a pod. `siblings`: where pods of its owner or gang were sent; `needed`: pods that must fit."""
    known = {candidate.name: candidate for candidate in candidates}
    allowed = allowed_clusters(selector, known, siblings=siblings)
    reasons = {name: _ruled_out(name, selector, siblings) for name in known.keys() - allowed}
    rows = sorted(_row(candidate, reasons.get(name, ""), needed) for name, candidate in known.items())
    ranking = tuple(row.ranked for row in rows)
    best = rows[0] if rows else None
    if best is not None and best.group in (_Group.FITS, _Group.TRIAL):
        return ClusterChoice(best.ranked.cluster, ranking, best.ranked.why)
    return ClusterChoice("", ranking, _why_none(selector, known, allowed, ranking))


def allowed_clusters(
    selector: ClusterSelector, known: Collection[str], *, siblings: Collection[str] = ()
) -> frozenset[str]:
    """The known clusters that the pod may go to: only these need be asked.

    Siblings keep the pod where they are, if it may go there at all: a wish that it states itself counts more.
    """
    if selector.pinned:
        allowed = frozenset({selector.pinned}) & frozenset(known)
    else:
        allowed = frozenset(selector.only or known) & frozenset(known)
    allowed -= selector.avoid
    together = allowed & frozenset(siblings)
    return together if together and not selector.spread else allowed


def unknown_clusters(selector: ClusterSelector, known: Collection[str]) -> tuple[str, ...]:
    """The names that the pod asks for and that no cluster has."""
    wanted = {selector.pinned} if selector.pinned else selector.only
    return tuple(sorted(wanted - frozenset(known)))


def score_of(candidate: ClusterCandidate, offer: Offer) -> float:
    """What an offer is worth: the formula above."""
    load = UNKNOWN_LOAD if offer.load is None else offer.load
    worth = SCORE * offer.score + QUEUE / (1 + offer.queue / QUEUE_HALF) + LOAD * (1 - load)
    return round(worth - COST * _bent(candidate.cost) + PREFERENCE * _bent(candidate.preference), DIGITS)


def keti_lines(choice: ClusterChoice, *, gpus: int) -> list[str]:
    """The choice as KETI's manager logs it, and its users read it: scores as whole numbers, of a hundred."""
    lines = ["#Request Cluster Scheduling Called", f"-pod requested gpu : {gpus}"]
    best = "{ 0}"
    for row in choice.ranking:
        if row.score is None:
            continue
        lines += [f"--Cluster Name:  {row.cluster}", f"---clusterScore: {_percent(row.score)}"]
        if row.cluster == choice.cluster:
            best = f"{{{row.cluster} {_percent(row.score)}}}"
    if choice.cluster and best == "{ 0}":
        best = f"{{{choice.cluster} 0}}"
    return [*lines, f"#Best Cluster Is:  {best}"]


def _percent(score: float) -> int:
    return round(100 * score)


@dataclass(frozen=True, slots=True)
class _Row:
    """A cluster of the ranking; rows order themselves."""

    group: _Group
    order: tuple[float, bool, str]
    ranked: Ranked

    def __lt__(self, other: _Row) -> bool:
        return (self.group.value, self.order) < (other.group.value, other.order)


def _row(candidate: ClusterCandidate, ruled_out: str, needed: int) -> _Row:
    def row(group: _Group, first: float, why: str, score: float | None = None) -> _Row:
        ranked = Ranked(candidate.name, score, why, trial=group is _Group.TRIAL)
        return _Row(group, (first, not candidate.own, candidate.name), ranked)

    answer = candidate.answer
    if ruled_out:
        return row(_Group.RULED_OUT, 0.0, ruled_out)
    if isinstance(answer, str):
        return row(_Group.SILENT, 0.0, clipped(answer))
    if answer is Unasked.TRIAL:
        return row(_Group.TRIAL, -_weight(candidate), answer.value)
    if answer is Unasked.TRIED:
        return row(_Group.FULL, math.inf, answer.value)
    assert isinstance(answer, Offer)
    if answer.fits < needed:
        return row(_Group.FULL, math.inf if answer.wait is None else answer.wait, _no_room(answer, needed))
    score = score_of(candidate, answer)
    return row(_Group.FITS, -score, _words(candidate, answer), score)


def _weight(candidate: ClusterCandidate) -> float:
    return round(PREFERENCE * _bent(candidate.preference) - COST * _bent(candidate.cost), DIGITS)


def _bent(number: float) -> float:
    """Between -1 and 1, and rising; what is no number is nothing."""
    if math.isnan(number):
        return 0.0
    return math.copysign(1.0, number) if math.isinf(number) else number / (1 + abs(number))


def _words(candidate: ClusterCandidate, offer: Offer) -> str:
    parts = [f"fits, offer {offer.score:.3f}"]
    if offer.queue:
        parts.append(f"{offer.queue} ahead in its queue")
    if offer.load is not None:
        parts.append(f"its cards are {offer.load:.0%} busy")
    parts += [f"{what} {value:g}" for what, value in _weights(candidate) if value]
    if candidate.own:
        parts.append("its own cluster")
    return ", ".join(parts)


def _weights(candidate: ClusterCandidate) -> tuple[tuple[str, float], ...]:
    return ("cost", candidate.cost), ("preference", candidate.preference)


def _no_room(offer: Offer, needed: int) -> str:
    said = clipped(offer.why) or "no room now"
    some = f" ({offer.fits} of {needed} fit)" if offer.fits else ""
    wait = "" if offer.wait is None else f", about {offer.wait:.0f} s to wait"
    return f"{said}{some}{wait}"


def _ruled_out(name: str, selector: ClusterSelector, siblings: Collection[str]) -> str:
    if selector.pinned and name != selector.pinned:
        return f"the pod's clusterName is {shown(selector.pinned)}"
    if name in selector.avoid:
        return "the pod's shoal.dev/avoid-clusters names it"
    if selector.only and not selector.pinned and name not in selector.only:
        return "the pod's shoal.dev/clusters does not name it"
    return f"pods of the same owner or gang are in {_listed(siblings)}"


def _why_none(
    selector: ClusterSelector, known: Collection[str], allowed: Collection[str], ranking: tuple[Ranked, ...]
) -> str:
    unknown = unknown_clusters(selector, known)
    if not known:
        return "no cluster is joined: join one with shoal clusters join"
    if unknown and not allowed:
        return f"no cluster is called {_listed(unknown)}: known are {_listed(known)}"
    if not allowed:
        return f"the pod's annotations rule out every cluster: known are {_listed(known)}"
    open_ = [row for row in ranking if row.cluster in allowed]
    said = "; ".join(f"{row.cluster}: {row.why}" for row in open_[:_NAMES])
    return f"no cluster has room now: {said}"


def _listed(names: Collection[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMES} more" if len(ordered) > _NAMES else ""
    return ", ".join(shown(name) for name in ordered[:_NAMES]) + more


def clipped(said: str) -> str:
    """What somebody else wrote, on one line, printable and short."""
    line = "".join(letter if letter.isprintable() else " " for letter in said[: _LONGEST + 1]).strip()
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "…"
