"""Small made-up traces, as files and as data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import ANY_CARD, CardSelector, ContainerRequest, Request, Share
from shoal.simulate.trace import TracePod, Workload

NODE_HEAD = "sn,cpu_milli,memory_mib,gpu,model"
POD_HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time"


def write(path: Path, head: str, lines: Iterable[str]) -> Path:
    path.write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    return path


def node_file(folder: Path) -> Path:
    """Ten nodes, 40 GPUs of two models."""
    lines = [
        f"node-{i:02},{96000 if i % 2 else 32000},262144,{6 if i % 2 else 2},{'A' if i % 2 else 'B'}" for i in range(10)
    ]
    return write(folder / "nodes.csv", NODE_HEAD, lines)


def pod_file(folder: Path, name: str = "openb_pod_list_small.csv", *, pods: int = 40, seed: int = 1) -> Path:
    """Shares, whole GPUs and CPU-only pods, some bound to a model; lives between a minute and a day."""
    rng = Random(seed)
    lines = []
    for i in range(pods):
        gpus, milli = rng.choice([(0, 0), (1, 250), (1, 500), (1, 700), (1, 1000), (1, 1000), (2, 1000), (4, 1000)])
        spec = rng.choice(["", "", "", "A", "A|B"]) if gpus else ""
        cpu = 1000 * rng.randrange(1, 9) * max(gpus, 1)
        lines.append(f"pod-{i:03},{cpu},{cpu // 2},{gpus},{milli},{spec},{i},{i + rng.choice([10, 600, 3600, 86400])}")
    return write(folder / name, POD_HEAD, lines)


def node(name: str, gpus: int, *, model: str = "A", cpu: int = 64000, memory: int = 262144) -> NodeGpus:
    return NodeGpus(name, tuple(Gpu(f"{name}-{i}", i, 1000, model) for i in range(gpus)), cpu, memory)


def pod(name: str, gpu: float, *, cpu: int = 1000, models: str = "", lifetime: float | None = None) -> TracePod:
    """A pod of `gpu` GPUs: below 1 it is a share, else whole cards."""
    containers: tuple[ContainerRequest, ...] = ()
    if gpu >= 1:
        containers = (ContainerRequest("main", int(gpu), Share(exclusive=True)),)
    elif gpu > 0:
        containers = (ContainerRequest("main", 1, Share(compute=round(100 * gpu))),)
    selector = CardSelector(models=frozenset(models.split("|"))) if models else ANY_CARD
    return TracePod(name, Request(containers, cpu, 100, selector), round(1000 * gpu), lifetime)


def workload(*pods: TracePod, name: str = "made-up") -> Workload:
    return Workload(name, tuple(sorted(pods, key=lambda item: item.name)))
