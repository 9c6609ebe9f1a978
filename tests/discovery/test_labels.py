"""The labels that follow from facts: GFD's table case by case, and properties of any facts."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.discovery.labels import GFD_KEYS, gpu_labels, is_listed, pci_labels
from shoal.model.contract import nvidia
from shoal.model.contract.discovery import GpuFacts, NodeFacts, decode_facts, encode_facts
from shoal.model.errors import CodecError
from tests.discovery.facts import gpus, node, node_facts

CASES = yaml.safe_load((Path(__file__).parent / "labels.yaml").read_text())
PREFIX = "nvidia.com/"
VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?").fullmatch
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?").fullmatch


def facts_of(case: dict[str, Any]) -> GpuFacts:
    plain = msgspec.to_builtins(gpus(), str_keys=True)
    plain |= case.get("facts", {})
    if "cards" in case:
        plain["cards"] = case["cards"]
    return msgspec.convert(plain, GpuFacts)


def in_group(key: str, group: str) -> bool:
    name = key.removeprefix(PREFIX)
    return name == group or name.startswith((f"{group}.", f"{group}-"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_table(case: dict[str, Any]) -> None:
    labels = gpu_labels(facts_of(case))
    chosen = {key: value for key, value in labels.items() if any(in_group(key, group) for group in case["groups"])}
    assert chosen == {PREFIX + key: value for key, value in case["labels"].items()}


def test_every_label_is_met_by_a_case() -> None:
    met = {PREFIX + key for case in CASES for key in case["labels"]}
    assert met >= GFD_KEYS


def test_nfds_forms() -> None:
    def keys(*classes: str) -> set[str]:
        labels = pci_labels(NodeFacts(version=1, pci=classes))
        assert set(labels.values()) <= {"true"}
        return {key.removeprefix("feature.node.kubernetes.io/") for key in labels}

    assert keys("0302") == {"pci-10de.present", "pci-0302_10de.present"}
    assert keys("0300", "0302") == {"pci-10de.present", "pci-0300_10de.present", "pci-0302_10de.present"}
    assert keys("0b40") == set(), "no card"
    assert keys() == set()
    assert set(pci_labels(NodeFacts(version=1, pci=("0300", "0302")))) == set(nvidia.LABELS_PCI_PRESENT)


@given(node_facts)
def test_any_facts_give_listed_keys_and_valid_values(facts: NodeFacts) -> None:
    labels = pci_labels(facts) | (gpu_labels(facts.gpus) if facts.gpus else {})
    for key, value in labels.items():
        assert is_listed(key), key
        assert NAME(key.partition("/")[2]), key
        assert VALUE(value), (key, value)


@given(node_facts)
def test_facts_are_read_as_they_were_written(facts: NodeFacts) -> None:
    assert decode_facts(encode_facts(facts)) == facts


@pytest.mark.parametrize(
    "key",
    [
        *("kubernetes.io/hostname", "node-role.kubernetes.io/control-plane", "nvidia.com/gpu.deploy.driver"),
        *("nvidia.com/mig.config", "nvidia.com/device-plugin.config", "nvidia.com/gpu.productx", "nvidia.com/gpu"),
        *("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.foo", "nvidia.com/mig-x.count", "xnvidia.com/gpu.count"),
        *("feature.node.kubernetes.io/pci-8086.present", "nvidia.com/gpu.count\n"),
    ],
)
def test_other_keys_are_not_discoverys(key: str) -> None:
    assert not is_listed(key)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "null", '{"version":1}', '{"version":2,"pci":[]}', '{"version":1,"pci":["10de"],"x":1}'),
        *('{"version":1,"pci":["030200"]}', '{"version":1,"pci":["0302\\n"]}'),
        '{"version":1,"pci":[],"gpus":{"since":1,"driver":"1.2","cuda":[1,2],"cards":[]}}',
        '{"version":1,"pci":[],"gpus":{"since":1,"driver":"1.2 x","cuda":[1,2],"cards":[{"model":"a"}]}}',
        '{"version":1,"pci":[],"gpus":{"since":1,"driver":"1.2","cuda":[1,2],"cards":[{"model":"a","count":999}]}}',
        '{"version":1,"pci":[],"gpus":{"since":1,"driver":"1.2","cuda":[1,2],"cards":[{"model":"a","mig":true,'
        '"partitions":[{"profile":"../../x"}]}]}}',
        '{"version":1,"pci":["' + "0" * 40_000 + '"]}',
    ],
)
def test_facts_that_no_worker_writes_are_refused(text: str) -> None:
    with pytest.raises(CodecError):
        decode_facts(text)


@given(node_facts, st.data())
def test_a_spoilt_document_is_refused_or_gives_valid_labels(facts: NodeFacts, data: st.DataObject) -> None:
    text = encode_facts(facts)
    place = data.draw(st.integers(0, len(text)))
    spoilt = text[:place] + data.draw(st.text(max_size=8)) + text[place + data.draw(st.integers(0, 8)) :]
    with contextlib.suppress(CodecError):
        read = decode_facts(spoilt)
        for key, value in (pci_labels(read) | (gpu_labels(read.gpus) if read.gpus else {})).items():
            assert is_listed(key)
            assert VALUE(value)


def test_more_cards_than_a_node_has_are_refused() -> None:
    one = node().gpus
    assert one is not None
    many = msgspec.structs.replace(one, cards=tuple(msgspec.structs.replace(one.cards[0], count=200) for _ in "ab"))
    with pytest.raises(CodecError, match="more than 256 cards"):
        encode_facts(NodeFacts(version=1, pci=("0302",), gpus=many))
