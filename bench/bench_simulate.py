"""One run of the default trace (about 10,800 arrivals on 1,213 nodes) on one core.

python -m bench.bench_simulate [--traces DIR]      without the traces: the made-up workload, no target
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bench import results, traces
from shoal.model.gpu import NodeGpus
from shoal.simulate.static import run_static
from shoal.simulate.trace import Workload

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one simulated run.")
    parser.add_argument("--traces", type=Path, help="folder of the openb traces")
    options = parser.parse_args()
    nodes, (workload,) = traces.load(options.traces, ("default",))
    seconds = {}
    for policy in ("fragmentation", "fgd", "binpack"):
        seconds[policy] = min(_timed(nodes, workload, policy) for _ in range(ROUNDS))
    rows = [results.Row(f"{workload.name}: {policy}", took, "s") for policy, took in seconds.items()]
    if options.traces is not None:
        rows[0] = results.below(f"{workload.name}: fragmentation", seconds["fragmentation"], "s", 5)
    rows.append(results.Row("fragmentation / binpack", seconds["fragmentation"] / seconds["binpack"], "×"))
    results.report("simulate", rows)


def _timed(nodes: tuple[NodeGpus, ...], workload: Workload, policy: str) -> float:
    start = time.perf_counter()
    run_static(nodes, workload, policy, 42)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
