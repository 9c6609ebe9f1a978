"""Selectors: the table of expressions, and what hostile ones run into."""

import contextlib
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.objects.claims import SliceDevice
from shoal.scheduler.claims.costs import Meter
from shoal.scheduler.claims.errors import EvaluationError, SelectorError
from shoal.scheduler.claims.selectors import DeviceValues, Selector

TABLE = yaml.safe_load((Path(__file__).parent / "cases" / "selectors.yaml").read_text())
CASES = [(device, expected, text) for device, cases in TABLE["cases"].items() for expected, text in cases]


def values(name: str) -> DeviceValues:
    known = TABLE["devices"][name]
    return DeviceValues(msgspec.convert(known["device"], SliceDevice), known["driver"])


def answer(expression: str, device: str) -> object:
    try:
        return Selector(expression).accepts(values(device), Meter())
    except (SelectorError, EvaluationError):
        return "error"


@pytest.mark.parametrize(("device", "expected", "expression"), CASES, ids=[text for _, _, text in CASES])
def test_an_expression_says_of_a_device_what_the_table_says(device: str, expected: object, expression: str) -> None:
    assert answer(expression, device) == expected


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("x" * 20_000, "longer than 10240"),
        ("(" * 60 + "true" + ")" * 60, "nested more than 50"),
        ("1" + "+1" * 60 + " == 1", "operators in a row"),
        ("[" + ",".join(["1"] * 3000) + "] == []", "more than 2000 parts"),
        ('device.attributes["a"].x.matches("(?=a)b")', "which RE2 refuses"),
        ('device.attributes["a"].x.matches("(a)\\\\1")', "which RE2 refuses"),
        ('device.attributes["a"].x.matches("(")', "which RE2 refuses"),
        ('device.attributes["a"].x.matches("((a{100}){100}){100}")', "which RE2 refuses"),
        (f'device.attributes["a"].x.matches("{"a" * 300}")', "more than 256 characters"),
        ("||".join([f'device.driver.matches("a{{{n}}}")' for n in range(300, 500)]), "too large together"),
        ("device.attributes['a'].x.matches(device.driver)", "not written out"),
        ('ip("10.0.0.1") == ip("10.0.0.1")', "uses ip(), which is not supported"),
        ('device.attributes["a"].names.includes("x")', "uses includes(), which is not supported"),
        ("1u == 1u", "unsigned"),
        ("b'a' == b'a'", "bytes"),
        ("Foo{a: 1} == 1", "message"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_expression_and_the_reason(expression: str, why: str) -> None:
    with pytest.raises(SelectorError, match="selector") as refused:
        Selector(expression)
    assert why in str(refused.value)
    assert expression[:8] in str(refused.value)
    assert len(str(refused.value)) < 2_000


@pytest.mark.parametrize(
    "expression",
    [
        "[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, [1,2,3,4,5,6,7,8].all(d, "
        "[1,2,3,4,5,6,7,8].all(e, a + b + c + d + e > 0)))))",
        'cel.bind(a, "0123456789", cel.bind(b, a+a+a+a+a+a+a+a, cel.bind(c, b+b+b+b+b+b+b+b, '
        "cel.bind(d, c+c+c+c+c+c+c+c, cel.bind(e, d+d+d+d+d+d+d+d, e+e+e+e+e+e+e+e == '')))))",
        '"aaaaaaaaaa".replace("", "0123456789").replace("", "0123456789").replace("", "0123456789")'
        '.replace("", "0123456789").replace("", "0123456789") == ""',
    ],
)
def test_an_expression_that_costs_too_much_ends(expression: str) -> None:
    with pytest.raises(EvaluationError, match="costs more than"):
        Selector(expression).accepts(values("bare"), Meter())


def device_with(**attributes: str) -> DeviceValues:
    made = {"attributes": {name: {"string": value} for name, value in attributes.items()}}
    return DeviceValues(msgspec.convert(made, SliceDevice), "d")


def test_devices_that_an_expression_cannot_tell_apart_are_evaluated_once() -> None:
    asked = Selector('device.attributes["d"].model == "A100"')
    spent = []
    for number in range(3):
        meter = Meter()
        assert asked.accepts(device_with(model="A100", uuid=str(number)), meter)
        spent.append(meter.spent)
    assert spent[0] > spent[1] == spent[2] > 0


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["d"].exists(x, x == "seen")',
        'device.attributes["d"].size() == 2',
        '[device.attributes["d"]] == [{"model": "A100", "seen": "1"}]',
        '{"model": "A100", "seen": "1"} == device.attributes["d"]',
        'device.attributes["d"] in [{"model": "A100", "seen": "1"}]',
        'cel.bind(name, "se" + "en", name in device.attributes["d"])',
        'device.attributes["d"][?("se" + "en")].hasValue()',
        '"seen" in device.attributes["d"]',
        'has(device.attributes["d"].seen)',
    ],
)
def test_devices_that_an_expression_can_tell_apart_are_told_apart(expression: str) -> None:
    asked = Selector(expression)
    plain, seen = {"model": {"string": "A100"}}, {"model": {"string": "A100"}, "seen": {"string": "1"}}
    said = [
        asked.accepts(DeviceValues(msgspec.convert({"attributes": attributes}, SliceDevice), "d"), Meter())
        for attributes in (plain, seen)
    ]
    assert said == [False, True]


@given(
    st.text(alphabet=st.sampled_from(list('device.attributes["x"]()[]{}?:!&|=<>+-*/%,0123456789 "\'\\rn')), max_size=80)
)
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with contextlib.suppress(SelectorError, EvaluationError):
        Selector(text).accepts(values("a100"), Meter())
