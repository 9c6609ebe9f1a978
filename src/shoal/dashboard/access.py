"""Signing in and out over HTTP, and who makes a request: by the session's cookie, or by a token a program shows.

The cookie is good for this host alone and never sent along with requests that other sites start; those are refused
besides. On a loopback address without TLS, browsers keep no `Secure` cookie, so there it has a plain name with the port
in it, and only requests to a loopback name are answered: what another site's name leads here is none.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from aiohttp import web

from shoal.dashboard.answers import JSON, PRIVATE, Refusal, json_answer
from shoal.dashboard.config import is_loopback
from shoal.dashboard.viewers import SESSION_SECONDS, Session, SignedOutError, Viewer, Viewers
from shoal.http.server import Bodies, shown_token
from shoal.kube.reviews import CallerRefusedError

COOKIE: Final = "__Host-shoal"
PATH_SIGN_IN: Final = "/sign-in"
PATH_SIGN_OUT: Final = "/sign-out"
#: Programs may show their token in this header where something on the way sets `Authorization`.
TOKEN_HEADER: Final = "X-Shoal-Token"

#: The code of requests that another site started.
OTHER_SITE: Final = "other-site"

_MOST_FORM: Final = 16 << 10
_MOST_PATH: Final = 2048
_OWN_SITES: Final = ("same-origin", "none")
_REASONS: Final = {401: "unknown-token", 429: "too-many", 503: "unavailable"}


@dataclass(slots=True)
class Door:
    """How the server is reached: with TLS or not, and on which port, which is known when it listens."""

    secure: bool
    port: int = 0

    @property
    def cookie(self) -> str:
        """The name of the cookie; cookies of a host go to all its ports."""
        return COOKIE if self.secure else f"shoal-{self.port}"


VIEWERS: Final = web.AppKey("viewers", Viewers)
DOOR: Final = web.AppKey("door", Door)
BODIES: Final = web.AppKey("bodies", Bodies)


async def viewer_of(request: web.Request) -> Viewer:
    """Who asks. Raises SignedOutError, CallerRefusedError and Refusal."""
    _check_site(request)
    viewers, token = request.app[VIEWERS], shown_token(request, TOKEN_HEADER)
    if token:
        return await viewers.of_token(token, _peer(request))
    return await viewers.of_session(session_of(request), _peer(request))


def session_of(request: web.Request) -> Session:
    """The session of a request. Raises SignedOutError."""
    return request.app[VIEWERS].session(request.cookies.get(request.app[DOOR].cookie, ""))


def add_signing_in(app: web.Application) -> None:
    """The routes that open and end sessions. The page with the form is in `pages.py`."""
    app.router.add_post(PATH_SIGN_IN, _sign_in)
    app.router.add_get(PATH_SIGN_IN + "/{code}", _sign_in_by_link)
    app.router.add_post(PATH_SIGN_OUT, _sign_out)


async def _sign_in(request: web.Request) -> web.StreamResponse:
    """A form with `token` and `next`, the path to go to. Programs get JSON, and pages are sent on."""
    _check_site(request)
    async with request.app[BODIES].of(request) as body:
        form = _form(request, body)
    following = safe_path(form.get("next", ""))
    try:
        session, cookie = await request.app[VIEWERS].sign_in(form.get("token", ""), _peer(request))
    except CallerRefusedError as refusal:
        if _wants_json(request):
            raise
        reason = _REASONS.get(refusal.status, "unavailable")
        raise web.HTTPSeeOther(_with_next(f"{PATH_SIGN_IN}?refused={reason}", following)) from None
    answer = json_answer({"user": session.user}) if _wants_json(request) else _sent_on(following)
    _set_cookie(request, answer, cookie)
    return answer


async def _sign_in_by_link(request: web.Request) -> web.StreamResponse:
    try:
        _, cookie = await request.app[VIEWERS].sign_in_by_link(request.match_info["code"], _peer(request))
    except CallerRefusedError as refusal:
        reason = "used-link" if refusal.status == 401 else _REASONS.get(refusal.status, "unavailable")
        raise web.HTTPSeeOther(f"{PATH_SIGN_IN}?refused={reason}") from None
    answer = _sent_on("/")
    _set_cookie(request, answer, cookie)
    return answer


async def _sign_out(request: web.Request) -> web.StreamResponse:
    _check_site(request)
    with contextlib.suppress(SignedOutError):  # it is over already, which is what was wanted
        request.app[VIEWERS].sign_out(session_of(request))
    answer = json_answer({}) if _wants_json(request) else _sent_on(PATH_SIGN_IN)
    door = request.app[DOOR]
    answer.del_cookie(door.cookie, path="/", secure=door.secure, httponly=True, samesite="Strict")
    return answer


def safe_path(path: str) -> str:
    """A path of this server to go to; "/" for anything else."""
    plain = path.isascii() and path.isprintable() and "\\" not in path and len(path) <= _MOST_PATH
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"


def sign_in_first(request: web.Request) -> web.HTTPSeeOther:
    """Sends a page's reader to the form, and back after it."""
    return web.HTTPSeeOther(_with_next(PATH_SIGN_IN, safe_path(request.path_qs)))


def _with_next(path: str, following: str) -> str:
    if following == "/":
        return path
    return f"{path}{'&' if '?' in path else '?'}next={quote(following, safe='/')}"


def _sent_on(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path, **PRIVATE})


def _set_cookie(request: web.Request, answer: web.Response, cookie: str) -> None:
    door = request.app[DOOR]
    answer.set_cookie(
        door.cookie,
        cookie,
        path="/",
        secure=door.secure,
        httponly=True,
        samesite="Strict",
        max_age=int(SESSION_SECONDS),
    )


def _form(request: web.Request, body: bytes) -> dict[str, str]:
    if len(body) > _MOST_FORM:
        raise Refusal(413, f"the form is longer than {_MOST_FORM} bytes")
    if request.content_type != "application/x-www-form-urlencoded":
        raise Refusal(400, "send a form (application/x-www-form-urlencoded) with token")
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=8, errors="strict"))
    except (ValueError, UnicodeDecodeError):
        raise Refusal(400, "the form cannot be read: send token=… and next=…") from None


def _check_site(request: web.Request) -> None:
    """Raises Refusal for what another site started, and for what came by a name that is not this server's."""
    site = request.headers.get("Sec-Fetch-Site", "")
    if site and site not in _OWN_SITES:
        raise Refusal(403, "this request was started by another site", code=OTHER_SITE)
    host, origin = request.headers.get("Host", ""), request.headers.get("Origin", "")
    scheme = "https" if request.app[DOOR].secure else "http"
    if origin and origin != f"{scheme}://{host}" and not (site and origin == "null"):
        raise Refusal(403, "this request was started by another site", code=OTHER_SITE)
    if not request.app[DOOR].secure and not is_loopback(_host_name(host)):
        raise Refusal(403, "without TLS only 127.0.0.1 and localhost are served", code="other-host")


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _wants_json(request: web.Request) -> bool:
    return JSON in request.headers.get("Accept", "")


def _peer(request: web.Request) -> str:
    return request.remote or ""
