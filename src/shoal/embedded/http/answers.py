"""Answers: objects as JSON, or as the Table or bare metadata that a client prefers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
from aiohttp import web

from shoal.embedded.definitions import layout_of
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import Kind
from shoal.embedded.rules.events import from_core
from shoal.embedded.store import Object
from shoal.embedded.tables import table_of

_NOT_ACCEPTABLE: Final = (
    "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, "
    "application/vnd.kubernetes.protobuf, application/json;stream=watch, "
    "application/vnd.kubernetes.protobuf;stream=watch"
)
_NO_SUCH_FORM: Final = (
    "only the following media types are accepted: "
    "application/json, application/yaml, application/vnd.kubernetes.protobuf"
)
_META_VERSION: Final = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Form:
    """How a client wants to see objects: `as_` is empty, Table, PartialObjectMetadata or PartialObjectMetadataList."""

    as_: str = ""
    include: str = "Metadata"


def form_of(request: web.Request) -> Form:
    """The first form in the Accept header that can be given; 406 if there is none."""
    include = request.query.get("includeObject", "") or "Metadata"
    refused = _NOT_ACCEPTABLE
    for choice in request.headers.get("Accept", "*/*").split(","):
        media, *parameters = (part.strip() for part in choice.split(";"))
        if media not in ("application/json", "*/*", "application/*", ""):
            continue
        wanted = dict(parameter.partition("=")[::2] for parameter in parameters)
        as_ = wanted.get("as", "")
        if not as_:
            return Form()
        if as_ in ("Table", "PartialObjectMetadata", "PartialObjectMetadataList") and wanted.get("v") == "v1":
            return Form(as_, include)
        refused = _NO_SUCH_FORM
    raise ApiStatus(406, "NotAcceptable", refused)


def in_version(obj: Object, kind: Kind) -> Object:
    """A stored object in the version of the kind that was asked for."""
    return obj if kind.home is None else from_core(obj)


def shown(obj: Object, kind: Kind, form: Form, now: datetime) -> Any:
    """One object in a form."""
    obj = in_version(obj, kind)
    if form.as_ == "Table":
        version = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return _table([obj], kind, form, now, version)
    if form.as_:
        return {"kind": "PartialObjectMetadata", "apiVersion": _META_VERSION, "metadata": obj["metadata"]}
    return obj


def shown_list(items: Sequence[Object], kind: Kind, form: Form, now: datetime, list_meta: dict[str, Any]) -> Any:
    """A list in a form."""
    items = [in_version(obj, kind) for obj in items]
    if form.as_ == "Table":
        return _table(list(items), kind, form, now, list_meta)
    if form.as_:
        metas = [{"metadata": obj["metadata"]} for obj in items]
        list_kind = "PartialObjectMetadataList"
        return {"kind": list_kind, "apiVersion": _META_VERSION, "metadata": list_meta, "items": metas}
    bare = list(items) if kind.custom else [_without_type(obj) for obj in items]
    return {"kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": list_meta, "items": bare}


def _table(items: list[Object], kind: Kind, form: Form, now: datetime, list_meta: dict[str, Any]) -> dict[str, Any]:
    return table_of(
        kind.kind,
        kind.group,
        items,
        now=now,
        list_meta=list_meta,
        include=form.include,
        layout=layout_of(kind.served) if kind.custom else None,
    )


def answer(value: Any, status: int = 200) -> web.Response:
    """A JSON answer."""
    headers = {"Cache-Control": "no-cache, private"}
    body = msgspec.json.encode(value) + b"\n"
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def refusal(status: ApiStatus) -> web.Response:
    """The answer that an ApiStatus stands for."""
    response = answer(status.body(), status.code)
    retry_after = (status.details or {}).get("retryAfterSeconds")
    if retry_after:
        response.headers["Retry-After"] = str(retry_after)
    return response


def _without_type(obj: Object) -> Object:
    return {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
