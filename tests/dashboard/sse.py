"""A reader of a stream, as a browser reads it, that keeps a map by what it hears."""

import asyncio
import json
from types import TracebackType
from typing import Any

import aiohttp

from tests.dashboard.site import Site


class Reader:
    """One stream. Use it in `async with`; `map` is what the events make of it."""

    def __init__(self, site: Site, token: str = "", *, last: str = "", cookie: str = "", gzip: bool = True) -> None:
        headers = {"Accept-Encoding": "gzip"} if gzip else {"Accept-Encoding": "identity"}
        if cookie:
            headers["Cookie"] = cookie
        else:
            headers["Authorization"] = f"Bearer {token or site.admin}"
        if last:
            headers["Last-Event-ID"] = last
        self._asking = site.session.get(
            f"{site.url}/api/v1/stream", headers=headers, timeout=aiohttp.ClientTimeout(total=None)
        )
        self.events: list[tuple[str, Any]] = []
        self.last = ""
        self.map: dict[str, Any] = {}
        self.over = asyncio.Event()
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Reader":
        self.answer = await self._asking.__aenter__()
        assert self.answer.status == 200, await self.answer.text()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        self.answer.close()

    async def _read(self) -> None:
        kind = data = ""
        try:
            while line := (await self.answer.content.readuntil(b"\n")).decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    data = value
                elif name == "id":
                    self.last = value
                elif not line.strip() and kind:
                    self._take(kind, json.loads(data))
                    kind = data = ""
        except (aiohttp.ClientError, asyncio.IncompleteReadError):
            pass
        finally:
            self.over.set()
            self._heard.set()

    def _take(self, kind: str, content: Any) -> None:
        self.events.append((kind, content))
        if kind == "snapshot":
            self.map = {**content, "nodes": {node[0]: node for node in content["nodes"]}}
        elif kind == "delta":
            self._apply(content)
        self._heard.set()

    def _apply(self, delta: Any) -> None:
        for part in ("models", "pods"):
            for place, entry in sorted(delta[part].items(), key=lambda pair: int(pair[0])):
                entries = self.map[part]
                entries.extend([None] * (int(place) + 1 - len(entries)))
                entries[int(place)] = entry
        for name, node in delta["nodes"].items():
            if node is None:
                del self.map["nodes"][name]
            else:
                self.map["nodes"][name] = node
        self.map |= {key: delta[key] for key in ("number", "time", "oldSince")}

    @property
    def pods(self) -> set[tuple[str, str, str]]:
        return {tuple(pod) for pod in self.map.get("pods", []) if pod is not None}

    async def hears(self, condition: Any, what: str) -> None:
        """Return when what was heard makes this true."""
        try:
            async with asyncio.timeout(300):
                while not condition(self):
                    assert not self.over.is_set(), f"the stream ended before {what}: {self.events[-3:]}"
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            raise AssertionError(f"not heard: {what}: {self.events[-3:]}") from None
