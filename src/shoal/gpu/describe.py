"""Descriptions of simulated cards: `4xA30-24G,1xT4` on a command line, or the list of cards in a cluster file.

    gpus: 4xA30-24G                  # the short form works in a file too
    gpus:
      - model: A100-80G              # a row of shoal.gpu.models; A100 alone is its smallest size
        count: 4
        numa: [0, 0, 1, 1]           # or one number for all
        nvlink: 4                    # lanes between each two of these cards; `switch`: all lanes, through a switch
      - model: A30
        index: 6                     # of the first; 4 and 5 stay empty. Else the next free one
        memory: 20Gi                 # another size than the model's
        mig: [1g.6gb, 2g.12gb]       # MIG mode on, cut like this; [] is on and not cut
      - {model: T4, lost: true}      # does not answer
      - {model: T4, xid: 79}         # reports this XID error as soon as someone watches

What the words mean to the cards is for `shoal.gpu.simulated`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.gpu.errors import DescriptionError
from shoal.gpu.models import CardModel, keys, named
from shoal.model import quantity
from shoal.model.errors import QuantityError, shown

MAX_CARDS: Final = 64
MAX_INDEX: Final = 255
MAX_NUMA: Final = 1023
MAX_LENGTH: Final = 1000
MAX_MEMORY_MIB: Final = 2**21
MIN_MEMORY_MIB: Final = 1024
#: A card can be cut into this many compute slices.
MIG_COMPUTE_SLICES: Final = 7

SWITCH: Final = "switch"

_HOW: Final = "write COUNTxMODEL-SIZE, such as 4xA30-24G, several with commas"
_SHORT: Final = re.compile(r"(?:(?P<count>[0-9]{1,4})\s*[xX×]\s*)?(?P<model>[A-Za-z][A-Za-z0-9 _-]*)")
_SIZED: Final = re.compile(r"(?P<name>.+?)[ _-]+(?P<size>[0-9]{1,4})(?:[gG](?:[iI]?[bB])?)")
_PROFILE: Final = re.compile(r"(?P<slices>[1-7])g\.(?P<gb>[0-9]{1,3})gb")
_KEYS: Final = ("model", "count", "index", "memory", "numa", "nvlink", "mig", "lost", "xid")


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A MIG partition to be made: `2g.12gb` is two slices of the compute and 12 GB."""

    profile: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class CardDescription:
    """One card to be simulated."""

    index: int
    model: CardModel
    memory_mib: int
    numa: int | None = None
    #: Index of the other card, and lanes to it.
    links: tuple[tuple[int, int], ...] = ()
    #: The links go to a switch, so each one reaches every other card.
    switched: bool = False
    #: None: MIG mode is off.
    mig: tuple[PartitionDescription, ...] | None = None
    lost: bool = False
    xid: int | None = None


def parse_cards(value: object, *, where: str = "gpus") -> tuple[CardDescription, ...]:
    """The cards a text or a list describes, by index. `where` begins the message of a DescriptionError."""
    if isinstance(value, str):
        entries: Sequence[object] = _short(value, where)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        entries = value
    else:
        raise DescriptionError(f"{where}: {shown(value)} is neither text nor a list: {_HOW}")
    if len(entries) > MAX_CARDS:
        raise DescriptionError(f"{where}: {len(entries)} entries, and a node has at most {MAX_CARDS} cards: shorten it")
    cards: dict[int, CardDescription] = {}
    for number, entry in enumerate(entries):
        place = where if isinstance(value, str) else f"{where}[{number}]"
        for card in _entry(entry, first=max(cards, default=-1) + 1, where=place):
            if card.index in cards:
                raise DescriptionError(f"{place}: index {card.index} is taken: choose another, or leave index out")
            cards[card.index] = card
        if len(cards) > MAX_CARDS:
            raise DescriptionError(f"{place}: more than {MAX_CARDS} cards on one node: describe fewer")
    return tuple(cards[index] for index in sorted(cards))


def _short(text: str, where: str) -> list[object]:
    if len(text) > MAX_LENGTH:
        raise DescriptionError(f"{where}: {shown(text)} is longer than {MAX_LENGTH} characters: {_HOW}")
    entries: list[object] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _SHORT.fullmatch(part)
        if match is None:
            raise DescriptionError(f"{where}: {shown(part)} cannot be read: {_HOW}")
        entries.append({"model": match["model"], "count": int(match["count"] or 1)})
    return entries


def _entry(entry: object, *, first: int, where: str) -> list[CardDescription]:
    if isinstance(entry, str):
        cards: list[CardDescription] = []
        for part in _short(entry, where):
            cards += _entry(part, first=first + len(cards), where=where)
        return cards
    if not isinstance(entry, Mapping):
        raise DescriptionError(f"{where}: {shown(entry)} is not a card: write model, and what differs from the model")
    for key in entry:
        if key not in _KEYS:
            raise DescriptionError(f"{where}: {shown(key)} is not known here: use {', '.join(_KEYS)}")
    model = _model(entry.get("model"), where)
    count = _integer(entry, "count", where, low=1, high=MAX_CARDS, default=1)
    begin = _integer(entry, "index", where, low=0, high=MAX_INDEX, default=first)
    if begin + count - 1 > MAX_INDEX:
        raise DescriptionError(f"{where}: the last index would be {begin + count - 1}: keep it to {MAX_INDEX}")
    numa = _numa(entry.get("numa"), count, where)
    memory = _memory(entry.get("memory"), model, where)
    partitions = _mig(entry.get("mig"), model, memory, where)
    lanes = _lanes(entry, model, count, where)
    lost = entry.get("lost", False)
    if not isinstance(lost, bool):
        raise DescriptionError(f"{where}.lost: {shown(lost)} is neither true nor false: write one of them")
    xid = None if entry.get("xid") is None else _integer(entry, "xid", where, low=1, high=999, default=1)
    indices = range(begin, begin + count)
    return [
        CardDescription(
            index=index,
            model=model,
            memory_mib=memory,
            numa=numa[index - begin],
            links=tuple((peer, lanes) for peer in indices if lanes and peer != index),
            switched=entry.get("nvlink") == SWITCH,
            mig=partitions,
            lost=lost,
            xid=xid,
        )
        for index in indices
    ]


def _model(value: object, where: str) -> CardModel:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_LENGTH:
        raise DescriptionError(f"{where}.model: {shown(value)} is not a model: use one of {', '.join(keys())}")
    text = value.strip()
    match = _SIZED.fullmatch(text)
    rows = named(match["name"]) if match else named(text)
    if not rows:
        spelled = {key.upper(): key for key in keys()}
        close = difflib.get_close_matches(text.upper(), spelled, n=3, cutoff=0.5)
        known = [spelled[key] for key in close] or keys()
        raise DescriptionError(f"{where}: there is no model {shown(text)} to simulate: use {', '.join(known)}")
    if match is None:
        return rows[0]
    for row in rows:
        if row.gigabytes == int(match["size"]):
            return row
    raise DescriptionError(
        f"{where}: {rows[0].name} is not made with {int(match['size'])} GB: use {', '.join(keys(rows))}, "
        "or set memory in a cluster file"
    )


def _memory(value: object, model: CardModel, where: str) -> int:
    if value is None:
        return model.memory_mib
    try:
        mib = quantity.mebibytes(value, round_up=False)
    except QuantityError as error:
        raise DescriptionError(f"{where}.memory: {error}") from error
    if not MIN_MEMORY_MIB <= mib <= MAX_MEMORY_MIB:
        raise DescriptionError(f"{where}.memory: {shown(value)} is not between 1Gi and 2Ti: write a size such as 24Gi")
    return mib


def _numa(value: object, count: int, where: str) -> list[int | None]:
    listed = value if isinstance(value, list | tuple) else [value] * count
    if len(listed) != count:
        raise DescriptionError(
            f"{where}.numa: {len(listed)} numbers for {count} cards: write one for each, or one alone"
        )
    for number in listed:
        if number is not None and not _is_integer(number, 0, MAX_NUMA):
            raise DescriptionError(f"{where}.numa: {shown(number)} is not a NUMA node: write a number such as 0")
    return list(listed)


def _mig(value: object, model: CardModel, memory_mib: int, where: str) -> tuple[PartitionDescription, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) > MIG_COMPUTE_SLICES:
        raise DescriptionError(f"{where}.mig: {shown(value)} is not a short list of profiles: write [1g.6gb, 2g.12gb]")
    if not model.mig_slices:
        raise DescriptionError(
            f"{where}.mig: {model.key} cannot be cut: leave mig out, or use an A30, A100, H100, H200"
        )
    partitions = []
    slices = 0
    for profile in value:
        match = _PROFILE.fullmatch(profile) if isinstance(profile, str) else None
        if match is None:
            raise DescriptionError(f"{where}.mig: {shown(profile)} is not a profile: write it as 1g.6gb")
        slices += int(match["slices"])
        partitions.append(PartitionDescription(match[0], int(match["gb"]) * 1000**3 // 2**20))
    most = min(MIG_COMPUTE_SLICES, model.mig_slices)
    if slices > most or sum(partition.memory_mib for partition in partitions) > memory_mib:
        raise DescriptionError(
            f"{where}.mig: more than the {most} slices and {memory_mib} MiB of {model.key}: use fewer or smaller ones"
        )
    return tuple(partitions)


def _lanes(entry: Mapping[object, object], model: CardModel, count: int, where: str) -> int:
    if entry.get("nvlink") == SWITCH and model.nvlinks:
        return model.nvlinks
    lanes = _integer(entry, "nvlink", where, low=0, high=36, default=0)
    if lanes * (count - 1) > model.nvlinks:
        raise DescriptionError(
            f"{where}.nvlink: {lanes} lanes to each of {count - 1} others, and {model.key} has {model.nvlinks} "
            "NVLinks: use fewer lanes or cards"
        )
    return lanes


def _integer(entry: Mapping[object, object], key: str, where: str, *, low: int, high: int, default: int) -> int:
    value = entry.get(key, default)
    if not _is_integer(value, low, high):
        raise DescriptionError(f"{where}.{key}: {shown(value)} is not a whole number from {low} to {high}: write one")
    assert isinstance(value, int)
    return value


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
