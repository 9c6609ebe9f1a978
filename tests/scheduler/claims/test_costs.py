"""What hostile claims cost is counted and bounded: for one device, for one pod and for one namespace.

Nothing here looks at a clock: every bound is in units of cost, and a test asserts how many were spent. Sizes are such
that an evaluation without a budget would still end.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from shoal.kube.objects.claims import SliceDevice
from shoal.scheduler.claims import patterns
from shoal.scheduler.claims.costs import NAMESPACE_RATE, POD_LIMIT, ClaimCosts, Meter
from shoal.scheduler.claims.errors import EvaluationError, NamespaceCostError, PodCostError, SelectorError
from shoal.scheduler.claims.evaluation import BUDGET
from shoal.scheduler.claims.expressions import MAX_NODES
from shoal.scheduler.claims.selectors import DeviceValues, Selector, Selectors
from tests.scheduler.claims.world import World, asks

#: What one evaluation may cost at most: its budget, and one pass through the tree.
MOST = BUDGET + MAX_NODES + 100


def device(number: int = 0) -> DeviceValues:
    raw = {"name": "gpu", "attributes": {"uuid": {"string": f"GPU-{number}"}}}
    return DeviceValues(msgspec.convert(raw, SliceDevice), "d")


def bound(first: str, grow: str, times: int, body: str) -> str:
    """A value that grows with each `cel.bind`: `$` in `grow` is the value before, and in `body` the last one."""
    text = f"cel.bind(v0, {first}, "
    for number in range(times):
        text += f"cel.bind(v{number + 1}, {grow.replace('$', f'v{number}')}, "
    return text + body.replace("$", f"v{times}") + ")" * (times + 1)


PAIRS = ("[1]", "[$, $]", 15)
MAPS = ('{"a": 1}', '{"a": $, "b": $}', 14)
TEXT = ("'aaaaaaaaaa'", "$ + $", 11)
LIST = ("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", "$ + $", 11)
HOSTILE = {
    "equal lists that share their parts": bound(*PAIRS, "$ == $"),
    "unequal lists that share their parts": bound(*PAIRS, "$ != $"),
    "a list in a list": bound(*PAIRS, "$ in [$]"),
    "equal maps that share their parts": bound(*MAPS, "$ == $"),
    "equal optionals": bound(*PAIRS, "optional.of($) == optional.of($)"),
    "long texts compared": bound(*TEXT, " && ".join(["$ == $"] * 20)),
    "long texts ordered": bound(*TEXT, " && ".join(["$ <= $"] * 20)),
    "long keys of maps": bound(*TEXT, " && ".join(["{$: 1}[$] == 1"] * 20)),
    "texts joined": bound(*TEXT, f"[{', '.join(['$'] * 50)}].join() != ''"),
    "texts replaced": bound(*TEXT, " && ".join(["$.replace('a', 'bbbbbbbbbb') != ''"] * 5)),
    "a text searched from its end": bound(*TEXT, "$.lastIndexOf('b' + $.substring(0, 10000)) < 0"),
    "a text searched": bound(*TEXT, "$.indexOf($.substring(0, 10000) + 'b') < 0"),
    "a text split": bound(*TEXT, "&&".join(["$.split('ab').size() == 1"] * 20)),
    "errors that || absorbs": bound(*LIST, " || ".join(["$.exists(x, x > 10)"] * 20)),
    "loops in loops": "[1,2,3,4,5,6,7,8].all(a, " * 5 + "true" + ")" * 5,
    "quantities in loops": bound(*LIST, "$.all(x, quantity('1e-60').add(quantity('1e60')).isInteger() || true)"),
    "a large regular expression on a long text": bound(*TEXT, "$.matches('(((a?){9}){9}){9}b')"),
}


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_expression_ends_with_its_budget(expression: str) -> None:
    meter = Meter()
    with pytest.raises(EvaluationError, match=f"costs more than {BUDGET} units for one device: make it simpler"):
        Selector(expression).accepts(device(), meter)
    assert BUDGET < meter.spent < MOST


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        (bound("[1]", "[$, $]", 6, "$ == $ && $ in [$]"), True),
        ('"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab".matches("^' + "(?:a|aa)" * 24 + '$")', False),
        ('"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".matches("^' + "(?:a|aa)" * 24 + '$")', True),
        ('"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab".matches("^(a+)+$")', False),
        ('"x1\\n".matches("^x[0-9]$")', False),
        ('"X\u00e9".matches("(?i)^x\\\\pL$")', True),
        ("'aAzZ\u00c4'.lowerAscii() == 'aazz\u00c4' && 'aAzZ\u00e4'.upperAscii() == 'AAZZ\u00e4'", True),
    ],
)
def test_an_expression_within_its_budget_has_an_answer(expression: str, answer: bool) -> None:
    meter = Meter()
    assert Selector(expression).accepts(device(), meter) is answer
    assert meter.spent < BUDGET


@pytest.mark.parametrize(
    "expression",
    [
        bound("[1]", "[$, $]", 16, "1[?$].hasValue()"),
        bound("[1]", "[$, $]", 16, "device.attributes[?$].hasValue()"),
        bound("[1]", "[$, $]", 16, "{'a': 1}[$] == 1"),
        bound("'aaaaaaaaaa'", "$ + $", 10, "{'a': 1}[$] == 1"),
    ],
)
def test_a_message_does_not_repeat_a_large_value(expression: str) -> None:
    with pytest.raises(EvaluationError) as refused:
        Selector(expression).accepts(device(), Meter())
    assert len(str(refused.value)) < 1_000


def test_an_expression_that_is_nested_too_deep_is_refused_in_words() -> None:
    deep = "(" * 40 + "device" + (".?a" * 45 + ")") * 40 + ".hasValue()"
    with pytest.raises(SelectorError, match="is nested too deep"):
        Selector(deep)


def test_what_reading_regular_expressions_costs_is_bounded() -> None:
    with pytest.raises(SelectorError, match="RE2 refuses"):
        patterns.size("((a{100}){100}){100}")
    assert patterns.cost("a" * 64, "^GPU-[0-9]+$") < BUDGET / 10


def test_reading_an_expression_is_charged_once() -> None:
    selectors, meter = Selectors(), Meter()
    expression = "device.driver == 'd' || " * 50 + "false"
    selectors.of(expression, meter)
    first = meter.spent
    assert first >= len(expression)
    selectors.of(expression, meter)
    assert meter.spent == first


def test_all_devices_together_cost_a_pod_no_more_than_its_limit() -> None:
    asked = Selector('["a"].exists(x, x == device.attributes["d"].uuid) || ' + "|| ".join(["false"] * 900))
    meter = Meter()

    def all_of_them() -> None:
        for number in range(POD_LIMIT):
            asked.accepts(device(number), meter)

    with pytest.raises(PodCostError, match=f"more than {POD_LIMIT} units: make their selectors simpler"):
        all_of_them()
    assert meter.spent < POD_LIMIT + MOST
    assert not asked.accepts(device(-1), Meter()), "another pod has a meter of its own"


def hostile(number: int) -> dict[str, Any]:
    """A request whose selector costs all of an evaluation's budget, on every device again."""
    costly = bound("[device.attributes['d']]", "[$, $]", 20, "$ == $")
    return asks("gpu", memory="1Gi", select=[f"{costly} || '{number}' == ''"])


def a_cluster(nodes: int = 8) -> World:
    world = World()
    for number in range(nodes):
        world.add_node(f"n{number}", 8)
    return world


def test_many_selectors_and_alternatives_cost_a_pod_no_more_than_its_limit() -> None:
    world = a_cluster()
    alternatives = [
        {"name": f"a{one}", **hostile(100 * request + one)["exactly"]} for request in range(8) for one in range(8)
    ]
    requests = [{"name": f"r{n}", "firstAvailable": alternatives[8 * n : 8 * n + 8]} for n in range(8)]
    with pytest.raises(PodCostError, match="make their selectors simpler, or ask for fewer requests and alternatives"):
        world.ask(*requests)


def test_a_search_for_devices_costs_a_pod_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_cluster(4)
    constraints = [{"matchAttribute": "x.dev/none", "requests": ["r7"]}]
    # Every device fits every request but the last one, for which none does.
    requests = [asks(f"r{n}", memory=f"{n + 1}Gi") for n in range(8)]
    pod = world.pod(world.claim(*requests, constraints=constraints))
    meter = Meter()
    monkeypatch.setattr(world.claims.allocator.costs, "begin", lambda namespace: meter)
    assert world.place(pod) is None
    assert meter.limit < meter.spent < meter.limit + 10_000


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_a_namespace_that_spends_more_than_its_share_waits_and_others_do_not() -> None:
    clock = Clock()
    costs = ClaimCosts(clock, lambda: 0)
    granted = 0
    for tenths in range(1_000):
        clock.time = tenths / 10
        with contextlib.suppress(NamespaceCostError):
            costs.begin("hostile").spend(POD_LIMIT)
            granted += POD_LIMIT
        costs.begin("honest").spend(NAMESPACE_RATE // 20)
    assert granted <= 100 * NAMESPACE_RATE + 2 * POD_LIMIT
    assert granted >= 100 * NAMESPACE_RATE - POD_LIMIT, "and it gets its share"


def test_debts_can_be_forgiven() -> None:
    costs = ClaimCosts(lambda: 0.0, lambda: 0)
    costs.begin("a").spend(POD_LIMIT)
    with pytest.raises(NamespaceCostError, match=r"namespace a .*; make selectors of claims there simpler"):
        costs.begin("a")
    costs.forgive()
    costs.begin("a")


def test_the_limit_of_a_pod_grows_with_the_devices() -> None:
    assert ClaimCosts(None, lambda: 10_000).begin("a").limit > ClaimCosts(None, lambda: 0).begin("a").limit
    world = a_cluster(2)
    assert world.claims.allocator.devices.count == 16
