"""The part of JSON Schema that the OpenAPI document uses: enough to hold answers against it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    *("$ref", "anyOf", "oneOf", "enum", "type", "properties", "required", "additionalProperties"),
    *("items", "minItems", "maxItems", "minProperties", "maxProperties", "pattern"),
    *("title", "description", "default", "minimum", "maximum", "prefixItems"),
}


def faults(schema: dict[str, Any], value: Any, document: dict[str, Any]) -> list[str]:
    """Where a value does not fit its schema; empty where it does."""
    return list(_faults(schema, value, document, "$"))


def _faults(schema: dict[str, Any], value: Any, document: Any, at: str) -> Iterator[str]:
    unknown = schema.keys() - _KNOWN
    if unknown:
        yield f"{at}: this checker does not know {unknown}"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        yield from _faults(document["components"]["schemas"][name], value, document, at)
    for key in ("anyOf", "oneOf"):
        fits = [s for s in schema.get(key, ()) if not faults(s, value, document)]
        if key in schema and (len(fits) != 1 if key == "oneOf" else not fits):
            yield f"{at}: fits {len(fits)} of {key}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    kind = schema.get("type")
    if kind == "integer":
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not (isinstance(value, int) or whole):
            yield f"{at}: {value!r} is no integer"
    elif kind is not None:
        wrong_bool = isinstance(value, bool) and kind == "number"
        if not isinstance(value, _TYPES[kind]) or wrong_bool:
            yield f"{at}: {value!r} is no {kind}"
    yield from _bounds(schema, value, at)
    if isinstance(value, dict):
        yield from _object(schema, value, document, at)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            yield from _faults(schema["items"], item, document, f"{at}[{index}]")


def _bounds(schema: dict[str, Any], value: Any, at: str) -> Iterator[str]:
    if isinstance(value, list | dict):
        size = len(value)
        least = schema.get("minItems", schema.get("minProperties", 0))
        if not least <= size <= schema.get("maxItems", schema.get("maxProperties", size)):
            yield f"{at}: {size} items"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{at}: {value!r} does not match"


def _object(schema: dict[str, Any], value: Any, document: Any, at: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}: {name} is missing"
    more = schema.get("additionalProperties", "properties" not in schema)
    for name, item in value.items():
        if name in properties:
            yield from _faults(properties[name], item, document, f"{at}.{name}")
        elif isinstance(more, dict):
            yield from _faults(more, item, document, f"{at}.{name}")
        elif not more:
            yield f"{at}: {name} is unknown"
