"""The description of all REST routes for people, of which no part is loaded from another site."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from tempopt.server.pages.rendering import page

router = APIRouter(include_in_schema=False)
_REFERENCE = "#/components/schemas/"
_DEEPEST = 6


class Field(NamedTuple):
    """A parameter, or a field of a body.

    Args:
        name: Its name.
        place: ``path``, ``query``, ``header`` or ``body``.
        kind: Its type and range.
        required: Whether it has to be given.
        about: What it means.
    """

    name: str
    place: str
    kind: str
    required: bool
    about: str


class Route(NamedTuple):
    """One route.

    Args:
        method: In capitals.
        path: With the names of its parameters in braces.
        summary: In a few words.
        about: Paragraphs.
        fields: What it takes.
        example: A body that it takes, as JSON text; empty: it takes none.
        answers: Status and meaning of each answer.
    """

    method: str
    path: str
    summary: str
    about: list[str]
    fields: list[Field]
    example: str
    answers: list[tuple[str, str]]


@router.get("/docs")
def reference(request: Request) -> Response:
    """Show every route, what it takes and what it answers; everybody may read it, as ``/openapi.json``."""
    return page(request, "reference.html", groups=groups(request.app.openapi()))


def groups(document: Mapping[str, Any]) -> dict[str, list[Route]]:
    """Return the routes of an OpenAPI document by their tags, in its order.

    Args:
        document: As ``/openapi.json`` has it.
    """
    schemas = document.get("components", {}).get("schemas", {})
    found: dict[str, list[Route]] = {}
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            found.setdefault(told["tags"][0], []).append(_route(method.upper(), path, told, schemas))
    return found


def _route(method: str, path: str, told: Mapping[str, Any], schemas: Mapping[str, Any]) -> Route:
    body = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    fields = [
        _field(each["name"], each["in"], each["schema"], each.get("required", False), each.get("description"))
        for each in told.get("parameters", ())
    ]
    return Route(
        method=method,
        path=path,
        summary=told.get("summary", ""),
        about=told.get("description", "").split("\n\n"),
        fields=[*fields, *_fields(body, schemas)],
        example=json.dumps(_example(body, schemas), indent=2) if body else "",
        answers=[(status, each.get("description", "")) for status, each in sorted(told["responses"].items())],
    )


def _fields(body: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[Field]:
    body = _resolved(body, schemas)
    required = body.get("required", ())
    for name, schema in body.get("properties", {}).items():
        yield _field(name, "body", schema, name in required, schema.get("description"))


def _field(name: str, place: str, schema: Mapping[str, Any], required: bool, about: str | None) -> Field:
    return Field(name, place, kind(schema), required, about or "")


def kind(schema: Mapping[str, Any]) -> str:
    """Return the type and the range of a JSON schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(kind(each) for each in choices)
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    text = str(schema.get("type", "anything"))
    if text == "array":
        return f"list of {kind(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        text += f" from {low:.15g} to {high:.15g}"
    elif low is not None:
        text += f" from {low:.15g}"
    if "maxLength" in schema:
        text += f" of at most {schema['maxLength']} characters"
    return text


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(schema.get("$ref", "")).removeprefix(_REFERENCE)
    found: Mapping[str, Any] = schemas.get(name, schema) if name else schema
    return found


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """Return an example of what a schema takes: its own, or one made of what it requires."""
    schema = _resolved(schema, schemas)
    if schema.get("examples"):
        return schema["examples"][0]
    if "default" in schema:
        return schema["default"]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _example(choices[0], schemas, depth)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object" and depth < _DEEPEST:
        required = schema.get("required", ())
        return {
            name: _example(each, schemas, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if name in required or each.get("examples")
        }
    plain: dict[Any, Any] = {"string": "text", "integer": 1, "number": 1.0, "boolean": False, "array": []}
    return schema.get("const", plain.get(schema.get("type")))
