"""A client of the protocol's own SDK, over standard input and output of a real process, on a database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tempopt.report import study_result
from tempopt.report.study_lines import screen_lines
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.verdict.planned_runs import planned_runs
from tests.report.full_text import full_lines
from tests.server.mcp.asker import run, session
from tests.toy_study import REPOSITORY, SMALL, TOYS, URL, toy_spec, work_in

NAMES = {"plan", "search", "compare", "show", "verdict", "export", "list", "stop"}
MAX_RUNS = round(planned_runs(StudySpec.parse(toy_spec(**SMALL), source="the test")).max_total())
"""Runs that the small study takes at the most, as `tempopt plan` says."""


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

    async def client_task() -> None:
        async with session() as asker:
            # a store with a study in it, so that names of studies are looked up
            open_store(URL).close()
            for tool, arguments, parts in BAD:
                message = await asker.refusal(tool, **arguments)
                assert all(part in message for part in parts), (tool, arguments, message)
                assert "Traceback" not in message and "not foreseen" not in message

    run(client_task)


def test_what_would_exceed_the_budget_is_refused_with_what_is_left_and_begins_nothing() -> None:
    spec = toy_spec(**SMALL)

    async def client_task() -> None:
        async with session("--runs", str(MAX_RUNS - 1)) as asker:
            message = await asker.refusal("search", spec=spec)
            runs_text = f"{MAX_RUNS - 1} of {MAX_RUNS - 1} runs are left"
            assert f"takes up to {MAX_RUNS} runs" in message and runs_text in message
            sets = ["{}", "{temperature_init: 2}"]
            message = await asker.refusal("compare", spec=spec, sets=sets, pairs=MAX_RUNS)
            assert f"takes up to {2 * MAX_RUNS} runs" in message and runs_text in message
            assert (await asker.ask("list"))["studies"] == []

    run(client_task)


@pytest.mark.long
def test_a_bundled_search_comes_to_its_verdict_and_the_budget_holds_over_a_restart() -> None:
    small = [f"study.{key}={json.dumps(value)}" for key, value in SMALL.items()]
    arguments: dict[str, Any] = {"spec": "clip_digits", "set": [*small, "trainer.max_steps=30"]}
    max_runs = round(planned_runs(load_spec("clip_digits", arguments["set"])).max_total())
    budget = ("--runs", str(2 * max_runs - 1), "--gpu-hours", "2", "--workers", "1")

    async def first() -> None:
        async with session(*budget) as asker:
            plan_reply = await asker.ask("plan", **arguments)
            spans = [plan_reply["runs_with_gain"], plan_reply["runs_without_gain"]]
            assert all(span["min"] <= span["typical"] <= span["max"] for span in spans)
            assert max(span["max"] for span in spans) == max_runs and plan_reply["fits"]
            search_reply = await asker.ask("search", **arguments)
            assert search_reply["state"] == "running"
            runs, hours = search_reply["budget"]["limits"]
            assert runs["spent"] + runs["reserved"] == max_runs
            assert hours["reserved"] > 0

    async def second() -> None:
        async with session(*budget) as asker:
            # of a study that is not over the most that it can take is kept
            other_settings = [*arguments["set"], "study.name=other"]
            message = await asker.refusal("search", spec="clip_digits", set=other_settings)
            assert f"{max_runs - 1} of {2 * max_runs - 1} runs are left" in message
            await asker.ask("search", **arguments)
            study_data = await asker.until_done("clip_digits")
            verdict_reply = await asker.ask("verdict", study="clip_digits")
            with open_store(URL, create=False) as store:
                result = study_result.load(store, "clip_digits")
            assert study_data["words"] == screen_lines(result) and verdict_reply["words"] == full_lines(
                result
            )
            assert result.verdict is not None
            gained = result.verdict.primary.significant
            assert verdict_reply["answer"] == ("gain_shown" if gained else "not_shown")
            no_gain = any(line.startswith("No gain shown") for line in verdict_reply["not_shown"])
            assert no_gain != gained
            assert verdict_reply["recommendation"] and verdict_reply["params"] is not None
            text = (await asker.ask("export", study="clip_digits"))["text"]
            assert text == result.export()
            limit, *_ = (await asker.ask("list"))["budget"]["limits"]
            num_runs = sum(run.attempt > 0 for run in result.runs)
            assert limit["spent"] == num_runs <= max_runs
            assert limit["remaining"] == 2 * max_runs - 1 - num_runs

    async def third() -> None:
        async with session(*budget) as asker:
            sets = ["{}", "{contrast.temperature_init: 0.1}"]
            compare_reply = await asker.ask("compare", **arguments, sets=sets, pairs=3, name="sets")
            assert compare_reply["study"] == "sets"
            await asker.until_done("sets")
            verdict_reply = await asker.ask("verdict", study="sets")
            assert verdict_reply["details"]["comparison"]["reference"]["name"] == "A"
            is_shown = verdict_reply["answer"] == "gain_shown"
            assert is_shown == (verdict_reply["details"]["comparison"]["outcome"] == "better")
            assert bool(verdict_reply["not_shown"]) != is_shown
            stop_reply = await asker.ask("stop", study="sets")
            assert stop_reply["before"] == "done" and stop_reply["withdrawn"] == 0

    for client_task in (first, second, third):
        run(client_task)
