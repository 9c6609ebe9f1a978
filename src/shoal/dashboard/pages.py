"""The pages: what each address shows, made of the same documents as the API's answers.

Here are addresses, filters and links; what is true of the cluster is worked out in `documents.py` and below.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import web

from shoal.dashboard import detail_pages, report_pages, table_pages
from shoal.dashboard.access import safe_path, viewer_of
from shoal.dashboard.answers import Refusal
from shoal.dashboard.frame import STATIC, TEMPLATES, page

_REFUSED: Final = {
    "unknown-token": "The API server does not know this token, or it has expired.",
    "too-many": "Too many attempts were made from your address. Wait a minute and try again.",
    "unavailable": "The API server cannot be asked at the moment. Try again.",
    "used-link": "This link has been used or is too old. Sign in with a token.",
}
_TITLES: Final = {
    400: "That cannot be asked",
    401: "Sign in first",
    403: "Not allowed",
    404: "Not there",
    405: "Not here",
    429: "Too many requests",
    503: "Not now",
}
SHOWS: Final = (
    ("", "all cards"),
    ("over", "used beyond the request"),
    ("unattributed", "used by no pod"),
    ("idle", "requested and idle"),
    ("free", "free"),
    ("broken", "broken or not ready"),
    ("unmeasured", "not measured"),
)
SIZES: Final = (("", "fitting"), ("large", "large"), ("medium", "medium"), ("small", "small"), ("tiny", "tiny"))
_MOST_SEARCH: Final = 200


def add_pages(app: web.Application) -> None:
    """The routes of the pages and of the static files."""
    for path, answer in _PAGES:
        app.router.add_get(path, answer)
    app.router.add_get("/static/{version}/{name:.+}", STATIC.serve)


async def _map_page(request: web.Request) -> web.StreamResponse:
    viewer = await viewer_of(request)
    asked = {
        "search": _text(request.query, "search"),
        "show": _one_of(request.query, "show", SHOWS),
        "size": _one_of(request.query, "size", SIZES),
    }
    return await page(request, viewer, "map.html", active="map", asked=asked, shows=SHOWS, sizes=SIZES)


async def _sign_in_page(request: web.Request) -> web.StreamResponse:
    refused = request.query.get("refused", "")
    words = _REFUSED.get(refused, "You could not be signed in. Try again.") if refused else ""
    following = safe_path(request.query.get("next", "/"))
    return TEMPLATES.page("sign_in.html", {"refused": words, "next": following})


def error_page(request: web.Request, status: int, words: str) -> web.StreamResponse:
    """An error of a page, in words for a person."""
    message = f"{words[:1].upper()}{words[1:]}"
    values = {"title": _TITLES.get(status, "That did not work"), "message": message, "status": status, "back": None}
    return TEMPLATES.page("error.html", values, status)


def _text(query: Mapping[str, str], name: str) -> str:
    """What is searched for. Raises Refusal."""
    text = query.get(name, "")
    if len(text) > _MOST_SEARCH:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{name} takes at most {_MOST_SEARCH} characters")
    return text


def _one_of(query: Mapping[str, str], name: str, choices: tuple[tuple[str, str], ...]) -> str:
    """One of some words. Raises Refusal."""
    value = query.get(name, "")
    if value not in {key for key, _ in choices}:
        known = ", ".join(key for key, _ in choices if key)
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{name} takes one of {known}")
    return value


_PAGES: Final = (
    ("/", _map_page),
    ("/nodes", table_pages.nodes_page),
    ("/nodes/{name}", detail_pages.node_page),
    ("/cards", table_pages.cards_page),
    ("/cards/{uuid}", detail_pages.card_page),
    ("/pods", table_pages.pods_page),
    ("/pods/{namespace}/{name}", detail_pages.pod_page),
    ("/pods/{namespace}/{name}/why", detail_pages.why_page),
    ("/queue", table_pages.queue_page),
    ("/waste", report_pages.waste_page),
    ("/events", table_pages.events_page),
    ("/setup", report_pages.setup_page),
    ("/clusters", report_pages.clusters_page),
    ("/clusters/{name}", report_pages.cluster_page),
    ("/sign-in", _sign_in_page),
)
