"""What tenants and nodes can write stays text, wherever it is shown; and many rows come in pages."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from shoal.embedded.kinds import EVENTS
from shoal.metrics.history_wire import CardReading, ContainerReading
from tests.dashboard.page.browser import watched
from tests.dashboard.site import MIB, Site
from tests.dashboard.site import site as made

#: Runs if it is taken for markup, wherever it lands: in text, in an attribute, in a template.
MARKUP = "'\"><img src=x onerror=document.title='taken'><script>document.title='taken'</script>{{7*7}}{%x%}</title>"
MANY = 130


def event(name: str, kind: str, target: str, namespace: str) -> dict[str, Any]:
    """An Event with markup in every field that takes any text."""
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"kind": kind, "name": target, "namespace": namespace if kind == "Pod" else ""},
        "reason": MARKUP[:100],
        "message": f"message {MARKUP}",
        "type": "Warning",
        "source": {"component": MARKUP[:100]},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(chromium: Browser) -> AsyncIterator[Site]:
    """Markup in models, faults, addresses, annotations, labels, conditions, Events and readings; and many pods."""
    with tempfile.TemporaryDirectory(prefix="sh-") as folder:
        async with made(Path(folder)) as one:
            cards = {
                0: {"memory_mib": 10240, "model": MARKUP[:100]},
                1: {"memory_mib": 10240, "model": MARKUP[:100], "healthy": False, "fault": MARKUP[:100]},
            }
            hostile = {"labels": {"x": "y"}, "annotations": {"shoal.dev/other": MARKUP}}
            pods: dict[str, Any] = {
                "holder": {"namespace": "red", "node": "n1", "mem": 4, "index": 0, **hostile},
                "waits": {"namespace": "red", "mem": 30, "why": f"why {MARKUP}", **hostile},
                **{f"many-{number:03}": {"namespace": "blue", "mem": 30, "why": "no room"} for number in range(MANY)},
            }
            one.put({"n1": {"cards": cards, "address": MARKUP}}, pods)
            reading = ContainerReading(
                namespace="red", pod=MARKUP, container=MARKUP, used_bytes=512 * MIB, source="nvml"
            )
            one.readings.nodes["n1"] = (
                CardReading(uuid="GPU-n1-0", index=0, used_bytes=1024 * MIB, containers=(reading,)),
            )
            one.readings.silent["n1"] = MARKUP
            one.api.registry.create(EVENTS, "red", event("e1", "Pod", "holder", "red"))
            one.api.registry.create(EVENTS, "default", event("e2", "Node", "n1", "default"))
            await one.current()
            yield one


PATHS = """
/ /nodes /nodes/n1 /cards /cards/GPU-n1-0 /cards/GPU-n1-1 /pods?namespace=red /pods/red/holder /pods/red/waits
/pods/red/waits/why /queue?search=waits /waste?cause=broken /events
"""


@pytest.mark.parametrize("path", PATHS.split())
async def test_markup_stays_text(chromium: Browser, site: Site, path: str) -> None:
    async with watched(chromium, site.url, site.serving.link(site.admin), may_fail=True) as one:
        assert await one.go(path) == 200
        if path == "/":
            await one.page.wait_for_selector("#map[data-drawn]:not([data-drawn=null])")
            await one.page.focus("canvas")
            await expect(one.page.locator(".map-detail")).to_contain_text("<script>")
        else:
            await expect(one.page.locator("body")).to_contain_text("<script>" if "queue" not in path else "why '")
        await expect(one.page.locator("#why [role=status]")).to_have_count(0)
        assert "taken" not in await one.page.title()
        assert await one.page.locator("main script, img[src=x]").count() == 0
        assert "49" not in await one.page.locator("h1").inner_text()


async def test_a_hundred_rows_to_a_page(chromium: Browser, site: Site) -> None:
    async with watched(chromium, site.url, site.serving.link(site.admin)) as one:
        await one.go("/queue?sort=-name")
        rows = one.page.locator("tbody tr")
        await expect(rows).to_have_count(100)
        await expect(one.page.locator(".pager")).to_contain_text(f"100 of {MANY + 1} waiting pods")
        first = await rows.first.inner_text()
        await one.page.get_by_role("link", name="Next 100").click()
        await expect(rows).to_have_count(MANY + 1 - 100)
        assert await rows.first.inner_text() != first
        await one.page.get_by_role("link", name="First page").click()
        await expect(rows).to_have_count(100)
