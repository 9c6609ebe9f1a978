"""`GET …/pods/NAME/log`: what a container wrote, read from its node, with the real server's words where there is none.

`stream` and `insecureSkipTLSVerifyBackend` are not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from aiohttp import web

from shoal.embedded.errors import ApiStatus, FieldError, bad_request, invalid, invalid_value
from shoal.embedded.http.lists import truth
from shoal.embedded.kinds import PODS
from shoal.embedded.logs import Line, LogReader, LogSources
from shoal.embedded.registry import Registry
from shoal.embedded.rules.pods import containers
from shoal.embedded.store import Object

_LOOK_SECONDS: Final = 2.0
_PULLS: Final = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What of a log is asked for."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: datetime | None = None
    limit: int | None = None


def read_options(query: Mapping[str, str], now: datetime) -> LogOptions:
    """The options of a request; 422 if they make no sense."""
    errors: list[FieldError] = []
    tail = _number(query, "tailLines", 0, "must be greater than or equal to 0", errors)
    limit = _number(query, "limitBytes", 1, "must be greater than 0", errors)
    seconds = _number(query, "sinceSeconds", 1, "must be greater than 0", errors)
    since = None if seconds is None else now - timedelta(seconds=seconds)
    if query.get("sinceTime"):
        if seconds is not None:
            why = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
            errors.append(FieldError("FieldValueForbidden", "", why))
        since = _moment(query["sinceTime"])
    if errors:
        raise invalid("PodLogOptions", "", "", errors)
    return LogOptions(
        container=query.get("container", ""),
        follow=truth(query, "follow"),
        previous=truth(query, "previous"),
        timestamps=truth(query, "timestamps"),
        tail=tail,
        since=since,
        limit=limit,
    )


def _number(query: Mapping[str, str], name: str, least: int, why: str, errors: list[FieldError]) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.removeprefix("-").isdigit() or len(text) > 18:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if int(text) < least:
        errors.append(invalid_value(name, int(text), why))
    return int(text)


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise bad_request(f'parsing time "{text}": write it as 2006-01-02T15:04:05Z') from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


async def serve_log(
    request: web.Request, registry: Registry, sources: LogSources, namespace: str, name: str
) -> web.StreamResponse:
    """Answer with a log."""
    options = read_options(request.query, registry.clock())
    pod = registry.get(PODS, namespace, name)
    container = chosen_container(pod, options.container)
    node = pod["spec"].get("nodeName", "")
    if not node:
        return web.Response(status=204)
    source = sources.find(node)
    if source is None:
        why = f'Get "https://{node}:10250/containerLogs/{namespace}/{name}/{container}": dial tcp: connection refused'
        raise ApiStatus(500, "InternalError", f"Internal error occurred: {why}")
    previous = _run_of(pod, container, previous=options.previous)
    reader = source.reader(pod["metadata"]["uid"], container, previous=previous)
    if reader is None:
        raise bad_request(f'container "{container}" in pod "{name}" is not available')
    response = web.StreamResponse(headers={"Content-Type": "text/plain", "Cache-Control": "no-cache, private"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionResetError):  # the client has left: the usual end of following a log
        await _send(request, response, reader, options)
    return response


def chosen_container(pod: Object, asked: str) -> str:
    """The container whose log is meant; 400 if that is not clear."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    every: list[str] = [one["name"] for one in containers(spec)]
    if asked:
        if asked not in every:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(spec["containers"]) == 1:
        return str(spec["containers"][0]["name"])
    raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(every)}]")


def _run_of(pod: Object, container: str, *, previous: bool) -> bool:
    """Whether the log of the run before is to be read; 400 if there is none of either."""
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    known = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    found = next((one for one in known if one["name"] == container), None)
    if found is None:
        raise bad_request(f'container "{container}" in pod "{name}" is not available')
    state: dict[str, Any] = found.get("state") or {}
    ended = (found.get("lastState") or {}).get("terminated")
    if previous:
        if not ended:
            raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
        # While it waits for its next start, its last run is what the node still has as the present one.
        return "waiting" not in state
    if "waiting" in state and not ended:
        reason = state["waiting"].get("reason", "")
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {_PULLS.get(reason, reason)}')
    return False


async def _send(request: web.Request, response: web.StreamResponse, reader: LogReader, options: LogOptions) -> None:
    lines = reader.written()
    fresh = [line for line in lines if options.since is None or line[0] >= options.since]
    if options.tail is not None:
        fresh = fresh[len(fresh) - min(options.tail, len(fresh)) :]
    room = options.limit
    while True:
        text = "".join(_text(line, timestamps=options.timestamps) for line in fresh).encode()
        text = text if room is None else text[:room]
        room = None if room is None else room - len(text)
        if text:
            await response.write(text)
        if not options.follow or room == 0 or not await _more(request, reader):
            return
        sent, lines = len(lines), reader.written()
        fresh = lines[sent:]


async def _more(request: web.Request, reader: LogReader) -> bool:
    """Wait for more, and look now and then whether the client is still there: a silent container tells nothing."""
    waiting = asyncio.ensure_future(reader.more())
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=_LOOK_SECONDS)
            if request.transport is None or request.transport.is_closing():
                return False
        return waiting.result()
    finally:
        waiting.cancel()


def _text(line: Line, *, timestamps: bool) -> str:
    if not timestamps:
        return f"{line[1]}\n"
    return f"{line[0].astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%S.%f')}000Z {line[1]}\n"
