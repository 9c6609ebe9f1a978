"""Takes the pictures of docs/images from a running dashboard: `make screenshots`.

Few and small: a palette instead of full colour. Names of cards and times of day differ from run to run, so they are
taken anew when the page changes, and not compared.
"""

import asyncio
import io
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser

from tests.dashboard.page.browser import chromium, settled, watched
from tests.dashboard.page.stage import Stage, filled, staged

_COLOURS = 96


@dataclass(frozen=True)
class Picture:
    """One picture: its file, the view, and how it is looked at."""

    name: str
    path: str
    theme: str = "light"
    width: int = 1280
    height: int = 620
    #: A card to stand on, by key presses on the map.
    keys: tuple[str, ...] = ()


PICTURES = (
    Picture("dashboard-map-light", "/", keys=("Home",)),
    Picture("dashboard-map-dark", "/", "dark", keys=("Home",)),
    Picture("dashboard-card-light", "/cards/CARD", height=900),
    Picture("dashboard-pod-dark", "/pods/research/too-big", "dark", height=760),
    Picture("dashboard-phone-light", "/cards", width=390, height=760),
)


async def take(browser: Browser, stage: Stage, picture: Picture, folder: Path) -> None:
    """One picture."""
    size = {"width": picture.width, "height": picture.height}
    link = await stage.link()
    async with watched(browser, stage.url, link, color_scheme=picture.theme, viewport=size) as one:
        uuid = stage.serving.live.current.nodes["node-1"].used.cards[0].gpu.uuid
        await one.go(picture.path.replace("CARD", uuid))
        await settled(one.page)
        if picture.keys:
            await one.page.focus("canvas")
            for key in picture.keys:
                await one.page.keyboard.press(key)
        await one.page.wait_for_timeout(500)
        content = await one.page.screenshot()
    image = Image.open(io.BytesIO(content)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    image.save(folder / f"{picture.name}.png", optimize=True)


async def take_all(folder: Path, *, seconds: float) -> None:
    """All pictures, after the cluster has run for a while: plots without a past show nothing."""
    with tempfile.TemporaryDirectory(prefix="ss-") as place:
        async with staged(Path(place)) as stage, chromium() as browser:
            await filled(stage)
            await asyncio.sleep(seconds)
            for picture in PICTURES:
                await take(browser, stage, picture, folder)


if __name__ == "__main__":
    asyncio.run(take_all(Path(sys.argv[1]), seconds=float(sys.argv[2]) if len(sys.argv) > 2 else 90.0))
