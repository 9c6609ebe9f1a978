"""Debian's Chromium, driven by Playwright: how it is started, and a page that remembers all that went wrong on it."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

EXECUTABLE = "/usr/bin/chromium"
#: Nothing but what the tests ask for: no GPU of this machine, no call home.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: The browser's own words for an answer that is an error, which some tests ask for.
_STATUS = "Failed to load resource"


#: Milliseconds that only a broken run meets.
PATIENCE = 120_000
expect.set_options(timeout=PATIENCE)


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser."""
    if shutil.which(EXECUTABLE) is None:
        raise RuntimeError(f"there is no {EXECUTABLE}: `make test-page` installs the package chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=EXECUTABLE, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Watched:
    """A page, and what it should not have done."""

    page: Page
    url: str
    wrongs: list[str] = field(default_factory=list)
    #: Whether answers that are errors are meant here.
    may_fail: bool = False

    def _console(self, message: ConsoleMessage) -> None:
        # htmx tells of requests without an answer by the names of its events.
        meant = self.may_fail and (_STATUS in message.text or message.text.startswith("htmx:"))
        if message.type in ("error", "warning") and not meant:
            self.wrongs.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        if request.url.startswith(("data:", "blob:")):
            return
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.wrongs.append(f"a request to another host: {request.url}")

    def watch(self) -> None:
        """Listen from now on."""
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrongs.append(f"an error: {error}"))
        self.page.on("request", self._request)

    def check(self) -> None:
        """Raise for all that went wrong."""
        assert not self.wrongs, self.wrongs

    async def go(self, path: str) -> int:
        """Open an address of the dashboard; the status of its answer."""
        answer = await self.page.goto(self.url + path)
        assert answer is not None
        return answer.status


@contextlib.asynccontextmanager
async def watched(
    browser: Browser, url: str, link: str = "", *, may_fail: bool = False, **options: Any
) -> AsyncIterator[Watched]:
    """A page in a profile of its own, signed in by a link if one is given. At its end nothing may have gone wrong."""
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    try:
        page = await context.new_page()
        # What the policy of the page forbids is told here, wherever the console hides it.
        await page.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('CSP: ' + e.violatedDirective + ' ' + "
            "e.blockedURI + ' ' + e.sourceFile + ':' + e.lineNumber))"
        )
        one = Watched(page, url, may_fail=may_fail)
        one.watch()
        if link:
            await page.goto(link)
        yield one
        one.check()
    finally:
        await context.close()


async def settled(page: Page) -> None:
    """Return when the page shows what it has: the map is drawn, plots have their words, why has its answer."""
    if await page.locator("#map").count():
        await page.wait_for_selector("#map[data-drawn]:not([data-drawn=null])")
    for words in await page.locator("figure.plot .words").all():
        await expect(words).not_to_be_empty()
    await expect(page.locator("#why [role=status]")).to_have_count(0)
