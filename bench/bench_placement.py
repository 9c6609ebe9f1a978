"""How many of a cluster's GPUs each policy hands out, in the static protocol of docs/placement.md.

python -m bench.bench_placement                                  the made-up workload
python -m bench.bench_placement --traces DIR                     four openb traces, two seeds
python -m bench.bench_placement --traces DIR --workloads all --seeds 42-51 --policy fragmentation,fgd
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import click

from bench import results, traces
from shoal.cli.simulate import listening, names, seeds
from shoal.simulate.cluster import POLICY_NAMES
from shoal.simulate.report import table
from shoal.simulate.runs import Comparison, compare_static, processors

WORKLOADS = ("default", "cpu250", "gpushare100", "gpuspec33")
#: The default policy must beat FGD on every workload, and by this much on the average over the openb traces.
MEAN_GAIN = 1.3


@click.command()
@click.option("--traces", "folder", type=click.Path(path_type=Path), help="Folder of the openb traces.")
@click.option("--workloads", default=",".join(WORKLOADS), callback=names, help="Names, or 'all' in the folder.")
@click.option("--policy", "policies", default=",".join(POLICY_NAMES), callback=names)
@click.option("--seeds", "seed_numbers", default="42,43", callback=seeds)
def main(
    folder: Path | None, workloads: tuple[str, ...], policies: tuple[str, ...], seed_numbers: tuple[int, ...]
) -> None:
    """Compare the placement policies."""
    if folder is not None and workloads == ("all",):
        workloads = traces.available(folder)
    nodes, loaded = traces.load(folder, workloads)
    comparison = Comparison(nodes, loaded, policies, seed_numbers)
    with listening(quiet=False) as listener:
        runs = compare_static(comparison, processors(), listener)
    print(table(runs))
    rows, gains = [], []
    for workload in loaded:
        means = {
            policy: fmean(run.alloc_100 for run in runs if (run.workload, run.policy) == (workload.name, policy))
            for policy in comparison.policies
        }
        rows += [results.Row(f"{workload.name}: {policy}", mean, "% allocated") for policy, mean in means.items()]
        if "fragmentation" in means and "fgd" in means:
            gains.append(means["fragmentation"] - means["fgd"])
            rows.append(results.above(f"{workload.name}: fragmentation - fgd", gains[-1], "points", 0))
    if gains and folder is not None:
        rows.append(results.above("mean gain over fgd", fmean(gains), "points", MEAN_GAIN))
    results.report("placement", rows)


if __name__ == "__main__":
    main()
