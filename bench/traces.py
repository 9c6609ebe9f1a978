"""The workloads benchmarks run on: the openb traces when their folder is given, else a made-up one.

The made-up cluster has the openb cluster's shape at a tenth of its size: three makes of nodes, shares that do not
divide a card evenly, whole cards up to eight at a time, and CPU-only pods beside them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import ContainerRequest, Request, Share
from shoal.simulate.trace import TracePod, Workload, read_nodes, read_workload

NODES = "openb_node_list_gpu_node.csv"
PODS = "openb_pod_list_{}.csv"

#: Nodes of a kind: how many, cards, model, milli CPU.
_KINDS = ((55, 8, "G2", 96_000), (45, 2, "T4", 104_000), (20, 2, "P100", 16_000))
#: Pods of a kind: weight, cards, thousandths of each, milli CPU.
_PODS = (
    (12, 0, 0, 4_000), (5, 0, 0, 12_000),
    (4, 1, 230, 4_000), (6, 1, 320, 6_000), (12, 1, 470, 6_000), (5, 1, 650, 8_000), (14, 1, 810, 9_000),
    (36, 1, 1000, 8_000), (8, 1, 1000, 12_000), (3, 2, 1000, 20_000), (2, 4, 1000, 40_000), (2, 8, 1000, 80_000),
)  # fmt: skip
_COUNT = 900


def load(folder: Path | None, workloads: tuple[str, ...]) -> tuple[tuple[NodeGpus, ...], tuple[Workload, ...]]:
    """Nodes and workloads of the traces in a folder, or the made-up ones without a folder."""
    if folder is None:
        return _nodes(), (_workload(),)
    nodes = read_nodes(folder / NODES)
    return nodes, tuple(read_workload(folder / PODS.format(name), nodes) for name in workloads)


def available(folder: Path) -> tuple[str, ...]:
    """The workloads a folder holds."""
    start, end = PODS.split("{}")
    return tuple(sorted(path.name[len(start) : -len(end)] for path in folder.glob(PODS.format("*"))))


def _nodes() -> tuple[NodeGpus, ...]:
    nodes = []
    for count, cards, model, cpu in _KINDS:
        for i in range(count):
            name = f"{model.lower()}-{i:03}"
            gpus = tuple(Gpu(f"{name}-{card}", card, 1000, model) for card in range(cards))
            nodes.append(NodeGpus(name, gpus, cpu, 4 * cpu))
    return tuple(nodes)


def _workload() -> Workload:
    rng = Random(1)
    weights = [weight for weight, *_ in _PODS]
    pods = []
    for i in range(_COUNT):
        _, cards, milli, cpu = rng.choices(_PODS, weights)[0]
        share = Share(exclusive=True) if milli == 1000 else Share(compute=milli // 10)
        containers = (ContainerRequest("main", cards, share),) if cards else ()
        pods.append(TracePod(f"pod-{i:04}", Request(containers, cpu, 2 * cpu), cards * milli))
    return Workload("made-up", tuple(pods))
