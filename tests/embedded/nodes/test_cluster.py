"""Descriptions of nodes: what they stand for, and what is refused."""

from pathlib import Path

import pytest

from shoal.embedded.nodes.cluster import few, parse, read_file
from shoal.embedded.nodes.errors import ClusterError
from tests.cases import read_cases

CASES = read_cases(Path(__file__).parent / "cases" / "clusters.yaml")


@pytest.mark.parametrize("case", CASES["accepted"], ids=[str(case["groups"]) for case in CASES["accepted"]])
def test_accepted(case: dict) -> None:
    found = parse(case["groups"])
    assert len(found) == len(case["nodes"])
    for node, expected in zip(found, case["nodes"], strict=True):
        present = {
            "name": node.name,
            "labels": dict(node.labels),
            "taints": [dict(taint) for taint in node.taints],
            "cpu": node.cpu,
            "memory": node.memory,
            "pods": node.pods,
            "cards": len(node.cards),
            "resources": dict(node.resources),
            "plugins": node.device_plugins,
        }
        assert {key: present[key] for key in expected} == expected


@pytest.mark.parametrize(("groups", "words"), CASES["refused"], ids=[words for _, words in CASES["refused"]])
def test_refused(groups: list, words: str) -> None:
    with pytest.raises(ClusterError) as refused:
        parse(groups)
    assert words in str(refused.value)


def test_a_few_equal_nodes() -> None:
    assert [(node.name, len(node.cards)) for node in few(3, "4xA30-24G")] == [
        ("node-1", 4),
        ("node-2", 4),
        ("node-3", 4),
    ]
    assert [node.cards for node in few(1)] == [()]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes:\n  - {name: a, count: 2, gpus: T4}\n")
    assert [node.name for node in read_file(path)] == ["a-1", "a-2"]
    for content, words in {
        "nodes: [": "is not YAML",
        "nodes: 3": "under the one key `nodes`",
        "[]": "under the one key `nodes`",
        "nodes: []\nmore: 1": "under the one key `nodes`",
        "nodes: [{colour: red}]": f"{path}: nodes[0]: 'colour'",
        "#" * 1024 * 1025: "is longer than",
    }.items():
        path.write_text(content)
        with pytest.raises(ClusterError) as refused:
            read_file(path)
        assert words in str(refused.value)
    with pytest.raises(ClusterError, match="No such file"):
        read_file(tmp_path / "none")
