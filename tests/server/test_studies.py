"""REST of studies: what is read, what is done, who may, and that no code of users is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tempopt.errors import StudyFailed
from tests.server.http_server import RunningServer
from tests.storage.scenes import take_next
from tests.toy_study import toy_spec

TRAP = """
from pathlib import Path
Path({path!r}).write_text("imported")
class Model: ...
class Schedule: ...
"""


def code(answer: httpx.Response) -> str:
    """Return the code of a refusal."""
    error_code: str = answer.json()["error"]["code"]
    return error_code


def begin_study(client: httpx.Client, **study: Any) -> dict[str, Any]:
    """Begin the toy study and return what the server says of it."""
    answer = client.post("/api/studies", json={"spec": toy_spec(**study)})
    assert answer.status_code == 201, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def test_a_token_is_told_what_it_may_do(running_server: RunningServer) -> None:
    with running_server.client(running_server.new_token("submit", studies="to")) as client:
        identity = client.get("/api/me").json()
    assert (identity["name"], identity["prefix"]) == ("other", "to")
    assert "submit" in identity["scopes"]
    assert "admin" not in identity["scopes"]


def test_a_study_is_begun_as_a_search_begins_it(running_server: RunningServer, client: httpx.Client) -> None:
    reply = begin_study(client)
    assert reply["is_new"]
    study = running_server.store.load_study("toy")
    assert study.state == "running"
    assert study.checkpoints == running_server.checkpoints.as_uri()
    assert [row.kind for row in running_server.store.tickets(study.id)].count("search") == 8
    second_response = client.post("/api/studies", json={"spec": toy_spec()})
    assert (second_response.status_code, second_response.json()["is_new"]) == (200, False)
    assert second_response.json()["version"] == reply["version"]


def test_a_priority_above_0_takes_an_administrator(
    running_server: RunningServer, client: httpx.Client
) -> None:
    spec = {"spec": toy_spec(name="to", priority=1)}
    with running_server.client(running_server.new_token("submit")) as submitter:
        response = submitter.post("/api/studies", json=spec)
        assert response.status_code == 403, response.text
        assert "needs a token with the scope admin" in response.json()["error"]["message"]
        assert submitter.post("/api/studies", json={"spec": toy_spec(priority=-1)}).status_code == 201
    assert client.post("/api/studies", json=spec).status_code == 201
    assert [study.priority for study in running_server.store.open_studies()] == [1, -1]


def test_a_study_that_asks_something_else_is_refused(client: httpx.Client) -> None:
    begin_study(client)
    response = client.post("/api/studies", json={"spec": toy_spec(metric="val_other")})
    assert (response.status_code, code(response)) == (409, "study_changed")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**toy_spec(), "nonsense": 1}, "nonsense"),
        ({**toy_spec(), "study": {**toy_spec()["study"], "trails": 1}}, "trails"),
        ({}, "study"),
        (toy_spec(trainer={"logger": {"class_path": "a.B", "init_args": {"api_key": "k"}}}), "logger"),
        (toy_spec(sampler={"name": "random", "options": {"sed": 1}}), "sampler"),
        (toy_spec(warm_start=["earlier"]), "earlier"),
        (toy_spec(space={"schedule": ["trap:Schedule"]}), "runs no code of its users"),
    ],
)
def test_a_wrong_spec_is_refused_and_nothing_is_written(
    running_server: RunningServer, client: httpx.Client, spec: dict[str, Any], message: str
) -> None:
    answer = client.post("/api/studies", json={"spec": spec})
    assert answer.status_code == 422, answer.text
    assert code(answer) == "spec"
    assert message in answer.json()["error"]["message"]
    assert running_server.store.list_studies() == []


def test_no_module_that_a_study_names_is_imported(tmp_path: Path) -> None:
    """In a process of its own: a spec whose classes write a file when they are imported."""
    marker = tmp_path / "imported.txt"
    (tmp_path / "trap.py").write_text(TRAP.format(path=str(marker)))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from fastapi.testclient import TestClient
from tempopt.server.app import create_app
from tempopt.server.tokens import create_token
from tempopt.storage import open_store
from tests.toy_study import toy_spec
with open_store("sqlite:///{tmp_path}/t.db") as store:
    token, _ = create_token(store, name="all", scopes=["admin"])
    client = TestClient(create_app(store, checkpoints="file://{tmp_path}/c"))
    client.headers["authorization"] = "Bearer " + token
    trap = {{"class_path": "trap.Model"}}
    spec = {{**toy_spec(), "model": trap, "data": trap}}
    spec["trainer"]["callbacks"] = [trap]
    spec["trainer"]["logger"] = trap
    assert client.post("/api/studies", json={{"spec": spec}}).status_code == 201
    schedule_spec = {{**spec, "study": {{**spec["study"], "name": "own"}}}}
    schedule_spec["search"] = {{"schedule": ["trap:Schedule"]}}
    assert client.post("/api/studies", json={{"spec": schedule_spec}}).status_code == 422
    study = store.load_study("toy")
    stored_study = {{**schedule_spec["study"], "name": "stored"}}
    store.create_study("stored", {{**schedule_spec, "study": stored_study}}, "0")
    body = {{"sets": [{{"temperature_init": 2.0}}]}}
    assert client.post("/api/studies/toy/enqueue", json=body).status_code == 200
    for name in ("toy", "stored"):
        for part in ("", "/row", "/tickets", "/report?plotlyjs=cdn", "/export", "/news?since=search:0"):
            assert client.get(f"/api/studies/{{name}}{{part}}").status_code != 500, (name, part)
        params = {{"study": store.load_study(name).id}}
        for verb in ("pause", "stop", "resume", "gc"):
            answer = client.post(f"/api/studies/{{name}}/{{verb}}", params=params, json={{}})
            assert answer.status_code != 500, (name, verb)
        assert client.delete(f"/api/studies/{{name}}", params=params).status_code == 200
assert not [name for name in ("trap", "torch", "lightning") if name in sys.modules]
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not marker.exists()


def test_parameter_sets_are_tried_and_those_of_before_are_not_tried_again(client: httpx.Client) -> None:
    begin_study(client)
    body = {"sets": [{"temperature_init": 2.0}]}
    first, second = (client.post("/api/studies/toy/enqueue", json=body).json() for _ in range(2))
    assert first["notes"] == []
    assert second["notes"]
    assert second["version"] == first["version"]


def test_a_late_copy_of_a_request_changes_no_later_study_of_that_name(
    running_server: RunningServer, client: httpx.Client
) -> None:
    ids = {"study": begin_study(client)["id"]}
    running_server.store.delete_study("toy")
    begin_study(client)
    for verb, path in (("POST", "/pause"), ("POST", "/stop"), ("DELETE", "")):
        late = client.request(verb, f"/api/studies/toy{path}", params=ids)
        assert (late.status_code, code(late)) == (404, "study_not_found")
        assert client.request(verb, f"/api/studies/toy{path}").status_code == 422
    study = running_server.store.load_study("toy")
    assert study.state == "running" and study.version == 1


def test_a_study_at_work_is_deleted_by_force_alone(
    running_server: RunningServer, client: httpx.Client
) -> None:
    ids = {"study": begin_study(client)["id"]}
    take_next(running_server.store, running_server.store.load_study("toy"), "far:7")
    response = client.delete("/api/studies/toy", params=ids)
    assert (response.status_code, code(response)) == (400, "usage")
    assert client.delete("/api/studies/toy", params={**ids, "force": True}).json()["agents"] == ["far:7"]


def test_a_token_of_some_studies_begins_no_other_and_is_told_which(
    running_server: RunningServer, client: httpx.Client
) -> None:
    begin_study(client)
    with running_server.client(running_server.new_token("submit", studies="mine-")) as prefix_client:
        existing_response, missing_response = (
            prefix_client.post("/api/studies", json={"spec": toy_spec(name=name)}) for name in ("toy", "new")
        )
    assert (
        (existing_response.status_code, code(existing_response))
        == (missing_response.status_code, code(missing_response))
        == (403, "forbidden")
    )
    assert existing_response.text.replace('\\"toy\\"', '\\"new\\"') == missing_response.text
    assert "--name mine-" in existing_response.text


def test_a_body_without_its_header_is_refused_with_the_header(client: httpx.Client) -> None:
    answer = client.post("/api/studies", content=b'{"spec": {}}')
    assert (answer.status_code, code(answer)) == (422, "invalid_request")
    assert "Content-Type: application/json" in answer.text and "/openapi.json" in answer.text
    response = client.post("/api/studies", json={"spec": 1})
    assert response.status_code == 422 and "Content-Type" not in response.text


@pytest.mark.parametrize(
    "query",
    [
        "tickets?kinds=none",
        "tickets?study=99999999999999999999",
        "measurements?ids=x",
        f"measurements?ids={2**31}",
        "measurements?names=%00",
        "measurements?prefixes=%00",
        "news",
        "news?since=search",
        "news?since=search:-1",
        "news?since=search:99999999999",
        "maps",
        "export?format=toml",
        "report?plotlyjs=evil",
    ],
)
def test_an_odd_query_is_refused_in_words(client: httpx.Client, query: str) -> None:
    begin_study(client)
    answer = client.get(f"/api/studies/toy/{query}")
    assert (answer.status_code, code(answer)) == (422, "invalid_request"), answer.text


def test_what_fails_in_a_study_is_told_as_such(client: httpx.Client) -> None:
    begin_study(client)
    answer = client.get("/api/studies/toy/export")
    assert (answer.status_code, code(answer)) == (409, "study_failed")
    assert issubclass(StudyFailed, RuntimeError)


def test_a_study_that_lacks_the_temperature_as_found_is_not_begun(
    running_server: RunningServer, client: httpx.Client
) -> None:
    spec = toy_spec(space={"scale.temperature_init": {"low": 0.1, "high": 1.0}})
    spec["temperatures"] = {"scale": {"value": "scale"}}
    response = client.post("/api/studies", json={"spec": spec})
    assert (response.status_code, code(response)) == (422, "spec")
    assert "as_found" in response.json()["error"]["message"]
    assert running_server.store.list_studies() == []
    spec["temperatures"]["scale"]["as_found"] = 0.5
    assert client.post("/api/studies", json={"spec": spec}).status_code == 201
    # what was found is in the study that is there
    del spec["temperatures"]["scale"]["as_found"]
    assert client.post("/api/studies", json={"spec": spec}).status_code == 200
