"""KETI's ConfigMap, live: what it changes, what it keeps, what it says; and that the engine then decides by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import ConfigMap
from shoal.model.contract import keti
from shoal.model.request import Share
from shoal.placement.engine import Engine
from shoal.placement.policies import policy_named
from shoal.scheduler.keti_policy import MAX_PROBLEMS, KetiPolicyReader, PolicyOutcome
from tests.placement.clusters import GIB, booking, card, ledger_of, node, request

CONFIGURED = policy_named("fragmentation")


def configmap(
    data: dict[str, str] | None = None, *, name: str = "gpu-scheduler-policy", namespace: str = "gpu"
) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data or {})


OLD = "gpu-scheduler-configmap"


def test_it_appears_changes_and_goes() -> None:
    follower = KetiPolicyReader(CONFIGURED)
    shown = follower.apply(configmap({"node-gpu-score-weight": "0.5:0.5"}))
    assert shown.policy is not None
    assert (shown.policy.name, shown.problems) == ("keti", ())
    assert follower.settings == keti.KetiPolicy(node_weight=0.5, gpu_weight=0.5)
    assert follower.apply(configmap({"node-gpu-score-weight": "0.5 0.5"})).policy is None, "the same, with a space"
    changed = follower.apply(configmap({"least-score-node-prefer": "true", "avoid-high-score-node": "true"}))
    assert changed.policy is not None
    assert (changed.policy.scores[0][0], changed.policy.rank) == (-1.0, 1)
    assert follower.remove(configmap()).policy is CONFIGURED
    assert follower.remove(configmap()).policy is None
    assert follower.settings is None


def test_an_empty_one_means_ketis_built_in_values() -> None:
    follower = KetiPolicyReader(CONFIGURED)
    assert follower.apply(configmap()).policy is not None
    assert follower.settings == keti.DEFAULT_POLICY


def test_the_shipped_manifest_is_accepted_whole() -> None:
    shipped = {
        "node-gpu-score-weight": "0.5:0.5",
        "nvlink-weight-percentage": "0",
        "gpu-allocate-prefer": "spread",
        "avoid-nvlink-one-gpu": "true",
        "least-score-node-prefer": "false",
        "avoid-high-score-node": "false",
        "multi-gpu-node-prefer": "false",
        "node-reservation-permit": "false",
        "pod-re-schedule-permit": "false",
        "multi-node-allocation-permit": "false",
        "non-gpu-node-prefer": "false",
    }
    outcome = KetiPolicyReader(CONFIGURED).apply(configmap(shipped))
    assert outcome.policy is not None
    assert outcome.problems == ()


def test_the_oldest_manifest_is_accepted_too() -> None:
    follower = KetiPolicyReader(CONFIGURED)
    data = {"node-gpu-score-weight": "0.3 0.7", "pod-re-schedule-permit": "true"}
    assert follower.apply(configmap(data, name=OLD)).problems == ()
    assert follower.settings == keti.KetiPolicy(node_weight=0.3, gpu_weight=0.7)


def test_a_malformed_value_keeps_the_last_good_one() -> None:
    follower = KetiPolicyReader(CONFIGURED)
    follower.apply(configmap({"node-gpu-score-weight": "0.2:0.8", "gpu-allocate-prefer": "binpack"}))
    outcome = follower.apply(configmap({"node-gpu-score-weight": "most", "nvlink-weight-percentage": "50"}))
    assert follower.settings == keti.KetiPolicy(node_weight=0.2, gpu_weight=0.8, nvlink_percent=50), "others apply"
    (problem,) = outcome.problems
    for part in ("node-gpu-score-weight", "'most'", "0.4:0.6", "'0.2:0.8'"):
        assert part in problem
    again = follower.apply(configmap({"node-gpu-score-weight": "more", "nvlink-weight-percentage": "50"}))
    assert again.policy is None
    assert "'0.2:0.8'" in again.problems[0], "however often it is wrong"


def test_a_value_malformed_from_the_start_is_the_built_in_one() -> None:
    follower = KetiPolicyReader(CONFIGURED)
    outcome = follower.apply(configmap({"avoid-nvlink-one-gpu": "yes"}))
    assert follower.settings == keti.DEFAULT_POLICY
    assert "built-in" in outcome.problems[0]
    assert "true or false" in outcome.problems[0]


def test_what_was_good_is_forgotten_with_its_configmap() -> None:
    follower = KetiPolicyReader(CONFIGURED)
    follower.apply(configmap({"nvlink-weight-percentage": "50"}))
    follower.remove(configmap())
    follower.apply(configmap({"nvlink-weight-percentage": "fifty"}))
    assert follower.settings == keti.DEFAULT_POLICY


def test_a_misspelt_key_is_told() -> None:
    (problem,) = KetiPolicyReader(CONFIGURED).apply(configmap({"gpu-allocate-perfer": "binpack"})).problems
    assert "'gpu-allocate-perfer'" in problem
    assert "no effect" in problem


def test_the_newer_name_counts_before_the_older() -> None:
    follower = KetiPolicyReader(CONFIGURED)
    old, new = {"nvlink-weight-percentage": "1"}, {"nvlink-weight-percentage": "2"}
    follower.apply(configmap(new))
    outcome = follower.apply(configmap(old, name=OLD))
    assert outcome.policy is None
    assert "gpu/gpu-scheduler-policy" in outcome.problems[0]
    assert follower.settings == keti.KetiPolicy(nvlink_percent=2)
    assert follower.remove(configmap()).policy is not None
    assert follower.settings == keti.KetiPolicy(nvlink_percent=1)
    assert follower.apply(configmap(new)).policy is not None
    assert follower.settings == keti.KetiPolicy(nvlink_percent=2)


def test_only_the_named_namespaces_count() -> None:
    follower = KetiPolicyReader(CONFIGURED, namespaces=("gpu", "kube-system"))
    binpack = {"gpu-allocate-prefer": "binpack"}
    for other in (configmap(binpack, namespace="userpod"), configmap(binpack, name="anything")):
        assert not follower.concerns(other)
        assert follower.apply(other) == PolicyOutcome(None)
        assert follower.remove(other).policy is None
    assert follower.apply(configmap(binpack, namespace="kube-system")).policy is not None
    follower.apply(configmap())
    assert follower.settings == keti.DEFAULT_POLICY, "the first namespace before the second"


def test_the_engine_decides_by_what_the_configmap_says() -> None:
    """Two T4s, one in use: spread takes the other, binpack the same; a later ConfigMap turns it round."""
    ledger = ledger_of(node("n1", [16, 16]))
    ledger.assume(booking("there", "n1", {0: Share(4 * GIB)}))
    follower = KetiPolicyReader(CONFIGURED)
    engine = Engine(ledger, CONFIGURED)
    taken = []
    for prefer in ("spread", "binpack", "spread"):
        policy = follower.apply(configmap({"gpu-allocate-prefer": prefer})).policy
        assert policy is not None
        engine.policy = policy
        engine.forget()
        allocation = engine.decide(request(Share(4 * GIB)))
        assert allocation is not None
        assert allocation.policy == "keti"
        taken.append(allocation.containers[0].cards[0].index)
    assert taken == [1, 0, 1]


@pytest.mark.parametrize(("avoid", "index"), [("false", 0), ("true", 2)])
def test_one_card_keeps_off_links_when_told(avoid: str, index: int) -> None:
    cards = [card("n1", 0, links={1: 4}), card("n1", 1, links={0: 4}), card("n1", 2)]
    engine = Engine(ledger_of(node("n1", cards)), CONFIGURED)
    policy = KetiPolicyReader(CONFIGURED).apply(configmap({"avoid-nvlink-one-gpu": avoid})).policy
    assert policy is not None
    engine.policy = policy
    engine.forget()
    allocation = engine.decide(request(Share(4 * GIB)))
    assert allocation is not None
    assert allocation.containers[0].cards[0].index == index


keys = st.sampled_from([*sorted(keti.encode_policy(keti.DEFAULT_POLICY)), "other", "k" * 300])
values = st.sampled_from(["true", "false", "0.5:0.5", "0.3 0.7", "7", "spread", "binpack", "9" * 5000]) | st.text()


@given(st.lists(st.dictionaries(keys, values, max_size=14), min_size=1, max_size=4))
def test_whatever_is_written_there_is_always_a_policy(history: list[dict[str, str]]) -> None:
    follower = KetiPolicyReader(CONFIGURED)
    for data in history:
        before = follower.settings
        outcome = follower.apply(configmap(data))
        assert follower.settings is not None
        assert (outcome.policy is not None) == (follower.settings != before)
        assert len(outcome.problems) <= MAX_PROBLEMS + 1
        assert all(len(problem) < 400 for problem in outcome.problems)
    assert follower.remove(configmap()).policy is CONFIGURED
