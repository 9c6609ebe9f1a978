"""What claims cost on a real node: how long pods with a claim each take to run beside pods without one, and how long
the agent takes to prepare a claim.

One node with kubelet, containerd and runc, the stock scheduler, eight cards of the stand-in for NVIDIA's library. Forty
equal pods without claims and forty with a claim of 2 GiB made for each take turns, a few rounds; the time is from the
first pod created to the last one running, and the claims are made in that time. Then pods with a claim come one after
another. The times of kubelet's calls are the agent's own, from its log. Machines are shared: compare inside one run.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import bench.results as results
from shoal.model.contract import gpushare
from tests.agent.claiming import asking, claim_pod
from tests.agent.real.claims import ClaimsLab, claims_lab
from tests.kubelet.pods import FOREVER, is_ready
from tests.testbed.nvml.shim import build
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

CARDS = "8xA100-80G"
PODS = 40
ONE_BY_ONE = 30
TEMPLATE = "share"
_CALL = re.compile(r"NodePrepareResources of \d+ took ([0-9.]+) ms")


def storm(lab: ClaimsLab, prefix: str, *, claims: bool) -> float:
    """Seconds from the creation of the first pod until all run."""
    source = {"gpu": {"resourceClaimTemplateName": TEMPLATE}} if claims else {}
    pods = [claim_pod(f"{prefix}-{number}", source, script=FOREVER) for number in range(PODS)]
    with ThreadPoolExecutor(8) as several:
        begun = time.perf_counter()
        list(several.map(lab.create, pods))
        while not all(map(is_ready, lab.pods.all())):
            time.sleep(0.1)
    took = time.perf_counter() - begun
    lab.pods.delete_all()
    wait_for(lambda: not lab.pods.all() and not lab.claims() and not lab.held(), "over")
    time.sleep(3.0)  # kubelet is not done with them yet
    return took


def one_by_one(lab: ClaimsLab) -> None:
    """Pods with a claim each, each made when the one before runs."""
    for number in range(ONE_BY_ONE):
        name = f"alone-{number}"
        lab.create(claim_pod(name, {"gpu": {"resourceClaimTemplateName": TEMPLATE}}, script=FOREVER))
        wait_for(lambda name=name: is_ready(lab.pods.get(name)), "running")  # type: ignore[misc]


def calls(lab: ClaimsLab) -> list[float]:
    """The milliseconds of all calls so far."""
    assert lab.program is not None
    return [float(one) for one in _CALL.findall(lab.program.process.log.read_text())]


def measure(lab: ClaimsLab, rounds: int) -> list[results.Row]:
    lab.make_template(TEMPLATE, asking(memory="2Gi"))
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for claims in (False, True) if number % 2 == 0 else (True, False):
            times[claims].append(storm(lab, f"round-{number}", claims=claims))
        print(f"round {number + 1}: {times[False][-1]:.1f} s without claims, {times[True][-1]:.1f} s with", flush=True)
    plain, shares = (float(np.median(times[claims])) for claims in (False, True))
    at_once = calls(lab)
    one_by_one(lab)
    alone = calls(lab)[len(at_once) :]
    p50, p99 = (float(value) for value in np.percentile(at_once, (50, 99)))
    alone_p50, alone_p99 = (float(value) for value in np.percentile(alone, (50, 99)))
    return [
        results.Row(f"{PODS} pods without claims running after", plain, "s"),
        results.Row(f"{PODS} pods with a claim each running after", shares, "s"),
        results.below("the same, as a ratio", shares / plain, "×", 1.3),
        results.Row(f"NodePrepareResources p50 of {len(at_once)}, {PODS} at once", p50, "ms"),
        results.Row("NodePrepareResources p99", p99, "ms"),
        results.below(f"NodePrepareResources p50 of {len(alone)}, one by one", alone_p50, "ms", 10),
        results.Row("NodePrepareResources p99, one by one", alone_p99, "ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    # The driver's library sleeps until there is an event; the stand-in looks for one, here seldom.
    environment = {gpushare.ENV_LOG_LEVEL: "debug", "NVML_PAUSE": "500"}
    with Run() as run, tempfile.TemporaryDirectory() as folder:
        library = build(run.folder("nvml"))
        with claims_lab(run, library, Path(folder), CARDS, environment, between=False) as lab:
            rows = measure(lab, options.rounds)
    results.report("claims_agent", rows)


if __name__ == "__main__":
    main()
