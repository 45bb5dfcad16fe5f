"""A client of the protocol's own SDK, over standard input and output of a real process, on a database."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tempopt.forecast.runs import planned_runs
from tempopt.results import study_result
from tempopt.results.decision import screen_lines
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tests.mcp_server.asker import run, session
from tests.results.full_text import full_lines
from tests.toy_study import REPOSITORY, SMALL, TOYS, URL, toy_spec, work_in

NAMES = {"plan", "search", "compare", "show", "verdict", "export", "list", "stop"}
MOST_RUNS = round(planned_runs(StudySpec.parse(toy_spec(**SMALL), source="the test")).most())
"""Runs that the small study takes at the most, as `tempopt plan` says."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_in(tmp_path, monkeypatch)
    assert TOYS.is_dir() and REPOSITORY.is_dir()


@pytest.mark.long
def test_every_tool_is_listed_with_a_schema_of_its_answer() -> None:
    async def does() -> None:
        async with session() as asker:
            assert asker.schemas.keys() == NAMES
            for schema in asker.schemas.values():
                jsonschema.Draft202012Validator.check_schema(schema)
                assert schema["type"] == "object" and schema["properties"]
            answer = await asker.ask("list")
            assert answer == {"studies": [], "budget": {"user": "mcp", "limits": []}}

    run(does)


BAD = [
    ("plan", {}, ["spec: is missing"]),
    ("plan", {"spec": "nonsense"}, ['Unknown study spec "nonsense"', "clip_digits"]),
    ("plan", {"spec": 3}, ["spec: was given 3", "path of a YAML file"]),
    ("plan", {"spec": "clip_digits", "trials": 3}, ['Unknown argument "trials"', "spec, set"]),
    ("search", {"spec": {"study": {"name": "x"}}}, ["study.metric", "study.direction"]),
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

    async def does() -> None:
        async with session() as asker:
            # a store with a study in it, so that names of studies are looked up
            Store.open(URL).close()
            for tool, given, parts in BAD:
                told = await asker.refused(tool, **given)
                assert all(part in told for part in parts), (tool, given, told)
                assert "Traceback" not in told and "not foreseen" not in told

    run(does)


def test_what_would_exceed_the_budget_is_refused_with_what_is_left_and_begins_nothing() -> None:
    spec = toy_spec(**SMALL)

    async def does() -> None:
        async with session("--runs", str(MOST_RUNS - 1)) as asker:
            told = await asker.refused("search", spec=spec)
            left = f"{MOST_RUNS - 1} of {MOST_RUNS - 1} runs are left"
            assert f"takes up to {MOST_RUNS} runs" in told and left in told
            sets = ["{}", "{temperature_init: 2}"]
            told = await asker.refused("compare", spec=spec, sets=sets, pairs=MOST_RUNS)
            assert f"takes up to {2 * MOST_RUNS} runs" in told and left in told
            assert (await asker.ask("list"))["studies"] == []

    run(does)


@pytest.mark.long
def test_a_bundled_search_comes_to_its_verdict_and_the_budget_holds_over_a_restart() -> None:
    small = [f"study.{key}={json.dumps(value)}" for key, value in SMALL.items()]
    given: dict[str, Any] = {"spec": "clip_digits", "set": [*small, "trainer.max_steps=30"]}
    most = round(planned_runs(load_spec("clip_digits", given["set"])).most())
    budget = ("--runs", str(2 * most - 1), "--gpu-hours", "2", "--workers", "1")

    async def first() -> None:
        async with session(*budget) as asker:
            planned = await asker.ask("plan", **given)
            spans = [planned["runs_with_gain"], planned["runs_without_gain"]]
            assert all(span["min"] <= span["typical"] <= span["max"] for span in spans)
            assert max(span["max"] for span in spans) == most and planned["fits"]
            begun = await asker.ask("search", **given)
            assert begun["state"] == "running"
            runs, hours = begun["budget"]["limits"]
            assert runs["spent"] + runs["reserved"] == most
            assert hours["reserved"] > 0

    async def second() -> None:
        async with session(*budget) as asker:
            # of a study that is not over the most that it can take is kept
            other = [*given["set"], "study.name=other"]
            told = await asker.refused("search", spec="clip_digits", set=other)
            assert f"{most - 1} of {2 * most - 1} runs are left" in told
            await asker.ask("search", **given)
            shown = await asker.until_done("clip_digits")
            found = await asker.ask("verdict", study="clip_digits")
            with Store.open(URL, create=False) as store:
                result = study_result.load(store, "clip_digits")
            assert shown["words"] == screen_lines(result) and found["words"] == full_lines(result)
            assert result.verdict is not None
            gained = result.verdict.total.significant
            assert found["answer"] == ("gain_shown" if gained else "not_shown")
            gain = "gain over contrast = 0.5 as found: not shown"
            assert any(gain in each for each in found["not_shown"]) != gained
            assert found["recommendation"] and found["params"] is not None
            text = (await asker.ask("export", study="clip_digits"))["text"]
            assert text == result.export()
            limit, *_ = (await asker.ask("list"))["budget"]["limits"]
            spent = sum(run.attempt > 0 for run in result.runs)
            assert limit["spent"] == spent <= most
            assert limit["left"] == 2 * most - 1 - spent

    async def third() -> None:
        async with session(*budget) as asker:
            sets = ["{}", "{contrast.temperature_init: 0.1}"]
            begun = await asker.ask("compare", **given, sets=sets, pairs=3, name="sets")
            assert begun["study"] == "sets"
            await asker.until_done("sets")
            found = await asker.ask("verdict", study="sets")
            assert found["details"]["comparison"]["reference"]["name"] == "A"
            shown = found["answer"] == "gain_shown"
            assert shown == (found["details"]["comparison"]["outcome"] == "better")
            assert bool(found["not_shown"]) != shown
            told = await asker.ask("stop", study="sets")
            assert told["before"] == "done" and told["withdrawn"] == 0

    for each in (first, second, third):
        run(each)


@pytest.mark.long
@pytest.mark.nightly
def test_of_two_clients_at_once_one_alone_gets_what_is_left() -> None:
    async def one(name: str) -> tuple[str, str]:
        async with session("--runs", str(MOST_RUNS + 5), "--workers", "1") as asker:
            found = await asker.client.call_tool("search", {"spec": toy_spec(**SMALL | {"name": name})})
            return ("refused" if found.is_error else "begun"), found.content[0].text  # type: ignore[union-attr]

    async def does() -> None:
        found = await asyncio.gather(one("first"), one("second"))
        assert sorted(each for each, _ in found) == ["begun", "refused"], found
        [told] = [text for each, text in found if each == "refused"]
        assert "would exceed the budget of mcp" in told and "runs are left" in told

    run(does)
    with Store.open(URL, create=False) as store:
        assert len(store.list_studies()) == 1
