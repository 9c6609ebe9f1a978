"""Pods that filter refused everywhere, looked at again when the books have changed.

kube-scheduler hears of a freed card, or of one that is well again, by a watch of its own, or never. If it asks before
the books know, it is refused, and asks again only when something else happens in the cluster, or after minutes. So a
refused pod that would fit by now is pointed out to it, once for every refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.model.request import Request
from shoal.placement.columns import BoolArray
from shoal.placement.errors import PolicyError
from shoal.scheduler.books.books import Books

#: The oldest are forgotten first; kube-scheduler comes back to them by itself.
MOST: Final = 1000
#: Pointed out at a time: each is a write, and a question of kube-scheduler.
AT_ONCE: Final = 50


@dataclass(slots=True)
class _Entry:
    pod: Pod
    #: The rows it was asked for.
    asked: BoolArray
    #: Pointed out since it was refused.
    told: bool = False


class Refused:
    """The pods that fit nowhere when they were asked for, each with the nodes it was asked for."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._pods: dict[str, _Entry] = {}
        #: The books in which none of the pods fits.
        self._looked_at = -1

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: Pod, among: BoolArray) -> None:
        """The pod fits on none of these rows."""
        self._pods[pod.metadata.uid] = _Entry(pod, among)
        if len(self._pods) > MOST:
            del self._pods[next(iter(self._pods))]

    def drop(self, uid: str) -> None:
        """The pod is asked for again."""
        self._pods.pop(uid, None)

    def asked(self, uid: str) -> BoolArray | None:
        """The rows the pod was asked for and refused on; None when it was not refused."""
        entry = self._pods.get(uid)
        return None if entry is None else entry.asked

    def fits(self, pod: Pod) -> BoolArray:
        """The rows on which the cards have room for the pod by now."""
        return self._fitting(self._books.request(pod))

    def fitting(self) -> list[Pod]:
        """Pods that fit by now, some at a time. They are not told again before they are refused again."""
        version = self._books.engine.ledger.columns.version
        if not self._pods or version == self._looked_at:
            return []
        found: list[Pod] = []
        #: Pods mostly come in a few kinds: where one fits is found out once for all of its kind.
        where: dict[Request, BoolArray] = {}
        for entry in self._pods.values():
            if entry.told:
                continue
            if len(found) == AT_ONCE:
                return found
            request = self._books.request(entry.pod)
            fits = where.get(request)
            if fits is None:
                fits = where[request] = self._fitting(request)
            if np.logical_and(fits[: len(entry.asked)], entry.asked[: len(fits)]).any():
                entry.told = True
                found.append(entry.pod)
        self._looked_at = version
        return found

    def _fitting(self, request: Request) -> BoolArray:
        try:
            return self._books.engine.fits(request)
        except PolicyError:
            return np.zeros(0, np.bool_)  # told when it is asked for
