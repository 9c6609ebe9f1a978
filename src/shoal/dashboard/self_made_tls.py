"""A certificate of the server's own making, for an installation that gives it none: new at each start, in memory.

Browsers do not know who signed it and say so; it keeps what is said on the way from being read by those who listen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from shoal.http.tls import server_context
from shoal.kube import certificates
from shoal.kube.access.tls import load_pair

_LIFE: Final = timedelta(days=90)
_RENEW_SECONDS: Final = timedelta(days=30).total_seconds()
HOSTS: Final = ("localhost", "127.0.0.1", "::1", "shoal-dashboard", "shoal-dashboard.kube-system.svc")


class SelfMadeTls:
    """The context, with a certificate for these names. Run `keep()` beside the server."""

    def __init__(self, now: Callable[[], datetime], hosts: Sequence[str] = HOSTS) -> None:
        self._now = now
        self._hosts = tuple(hosts)
        self.context = server_context()
        self._make()

    async def keep(self) -> None:
        """Make a new one each month."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            self._make()

    def _make(self) -> None:
        now = self._now()
        authority = certificates.new_authority("shoal dashboard", now=now, life=_LIFE)
        load_pair(self.context, authority.server(self._hosts, now=now, life=_LIFE))
