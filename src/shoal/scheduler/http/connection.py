"""One connection of aiohttp's server, with clocks on it: for a request to arrive, and for its answer to be taken."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from shoal.kube.certificates import der_fingerprint
from shoal.scheduler.http.bounds import Bounds
from shoal.scheduler.http.places import Place, Places


class Connection(web.RequestHandler):
    """Serves one caller. The server says when a request is answered: `begin` and `end`."""

    def __init__(self, server: web.Server, bounds: Bounds, places: Places, place: Place, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._bounds = bounds
        self._places = places
        self._place = place
        self._wire: asyncio.Transport | None = None
        self._arriving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._ahead = self._half_closed = False
        #: The fingerprint of the certificate that the caller has shown and TLS has checked.
        self.shown = ""

    def begin(self) -> None:
        """A request has its head here, and is being answered."""
        self._place.busy = True
        self._ahead = False
        self._stop_arriving()
        if self._half_closed:
            self.close()

    def end(self) -> None:
        """It is answered."""
        self._place.busy = False
        if self._ahead:
            self._await_request()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self.shown = "" if certificate is None else der_fingerprint(certificate)
        self._place.close = transport.abort
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._places.leave(self._place)
        self._stop_arriving()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and self._place.busy:
            self._ahead = True
        elif data:
            self._await_request()
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A caller that has closed its side is answered, and nothing more is read."""
        self._half_closed = True
        if self._place.busy:
            self.close()
        return self._place.busy or self._arriving is not None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._cut_off_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def _await_request(self) -> None:
        """The time of a request runs from its first byte on."""
        if self._arriving is None:
            self._arriving = self._cut_off_later()

    def _cut_off_later(self) -> asyncio.TimerHandle:
        assert self._wire is not None
        return asyncio.get_running_loop().call_later(self._bounds.seconds, self._wire.abort)

    def _stop_arriving(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
