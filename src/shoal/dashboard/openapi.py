"""The API as OpenAPI 3.1, made of the types that answers and parameters have."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiohttp import web

from shoal import __version__
from shoal.dashboard.access import COOKIE
from shoal.dashboard.answers import JSON, ErrorAnswer, json_bytes
from shoal.dashboard.api import API, ENDPOINTS, ApiEndpoint
from shoal.dashboard.queries import Query
from shoal.dashboard.stream import MapDelta, MapDocument

_TEMPLATE: Final = "#/components/schemas/{name}"
_REFUSALS: Final = {
    "400": "A parameter is not known, or its value cannot be used: the message names it",
    "401": "Nobody is signed in, or the token is not valid any more",
    "403": "The request was started by another site, or the viewer may not see this",
    "404": "There is no such thing, or the viewer may not see it",
    "429": "Too many tokens that are not known, or too many streams",
    "503": "The API server, the collectors or this server cannot answer now",
}
_IN_PATH: Final = {
    "name": "The name of the object",
    "namespace": "The pod's namespace",
    "uuid": "The card's UUID",
}
_STREAM: Final = (
    "Server-sent events: `snapshot` with a map, then `delta`, at most once a second, each with an id; `Last-Event-ID` "
    "goes on from there. `end` with a reason (expired, signed-out, stopping) is the last one."
)


def openapi() -> dict[str, Any]:
    """The document."""
    answers = [endpoint.answer for endpoint in ENDPOINTS]
    kinds = [*answers, MapDocument, MapDelta, ErrorAnswer]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    paths = {API + endpoint.path: _path(endpoint, schema) for endpoint, schema in zip(ENDPOINTS, schemas, strict=False)}
    whole_map, delta, error = schemas[-3:]
    paths[f"{API}/map"] = _get("All cards as arrays", "map", {JSON: {"schema": whole_map}}, [])
    resume = {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "maxLength": 100},
    }
    stream = {"text/event-stream": {"schema": {"type": "string", "description": _STREAM, "x-events": delta}}}
    paths[f"{API}/stream"] = _get("The map and its changes", "stream", stream, [resume])
    components["Refusal"] = error
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shoal dashboard", "version": __version__, "description": "Read-only."},
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A Kubernetes token"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def _path(endpoint: ApiEndpoint, schema: dict[str, Any]) -> dict[str, Any]:
    in_path = [
        {
            "name": part,
            "in": "path",
            "required": True,
            "description": says,
            "schema": {"type": "string", "minLength": 1},
        }
        for part, says in _IN_PATH.items()
        if f"{{{part}}}" in endpoint.path
    ]
    name = endpoint.path.strip("/").replace("/", "-").replace("{", "").replace("}", "")
    return _get(endpoint.says, name, {JSON: {"schema": schema}}, [*in_path, *_parameters(endpoint.query)])


def _get(says: str, name: str, content: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    refused: dict[str, dict[str, Any]] = {
        code: {"description": words, "content": {JSON: {"schema": {"$ref": _TEMPLATE.format(name="Refusal")}}}}
        for code, words in _REFUSALS.items()
    }
    # A request that is no HTTP within bounds is refused before it gets as far as a path.
    refused["400"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    answers = {"200": {"description": says, "content": content}, **refused}
    return {"get": {"summary": says, "operationId": name, "parameters": parameters, "responses": answers}}


def _parameters(query: type[Query]) -> list[dict[str, Any]]:
    """The parameters of a question; a text cannot be null, so that is left out of what they take."""
    _, components = msgspec.json.schema_components([query], ref_template=_TEMPLATE)
    told = components[query.__name__]
    required = told.get("required", [])
    found = []
    for name, schema in told.get("properties", {}).items():
        plain = _without_null(schema)
        says = plain.pop("description", None)
        parameter = {"name": name, "in": "query", "required": name in required, "schema": plain}
        found.append(parameter if says is None else {**parameter, "description": says})
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if not (key == "default" and value is None)}
    if "anyOf" in kept:
        options = [one for one in kept["anyOf"] if one.get("type") != "null"]
        if len(options) == 1:
            return {**{key: value for key, value in kept.items() if key != "anyOf"}, **options[0]}
    if "enum" in kept:
        kept["enum"] = [one for one in kept["enum"] if one is not None]
    return kept


def add_openapi(app: web.Application) -> None:
    """The route of the document, which everybody may read."""
    content = msgspec.json.encode(openapi())

    async def answer(_: web.Request) -> web.StreamResponse:
        return json_bytes(content)

    app.router.add_get(f"{API}/openapi.json", answer)
