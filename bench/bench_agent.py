"""What the agent costs on a real node: how long pods with a share of a card take to run beside pods without one, and
what the agent itself takes.

One node with kubelet, containerd and runc, eight cards of the stand-in for NVIDIA's library. Forty equal pods without
cards and forty with a share each take turns, a few rounds; the time is from the first pod created to the last one
running. The times of kubelet's calls are the agent's own, from its log. Machines are shared: compare inside one run.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import bench.results as results
from bench.usage import cpu_seconds, resident
from shoal.model.contract import gpushare
from shoal.model.request import Share
from tests.agent.lab import GIB, MEMORY
from tests.agent.real.conftest import RealLab, describe_machine
from tests.kubelet.pods import FOREVER, Pods, container, is_ready, pod
from tests.testbed.apiserver import ApiServer
from tests.testbed.node import Node
from tests.testbed.nvml.shim import Shim, build
from tests.testbed.processes import Run

CARDS = "8xA100-80G"
PODS = 40
IDLE_SECONDS = 30.0
NAMESPACE = "bench"
_CALL = re.compile(r"(Allocate|PreStartContainer) of \S+ took ([0-9.]+) ms")


def started(lab: RealLab) -> float:
    """Start the agent; seconds until it is ready."""
    begun = time.perf_counter()
    lab.start(wait=False)
    while lab.asked("readyz")[0] != 200:
        time.sleep(0.01)
    took = time.perf_counter() - begun
    lab.wait_ready()
    return took


def storm(lab: RealLab, prefix: str, *, share: bool) -> float:
    """Seconds from the creation of the first pod until all run."""
    pods = []
    for number in range(PODS):
        manifest = pod(f"{prefix}-{number}", [container("main", FOREVER, {MEMORY: 2} if share else {})])
        chosen = lab.allocation({"main": [number % 8]}, {"main": Share(2 * GIB)})
        pods.append((manifest, lab.annotations(manifest, chosen) if share else {}))
    begun = time.perf_counter()
    for manifest, decision in pods:
        lab.bind(manifest, decision)
    while not all(map(is_ready, lab.pods.all())):
        time.sleep(0.1)
    took = time.perf_counter() - begun
    lab.pods.delete_all()
    while lab.pods.all():
        time.sleep(0.2)
    time.sleep(3.0)  # kubelet is not done with them yet
    return took


def calls(text: str, name: str) -> Sequence[float]:
    """Milliseconds that a call of kubelet's took, each time."""
    return [float(took) for call, took in _CALL.findall(text) if call == name]


def percentiles(name: str, times: Sequence[float], limit: float) -> list[results.Row]:
    p50, p99 = (float(value) for value in np.percentile(times, (50, 99)))
    return [results.Row(f"{name} p50", p50, "ms"), results.below(f"{name} p99", p99, "ms", limit)]


def measure(lab: RealLab, rounds: int) -> list[results.Row]:
    rows = [results.below("ready after start", started(lab), "s", 2.0)]
    assert lab.program is not None
    pid = lab.program.process.pid
    rows.append(results.Row("CPU of the start", cpu_seconds(pid), "s"))
    time.sleep(5.0)
    used = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    idle = 100 * (cpu_seconds(pid) - used) / IDLE_SECONDS
    rows.append(results.below("CPU while nothing happens, 8 cards", idle, "% of a core", 0.5))
    times: dict[bool, list[float]] = {False: [], True: []}
    spent = dict.fromkeys(times, 0.0)
    for number in range(rounds):
        for share in (False, True) if number % 2 == 0 else (True, False):
            used = cpu_seconds(pid)
            times[share].append(storm(lab, f"round-{number}", share=share))
            spent[share] += cpu_seconds(pid) - used
        print(f"round {number + 1}: {times[False][-1]:.1f} s without cards, {times[True][-1]:.1f} s with", flush=True)
    plain, shares = (float(np.median(times[share])) for share in (False, True))
    rows += [
        results.Row(f"{PODS} pods without cards running after", plain, "s"),
        results.Row(f"{PODS} pods with a share running after", shares, "s"),
        results.below("the same, as a ratio", shares / plain, "×", 1.3),
        results.Row("CPU per pod without cards", 1000 * spent[False] / (rounds * PODS), "ms"),
        results.Row("CPU per pod with a share", 1000 * spent[True] / (rounds * PODS), "ms"),
    ]
    text = lab.program.process.log.read_text()
    rows += percentiles("Allocate", calls(text, "Allocate"), 10.0)
    rows += percentiles("PreStartContainer", calls(text, "PreStartContainer"), 10.0)
    rows.append(results.below("memory", resident(pid), "MB", 80.0))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with Run() as run, tempfile.TemporaryDirectory() as folder:
        api = ApiServer(run)
        api.create_namespace(NAMESPACE)
        node = Node(run, api, "bench-node")
        node.start()
        shim = Shim(build(run.folder("nvml")), Path(folder))
        shim.write(describe_machine(CARDS))
        # The driver's library sleeps until there is an event; the stand-in looks for one, here seldom.
        environment = {gpushare.ENV_LOG_LEVEL: "debug", "NVML_PAUSE": "500"}
        lab = RealLab(node, Pods(api, NAMESPACE), run, shim, environment)
        try:
            rows = measure(lab, options.rounds)
        finally:
            lab.stop()
            node.stop()
    results.report("agent", rows)


if __name__ == "__main__":
    main()
