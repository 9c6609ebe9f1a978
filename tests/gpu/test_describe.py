"""Descriptions of cards, read or refused."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gpu.describe import MAX_CARDS, CardDescription, parse_cards
from shoal.gpu.errors import DescriptionError
from shoal.gpu.inventory import gpus
from shoal.gpu.models import MODELS, keys
from shoal.gpu.simulated import SimulatedNvml
from shoal.model.contract.shoal import decode_gpus, encode_gpus
from tests.cases import read_cases
from tests.model.strategies import json_values, junk

CASES = read_cases(Path(__file__).parent / "cases" / "descriptions.yaml")


def shown(card: CardDescription) -> str:
    parts = [str(card.index), card.model.key, str(card.memory_mib)]
    if card.numa is not None:
        parts.append(f"numa={card.numa}")
    if card.links:
        parts.append("links=" + "+".join(f"{peer}:{lanes}" for peer, lanes in card.links))
    parts += ["switched"] * card.switched
    if card.mig is not None:
        parts.append("mig=" + "+".join(part.profile for part in card.mig))
    parts += ["lost"] * card.lost
    if card.xid is not None:
        parts.append(f"xid={card.xid}")
    return " ".join(parts)


@pytest.mark.parametrize("case", CASES["good"], ids=lambda case: str(case["write"]))
def test_good(case: dict[str, Any]) -> None:
    assert [shown(card) for card in parse_cards(case["write"])] == case["cards"]


@pytest.mark.parametrize("case", CASES["bad"], ids=lambda case: str(case["write"]))
def test_bad(case: dict[str, Any]) -> None:
    with pytest.raises(DescriptionError) as refusal:
        parse_cards(case["write"])
    assert case["error"] in str(refusal.value)


def test_models() -> None:
    assert len(set(keys())) == len(MODELS) > 20
    for model in MODELS:
        assert parse_cards(model.key)[0].model is model
        assert 0 < model.idle_w < model.power_w
        assert model.max_c < model.slowdown_c < model.shutdown_c
        assert 0.9 < model.memory_mib / (model.gigabytes * 1000**3 / 2**20) < 1.1
        assert model.reserved_mib < model.memory_mib / 20


entries = st.fixed_dictionaries(
    {"model": st.sampled_from(keys())},
    optional={
        "count": st.integers(1, 9),
        "index": st.integers(0, 255),
        "memory": st.sampled_from(["1Gi", "20Gi", "2Ti", 3]),
        "numa": st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=3),
        "nvlink": st.integers(0, 6) | st.just("switch"),
        "mig": st.lists(st.sampled_from(["1g.6gb", "1g.10gb", "2g.12gb", "7g.80gb"]), max_size=8),
        "lost": st.booleans(),
        "xid": st.integers(-1, 100),
        "more": junk,
    },
)


@given(st.lists(entries, max_size=8) | st.text(max_size=60) | junk | json_values | st.lists(json_values, max_size=3))
def test_anything_is_read_or_refused(value: object) -> None:
    try:
        cards = parse_cards(value)
    except DescriptionError:
        return
    assert len(cards) <= MAX_CARDS
    simulated = SimulatedNvml(cards, clock=lambda: 0.0)
    survey = simulated.survey()
    assert len(survey.cards) + len(survey.unreadable) == len(cards)
    published = gpus(survey)
    assert decode_gpus(encode_gpus(published)) == published
    for card in survey.cards:
        simulated.sample(card.uuid)
