"""The API's own description: an OpenAPI 3.1 document made from the route table.

Schemas come from the same types that decode requests and carry answers, paths and parameters from
the same table that the router is made of: they can't differ from what the agent does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from agent.api.bodies import JSON, MSGPACK
from agent.api.problem import CODES, Problem
from agent.api.route import Query, Route

REF = "#/components/schemas/{name}"
PROBLEM = "application/problem+json"
_PATH_PART = re.compile(r"\{(\w+)\}")
_PART_SUMMARIES = {
    "board": "the board's name",
    "member": "the member, percent-encoded UTF-8 (a slash as %2F)",
    "actor": "the actor, percent-encoded UTF-8 (a slash as %2F)",
    "key": "the result's key, percent-encoded UTF-8 (a slash as %2F)",
    "name": "the counter's name, percent-encoded UTF-8 (a slash as %2F)",
    "window": "the window's id",
    "agent": "an agent's name",
}


def codes_of(route: Route) -> list[str]:
    """Every code that a route can answer with, its own and those that follow from its form."""
    codes = ["internal", "malformed", *route.codes]
    if route.scope is not None:
        codes += ["unauthorized", "forbidden"]
    if route.bodies:
        codes += ["too_large", "unsupported_media"]
    if route.method != "GET" and route.scope is not None:
        codes += ["busy"]
    return sorted(set(codes))


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of these routes, ready to be encoded as JSON."""
    types: list[Any] = [Problem]
    for route in routes:
        types += [*route.bodies, *([] if route.answer is None else [route.answer])]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    schema_of = {_key(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tallyring",
            "version": "1",
            "description": "Multi-region counters and leaderboards. Writes are answered when they "
            "are durable in this region; answers carry `as_of`, by region the time up to which "
            "they include it.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(route: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "parameters": [
            *map(_path_part, _PATH_PART.findall(route.path)),
            *map(_query, route.query),
            *(_header(name, summary) for name, summary in route.headers),
        ],
        "responses": _problems(route)
        | {str(status): _answer(route, status, schema_of) for status in route.statuses},
    }
    if route.scope is not None:
        operation["security"] = [{}, {"token": []}]
        operation["x-scope"] = route.scope
    if route.bodies:
        kinds = [schema_of[_key(kind)] for kind in route.bodies]
        schema = kinds[0] if len(kinds) == 1 else {"oneOf": kinds}
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {JSON: {"schema": schema}, MSGPACK: {"schema": schema}},
        }
    return operation


def _path_part(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PART_SUMMARIES[name],
        "schema": {"type": "string"},
    }


def _query(query: Query) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": query.kind}
    if query.kind == "integer":
        schema |= {"minimum": query.least, "maximum": query.greatest}
    if query.default is not None:
        schema["default"] = query.default
    return {"name": query.name, "in": "query", "description": query.summary, "schema": schema}


def _header(name: str, summary: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": summary, "schema": {"type": "string"}}


def _answer(route: Route, status: int, schema_of: dict[str, Any]) -> dict[str, Any]:
    if status == HTTPStatus.NOT_MODIFIED:
        return {"description": HTTPStatus.NOT_MODIFIED.phrase}
    if route.answer is None:
        return {"description": route.summary, "content": {route.media: {}}}
    schema = {"schema": schema_of[_key(route.answer)]}
    content: dict[str, Any] = {JSON: schema, MSGPACK: schema}
    if route.streamed:
        content[route.streamed] = {}
    return {"description": route.summary, "content": content}


def _problems(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in codes_of(route):
        by_status.setdefault(CODES[code], []).append(code)
    return {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}",
            "content": {PROBLEM: {"schema": {"$ref": REF.format(name="Problem")}}},
        }
        for status, codes in sorted(by_status.items())
    }
