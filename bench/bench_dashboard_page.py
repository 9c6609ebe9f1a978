"""The dashboard's page with 1,000 nodes of 8 cards, in Chromium: first paint, keys and pointer, memory, traffic.

The cluster is an embedded API server with node and pod objects, and readings of collectors made up beside it, so that
the server's part is real. Idle means that no pod comes or goes; readings change every 5 s as on a cluster that works:
utilisation of every card, memory of a few. Memory is that of the tab's process (proportional set size). A run looks for
two minutes by default and tells how memory would go on for an hour; `--seconds 3600` looks for the hour itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, CDPSession, Page

import bench.results as results
from bench.usage import cpu_seconds
from shoal.dashboard.config import DashboardConfig
from shoal.embedded.app import EmbeddedApi
from shoal.metrics.history_wire import CardReading, ContainerReading
from tests.dashboard.page.browser import chromium, watched
from tests.dashboard.site import MIB, Readings, Site, dashboard
from tests.kube.waiting import until

NODES, CARDS = 1_000, 8
CARD_MIB = 81_920
FIRST_PAINT, INTERACTION = 1_000.0, 100.0
TAB_MIB, IDLE_KB = 150.0, 50.0
KEYS = ["ArrowRight", "ArrowDown", "ArrowRight", "PageDown", "End", "Home"]


def fill(made: Site, nodes: int) -> None:
    """Nodes with pods on two cards of three, some cards shared."""
    chance = random.Random(7)
    pods: dict[str, Any] = {}
    for number in range(nodes):
        for card in range(CARDS):
            for share in range(chance.choice([0, 1, 1, 2, 3])):
                name = f"pod-{number}-{card}-{share}"
                team = f"team-{chance.randrange(12)}"
                pods[name] = {"namespace": team, "node": f"gpu-{number:04}", "mem": 20, "index": card}
    made.put({f"gpu-{n:04}": {"cards": dict.fromkeys(range(CARDS), CARD_MIB)} for n in range(nodes)}, pods)
    made.readings.nodes.update(readings(nodes, pods, chance))


def readings(nodes: int, pods: dict[str, Any], chance: random.Random) -> dict[str, tuple[CardReading, ...]]:
    """What collectors say: most pods use what they requested or less."""
    on: dict[tuple[str, int], list[ContainerReading]] = {}
    for name, pod in pods.items():
        used = chance.choice([0, 8, 15, 19, 20, 24]) * 1024 * MIB
        on.setdefault((pod["node"], pod["index"]), []).append(
            ContainerReading(namespace=pod["namespace"], pod=name, container="c0", used_bytes=used, source="nvml")
        )
    return {
        f"gpu-{n:04}": tuple(
            card_reading(f"gpu-{n:04}", card, on.get((f"gpu-{n:04}", card), [])) for card in range(CARDS)
        )
        for n in range(nodes)
    }


def card_reading(node: str, index: int, containers: list[ContainerReading], utilisation: int = 50) -> CardReading:
    """One card."""
    return CardReading(
        uuid=f"GPU-{node}-{index}",
        index=index,
        used_bytes=sum(one.used_bytes or 0 for one in containers),
        unattributed_bytes=0,
        utilisation=utilisation,
        containers=tuple(containers),
    )


async def work(said: Readings, seconds: float, share: float) -> None:
    """Change the utilisation of this share of the cards, again and again."""
    chance = random.Random(11)
    while True:
        await asyncio.sleep(seconds)
        for node, cards in said.nodes.items():
            if chance.random() < share:
                said.nodes[node] = tuple(
                    card_reading(node, card.index, list(card.containers), chance.randrange(101)) for card in cards
                )


async def drawn(page: Page) -> None:
    """Return when the map shows a picture."""
    await page.wait_for_selector("#map[data-drawn]:not([data-drawn=null])")


async def first_paint(browser: Browser, made: Site) -> list[results.Row]:
    """A profile of its own each time: nothing is in the browser's cache."""
    painted, mapped = [], []
    for _ in range(5):
        async with watched(browser, made.url, viewport={"width": 1920, "height": 1080}) as one:
            await one.page.goto(made.serving.link(made.admin))
            await drawn(one.page)
            script = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            painted.append(await one.page.evaluate(script))
            mapped.append(await one.page.evaluate("performance.now()"))
    return [
        results.below("first contentful paint, cold", statistics.median(painted), "ms", FIRST_PAINT),
        results.below("map of all cards drawn, cold", statistics.median(mapped), "ms", 2 * FIRST_PAINT),
    ]


OBSERVE = """() => {
  window.answers = [];
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) window.answers.push([one.name, one.duration]);
  }).observe({ type: "event", durationThreshold: 16, buffered: false });
}"""


async def interaction(page: Page, pid: int) -> list[results.Row]:
    """From a key or the pointer to the next frame, as the browser itself measures it; and what a key costs the tab."""
    await page.evaluate(OBSERVE)
    await page.focus("canvas")
    before = cpu_seconds(pid)
    for _ in range(5):
        for key in KEYS:
            await page.keyboard.press(key)
    a_key = (cpu_seconds(pid) - before) / (5 * len(KEYS))
    box = await page.locator("canvas").bounding_box()
    assert box is not None
    for step in range(40):
        await page.mouse.move(box["x"] + 20 + step * 20, box["y"] + 40 + step * 6)
    await page.mouse.click(box["x"] + 200, box["y"] + 100)
    search = page.locator("input[type=search]")
    await search.press_sequentially("gpu-05", delay=60)
    await search.fill("")
    await page.select_option("select[name=show]", "over")
    await page.select_option("select[name=show]", "")
    await asyncio.sleep(1)
    found: list[list[Any]] = await page.evaluate("window.answers")
    durations = sorted(duration for _, duration in found) or [0.0]
    # The browser tells only of those that take longer than 16 ms.
    return [
        results.below("interaction, longest", durations[-1], "ms", INTERACTION),
        results.Row("interactions beyond 16 ms", len(durations), ""),
        results.below("CPU of the tab for a key", a_key * 1000, "ms", INTERACTION),
        results.Row("load of the machine", os.getloadavg()[0], ""),
    ]


def memory_mib(pid: int) -> float:
    """The proportional set size of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


async def tab_process(browser: Browser, page: Page) -> int:
    """The process of the tab: the renderer that works while the page does."""
    session = await browser.new_browser_cdp_session()

    async def times() -> dict[int, float]:
        told = await session.send("SystemInfo.getProcessInfo")
        return {one["id"]: one["cpuTime"] for one in told["processInfo"] if one["type"] == "renderer"}

    before = await times()
    await page.evaluate("() => { const end = performance.now() + 2000; while (performance.now() < end); }")
    after = await times()
    return max(after, key=lambda pid: after[pid] - before.get(pid, 0.0))


class Traffic:
    """Bytes that came over the network for a page, as they were sent."""

    def __init__(self) -> None:
        self.bytes = 0

    async def watch(self, page: Page) -> CDPSession:
        session = await page.context.new_cdp_session(page)
        await session.send("Network.enable")
        session.on("Network.dataReceived", self._received)
        return session

    def _received(self, event: dict[str, Any]) -> None:
        self.bytes += event.get("encodedDataLength") or 0


async def idle(pid: int, made: Site, page: Page, seconds: float) -> list[results.Row]:
    """Memory and traffic while the page is only looked at."""
    traffic = Traffic()
    await traffic.watch(page)
    samples: list[tuple[float, float]] = []
    started = time.monotonic()
    busy = asyncio.create_task(work(made.readings, 5.0, 0.2))
    try:
        while (gone := time.monotonic() - started) < seconds:
            samples.append((gone, memory_mib(pid)))
            await asyncio.sleep(min(5.0, seconds / 10))
    finally:
        busy.cancel()
        await asyncio.wait({busy})
    took = time.monotonic() - started
    later = [one for one in samples if one[0] >= took / 3]
    slope = statistics.linear_regression([at for at, _ in later], [size for _, size in later]).slope
    hour = samples[-1][1] + max(0.0, slope) * max(0.0, 3600 - took)
    return [
        results.Row("tab memory at the end", samples[-1][1], "MiB"),
        results.Row("tab memory, growth", slope * 60, "MiB/min"),
        results.below("tab memory after an hour", hour, "MiB", TAB_MIB),
        results.below("traffic while idle", traffic.bytes / took / 1000, "kB/s", IDLE_KB),
    ]


async def measure(nodes: int, seconds: float) -> list[results.Row]:
    """All rows."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        config = DashboardConfig(port=0)
        async with (
            EmbeddedApi(Path(directory)) as api,
            dashboard(api, Readings(), config=config) as made,
            chromium() as browser,
        ):
            fill(made, nodes)
            await made.current()
            await until(lambda: bool(made.serving.live.current.nodes), "a picture of the nodes")
            rows = await first_paint(browser, made)
            link = made.serving.link(made.admin)
            async with watched(browser, made.url, link, viewport={"width": 1920, "height": 1080}) as one:
                await drawn(one.page)
                pid = await tab_process(browser, one.page)
                rows += await interaction(one.page, pid)
                rows += await idle(pid, made, one.page, seconds)
                rows.append(results.below("errors that the page told", len(one.wrongs), "", 0))
                print(*sorted(set(one.wrongs)), sep="\n")
                one.wrongs.clear()  # they are in the table
            return rows


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the page is looked at")
    arguments = parser.parse_args()
    results.report("dashboard_page", asyncio.run(measure(arguments.nodes, arguments.seconds)))


if __name__ == "__main__":
    main()
