"""What changes shows without loading the page again; what is lost is said, and the last picture stays, marked old."""

from playwright.async_api import Browser, Page, expect

from shoal.kube.resources import PODS
from tests.dashboard.page.browser import Watched, watched
from tests.dashboard.page.stage import Stage


async def drawn(page: Page) -> None:
    await page.wait_for_selector("#map[data-drawn]:not([data-drawn=null])")


async def find(page: Page, text: str) -> None:
    """Look for a card on the map by a text, and go to it."""
    await page.fill("input[type=search]", text)
    await page.focus("canvas")
    await page.keyboard.press("Home")


async def test_a_pod_that_comes_and_goes_shows_on_the_map(page: Watched, stage: Stage) -> None:
    await drawn(page.page)
    found = page.page.locator("#map-found")
    await page.page.fill("input[type=search]", "default/comer")
    await expect(found).to_have_text("0 cards on 0 nodes")
    await stage.pod("default", "comer", 2, "memory=1Gi utilisation=5")
    await expect(found).to_have_text("1 cards on 1 nodes")
    await page.page.focus("canvas")
    await page.page.keyboard.press("Home")
    await expect(page.page.locator(".map-detail")).to_contain_text("default/comer")
    await expect(page.page.locator(".map-detail li", has_text="default/comer")).to_contain_text("2 GiB · 1 GiB")
    await stage.client.delete(PODS.raw, "comer", namespace="default", grace_seconds=0)
    await expect(found).to_have_text("0 cards on 0 nodes")
    assert "search=default%2Fcomer" in page.page.url


async def test_a_table_and_its_count_follow(page: Watched, stage: Stage) -> None:
    await page.go("/queue?search=late-comer")
    await expect(page.page.locator("main")).to_contain_text("Nothing matches.")
    tab = page.page.locator(".tabs a", has_text="Queue").locator(".count")
    before = int(await tab.inner_text())
    await stage.pod("default", "late-comer", 100)
    await expect(page.page.get_by_role("link", name="default/late-comer")).to_be_visible()
    await expect(tab).to_have_text(str(before + 1))
    await stage.client.delete(PODS.raw, "late-comer", namespace="default", grace_seconds=0)
    await expect(page.page.locator("main")).to_contain_text("Nothing matches.")


async def test_a_filter_narrows_the_table_and_stands_in_the_address(page: Watched) -> None:
    await page.go("/pods")
    await page.page.fill("input[type=search]", "trainer")
    await expect(page.page.locator("tbody tr")).to_have_count(2)
    await page.page.wait_for_url("**/pods?*search=trainer*")
    await page.page.select_option("select[name=state]", "waiting")
    await expect(page.page.locator("main")).to_contain_text("Nothing matches.")
    await page.page.reload()
    await expect(page.page.locator("input[type=search]")).to_have_value("trainer")
    await page.page.get_by_role("link", name="Show all").click()
    await page.page.get_by_role("link", name="Used", exact=True).click()
    await page.page.wait_for_url("**/pods?sort=-used")
    await expect(page.page.locator("tbody tr").first).to_contain_text("research/trainer-0")


async def test_the_api_server_goes_away_and_comes_back(page: Watched, stage: Stage) -> None:
    await drawn(page.page)
    await stage.relay.block()
    try:
        await expect(page.page.locator("#notice")).to_contain_text("The API server has not answered since")
        await expect(page.page.locator("body")).to_have_attribute("data-old", "")
        await expect(page.page.locator("#map-found")).to_have_text("12 cards on 3 nodes")
        page.may_fail = True  # what is asked of the API server in the meantime is refused
        await page.page.reload()
        await expect(page.page.locator("#notice")).to_contain_text("The API server has not answered since")
        await drawn(page.page)
    finally:
        stage.relay.unblock()
    await expect(page.page.locator("#notice")).to_be_hidden()
    await expect(page.page.locator(".live")).to_have_attribute("data-state", "live")
    assert await page.page.locator("body").get_attribute("data-old") is None


async def test_the_connection_breaks_and_resumes(page: Watched, stage: Stage) -> None:
    page.may_fail = True
    await drawn(page.page)
    await stage.front.block()
    try:
        await expect(page.page.locator("#notice")).to_contain_text("The connection was lost at")
        await expect(page.page.locator("#map-found")).to_have_text("12 cards on 3 nodes")
        await expect(page.page.locator("body")).to_have_attribute("data-old", "")
    finally:
        stage.front.unblock()
    await expect(page.page.locator(".live")).to_have_attribute("data-state", "live")
    await expect(page.page.locator("#notice")).to_be_hidden()


async def test_a_token_that_expires_in_mid_stream_is_told(chromium: Browser, stage: Stage) -> None:
    """The API server is asked again within a minute, and does not know the token any more."""
    token = await stage.token(admin=False, namespaces=["serving", "batch"])
    async with watched(chromium, stage.url, stage.link_of(token), may_fail=True) as one:
        await drawn(one.page)
        await stage.revoke("viewer-batch-serving")
        await expect(one.page.locator("#notice")).to_contain_text("Your session has ended")
        await expect(one.page.locator("#notice a")).to_have_attribute("href", "/sign-in?next=%2F")
        await expect(one.page.locator("body")).to_have_attribute("data-old", "")
        await one.page.locator("#notice a").click()
        await expect(one.page.locator("h1")).to_have_text("Sign in to Shoal")


async def test_signing_out_elsewhere_ends_this_page_too(chromium: Browser, stage: Stage) -> None:
    async with watched(chromium, stage.url, await stage.link(), may_fail=True) as one:
        await drawn(one.page)
        other = await one.page.context.new_page()
        await other.goto(f"{stage.url}/nodes")
        await other.get_by_role("button", name="Sign out").click()
        await expect(other.locator("h1")).to_have_text("Sign in to Shoal")
        await expect(one.page.locator("#notice")).to_contain_text("You have signed out")
