"""How pages are made: templates with everything escaped, the words for amounts and times, and the files they load.

Files of `static/` are read once and served under an address that changes with their content, so that browsers keep them
for good and never have old ones beside new ones.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote

import jinja2
from aiohttp import web

from shoal.dashboard.answers import PRIVATE, Refusal
from shoal.dashboard.bars import gib

HERE: Final = Path(__file__).parent
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json"}
_KEPT_FOR_GOOD: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
#: Smaller files are not worth compressing.
_WORTH: Final = 512


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file, plain and compressed."""

    content: bytes
    packed: bytes | None
    kind: str


class StaticFiles:
    """The files of a folder in memory, and the address under which they are."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _static_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }
        digest = hashlib.sha256()
        for name, file in self._files.items():
            digest.update(name.encode() + b"\0" + file.content)
        self.root = f"/static/{digest.hexdigest()[:12]}"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One file. Raises Refusal."""
        file = self._files.get(request.match_info["name"])
        if file is None or f"/static/{request.match_info['version']}" != self.root:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such file: load the page again")
        headers = {**_KEPT_FOR_GOOD, "Vary": "Accept-Encoding"}
        if file.packed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(
                body=file.packed, content_type=file.kind, headers={**headers, "Content-Encoding": "gzip"}
            )
        return web.Response(body=file.content, content_type=file.kind, headers=headers)


def _static_file(path: Path) -> StaticFile:
    content = path.read_bytes()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    return StaticFile(content, gzip.compress(content, 9, mtime=0) if len(content) > _WORTH else None, kind)


class Templates:
    """Renders templates to pages."""

    def __init__(self, static: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals["static"] = static
        self._environment.filters.update(
            mib=gib,
            percent=percent,
            celsius=celsius,
            watts=watts,
            ago=lambda time: ago(time, now()),
            quoted=shlex.quote,
            part=lambda text: quote(str(text), safe=""),
        )

    def page(self, template: str, values: Mapping[str, object], status: int = HTTPStatus.OK) -> web.Response:
        """A page that only its reader may keep."""
        text = self._environment.get_template(template).render({"active": "", **values})
        answer = web.Response(text=text, content_type="text/html", status=status, headers=PRIVATE)
        answer.enable_compression()
        return answer


def percent(amount: float | None) -> str | None:
    """A part of a hundred."""
    return None if amount is None else f"{round(amount)} %"


def celsius(amount: float | None) -> str | None:
    """A temperature."""
    return None if amount is None else f"{round(amount)} °C"


def watts(amount: float | None) -> str | None:
    """Power."""
    return None if amount is None else f"{round(amount)} W"


def ago(time: str, now: datetime) -> str:
    """How long ago that was, in words; the time as it is when it cannot be read, since others write it."""
    try:
        then = datetime.fromisoformat(time)
    except ValueError:
        return time
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = max(0, round((now - then).total_seconds()))
    for below, unit, length in ((90, "s", 1), (5400, "min", 60), (129_600, "h", 3600)):
        if seconds < below:
            return f"{round(seconds / length)} {unit} ago"
    return f"{round(seconds / 86_400)} days ago"
