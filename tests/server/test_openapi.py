"""Every route as its OpenAPI document describes it, asked what schemathesis makes up from that document."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tempopt.server.app import create_app
from tempopt.server.tokens import create_token as new_token
from tempopt.storage.http.wire import PROTOCOL
from tempopt.storage.opening import open_store
from tests.report.made_study import World, make, write
from tests.toy_study import toy_spec

STUDY_NAME = "made"
"""Name of a study that is there."""
PATH_VALUES: dict[str, Any] = {
    "name": STUDY_NAME,
    "study": STUDY_NAME,
    "run": "search-0000",
    "file": "step-100-1.ckpt",
}
LONGEST_REFUSAL = 2000
"""Characters of the message of an error."""


def refusal_is_short(context: CheckContext, response: Response, case: Case) -> None:
    """Fail if the message of an error is long, as one that repeats its request."""
    if response.status_code >= 400 and "json" in str(response.headers.get("content-type")):
        assert len(response.json()["error"]["message"]) <= LONGEST_REFUSAL


ALWAYS = [
    not_a_server_error,
    refusal_is_short,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
# schemathesis reads tuples within a list as an older draft of JSON Schema has them
UNREAD = {"/api/studies/{name}/measurements": [checks.response_schema_conformance]}
NONSENSE = [*ALWAYS, checks.negative_data_rejection]


def _operations() -> list[str]:
    """Return every method and path of the document."""
    no_store: Any = None
    paths = create_app(no_store, checkpoints="file:///nowhere").openapi()["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


@pytest.fixture(scope="module")
def study_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one study in it."""
    path = tmp_path_factory.mktemp("filled") / "tempopt.db"
    study = {"name": STUDY_NAME}
    write(f"sqlite:///{path}", make(World(trials=4, layers=1, heads=2, reports=3, study=study)))
    return path


@pytest.fixture
def api(study_database: Path, tmp_path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """The document of a server on a copy of that database, and the headers of who may do everything."""
    shutil.copy(study_database, tmp_path / "tempopt.db")
    with open_store(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        token, _ = new_token(store, name="admin", scopes=["admin"])
        app = create_app(store, checkpoints=(tmp_path / "checkpoints").as_uri())
        # no request waits for a ticket or for news
        app.state.tempopt.is_shutting_down.set()
        headers = {"authorization": f"Bearer {token}"}
        yield schemathesis.openapi.from_asgi("/openapi.json", app), headers


def _about_what_is_there(case: Case) -> Case:
    """Return a request that is about the study that is there, and about one of its runs."""
    for key in case.path_parameters:
        case.path_parameters[key] = PATH_VALUES.get(key, case.path_parameters[key])
    if isinstance(case.body, dict):
        case.body |= {key: PATH_VALUES[key] for key in ("study", "run", "file") if key in case.body}
        if "spec" in case.body:
            case.body["spec"] = toy_spec()
        if isinstance(case.body.get("add_trials"), int):
            # each is a row, and schemathesis waits 10 s for an answer
            case.body["add_trials"] = min(case.body["add_trials"], 1000)
    if "tempopt-protocol" in {name.lower() for name in case.headers}:
        case.headers["tempopt-protocol"] = str(PROTOCOL)
    return case


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=[pytest.mark.long, pytest.mark.nightly])])
@pytest.mark.parametrize("operation", _operations())
def test_every_answer_is_one_that_the_document_tells_of(
    api: tuple[Any, dict[str, str]], operation: str, examples: int
) -> None:
    schema, headers = api
    method, path = operation.split()
    left_out = UNREAD.get(path, [])
    schema_operation = schema[path][method]
    valid_cases = schema_operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    kinds = [
        (valid_cases, ALWAYS),
        (valid_cases.map(_about_what_is_there), ALWAYS),
        (schema_operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), NONSENSE),
    ]
    for strategy, allowed_checks in kinds:
        _ask(strategy, [check for check in allowed_checks if check not in left_out], headers, examples)


def _ask(
    strategy: st.SearchStrategy[Case], checks: list[Any], headers: dict[str, str], examples: int
) -> None:
    @hypothesis.seed(20260)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def ask(case: Case) -> None:
        case.call_and_validate(headers=headers, checks=checks)

    ask()
