"""Write the plots and one HTML page that holds them all: no other file, no address, opens anywhere."""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape
from pathlib import Path

from shoal.simulate.errors import PlotsError
from shoal.simulate.report.curves import Picture, pictures
from shoal.simulate.report.plots import allocation_png, idle_png
from shoal.simulate.report.records import Results
from shoal.simulate.report.table import Section, sections, settings

PAGE = "report.html"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p.settings { color: #52606d; margin-top: .2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0 2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .3rem .9rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e7eb; }
th { border-bottom: 2px solid #9aa5b1; } th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
"""


def write_report(results: Results, out: Path) -> Path:
    """The plots as PNG files and the page, in a folder that exists; returns the page."""
    shown = []
    try:
        for picture in pictures(results):
            images = {"allocation": allocation_png(picture), "idle": idle_png(picture)}
            for kind, png in images.items():
                (out / f"{kind}-{_file_name(picture.workload)}.png").write_bytes(png)
            shown.append((picture, images))
        page = out / PAGE
        page.write_text(_page(results, shown), encoding="utf-8")
    except OSError as error:
        raise PlotsError(f"{error.filename} cannot be written ({error.strerror}): name another --out") from error
    return page


def _file_name(workload: str) -> str:
    return re.sub(r"[^\w.-]", "_", workload)


def _page(results: Results, shown: list[tuple[Picture, dict[str, bytes]]]) -> str:
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Placement policies compared</title><style>{_STYLE}</style></head><body>",
        "<h1>Placement policies compared</h1>",
        f'<p class="settings">{escape(settings(results))}</p>',
        *(_table(section) for section in sections(results)),
    ]
    for picture, images in shown:
        parts.append(f"<h2>{escape(picture.workload)}</h2>")
        parts += [_image(png, f"{picture.workload}: {kind}") for kind, png in images.items()]
    return "\n".join([*parts, "</body></html>", ""])


def _table(section: Section) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in section.heads)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
    caption = escape(section.title)
    return f'<div class="wide"><table><caption>{caption}</caption>\n<tr>{head}</tr>\n{rows}\n</table></div>'


def _image(png: bytes, words: str) -> str:
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{b64encode(png).decode()}">'
