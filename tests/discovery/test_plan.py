"""Which labels a node shall have: what takes a label back, and whose labels are left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.discovery.labels import gpu_labels, is_listed, pci_labels
from shoal.discovery.plan import NodeLabels, differs, has_card, nfd_keys, planned
from shoal.model.contract import nvidia
from shoal.model.contract.discovery import NodeFacts
from tests.discovery.facts import A100, T4, node, node_facts

FACTS = node(T4)
PCI = pci_labels(FACTS)
assert FACTS.gpus is not None
CARDS = gpu_labels(FACTS.gpus)
FULL = {**PCI, **CARDS, nvidia.LABEL_PRESENT: "true"}
VENDOR = nvidia.LABELS_PCI_PRESENT[0]
NO_CARD = NodeFacts(version=1, pci=())


def test_a_fresh_node_gets_all_and_then_nothing_more() -> None:
    fresh = NodeLabels({}, facts=FACTS)
    assert planned(fresh, gone=False) == FULL
    assert differs(fresh, FULL)
    settled = NodeLabels(FULL, facts=FACTS)
    assert not differs(settled, planned(settled, gone=False))


@pytest.mark.parametrize("facts", [None, NodeFacts(version=1, pci=("0302",))], ids=["silence", "no driver"])
def test_what_is_not_known_takes_nothing_back(facts: NodeFacts | None) -> None:
    labelled = NodeLabels(FULL, facts=facts)
    assert planned(labelled, gone=False) == FULL
    assert has_card(labelled) is True


def test_a_node_of_which_nobody_speaks_stays_as_it_is() -> None:
    for labels in ({}, {nvidia.LABEL_PRESENT: "true"}, CARDS):
        found = NodeLabels(labels)
        assert has_card(found) is None
        assert not differs(found, planned(found, gone=False))


def test_swapped_cards_change_their_labels_at_once() -> None:
    swapped = node(A100)
    assert swapped.gpus is not None
    after = planned(NodeLabels(FULL, facts=swapped), gone=False)
    assert after == {**pci_labels(swapped), **gpu_labels(swapped.gpus), nvidia.LABEL_PRESENT: "true"}
    assert after[nvidia.LABEL_PRODUCT] == "NVIDIA-A100-SXM4-40GB"


def test_no_card_counts_after_the_grace_time_only() -> None:
    bare = NodeLabels(FULL, facts=NO_CARD)
    assert has_card(bare) is False
    assert planned(bare, gone=False) == FULL
    # First the labels of the bus go, then what stands on them: another's may remain.
    assert planned(bare, gone=True) == {nvidia.LABEL_PRESENT: "true"}
    rest = NodeLabels({nvidia.LABEL_PRESENT: "true"}, facts=NO_CARD)
    assert planned(rest, gone=False) == {nvidia.LABEL_PRESENT: "true"}
    assert planned(rest, gone=True) == {nvidia.LABEL_PRESENT: "false"}
    foreign = NodeLabels({VENDOR: "true", nvidia.LABEL_PRESENT: "true"}, facts=NO_CARD, foreign={VENDOR: "true"})
    assert has_card(foreign) is True
    assert planned(foreign, gone=False) == {nvidia.LABEL_PRESENT: "true"}


def test_a_node_that_never_had_a_card_is_not_labelled() -> None:
    for gone in (False, True):
        assert planned(NodeLabels({}, facts=NO_CARD), gone=gone) == {}
        assert planned(NodeLabels({}, nfd=frozenset()), gone=gone) == {}


def test_nfds_label_is_a_sign_of_a_card_and_its_absence_one_of_none() -> None:
    by_nfd = NodeLabels({VENDOR: "true"}, nfd=frozenset({VENDOR}))
    assert has_card(by_nfd) is True
    assert planned(by_nfd, gone=False) == {VENDOR: "true", nvidia.LABEL_PRESENT: "true"}
    vanished = NodeLabels({nvidia.LABEL_PRESENT: "true"}, nfd=frozenset())
    assert has_card(vanished) is False
    assert planned(vanished, gone=False) == {nvidia.LABEL_PRESENT: "true"}
    assert planned(vanished, gone=True) == {nvidia.LABEL_PRESENT: "false"}
    back = NodeLabels({VENDOR: "true", nvidia.LABEL_PRESENT: "false"}, nfd=frozenset({VENDOR}))
    assert planned(back, gone=False)[nvidia.LABEL_PRESENT] == "true"


def test_what_nfd_lists_keeps_its_value() -> None:
    product = nvidia.LABEL_PRODUCT
    theirs = NodeLabels({**FULL, product: "Theirs"}, nfd=frozenset({product, VENDOR}), facts=FACTS)
    assert planned(theirs, gone=False) == {**FULL, product: "Theirs"}
    missing = NodeLabels({}, nfd=frozenset({product}), facts=FACTS)
    assert product not in planned(missing, gone=False)


def test_beside_gfd_all_of_its_labels_are_left_to_it() -> None:
    by_gfd = {nvidia.LABEL_TIMESTAMP: "1", nvidia.LABEL_PRODUCT: "Theirs"}
    for beside in (
        NodeLabels(by_gfd, nfd=frozenset(by_gfd), facts=FACTS),
        NodeLabels(by_gfd, facts=FACTS, foreign={nvidia.LABEL_TIMESTAMP: "1"}),
    ):
        wanted = planned(beside, gone=False)
        assert {key: wanted.get(key, by_gfd.get(key)) for key in CARDS if key in by_gfd or key in wanted} == by_gfd
        assert {key for key in wanted if key.startswith("nvidia.com/")} <= {*by_gfd, nvidia.LABEL_PRESENT}
        assert PCI.items() <= wanted.items()


def test_labels_of_other_managers_are_not_applied() -> None:
    value = {nvidia.LABEL_PRESENT: "false"}
    owned = NodeLabels({**FULL, **value}, facts=FACTS, foreign=value)
    wanted = planned(owned, gone=False)
    assert wanted == {**PCI, **CARDS}
    assert not differs(owned, wanted)


def test_a_label_too_many_is_tried_to_be_removed() -> None:
    extra = {**FULL, nvidia.LABEL_CLIQUE: "x"}
    assert differs(NodeLabels(extra, facts=FACTS), FULL)
    assert not differs(NodeLabels(extra, facts=FACTS, foreign={nvidia.LABEL_CLIQUE: "x"}), FULL)


def test_the_list_of_nfd() -> None:
    assert nfd_keys({}) is None
    assert nfd_keys({nvidia.ANNOTATION_NFD_LABELS: ""}) == frozenset()
    assert nfd_keys({nvidia.ANNOTATION_NFD_LABELS: "pci-10de.present, nvidia.com/gpu.count"}) == frozenset(
        {VENDOR, nvidia.LABEL_COUNT}
    )
    assert nfd_keys({f"second.{nvidia.ANNOTATION_NFD_LABELS}": "pci-10de.present"}) == frozenset({VENDOR})


_keys = st.sampled_from([*FULL, nvidia.LABEL_CLIQUE, "nvidia.com/mig-1g.5gb.count"])
_labels = st.dictionaries(_keys, st.sampled_from(["true", "false", "x"]))


@given(
    labels=_labels,
    nfd=st.none() | st.frozensets(_keys | st.sampled_from(["kubernetes.io/hostname", "x/y"])),
    facts=st.none() | node_facts,
    foreign=st.sets(_keys),
    gone=st.booleans(),
)
def test_any_node_gets_listed_labels_and_is_settled_by_them(
    labels: dict[str, str], nfd: frozenset[str] | None, facts: NodeFacts | None, foreign: set[str], gone: bool
) -> None:
    found = NodeLabels(labels, nfd, facts, {key: labels.get(key) for key in foreign})
    wanted = planned(found, gone=gone)
    assert all(is_listed(key) for key in wanted)
    assert not foreign & wanted.keys()
    assert all(wanted[key] == labels.get(key) for key in (nfd or frozenset()) & wanted.keys())
    if not gone and facts is None:
        assert labels.items() - {(nvidia.LABEL_PRESENT, value) for value in ("false", "x")} <= {
            *wanted.items(),
            *((key, labels[key]) for key in foreign & labels.keys()),
        }
    # Once applied, the same facts ask for nothing more, but that `present` falls after the labels of the bus.
    after = {**{key: labels[key] for key in foreign & labels.keys()}, **wanted}
    again = NodeLabels(after, nfd, facts, {key: after.get(key) for key in foreign})
    twice = planned(again, gone=gone)
    assert {**twice, nvidia.LABEL_PRESENT: ""} == {**wanted, nvidia.LABEL_PRESENT: ""}
