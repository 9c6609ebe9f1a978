"""Everything by keyboard alone: views, the canvas, search, tips, commands; and what is focused can be seen."""

from playwright.async_api import Page, expect

from tests.dashboard.page.browser import Watched
from tests.dashboard.page.stage import Stage


async def tab_to(page: Page, selector: str, *, most: int = 120) -> None:
    """Press Tab until something of that kind has the focus, and see that each stop shows it."""
    for _ in range(most):
        await page.keyboard.press("Tab")
        found = await page.evaluate(
            "(selector) => [document.activeElement.matches(selector), "
            "getComputedStyle(document.activeElement).outlineStyle, document.activeElement.outerHTML.slice(0, 90)]",
            selector,
        )
        if found[2].startswith("<body"):
            continue
        assert found[1] != "none", f"no focus can be seen on {found[2]}"
        if found[0]:
            return
    raise AssertionError(f"Tab does not lead to {selector}")


async def test_a_walk_through_all_views(page: Watched) -> None:
    for title in ("Nodes", "Cards", "Pods", "Queue", "Waste", "Events", "Set-up", "Map"):
        href = "/" if title == "Map" else f"/{title.lower().replace('-', '')}"
        await tab_to(page.page, f".tabs a[href='{href}']")
        await page.page.keyboard.press("Enter")
        await expect(page.page.locator("h1")).to_have_text(title)


async def test_the_canvas_by_arrow_keys(page: Watched, stage: Stage) -> None:
    await page.page.wait_for_selector("#map[data-drawn]:not([data-drawn=null])")
    await tab_to(page.page, "canvas")
    said = page.page.locator("#map [role=status]")
    await expect(said).to_contain_text("node-1, card 0")
    await page.page.keyboard.press("ArrowDown")
    await expect(said).to_contain_text("node-1, card 1")
    await page.page.keyboard.press("ArrowRight")
    await expect(said).to_contain_text("node-2, card 1")
    await page.page.keyboard.press("ArrowUp")
    await page.page.keyboard.press("ArrowLeft")
    await expect(said).to_contain_text("node-1, card 0")
    uuid = stage.serving.live.current.nodes["node-1"].used.cards[0].gpu.uuid
    await page.page.wait_for_url(f"**/?*card={uuid}")
    await page.page.keyboard.press("Enter")
    await expect(page.page.locator("h1")).to_have_text("Card 0 of node-1")
    await page.page.go_back()
    await page.page.wait_for_selector("#map[data-drawn]:not([data-drawn=null])")
    await expect(page.page.locator(".map-detail")).to_contain_text("Card 0 of node-1")


async def test_from_a_waiting_pod_to_what_helps_and_from_a_card_to_who_takes_more(page: Watched) -> None:
    await page.go("/queue")
    await tab_to(page.page, "tbody a[href='/pods/research/too-big']")
    await page.page.keyboard.press("Enter")
    await expect(page.page.locator("#why")).to_contain_text("With 24576 MiB per card or less it would fit now.")
    await page.go("/cards?sort=-used")
    await tab_to(page.page, "tbody th a")
    await page.page.keyboard.press("Enter")
    await expect(page.page.locator("section", has_text="Who has it").locator("tbody tr").first).to_contain_text(
        "serving/embedder"
    )
    await tab_to(page.page, "tbody a[href='/pods/serving/embedder']")
    await page.page.keyboard.press("Enter")
    await expect(page.page.locator("h1")).to_have_text("embedder")


async def test_search_tips_and_commands(page: Watched) -> None:
    await page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.go("/nodes/node-1")
    await tab_to(page.page, ".stat")
    await expect(page.page.get_by_role("tooltip")).to_have_text("Whether the node is ready, and takes new pods.")
    await page.page.keyboard.press("Escape")
    await expect(page.page.get_by_role("tooltip")).to_have_count(0)
    await tab_to(page.page, "button[data-copy]")
    await page.page.keyboard.press("Enter")
    assert await page.page.evaluate("navigator.clipboard.readText()") == "kubectl describe node node-1"
    await page.go("/pods")
    await page.page.keyboard.press("/")
    await page.page.keyboard.type("embed")
    await expect(page.page.locator("tbody tr")).to_have_count(1)
