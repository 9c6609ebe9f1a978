"""The pictures in the docs are of views that exist, and small."""

from pathlib import Path

from aiohttp import web

from shoal.dashboard.pages import add_pages
from tests.dashboard.page.screenshots import PICTURES

ROOT = Path(__file__).parents[2]
MOST_BYTES = 120_000


def test_every_picture_is_there_and_is_shown() -> None:
    docs = "".join((ROOT / name).read_text() for name in ("README.md", "docs/dashboard.md"))
    files = {path.stem for path in (ROOT / "docs/images").glob("dashboard-*.png")}
    assert files == {picture.name for picture in PICTURES}
    for picture in PICTURES:
        assert f"images/{picture.name}.png" in docs, picture.name
        assert (ROOT / f"docs/images/{picture.name}.png").stat().st_size < MOST_BYTES


async def test_the_views_of_the_pictures_exist() -> None:
    app = web.Application()
    add_pages(app)
    paths = [resource.get_info() for resource in app.router.resources()]
    for picture in PICTURES:
        assert any(
            info.get("path") == picture.path or ("pattern" in info and info["pattern"].fullmatch(picture.path))
            for info in paths
        ), picture.path
