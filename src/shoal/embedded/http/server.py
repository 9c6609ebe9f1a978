"""The HTTP face of a registry: who may ask, what is asked, and the answer.

One handler takes every path, since kinds come and go with their definitions.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web

from shoal.embedded import subresources
from shoal.embedded.access.authorization import Gate, asked
from shoal.embedded.access.claim_status import ClaimStatusRights
from shoal.embedded.access.users import User
from shoal.embedded.deletion import DeleteOptions, Deletion, read_options
from shoal.embedded.errors import ApiStatus, method_not_allowed
from shoal.embedded.http import bodies, openapi, patches
from shoal.embedded.http.answers import answer, form_of, refusal, shown, shown_list
from shoal.embedded.http.discovery import VERSION, discover
from shoal.embedded.http.lists import list_objects, truth
from shoal.embedded.http.lists import read_options as read_list_options
from shoal.embedded.http.logs import serve_log
from shoal.embedded.http.options import add_warnings, begin_warnings, dry_run, manager, warn
from shoal.embedded.http.paths import NoSuchGroupError, Target, require_namespace, resolve
from shoal.embedded.http.reviews import review
from shoal.embedded.http.watches import Watches
from shoal.embedded.kinds import JOBS, SUBRESOURCE_KINDS, Kind
from shoal.embedded.logs import LogSources
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object
from shoal.embedded.writes import ACTING, VERB

log = logging.getLogger(__name__)
_HEALTH: Final = ("healthz", "livez", "readyz")
_OPEN: Final = (*_HEALTH, "version")
_ORPHANS: Final = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)


class Server:
    """Answers requests about one registry."""

    def __init__(self, registry: Registry, deletion: Deletion, *, token: str) -> None:
        self.watches = Watches(registry)
        #: Where the logs of containers are; the nodes fill it.
        self.logs = LogSources()
        self.address = ""
        self.gate = Gate(registry, token)
        registry.status_rights.append(ClaimStatusRights(registry.store))
        self._registry = registry
        self._deletion = deletion
        self._readers: set[asyncio.Task[object]] = set()

    def application(self) -> web.Application:
        """The application to run."""
        app = web.Application(client_max_size=bodies.LIMIT + 1)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_shutdown.append(self._end_logs)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        begin_warnings()
        try:
            response = await self._answer(request)
            if not response.prepared:
                add_warnings(response)
            return response
        except ApiStatus as status:
            return refusal(status)
        except NoSuchGroupError:
            return web.Response(status=404, text="404 page not found\n")
        except web.HTTPException:
            raise
        except ConnectionResetError:
            # The client has left before the first byte of its answer; nobody reads this one either.
            log.debug("%s %s: the client has left", request.method, request.path)
            return web.Response(status=499)
        except Exception:
            # A fault of this server, such as a shape of object that nobody foresaw: told as the real one tells its own.
            log.exception("%s %s failed", request.method, request.path)
            return refusal(ApiStatus(500, "InternalError", "Internal error occurred: see the log of the server"))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = [unquote(part) for part in request.rel_url.raw_path.strip("/").split("/")]
        user = None
        if path[0] not in _OPEN or "Authorization" in request.headers:
            user = self._enter(request, path)
        if path[0] in _HEALTH:
            return web.Response(text="ok")
        if path == ["version"]:
            return answer(VERSION)
        if path[0] == "openapi":
            return self._openapi(request, path[1:])
        if path[0] not in ("api", "apis"):
            raise NoSuchGroupError
        if request.method == "GET":
            found = discover(request, path, self._registry.catalogue, self.address)
            if found is not None:
                return found
        if request.method == "POST" and user is not None:
            reviewed = await review(request, path, user, self.gate, self._registry.store)
            if reviewed is not None:
                return reviewed
        if path[:2] == ["api", "v1"] and path[-1] == "bindings" and len(path) == 5 and request.method == "POST":
            return await self._bind(request, path[3])
        if path[2:3] == ["watch"] or (path[0] == "apis" and path[3:4] == ["watch"]):
            path.remove("watch")
            request = request.clone(rel_url=request.rel_url.update_query(watch="true"))
        target = resolve(path, self._registry.catalogue)
        if target.subresource:
            return await self._part(request, target)
        return await (self._object(request, target) if target.name else self._collection(request, target))

    async def _bind(self, request: web.Request, namespace: str) -> web.Response:
        """The older way to bind, where only the body names the pod."""
        binding = await bodies.read_any(request, "Binding")
        bodies.check_type(binding, "Binding", "", "v1")
        name = (binding.get("metadata") or {}).get("name", "")
        done = subresources.bind(self._registry, namespace, name, binding, dry_run=dry_run(request), older=True)
        return answer(done, 201)

    def _enter(self, request: web.Request, path: list[str]) -> User:
        """Who asks, or for whom; 401 for nobody, 403 for somebody who may not."""
        headers = request.headers
        user = self.gate.user(headers.get("Authorization", ""))
        groups = headers.getall("Impersonate-Group", [])
        user = self.gate.spoken_for(
            user, headers.get("Impersonate-User", ""), groups, headers.get("Impersonate-Uid", "")
        )
        wanted = asked(request.method, path, request.query)
        if not user.is_master:
            self.gate.require(user, wanted)
        ACTING.set(user)
        VERB.set(wanted.verb)
        return user

    def _openapi(self, request: web.Request, path: list[str]) -> web.Response:
        catalogue = self._registry.catalogue
        if path == ["v2"]:
            return _swagger(request, openapi.swagger(catalogue))
        if path == ["v3"]:
            return answer(openapi.index(catalogue))
        found = openapi.document(catalogue, "/".join(path[1:])) if path[:1] == ["v3"] else None
        if found is None:
            raise NoSuchGroupError
        return answer(found)

    async def _collection(self, request: web.Request, target: Target) -> web.StreamResponse:
        kind = target.kind
        if request.method in ("GET", "HEAD"):
            return await self._list(request, target)
        require_namespace(target)
        if request.method == "POST":
            form = form_of(request)
            given = await bodies.read_object(request, kind)
            stored = self._registry.create(
                kind, target.namespace, given, manager=manager(request), dry_run=dry_run(request)
            )
            return answer(shown(stored, kind, form, self._registry.clock()), 201)
        if request.method == "DELETE" and "deletecollection" in kind.verbs:
            return await self._delete_all(request, target)
        raise method_not_allowed()

    async def _list(self, request: web.Request, target: Target) -> web.StreamResponse:
        form = form_of(request)
        options = read_list_options(request.query, target.kind, target.name)
        if truth(request.query, "watch"):
            return await self.watches.serve(request, target, options, form)
        items, meta = list_objects(self._registry.store, target.kind, target.namespace, options)
        return answer(shown_list(items, target.kind, form, self._registry.clock(), meta))

    async def _delete_all(self, request: web.Request, target: Target) -> web.Response:
        options = read_list_options(request.query, target.kind)
        wanted = await self._delete_options(request, target.kind)
        items, meta = list_objects(self._registry.store, target.kind, target.namespace, options)
        for obj in items:
            try:
                self._deletion.delete(target.kind, target.namespace, obj["metadata"]["name"], wanted)
            except ApiStatus as status:
                if status.code != 404:  # gone with its owner, one item earlier
                    raise
        return answer(shown_list(items, target.kind, form_of(request), self._registry.clock(), meta))

    async def _delete_options(self, request: web.Request, kind: Kind) -> DeleteOptions:
        options = read_options(await bodies.read_optional(request, "DeleteOptions"), dict(request.query))
        if kind.key != JOBS.key or options.propagation:
            return options
        warn(_ORPHANS)
        return replace(options, propagation="Orphan")

    async def _object(self, request: web.Request, target: Target) -> web.StreamResponse:
        kind, registry = target.kind, self._registry
        form = form_of(request)
        status = 200
        if request.method in ("GET", "HEAD"):
            if truth(request.query, "watch"):
                return await self._list(request, target)
            obj = registry.get(kind, target.namespace, target.name)
        elif request.method == "PUT":
            given = await bodies.read_object(request, kind)
            obj, made = registry.update(
                kind, target.namespace, target.name, given, manager=manager(request), dry_run=dry_run(request)
            )
            status = 201 if made else 200
        elif request.method == "PATCH":
            obj, made = await self._patched(request, target)
            status = 201 if made else 200
        elif request.method == "DELETE":
            return await self._delete(request, target)
        else:
            raise method_not_allowed()
        return answer(shown(obj, kind, form, registry.clock()), status)

    async def _patched(self, request: web.Request, target: Target) -> tuple[Object, bool]:
        if bodies.media_type(request) in patches.APPLY:
            return await patches.apply(request, self._registry, target)
        patch = await patches.read_patch(request, target)
        return patches.patch_object(request, self._registry, target, patch), False

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        kind = target.kind
        options = await self._delete_options(request, kind)
        obj, gone = self._deletion.delete(kind, target.namespace, target.name, options)
        if not gone or kind.kind == "Pod":
            return answer(obj)
        details: dict[str, Any] = {"name": target.name, "kind": kind.plural, "uid": obj["metadata"]["uid"]}
        if kind.group:
            details["group"] = kind.group
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return answer(status)

    async def _part(self, request: web.Request, target: Target) -> web.StreamResponse:
        """A subresource."""
        if target.subresource in ("binding", "eviction", "token"):
            return await self._act(request, target)
        if target.subresource == "scale":
            return await self._scale(request, target)
        if target.subresource == "log":
            if request.method != "GET":
                raise method_not_allowed()
            return await self._log(request, target)
        allowed = ("PUT",) if target.subresource == "finalize" else ("GET", "PUT", "PATCH")
        if request.method not in allowed:
            raise method_not_allowed()
        if request.method == "GET":
            return answer(self._registry.get(target.kind, target.namespace, target.name))
        if request.method == "PATCH":
            return answer((await self._patched(request, target))[0])
        given = await bodies.read_object(request, target.kind)
        obj, _ = self._registry.update(
            target.kind,
            target.namespace,
            target.name,
            given,
            subresource=target.subresource,
            manager=manager(request),
            dry_run=dry_run(request),
        )
        return answer(obj)

    async def _log(self, request: web.Request, target: Target) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._readers.add(task)
        try:
            return await serve_log(request, self._registry, self.logs, target.namespace, target.name)
        finally:
            self._readers.discard(task)

    async def _end_logs(self, _: web.Application) -> None:
        """Whoever follows a log would hold up the end of the server."""
        for task in self._readers:
            task.cancel()

    async def _act(self, request: web.Request, target: Target) -> web.Response:
        if request.method != "POST":
            raise method_not_allowed()
        group, version, name = SUBRESOURCE_KINDS[target.subresource]
        body = await bodies.read_any(request, name)
        bodies.check_type(body, name, group, version)
        dry = dry_run(request)
        if target.subresource == "binding":
            done = subresources.bind(self._registry, target.namespace, target.name, body, dry_run=dry)
        elif target.subresource == "token":
            done = self.gate.tokens.request(target.namespace, target.name, body)
        else:
            done = subresources.evict(self._registry, self._deletion, target.namespace, target.name, body, dry_run=dry)
        return answer(done, 201)

    async def _scale(self, request: web.Request, target: Target) -> web.Response:
        kind, registry = target.kind, self._registry
        present = subresources.scale_of(registry.get(kind, target.namespace, target.name), kind)
        if request.method == "GET":
            return answer(present)
        if request.method == "PATCH":
            scale = (await patches.read_patch(request, target)).of(present)
        elif request.method == "PUT":
            scale = await bodies.read_any(request, "Scale")
        else:
            raise method_not_allowed()
        dry = dry_run(request)
        return answer(subresources.rescale(registry, kind, target.namespace, target.name, scale, dry_run=dry))


def _swagger(request: web.Request, document: dict[str, Any]) -> web.Response:
    """The second version of OpenAPI in the first form of the Accept header that there is; 406 if there is none."""
    for choice in request.headers.get("Accept", "*/*").split(","):
        media = choice.partition(";")[0].strip()
        if media in openapi.MEDIA_TYPES:
            return web.Response(body=openapi.encoded(document), content_type=openapi.MEDIA_TYPES[-1])
        if media in ("application/json", "application/*", "*/*", ""):
            return answer(document)
    return web.Response(status=406)
