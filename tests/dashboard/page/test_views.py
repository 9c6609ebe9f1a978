"""Every view opens by its link and says what it should, in both themes and for everybody, and asks no other host."""

from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.dashboard.page.browser import Watched, settled, watched
from tests.dashboard.page.stage import Stage

#: Path, heading, and something that must be told there. `CARD` stands for the UUID of the first card of node-1.
VIEWS = [
    ("/", "Map", "Waiting pods"),
    ("/nodes", "Nodes", "172.16.0.1"),
    ("/nodes/node-3", "node-3", "reset the card or reboot the node"),
    ("/cards", "Cards", "NVIDIA A30"),
    ("/cards/CARD", "Card 0 of node-1", "Who has it"),
    ("/pods", "Pods", "serving/embedder"),
    ("/pods/serving/embedder", "embedder", "1 GiB beyond"),
    ("/pods/research/too-big", "too-big", "With 24576 MiB per card or less it would fit now."),
    ("/pods/research/too-big/why", "Why", "With 24576 MiB per card or less it would fit now."),
    ("/queue", "Queue", "container 'main' asks for 40960 MiB"),
    ("/waste", "Waste", "Fragmentation"),
    ("/waste?cause=broken", "Waste", "node-3 · 3"),
    ("/events", "Events", "FailedScheduling"),
    ("/setup", "Set-up", "No ClusterPolicy"),
    ("/clusters", "Clusters", "No cluster manager"),
    ("/sign-in", "Sign in to Shoal", "Paste a Kubernetes token"),
]
SERIOUS = ("serious", "critical")


async def path_of(stage: Stage, path: str) -> str:
    """A path with the UUID of a card in it."""
    if "CARD" not in path:
        return path
    node = stage.serving.live.current.nodes["node-1"]
    return path.replace("CARD", node.used.cards[0].gpu.uuid)


async def findings(page: Page) -> list[str]:
    """What axe finds that keeps people from using the page."""
    results: Any = await Axe().run(page)
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
        for one in results.response["violations"]
        if one["impact"] in SERIOUS
    ]


@pytest.mark.parametrize(("path", "heading", "says"), VIEWS, ids=[path for path, *_ in VIEWS])
async def test_a_view(page: Watched, stage: Stage, path: str, heading: str, says: str) -> None:
    assert await page.go(await path_of(stage, path)) == 200
    await expect(page.page.locator("h1")).to_have_text(heading)
    await expect(page.page.locator("main")).to_contain_text(says)
    await settled(page.page)
    for theme in ("light", "dark"):
        await page.page.emulate_media(color_scheme=theme)
        assert await findings(page.page) == [], theme
    await page.page.set_viewport_size({"width": 360, "height": 740})
    wide = await page.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "the page is wider than a phone"


async def test_every_tab_has_a_count_and_leads_to_its_view(page: Watched) -> None:
    tabs = page.page.locator(".tabs a")
    titles = [(await tab.inner_text()).split() for tab in await tabs.all()]
    assert [title[0] for title in titles] == ["Map", "Nodes", "Cards", "Pods", "Queue", "Waste", "Events", "Set-up"]
    assert all(title[-1].isdecimal() for title in titles), titles
    for place in range(len(titles)):
        await tabs.nth(place).click()
        await expect(tabs.nth(place)).to_have_attribute("aria-current", "page")


async def test_the_theme_is_chosen_once_and_kept(page: Watched) -> None:
    await page.page.emulate_media(color_scheme="light")
    await page.go("/nodes")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await page.page.evaluate(ground)
    await page.page.get_by_role("button", name="Change to dark colours").click()
    dark = await page.page.evaluate(ground)
    assert dark != light
    await page.go("/pods")
    assert await page.page.evaluate(ground) == dark


async def test_no_data_stale_and_zero_look_different(chromium: Browser, stage: Stage) -> None:
    async with watched(chromium, stage.url, await stage.link()) as one:
        await one.go("/pods/batch/sleeper")
        await expect(one.page.locator(".stats .nodata")).to_have_text("no data")
        await one.go("/nodes/node-2")
        await expect(one.page.locator("td[data-label=Used]").nth(1)).to_have_text("0 GiB")
        stage.silent.add("node-2")
        try:
            await expect(one.page.locator(".stats .old").first).to_be_visible()
            await expect(one.page.locator("main")).to_contain_text("Its collector has not answered since")
            await one.go("/")
            await expect(one.page.locator(".stats")).to_contain_text("1 stale")
        finally:
            stage.silent.discard("node-2")
        await expect(one.page.locator(".stats")).not_to_contain_text("1 stale")
