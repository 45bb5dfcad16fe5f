"""The page of all REST routes: whole, without a file of another site, and with examples that are right."""

from __future__ import annotations

import json
import re
from html import unescape

import jsonschema
import pytest

from tempopt.server.pages.reference import groups, kind
from tests.server.conftest import Served
from tests.server.pages.conftest import Person


def test_everybody_may_read_it_and_it_runs_nothing(visitor: Person) -> None:
    answer = visitor.get("/docs")
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    assert "<script" not in answer.text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)
    assert visitor.get("/redoc").status_code == 404


def test_every_route_of_the_document_is_on_it(visitor: Person) -> None:
    document, text = visitor.get("/openapi.json").json(), unescape(visitor.get("/docs").text)
    routes = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    shown = re.findall(r"<summary><code><b>([A-Z]+)</b> ([^<]+)</code>", text)
    assert sorted(shown) == sorted(routes)
    for methods in document["paths"].values():
        for told in methods.values():
            assert all(f"<code>{each['name']}</code>" in text for each in told.get("parameters", ()))


def test_every_example_is_a_body_that_its_route_takes(site: Served) -> None:
    document = site.app.openapi()
    shown = {(each.method, each.path): each for group in groups(document).values() for each in group}
    checked = 0
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            if body := told.get("requestBody"):
                schema = {
                    **body["content"]["application/json"]["schema"],
                    "components": document["components"],
                }
                jsonschema.validate(json.loads(shown[method.upper(), path].example), schema)
                checked += 1
    assert checked > 10


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 2147483647.0}, "integer from 0 to 2147483647"),
        ({"type": "number", "minimum": 0.5}, "number from 0.5"),
        (
            {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "null"}]},
            "string of at most 40 characters or null",
        ),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Change"}}, "list of Change"),
        ({"enum": ["yaml", "python"]}, "yaml, python"),
    ],
)
def test_a_type_is_told_in_a_few_words(schema: dict[str, object], text: str) -> None:
    assert kind(schema) == text
