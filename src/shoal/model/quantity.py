"""Kubernetes quantities: `500m`, `1.5Gi`, `3`, `2e3`, read exactly.

Values are fractions, never floats, so sums and roundings are those of Kubernetes. Two of its habits are left out: it
caps a quantity at 2^63-1 and rounds one finer than a nano up; here the value stays what was written. Rounding to the
unit of use (`milli`, `mebibytes`) gives the same number either way.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

from shoal.model.errors import QuantityError, shown

#: Longest text that is read. Kubernetes' own canonical form needs 20 characters.
MAX_LENGTH = 64
#: Largest exponent, up or down, in `1e64`: beyond it a number is a mistake or an attack.
MAX_EXPONENT = 64
MAX_BITS = 256

MEBIBYTE = 2**20

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
#: Longest numbers that Kubernetes keeps as they were written, and what it cuts binary ones off at.
_DECIMAL_PLACES = 18
_BINARY_PLACES = 15
_MAX_BINARY = 2**63 - 1
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_SUFFIXES = {
    **{suffix: Fraction(10) ** power for suffix, power in _DECIMAL.items()},
    **{suffix: Fraction(1024) ** power for suffix, power in _BINARY.items()},
}
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<decimals>[0-9]*))?"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_HOW = "write a number with an optional suffix (n u m k M G T P E, or Ki Mi Gi Ti Pi Ei), such as 500m, 3 or 1.5Gi"


def parse(value: object) -> Fraction:
    """The exact value of a quantity as it stands in a manifest: text or a JSON number."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, str):
        if len(value) > MAX_LENGTH:
            raise QuantityError(f"quantity {shown(value)} is longer than {MAX_LENGTH} characters: {_HOW}")
        return _parse_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > MAX_BITS:
            raise QuantityError(f"quantity {shown(value)} is too large: {_HOW}")
        return Fraction(value)
    if isinstance(value, float) and math.isfinite(value):
        # The shortest text of a float is what the manifest said; its binary value is not.
        return _parse_text(repr(value))
    raise QuantityError(f"quantity {shown(value)} is not a number: {_HOW}")


@lru_cache(maxsize=4096)
def _parse_text(text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    whole, decimals = (match["whole"], match["decimals"] or "") if match else ("", "")
    if match is None or not (whole or decimals):
        raise QuantityError(f"quantity {shown(text)} cannot be read: {_HOW}")
    number = Fraction(int(whole + decimals), 10 ** len(decimals))
    if match["sign"] == "-":
        number = -number
    if match["exponent"] is None:
        return number * _SUFFIXES[match["suffix"] or ""]
    exponent = int(match["exponent"])
    if abs(exponent) > MAX_EXPONENT:
        raise QuantityError(f"quantity {shown(text)} has an exponent beyond {MAX_EXPONENT}: {_HOW}")
    return number * Fraction(10) ** exponent


def milli(value: object, *, round_up: bool = True) -> int:
    """Thousandths, as CPU is counted; what a pod asks for is rounded up, what a node offers down."""
    return _rounded(parse(value) * 1000, round_up)


def mebibytes(value: object, *, round_up: bool = True) -> int:
    """Bytes in MiB; what a pod asks for is rounded up, what a node offers down."""
    return _rounded(parse(value) / MEBIBYTE, round_up)


def whole(value: object) -> int:
    """The value of a quantity that must be an integer, as every extended resource is."""
    number = parse(value)
    if number.denominator != 1:
        raise QuantityError(f"quantity {shown(value)} is not a whole number: write {math.ceil(number)}")
    return number.numerator


def canonical(value: object, *, binary: bool = False) -> str:
    """The text Kubernetes writes for a quantity: the largest suffix that leaves a whole number.

    Like Kubernetes, anything finer than a nano is rounded away from zero, and `binary` (memory) drops fractions of a
    byte the same way and falls back to plain numbers below 1024.
    """
    number = parse(value)
    if binary and abs(number) >= 1024:
        size = _away_from_zero(number)
        suffix = next((s for s, power in reversed(_BINARY.items()) if size % 1024**power == 0), "")
        return f"{size // 1024 ** _BINARY.get(suffix, 0)}{suffix}"
    nanos = _away_from_zero(number * 10**9)
    if nanos == 0:
        return "0"
    suffix, power = next((s, p) for s, p in reversed(_DECIMAL.items()) if nanos % 10 ** (p + 9) == 0)
    return f"{nanos // 10 ** (power + 9)}{suffix}"


def stored(value: object) -> str:
    """The text the API server keeps of a resource's amount: as written where that is canonical enough for it.

    Otherwise it writes the canonical text with suffixes of the kind that was written: `1.5G` becomes `1500M`,
    `10240Mi` becomes `10Gi`, `1000e3` becomes `1e6`. What is finer than a thousandth is rounded away from zero.
    """
    number = Fraction(_away_from_zero(parse(value) * 1000), 1000)
    written = str(value)
    match = _QUANTITY.fullmatch(written)
    if match is None:  # a Fraction
        return canonical(number)
    suffix, exponent, decimals = match["suffix"] or "", match["exponent"], match["decimals"] or ""
    digits = (match["whole"].lstrip("0") or "0") + decimals
    if suffix in _BINARY:
        kept = not decimals and len(digits) + 3 * _BINARY[suffix] + 1 <= _BINARY_PLACES and int(digits) % 8 != 0
        return written if kept else canonical(min(number, Fraction(_MAX_BINARY)), binary=number.denominator == 1)
    power = (_DECIMAL[suffix] if exponent is None else int(exponent)) - len(decimals)
    kept = len(digits) <= _DECIMAL_PLACES and power >= -3 and power % 3 == 0 and not digits.endswith("000")
    if kept and not digits.startswith("0"):
        return written
    text = canonical(number)
    suffix = text.lstrip("-0123456789")
    return text if exponent is None or not suffix else f"{text.removesuffix(suffix)}e{_DECIMAL[suffix]}"


def _rounded(number: Fraction, up: bool) -> int:
    return math.ceil(number) if up else math.floor(number)


def _away_from_zero(number: Fraction) -> int:
    return math.ceil(number) if number > 0 else math.floor(number)
