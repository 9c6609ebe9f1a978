"""Signing in, what people without rights see, and what others send on their behalf."""

import aiohttp
import pytest
from playwright.async_api import Browser, expect

from tests.dashboard.page.browser import watched
from tests.dashboard.page.stage import Stage


async def test_signing_in_with_a_token_leads_to_where_one_wanted_to_go(chromium: Browser, stage: Stage) -> None:
    async with watched(chromium, stage.url) as one:
        await one.go("/pods?search=chat")
        await expect(one.page.locator("h1")).to_have_text("Sign in to Shoal")
        await one.page.get_by_label("Token", exact=True).fill("not-a-token")
        await one.page.get_by_role("button", name="Sign in").click()
        await expect(one.page.get_by_role("alert").first).to_contain_text("does not know this token")
        await one.page.get_by_label("Token", exact=True).fill(await stage.token())
        await one.page.keyboard.press("Enter")
        await one.page.wait_for_url("**/pods?search=chat")
        await expect(one.page.locator("tbody tr")).to_have_count(2)
        cookies = await one.page.context.cookies()
        assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
        assert await one.page.evaluate("document.cookie") == ""


async def test_a_link_works_once(chromium: Browser, stage: Stage) -> None:
    link = await stage.link()
    async with watched(chromium, stage.url, link) as one:
        await expect(one.page.locator("h1")).to_have_text("Map")
    async with watched(chromium, stage.url, link) as other:
        await expect(other.page.get_by_role("alert").first).to_contain_text("This link has been used")


async def test_somebody_with_one_namespace_sees_others_as_amounts(chromium: Browser, stage: Stage) -> None:
    token = await stage.token(admin=False, namespaces=["serving"])
    async with watched(chromium, stage.url, stage.link_of(token), may_fail=True) as one:
        await one.page.wait_for_selector("#map[data-drawn]:not([data-drawn=null])")
        await one.page.focus("canvas")
        await one.page.keyboard.press("Home")
        detail = one.page.locator(".map-detail")
        await expect(detail).to_contain_text("serving/embedder")
        await expect(detail).to_contain_text("pods of namespaces you may not read")
        for path in ("/pods", "/queue", "/cards", "/events", "/waste", "/nodes", "/pods/serving/embedder/why"):
            assert await one.go(path) == 200
            text = await one.page.locator("body").inner_text()
            assert "research" not in text, path
            assert "trainer" not in text, path
            assert "sleeper" not in text, path
        assert await one.go("/pods/research/trainer-0") == 404
        await expect(one.page.locator("main")).to_contain_text("There is no such pod, or you may not read it")
        assert await one.go("/setup") == 403
        assert await one.page.locator(".tabs a", has_text="Set-up").count() == 0


async def test_somebody_without_rights_is_told_so(chromium: Browser, stage: Stage) -> None:
    token = await stage.token(admin=False)
    async with watched(chromium, stage.url, stage.link_of(token)) as one:
        await expect(one.page.locator(".map-empty")).to_have_text("No node with cards that you may see.")
        await one.go("/pods")
        await expect(one.page.locator("main")).to_contain_text("No pod that you may read has cards or asks for any.")


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/nowhere", 404, "There is nothing here"),
        ("/nodes/no-such-node", 404, "There is no such node, or you may not see it"),
        ("/cards/GPU-none", 404, "There is no such card, or you may not see it"),
        ("/pods/research/none", 404, "There is no such pod, or you may not read it"),
        ("/clusters/none", 404, "No cluster of this name is joined"),
        (f"/pods?search={'x' * 300}", 400, "search"),
        (f"/?search={'x' * 300}", 400, "Search takes at most 200 characters"),
        ("/pods?sort=colour", 400, "sort"),
        ("/pods?colour=red", 400, "'colour' is no parameter of this"),
        ("/pods?limit=500", 400, "a page has at most 100 rows"),
        ("/pods?continue=forged", 400, "it is not what an earlier page said"),
        ("/nodes/node-1?last=1", 400, "last takes one of"),
        ("/waste?cause=bad-luck", 400, "cause takes one of"),
        ("/nodes/%3Cscript%3Edocument.title=1%3C%2Fscript%3E", 404, "There is no such node"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_what_cannot_be_shown_gets_a_clear_answer(
    chromium: Browser, stage: Stage, path: str, status: int, says: str
) -> None:
    async with watched(chromium, stage.url, await stage.link(), may_fail=True) as one:
        assert await one.go(path) == status
        await expect(one.page.locator("main")).to_contain_text(says, ignore_case=True)
        await expect(one.page.get_by_role("link", name="To the map")).to_be_visible()


async def test_forged_cookies_and_requests_of_other_sites_get_nothing(chromium: Browser, stage: Stage) -> None:
    port = stage.serving.port
    async with aiohttp.ClientSession() as session:
        forged = {"Cookie": f"shoal-{port}=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}
        async with session.get(f"{stage.url}/pods", headers=forged, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/sign-in?next=/pods")
        token = {"Authorization": f"Bearer {await stage.token()}"}
        for header in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://elsewhere.example"}):
            async with session.get(f"{stage.url}/pods", headers={**token, **header}) as answer:
                assert answer.status == 403
                assert "this request was started by another site" in (await answer.text()).lower()
        async with session.post(f"{stage.url}/sign-out", headers={"Origin": "https://elsewhere.example"}) as answer:
            assert answer.status == 403


async def test_another_site_can_neither_frame_the_page_nor_read_it(chromium: Browser, stage: Stage) -> None:
    async with watched(chromium, stage.url, await stage.link()) as one:
        answer = await one.page.goto(f"{stage.url}/pods")
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
            assert part in policy.split("; "), policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
