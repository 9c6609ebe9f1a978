from __future__ import annotations

import math
import time
from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model import quantity
from shoal.model.errors import QuantityError
from tests.model.strategies import junk

KI = 1024


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("3", 3),
        ("+1", 1),
        ("-1", -1),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("-.5", Fraction(-1, 2)),
        ("007", 7),
        ("100n", Fraction(1, 10**7)),
        ("250u", Fraction(1, 4000)),
        ("250m", Fraction(1, 4)),
        ("3k", 3000),
        ("2M", 2 * 10**6),
        ("10G", 10**10),
        ("1T", 10**12),
        ("1P", 10**15),
        ("2E", 2 * 10**18),
        ("1Ki", KI),
        ("6400Mi", 6400 * KI**2),
        ("1.5Gi", 3 * KI**3 // 2),
        ("1Ti", KI**4),
        ("1Pi", KI**5),
        ("1Ei", KI**6),
        ("0.1Ki", Fraction(1024, 10)),
        ("2e3", 2000),
        ("2E3", 2000),
        ("2e+3", 2000),
        ("25e-1", Fraction(5, 2)),
        ("1.5e2", 150),
        ("1e003", 1000),
        (3, 3),
        (1.5, Fraction(3, 2)),
        (0.1, Fraction(1, 10)),
        (1e22, 10**22),
    ],
)
def test_reads_what_kubernetes_reads(text: object, value: int | Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "+", "-", "+.", "1 ", " 1", "1 Gi", "--1", "1..2", "1.2.3", "1K", "1ki", "1mi", "1g", "1Gib"),
        *(
            "1e",
            "1e+",
            "1e1.5",
            "1e5Gi",
            "0x10",
            "1_000",
            "1,5",
            "NaN",
            "inf",
            "∞",
            "٣",
            "१Gi",
            "Gi",
            "m",
            "1\n",
            "1GiGi",
        ),
        *(None, True, False, b"1", [], {}, object(), float("nan"), float("inf")),
    ],
)
def test_refuses_the_rest(text: object) -> None:
    with pytest.raises(QuantityError, match=r"quantity .*: write a number"):
        quantity.parse(text)


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param("1e999999999", id="exponent"),
        pytest.param("1e-999999999", id="negative exponent"),
        pytest.param("1E65", id="just beyond"),
        pytest.param("9" * 10_000_000, id="10 MB"),
        pytest.param("1e" + "9" * 60, id="long exponent"),
        pytest.param("0." + "0" * 70, id="long fraction"),
        pytest.param(10**5000, id="big int"),
        pytest.param(1e300, id="big float"),
    ],
)
def test_refuses_bombs_at_once(bomb: object) -> None:
    started = time.perf_counter()
    with pytest.raises(QuantityError) as error:
        quantity.parse(bomb)
    assert time.perf_counter() - started < 1
    assert len(str(error.value)) < 300


def test_error_names_value_and_fix() -> None:
    with pytest.raises(QuantityError, match=r"quantity '3 GiB' cannot be read: write .* such as .*1\.5Gi"):
        quantity.parse("3 GiB")
    with pytest.raises(QuantityError, match=r"'1500m' is not a whole number: write 2"):
        quantity.whole("1500m")


@pytest.mark.parametrize(
    ("value", "milli"), [("250m", 250), ("1", 1000), ("0.1m", 1), ("1n", 1), ("1.0001", 1001), ("0", 0)]
)
def test_cpu_rounds_up(value: str, milli: int) -> None:
    assert quantity.milli(value) == milli


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [("5000Mi", 5000, 5000), ("1", 1, 0), ("1Mi", 1, 1), ("1048577", 2, 1), ("1G", 954, 953), ("0", 0, 0)],
)
def test_memory_rounds_as_told(value: str, up: int, down: int) -> None:
    assert quantity.mebibytes(value) == up
    assert quantity.mebibytes(value, round_up=False) == down


@pytest.mark.parametrize(("value", "number"), [("3", 3), ("3k", 3000), ("2e3", 2000), ("1000m", 1), ("3.0", 3), (7, 7)])
def test_whole(value: object, number: int) -> None:
    assert quantity.whole(value) == number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1000", "1k"),
        ("3500", "3500"),
        ("1500", "1500"),
        ("1.5", "1500m"),
        ("0.0000000001", "1n"),
        ("-0.0000000001", "-1n"),
        ("0", "0"),
        ("10000M", "10G"),
        ("1e21", "1000E"),
        ("-2500", "-2500"),
    ],
)
def test_canonical_decimal(value: str, text: str) -> None:
    assert quantity.canonical(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("1.5Gi", "1536Mi"), ("1023", "1023"), ("1024", "1Ki"), ("2000", "2000"), ("0.5Gi", "512Mi"), ("2048Mi", "2Gi")],
)
def test_canonical_binary(value: str, text: str) -> None:
    assert quantity.canonical(value, binary=True) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((3, "3"), (16000, "16k"), (1.5, "1500m"), ("0", "0"), ("+4", "+4"), ("010", "010"), ("-1", "-1")),
        *(("10G", "10G"), ("+010G", "+010G"), ("1.5G", "1500M"), ("1.500G", "1.500G"), ("0.500G", "500M")),
        *(
            ("10000M", "10G"),
            ("12000E3", "12e6"),
            ("10e9", "10e9"),
            ("1E3", "1E3"),
            ("12e2", "1200"),
            ("5e-1", "500e-3"),
        ),
        *(("10Gi", "10Gi"), ("10240Mi", "10Gi"), ("1025Mi", "1025Mi"), ("1.5Gi", "1536Mi"), ("8Ki", "8Ki")),
        *(("512Ki", "512Ki"), ("0.5Ki", "512"), (".001Gi", "1073741824m"), ("99999999999Gi", "9223372036854775807")),
        *(("1.5m", "2m"), ("-1.5m", "-2m"), ("16n", "1m"), ("1.0005", "1001m")),
    ],
)
def test_stored(value: object, text: str) -> None:
    assert quantity.stored(value) == text


SUFFIXES = {
    **dict(
        zip(
            ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], (Decimal(10) ** p for p in range(-9, 19, 3)), strict=True
        )
    ),
    **{s: Decimal(2) ** (10 * p) for p, s in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], start=1)},
    **{f"e{p}": Decimal(10) ** p for p in range(-20, 21)},
    **{f"E+{p}": Decimal(10) ** p for p in range(21)},
}


@given(
    st.sampled_from(["", "+", "-"]),
    st.from_regex(r"[0-9]{1,18}(\.[0-9]{0,9})?|\.[0-9]{1,9}", fullmatch=True),
    st.sampled_from(sorted(SUFFIXES)),
)
def test_agrees_with_decimal_arithmetic(sign: str, number: str, suffix: str) -> None:
    exact = Context(prec=200)
    expected = exact.multiply(Decimal(sign + number), SUFFIXES[suffix])
    assert quantity.parse(sign + number + suffix) == Fraction(expected)
    assert quantity.milli(sign + number + suffix) == math.ceil(Fraction(exact.multiply(expected, Decimal(1000))))


@given(st.integers(-(2**63), 2**63))
def test_canonical_text_reads_back(nanos: int) -> None:
    value = Fraction(nanos, 10**9)
    text = quantity.canonical(value)
    assert quantity.parse(text) == value
    assert quantity.canonical(text) == text


@given(st.integers(-(2**63), 2**63))
def test_canonical_binary_text_reads_back(size: int) -> None:
    assert quantity.parse(quantity.canonical(size, binary=True)) == size


@given(junk | st.from_regex(r"[-+.0-9eEinumkKMGTP]{0,12}", fullmatch=True))
def test_raises_nothing_but_its_own_error(value: object) -> None:
    for read in (quantity.parse, quantity.milli, quantity.mebibytes, quantity.whole, quantity.canonical):
        try:
            read(value)
        except QuantityError:
            continue
