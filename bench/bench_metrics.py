"""What the collector costs on a node with eight cards of 25 processes each, and a scrape of it.

The cards are those of the stand-in for NVIDIA's library, so the times are those of asking and not of a driver's answer.
CPU is the whole process's, over many samples in a row, and shown as a part of one core at one sample every 5 s.
Machines are shared: compare inside one run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import bench.results as results
from bench.collecting import collecting
from bench.scrapes import scraping
from shoal.gpu.describe import parse_cards
from shoal.gpu.nvml import open_nvml
from shoal.gpu.simulated import SimulatedNvml
from shoal.metrics.sampler import Sampler
from tests.testbed.nvml.shim import Shim, build, describe

CARDS = [{"model": "H100", "count": 8, "nvlink": "switch"}]
PROCESSES = 25
INTERVAL = 5.0
MEBIBYTE = 2**20


def machine(folder: Path) -> Path:
    """The stand-in library for eight busy cards; its path."""
    shim = Shim(build(folder), Path(tempfile.mkdtemp(dir=folder)))
    descriptions = parse_cards(CARDS)
    truth = SimulatedNvml(descriptions, clock=time.monotonic)
    for place, uuid in enumerate(truth.uuids()):
        for number in range(PROCESSES):
            truth.add_process(uuid, 1000 + PROCESSES * place + number, 100 * MEBIBYTE, 3)
    cards = []
    for card, description in zip(truth.survey().cards, descriptions, strict=True):
        traffic = truth.pcie_traffic(card.uuid)
        sample = replace(truth.sample(card.uuid), pcie_sent=traffic.sent, pcie_received=traffic.received)
        cards.append((card, sample, description))
    shim.write(describe(truth.driver(), cards))
    return shim.library


class Clock:
    """Moves an interval on with each sample, so that each asks for all that one in its turn does."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


def cpu_of_samples(sampler: Sampler, clock: Clock, samples: int) -> tuple[float, float]:
    """Seconds of CPU, and of time, for one sample of all cards; a survey is due every minute."""
    sampler.sample()
    cpu, begun = time.process_time(), time.perf_counter()
    for _ in range(samples):
        clock.now += INTERVAL
        assert all(each.sample and len(each.sample.processes) == PROCESSES for each in sampler.sample().cards)
    return (time.process_time() - cpu) / samples, (time.perf_counter() - begun) / samples


def of_a_core(seconds: float) -> float:
    """Percent of one core, at one sample an interval."""
    return 100 * seconds / INTERVAL


def sampling(library: Path, samples: int) -> list[results.Row]:
    """The sampler alone: NVML's calls, and what is made of their answers."""
    clock = Clock()
    nvml = open_nvml(library, clock=clock)
    sampler = Sampler(nvml, clock=clock)
    try:
        cpu, took = cpu_of_samples(sampler, clock, samples)
        # While nobody asks, only the thread that waits for reports runs.
        begun = time.process_time()
        time.sleep(INTERVAL)
        idle = time.process_time() - begun
    finally:
        sampler.close()
        nvml.close()
    return [
        results.Row("sample, 8 cards x 25 processes: CPU", 1000 * cpu, "ms"),
        results.Row("sample: time", 1000 * took, "ms"),
        results.Row("waiting for reports: CPU", of_a_core(idle), "% of a core"),
        results.below("samples every 5 s: CPU", of_a_core(cpu + idle), "% of a core", 0.5),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=200, help="samples to take the mean of")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the whole collector is watched")
    parser.add_argument("--rounds", type=int, default=50, help="how often 200 containers come and go")
    options = parser.parse_args(arguments)
    # The stand-in looks for events again and again, where a driver would wait.
    os.environ["NVML_PAUSE"] = "1000"
    with tempfile.TemporaryDirectory() as folder:
        rows = sampling(machine(Path(folder)), options.samples)
    rows += scraping()
    rows += collecting(parse_cards(CARDS), seconds=options.seconds, rounds=options.rounds)
    results.report("metrics", rows)


if __name__ == "__main__":
    main()
