"""The cards that can be simulated: one row a model and memory size.

Names, memory, cores, clocks, bus widths, power limits and temperatures are close to what drivers report of such cards,
but were neither measured nor checked one by one; the memory that driver and firmware keep and the idle power are round
numbers of the right size. Good enough to simulate with, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

# links: NVLinks of the card, to peers or to a switch. MIG: slices of memory it can be cut into. Marks: e has ECC, f has
# a fan of its own (servers cool the others). Temperatures: slows down, switches off, should not pass.
_TABLE: Final = """
name        GB    MiB  kept   cc  cores  SM-MHz  mem-MHz  bits     W  idle  links  MIG  marks  temperatures  product
P100        16  16384   256  6.0   3584    1328      715  4096   250    26      0    0  e      82/85/75      Tesla P100-PCIE-16GB
V100        16  16384   384  7.0   5120    1530      877  4096   300    42      6    0  e      87/90/83      Tesla V100-SXM2-16GB
V100        32  32768   384  7.0   5120    1530      877  4096   300    42      6    0  e      87/90/83      Tesla V100-SXM2-32GB
T4          16  15360   448  7.5   2560    1590     5001   256    70    10      0    0  e      93/96/85      Tesla T4
RTX2080Ti   11  11264   256  7.5   4352    2100     7000   352   250    15      0    0  f      91/94/89      NVIDIA GeForce RTX 2080 Ti
A100        40  40960   640  8.0   6912    1410     1215  5120   400    50     12    8  e      89/92/85      NVIDIA A100-SXM4-40GB
A100        80  81920   640  8.0   6912    1410     1593  5120   400    55     12    8  e      89/92/85      NVIDIA A100-SXM4-80GB
A30         24  24576   512  8.0   3584    1440     1215  3072   165    28      4    4  e      90/93/85      NVIDIA A30
A40         48  46068   640  8.6  10752    1740     7251   384   300    30      4    0  e      95/98/88      NVIDIA A40
A10         24  23028   512  8.6   9216    1695     6251   384   150    16      0    0  e      95/98/88      NVIDIA A10
A16         16  15356   448  8.6   1280    1695     6251   128    62    15      0    0  e      95/98/88      NVIDIA A16
A2          16  15356   448  8.6   1280    1770     6251   128    60     6      0    0  e      95/98/88      NVIDIA A2
RTXA6000    48  49140   640  8.6  10752    2100     8001   384   300    22      4    0  ef     95/98/93      NVIDIA RTX A6000
RTX3090     24  24576   384  8.6  10496    2100     9751   384   350    25      4    0  f      95/98/93      NVIDIA GeForce RTX 3090
L4          24  23034   512  8.9   7424    2040     6251   192    72    12      0    0  e      95/98/85      NVIDIA L4
L40         48  46068   640  8.9  18176    2490     9001   384   300    35      0    0  e      95/98/88      NVIDIA L40
L40S        48  46068   640  8.9  18176    2520     9001   384   350    35      0    0  e      95/98/88      NVIDIA L40S
RTX4090     24  24564   384  8.9  16384    3105    10501   384   450    20      0    0  f      92/97/90      NVIDIA GeForce RTX 4090
RTX6000Ada  48  49140   640  8.9  18176    3105    10001   384   300    22      0    0  ef     95/98/92      NVIDIA RTX 6000 Ada Generation
H100        80  81559   640  9.0  16896    1980     2619  5120   700    70     18    8  e      87/92/83      NVIDIA H100 80GB HBM3
H100NVL     94  95830   640  9.0  16896    1785     2619  6016   400    60     12    8  e      87/92/83      NVIDIA H100 NVL
H200       141 143771   640  9.0  16896    1980     3201  6144   700    75     18    8  e      87/92/83      NVIDIA H200
B200       180 183359   768 10.0  18944    1965     3996  8192  1000   140     18    8  e      87/92/83      NVIDIA B200
RTX5090     32  32607   384 12.0  21760    3090    14001   512   575    25      0    0  f      92/97/90      NVIDIA GeForce RTX 5090
RTXPRO6000  96  97887   640 12.0  24064    2430    12481   512   600    35      0    4  e      92/97/90      NVIDIA RTX PRO 6000 Blackwell Server Edition
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class CardModel:
    """A kind of card."""

    #: As people write it, `A100`, and the size in GB that its seller gives: together they name the row.
    name: str
    gigabytes: int
    #: As the driver names it.
    product: str
    memory_mib: int
    reserved_mib: int
    compute_capability: tuple[int, int]
    cores: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    bus_width_bits: int
    power_w: int
    idle_w: int
    nvlinks: int
    mig_slices: int
    ecc: bool
    fan: bool
    slowdown_c: int
    shutdown_c: int
    max_c: int

    @property
    def key(self) -> str:
        """What a description writes: `A100-80G`."""
        return f"{self.name}-{self.gigabytes}G"


def _rows() -> Iterator[CardModel]:
    for line in _TABLE.strip().splitlines()[1:]:
        name, *cells, capability, cores, sm, memory, bits, watts, idle, links, mig, marks, degrees, product = _cells(
            line
        )
        size, mib, kept = map(int, cells)
        major, minor = map(int, capability.split("."))
        slowdown, shutdown, highest = map(int, degrees.split("/"))
        yield CardModel(
            name=name,
            gigabytes=size,
            product=product,
            memory_mib=mib,
            reserved_mib=kept,
            compute_capability=(major, minor),
            cores=int(cores),
            sm_clock_mhz=int(sm),
            memory_clock_mhz=int(memory),
            bus_width_bits=int(bits),
            power_w=int(watts),
            idle_w=int(idle),
            nvlinks=int(links),
            mig_slices=int(mig),
            ecc="e" in marks,
            fan="f" in marks,
            slowdown_c=slowdown,
            shutdown_c=shutdown,
            max_c=highest,
        )


def _cells(line: str) -> list[str]:
    return line.split(maxsplit=len(_TABLE.split("\n", 2)[1].split()) - 1)


MODELS: Final[tuple[CardModel, ...]] = tuple(_rows())


def named(name: str) -> tuple[CardModel, ...]:
    """All sizes of a model, smallest first; none when there is no such model. Case, `-`, `_`, blanks do not count."""
    wanted = _plain(name)
    return tuple(sorted((row for row in MODELS if _plain(row.name) == wanted), key=lambda row: row.gigabytes))


def keys(rows: Iterable[CardModel] = MODELS) -> tuple[str, ...]:
    """What a description may write, in the table's order."""
    return tuple(row.key for row in rows)


def _plain(name: str) -> str:
    return name.lower().translate({ord(mark): None for mark in " -_"})
