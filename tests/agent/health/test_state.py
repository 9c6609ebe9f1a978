"""When a card is unhealthy: a table of stories, and what holds for every story."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.config import AgentConfig
from shoal.agent.errors import AgentConfigError
from shoal.agent.health.node_health import decode_faults, encode_faults
from shoal.agent.health.state import MAX_WORDS, RESET_XIDS, CardHealth, HealthRules, Look, rules
from shoal.gpu.protocol import CardEvent, EventKind
from shoal.model.contract import nvidia, shoal
from shoal.model.gpu import Gpu

CARD, OTHER = "GPU-1", "GPU-2"
CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())


def step(health: CardHealth, what: dict[str, Any], uuid: str = CARD) -> None:
    now = 1000.0 + what["at"]
    if "look" in what:
        health.look(uuid, Look(**what["look"]), now)
    elif "xid" in what:
        health.report(CardEvent(EventKind.XID, uuid, what["xid"]), now, ())
    else:
        kind = {"ecc": EventKind.ECC_UNCORRECTED, "lost": EventKind.LOST, "back": EventKind.BACK}
        health.report(CardEvent(next(kind[key] for key in kind if key in what), uuid), now, ())


def again(health: CardHealth, rule: HealthRules, now: float) -> CardHealth:
    """The state as the next process has it."""
    return CardHealth(rule, decode_faults(encode_faults(health.unhealthy), now))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_story(case: dict[str, Any]) -> None:
    health = CardHealth(HealthRules(hold=60))
    for what in case["steps"]:
        step(health, what)
        fault = health.faults.get(CARD, "none")
        assert what["faults"] in fault, f"at {what['at']}: {fault}"


# Properties

events = st.one_of(
    st.fixed_dictionaries({"xid": st.sampled_from([13, 31, 48, 63, 79, 94, 95, 119, 9999])}),
    st.fixed_dictionaries({"ecc": st.just(True)}),
    st.fixed_dictionaries({"lost": st.just(True)}),
    st.fixed_dictionaries({"back": st.just(True)}),
    st.fixed_dictionaries(
        {
            "look": st.fixed_dictionaries(
                {},
                optional={
                    "silent": st.sampled_from(["", "no answer"]),
                    "lost": st.booleans(),
                    "energy_mj": st.none() | st.integers(0, 1000),
                    "rows_pending": st.none() | st.booleans(),
                },
            )
        }
    ),
)
stories = st.lists(st.tuples(st.floats(0, 300), events), max_size=30)


def told(story: list[tuple[float, dict[str, Any]]], health: CardHealth) -> float:
    """Play a story; the moment of its end."""
    at = 0.0
    for pause, what in story:
        at += pause
        step(health, {"at": at, **what})
    return at


@given(stories)
def test_every_card_can_be_well_again(story: list[tuple[float, dict[str, Any]]]) -> None:
    health = CardHealth(HealthRules(hold=60))
    end = told(story, health)
    step(health, {"at": end, "look": {"energy_mj": 5000, "rows_pending": False}})
    step(health, {"at": end + 3600, "look": {"energy_mj": 1, "rows_pending": False}})
    assert health.faults == {}


@given(stories, st.sampled_from(sorted({48, 79, 94, 9999})), st.lists(st.floats(0, 59.9), max_size=5))
def test_no_card_is_well_within_the_hold_off(
    story: list[tuple[float, dict[str, Any]]], xid: int, looks: list[float]
) -> None:
    health = CardHealth(HealthRules(hold=60))
    end = told(story, health)
    step(health, {"at": end, "xid": xid})
    for pause in sorted(looks):
        step(health, {"at": end + pause, "look": {"energy_mj": 0, "rows_pending": False}})
        assert f"XID {xid}" in health.faults[CARD]


@given(stories)
def test_one_card_says_nothing_about_another(story: list[tuple[float, dict[str, Any]]]) -> None:
    health = CardHealth(HealthRules(hold=60))
    told(story, health)
    assert OTHER not in health.faults


@given(stories)
def test_what_applications_cause_never_counts(story: list[tuple[float, dict[str, Any]]]) -> None:
    mild = [(pause, {"xid": 31} if "xid" in what or "look" in what else {"back": True}) for pause, what in story]
    health = CardHealth(HealthRules(hold=60))
    told(mild, health)
    assert health.faults == {}


@given(stories, stories)
def test_a_restart_makes_no_card_well(
    before: list[tuple[float, dict[str, Any]]], after: list[tuple[float, dict[str, Any]]]
) -> None:
    """At the moment of the restart nothing remembered is lost; later, what was reported is not over sooner."""
    rule = HealthRules(hold=60)
    health = CardHealth(rule)
    end = told(before, health)
    next_one = again(health, rule, 1000.0 + end)
    kept = {
        uuid
        for uuid, card in health.unhealthy.items()
        if any(fault.cause.value in ("xid", "ecc", "lost") for fault in card.faults)
    }
    assert set(next_one.faults) == kept
    step(next_one, {"at": end, "look": {"energy_mj": 0}})
    for uuid in kept:
        latest = max(fault.seen for fault in health.unhealthy[uuid].faults if fault.cause.value != "silent")
        if 1000.0 + end - latest < 60:
            assert uuid in next_one.faults


@given(stories)
def test_the_words_can_be_published(story: list[tuple[float, dict[str, Any]]]) -> None:
    health = CardHealth(HealthRules(hold=60))
    told(story, health)
    for uuid, words in health.faults.items():
        assert 0 < len(words) <= MAX_WORDS
        shoal.encode_gpus([Gpu(uuid, 0, 1, healthy=False, fault=words)])


@given(st.text(max_size=200))
def test_any_annotation_can_be_read(value: str) -> None:
    decode_faults(value, 1.0)


# Single facts


def test_a_report_that_names_no_card_concerns_all() -> None:
    health = CardHealth(HealthRules())
    health.report(CardEvent(EventKind.XID, None, 62), 1.0, [CARD, OTHER])
    assert set(health.faults) == {CARD, OTHER}


def test_reset_while_the_agent_was_away_is_seen() -> None:
    rule = HealthRules(hold=60)
    health = CardHealth(rule)
    step(health, {"at": 0, "xid": 48})
    step(health, {"at": 0, "look": {"energy_mj": 5000}})
    next_one = again(health, rule, 1300.0)
    step(next_one, {"at": 300, "look": {"energy_mj": 6000}})
    assert "XID 48" in next_one.faults[CARD], "no reset: the counter went on"
    last = again(health, rule, 1400.0)
    step(last, {"at": 400, "look": {"energy_mj": 30}})
    assert last.faults == {}


def test_card_without_an_energy_counter_is_believed_after_a_restart() -> None:
    rule = HealthRules(hold=60)
    health = CardHealth(rule)
    step(health, {"at": 0, "xid": 48})
    step(health, {"at": 5000, "look": {}})
    assert CARD in health.faults
    next_one = again(health, rule, 6001.0)
    step(next_one, {"at": 5001, "look": {}})
    assert next_one.faults == {}


def test_a_clock_set_back_does_not_hold_a_card_for_years() -> None:
    rule = HealthRules(hold=60)
    health = CardHealth(rule)
    step(health, {"at": 1e9, "xid": 94})
    next_one = again(health, rule, 1000.0)
    step(next_one, {"at": 60, "look": {}})
    assert next_one.faults == {}


@pytest.mark.parametrize(
    ("disable", "enable", "counted", "ignored"),
    [
        ("", "", {48, 79, 94}, nvidia.IGNORED_XIDS),
        ("94, 63", "", {48, 79}, {94, 63, 13}),
        ("xids", "", set(), {48, 79, 94, 31}),
        ("all", "", set(), {48, 79, 94, 31}),
        ("", "31", {31, 48}, {13, 43}),
        ("all", "48", {48}, {79, 31}),
        ("94", "94", {94}, {31}),
        ("all", "all", {13, 31, 48}, set()),
        ("ALL", "xids", {13, 31, 48}, set()),
    ],
)
def test_lists_of_checks(disable: str, enable: str, counted: set[int], ignored: set[int]) -> None:
    rule = rules(disable=disable, enable=enable)
    for xid in counted | set(ignored):
        assert rule.counts(CardEvent(EventKind.XID, CARD, xid)) == (xid in counted), xid
    lost = rule.counts(CardEvent(EventKind.LOST, CARD))
    assert lost == (disable.lower() != "all" or enable == "all")
    assert rule.any == (lost or bool(counted))


@pytest.mark.parametrize("text", ["12,abc", "-1", "3.5", "99999999", "x" * 5000])
def test_lists_that_cannot_be_read(text: str) -> None:
    with pytest.raises(AgentConfigError, match="write"):
        rules(disable=text)


def test_settings_refuse_what_is_no_check() -> None:
    with pytest.raises(ValueError, match="'gpu' in the list of what is disabled is no health check"):
        AgentConfig(node_name="n", disable_health_checks="gpu")


def test_resets_are_not_asked_for_what_is_ignored() -> None:
    assert not RESET_XIDS & nvidia.IGNORED_XIDS
