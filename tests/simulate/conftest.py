"""Runs of two policies on a small cluster."""

import pytest

from shoal.simulate.runs import Comparison
from shoal.simulate.trace import read_nodes, read_workload
from tests.simulate.made_up import node_file, pod_file


@pytest.fixture
def comparison(tmp_path):
    nodes = read_nodes(node_file(tmp_path))
    work = read_workload(pod_file(tmp_path, "<odd> & name.csv"), nodes)
    return Comparison(nodes, (work,), ("fragmentation", "binpack"), (1, 2))
