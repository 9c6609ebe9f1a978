"""Requests, shares and answers in words for a person."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.model.contract import gpushare, keti, shoal
from shoal.model.request import Request, share_words
from shoal.placement.classes import card_needs


def asked(request: Request) -> str:
    """What a pod asks for, all containers together."""
    return " and ".join(
        f"{counted(need.gpus, 'card')} {share_words(need.share)}"
        if need.share.exclusive
        else f"{share_words(need.share)} of {counted(need.gpus, 'card')}{' each' if need.gpus > 1 else ''}"
        for need in card_needs(request)
    )


def counted(count: int, what: str) -> str:
    """A number and its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def listed(names: Iterable[str], *, most: int = 10) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def cards(indices: Iterable[int]) -> str:
    """Cards by index."""
    return ", ".join(f"GPU{index}" for index in indices)


def record_of(annotations: dict[str, str]) -> str:
    """Whose annotation of a decision a pod carries; empty when it carries none."""
    if shoal.ANNOTATION_ALLOCATION in annotations:
        return f"Shoal's ({shoal.ANNOTATION_ALLOCATION})"
    for name in (gpushare.ANNOTATION_ALLOCATION, gpushare.NAME_INDEX):
        if name in annotations:
            return f"gpushare's ({name})"
    return f"KETI's ({keti.ANNOTATION_UUID})" if keti.ANNOTATION_UUID in annotations else ""
