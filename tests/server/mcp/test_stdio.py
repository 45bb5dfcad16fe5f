"""A client of the protocol's own SDK, over standard input and output of a real process, on a database."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from tempopt.storage.opening import open_store
from tests.server.mcp.asker import run, session
from tests.toy_study import REPOSITORY, TOYS, URL, work_in

NAMES = {"plan", "search", "compare", "show", "verdict", "export", "list", "stop"}


@pytest.fixture(autouse=True)
def _work_in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_in(tmp_path, monkeypatch)
    assert TOYS.is_dir() and REPOSITORY.is_dir()


@pytest.mark.long
def test_every_tool_is_listed_with_a_schema_of_its_answer() -> None:
    async def client_task() -> None:
        async with session() as asker:
            assert asker.schemas.keys() == NAMES
            for schema in asker.schemas.values():
                jsonschema.Draft202012Validator.check_schema(schema)
                assert schema["type"] == "object" and schema["properties"]
            answer = await asker.ask("list")
            assert answer == {"studies": [], "budget": {"user": "mcp", "limits": []}}

    run(client_task)


BAD = [
    ("plan", {}, ["spec: is missing"]),
    ("plan", {"spec": "nonsense"}, ['Unknown study spec "nonsense"', "clip_digits"]),
    ("plan", {"spec": 3}, ["spec: was given 3", "path of a YAML file"]),
    ("plan", {"spec": "clip_digits", "trials": 3}, ['Unknown argument "trials"', "spec, set"]),
    ("search", {"spec": {"study": {"name": "x"}}}, ["model: is missing"]),
    (
        "search",
        {"spec": {"study": {"name": "x"}, "program": {"command": "a {seed}"}}},
        ["study.metric", "study.direction"],
    ),
    ("search", {"spec": "clip_digits", "set": ["study.trails=3"]}, ['"trails"', '"trials"']),
    ("search", {"spec": "clip_digits", "set": "study.trials=3"}, ["set: was given 'study.trials=3'"]),
    ("compare", {"spec": "clip_digits"}, ["No parameter sets were given"]),
    ("compare", {"spec": "clip_digits", "sets": ["{}", "{}"]}, ["trains the same as A"]),
    ("compare", {"spec": "clip_digits", "sets": ["{}"], "pairs": 1}, ["pairs: was given 1"]),
    ("show", {"study": "none"}, ['Unknown study "none"']),
    ("show", {}, ["study: is missing"]),
    ("verdict", {"study": "none"}, ['Unknown study "none"']),
    ("export", {"study": "none"}, ['Unknown study "none"']),
    ("export", {"study": "none", "format": "toml"}, ["format: was given 'toml'", "YAML"]),
    ("list", {"all": True}, ['Unknown argument "all"']),
    ("stop", {"study": "none"}, ['Unknown study "none"']),
    ("tell", {}, ['Unknown tool "tell"', "verdict"]),
]


@pytest.mark.long
def test_bad_input_of_each_tool_gets_one_error_that_says_what_is_allowed() -> None:
    assert {tool for tool, *_ in BAD} >= NAMES

    async def client_task() -> None:
        async with session() as asker:
            # a store with a study in it, so that names of studies are looked up
            open_store(URL).close()
            for tool, arguments, parts in BAD:
                message = await asker.refusal(tool, **arguments)
                assert all(part in message for part in parts), (tool, arguments, message)
                assert "Traceback" not in message and "not foreseen" not in message

    run(client_task)
