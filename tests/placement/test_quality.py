"""The policies hand out as many GPUs as they are known to: a short run of `make bench-placement` against ranges.

The openb traces are not part of the project. They are played where $SHOAL_TRACES names their folder, or where it lies
beside the project as `../shared/traces`; elsewhere only the made-up workload runs.
"""

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean

import pytest

from bench import traces
from shoal.model.gpu import NodeGpus
from shoal.simulate.static import allocation_at, fill_up
from shoal.simulate.trace import Workload
from tests.cases import read_cases
from tests.soak import SOAK

RANGES = read_cases(Path(__file__).parent / "ranges.yaml")
SEEDS = (42, 43)

FOLDER = Path(os.environ.get("SHOAL_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
#: A folder that is named must be there.
WORKLOADS = list(RANGES) if os.environ.get("SHOAL_TRACES") or FOLDER.is_dir() else ["made-up"]


def allocated(nodes: Sequence[NodeGpus], workload: Workload, policy: str, seed: int) -> float:
    """What is allocated when as much as the cluster holds has arrived; what comes later is left out."""
    return allocation_at([*takewhile(lambda fill: fill.arrived <= 100, fill_up(nodes, workload, policy, seed))], 100)


#: For `make soak`: they take as long as all others together, and say the same.
SELDOM = ("cpu250", "gpuspec33")


@pytest.mark.parametrize("name", WORKLOADS)
def test_policies_allocate_within_their_ranges(name: str) -> None:
    if name in SELDOM and SOAK == 1:
        pytest.skip("make soak tries this trace too")
    nodes, (workload,) = traces.load(None if name == "made-up" else FOLDER, (name,))
    ranges = dict(RANGES[name])
    gain = ranges.pop("gain")
    means = {policy: fmean(allocated(nodes, workload, policy, seed) for seed in SEEDS) for policy in ranges}
    outside = {
        policy: (means[policy], low, high) for policy, (low, high) in ranges.items() if not low <= means[policy] <= high
    }
    assert not outside
    assert means["fragmentation"] - means["fgd"] >= gain
