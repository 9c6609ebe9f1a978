"""The policies hand out as many GPUs as they are known to: a short run of `make bench-placement` against ranges.

The openb traces are not part of the project. They are played when $SHOAL_TRACES names their folder, and take minutes;
without it only the made-up workload runs.
"""

import os
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from bench import traces
from shoal.simulate.static import run_static

RANGES = yaml.safe_load((Path(__file__).parent / "ranges.yaml").read_text(encoding="utf-8"))
SEEDS = (42, 43)


FOLDER = Path(os.environ["SHOAL_TRACES"]) if os.environ.get("SHOAL_TRACES") else None
WORKLOADS = ["made-up"] if FOLDER is None else list(RANGES)


@pytest.mark.parametrize("name", WORKLOADS)
def test_policies_allocate_within_their_ranges(name: str) -> None:
    nodes, (workload,) = traces.load(None if name == "made-up" else FOLDER, (name,))
    ranges = dict(RANGES[name])
    gain = ranges.pop("gain")
    means = {policy: fmean(run_static(nodes, workload, policy, seed).alloc_100 for seed in SEEDS) for policy in ranges}
    outside = {
        policy: (means[policy], low, high) for policy, (low, high) in ranges.items() if not low <= means[policy] <= high
    }
    assert not outside
    assert means["fragmentation"] - means["fgd"] >= gain
