"""Specs over HTTP before their study begins: messages at their lines, where it stands, what it would cost."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tempopt import cli
from tempopt.server import specs
from tests.refused_specs import REFUSED
from tests.server.http_server import RunningServer
from tests.server.test_studies import code
from tests.toy_study import toy_spec

TWO_FAULTS = """study:
  name: two
  metric: val_loss
  direction: sideways
model: {class_path: toy_modules.Toy}
trainer:
  max_steps: none
search:
  temperature_init: {low: 0.25, high: 4}
"""
TRAP = """
from pathlib import Path
Path({path!r}).write_text("imported")
class Model: ...
"""


def text_of(spec: dict[str, Any]) -> str:
    """Return a spec as its file has it."""
    return yaml.safe_dump(spec, sort_keys=False)


def check(client: httpx.Client, text: str) -> dict[str, Any]:
    """Return what there is to say of a text."""
    answer = client.post("/api/check", json={"text": text})
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()
    return report


# ---- messages


def test_every_fault_is_told_at_its_line_and_column(client: httpx.Client) -> None:
    report = check(client, TWO_FAULTS)
    assert (report["valid"], report["name"], report["study"]) == (False, "two", None)
    places = [(message["line"], message["column"], message["path"]) for message in report["messages"]]
    assert places == [(4, 3, "study.direction"), (7, 3, "trainer.max_steps")]
    assert {message["severity"] for message in report["messages"]} == {"error"}
    assert all("Give" in message["text"] for message in report["messages"])


@pytest.mark.parametrize("name", REFUSED)
def test_the_server_and_the_command_line_refuse_the_same_texts(
    client: httpx.Client, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, key, allowed = REFUSED[name]
    answer = check(client, text)
    error_texts = [message["text"] for message in answer["messages"] if message["severity"] == "error"]
    assert not answer["valid"]
    assert any(key in message and allowed in message for message in error_texts)
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    assert cli.main(["check", str(path)]) == 2
    stderr = capsys.readouterr().err
    assert all(message in stderr for message in error_texts)


def test_what_the_server_alone_refuses_is_told_at_its_key_too(client: httpx.Client) -> None:
    spec = toy_spec(
        sampler={"name": "random", "options": {"sed": 1}},
        trainer={"logger": {"class_path": "a.B", "init_args": {"api_key": "k"}}},
    )
    text = text_of(spec)
    report = check(client, text)
    lines = text.splitlines()
    by_path = {message["path"]: message for message in report["messages"]}
    assert set(by_path) == {"study.sampler", "trainer.logger.init_args.api_key"}
    assert lines[by_path["study.sampler"]["line"] - 1].strip() == "sampler:"
    assert lines[by_path["trainer.logger.init_args.api_key"]["line"] - 1].strip() == "api_key: k"


def test_nothing_of_a_spec_is_imported_and_no_file_is_read(
    client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "imported"
    (tmp_path / "trap.py").write_text(TRAP.format(path=str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "hunter2")
    spec = toy_spec()
    spec["model"]["class_path"] = "trap.Model"
    spec["data"] = {"class_path": "trap.Model", "init_args": {"root": "${SECRET_OF_THE_SERVER}"}}
    spec["trainer"]["callbacks"] = [{"class_path": "trap.Model"}]
    for body in (spec, {**spec, "study": {**spec["study"], "trials": "x"}}):
        answer = client.post("/api/check", json={"text": text_of(body)})
        assert answer.status_code == 200
        assert "hunter2" not in answer.text
    assert "trap" not in sys.modules
    assert not mark.exists()


def test_who_checks_much_at_a_time_is_asked_to_come_again(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specs, "_WAITING", threading.Semaphore(0))
    answer = client.post("/api/check", json={"text": TWO_FAULTS})
    assert (answer.status_code, code(answer)) == (429, "rate_limited")
    assert answer.headers["retry-after"] == "3"
    monkeypatch.undo()
    assert len(check(client, TWO_FAULTS)["messages"]) == 2


# ---- where it stands


def test_a_study_that_is_there_is_told_with_what_differs(client: httpx.Client) -> None:
    assert check(client, text_of(toy_spec()))["study"] is None
    client.post("/api/studies", json={"spec": toy_spec()})
    same_spec = check(client, text_of(toy_spec()))
    assert same_spec["valid"] and same_spec["study"] == {"state": "running", "same": True, "differences": []}
    other_metric = check(client, text_of(toy_spec(metric="val_other")))
    assert not other_metric["valid"] and not other_metric["study"]["same"]
    assert [difference.partition(":")[0] for difference in other_metric["study"]["differences"]] == [
        "study.metric"
    ]
    more_trials = check(client, text_of(toy_spec(trials=9)))
    assert more_trials["study"]["differences"] == ["study.trials: was 8, now 9"]


def test_a_check_writes_nothing_and_has_no_line_in_the_audit_log(
    running_server: RunningServer, client: httpx.Client
) -> None:
    check(client, text_of(toy_spec()))
    assert running_server.store.list_studies() == []
    assert running_server.store.audit_rows() == []


def test_a_token_is_told_nothing_of_studies_that_it_may_not_see(
    running_server: RunningServer, client: httpx.Client
) -> None:
    client.post("/api/studies", json={"spec": toy_spec()})
    with running_server.client(running_server.new_token("submit", studies="vision-")) as team_client:
        report = check(team_client, text_of(toy_spec()))
        other_name = check(team_client, text_of(toy_spec(name="other")))
        warm = check(team_client, text_of(toy_spec(name="vision-a", warm_start=["toy"])))
        unknown_parent = check(team_client, text_of(toy_spec(name="vision-a", warm_start=["nowhere"])))
    assert not report["valid"] and report["study"] is None
    assert [message["path"] for message in report["messages"]] == ["study.name"]
    assert report["messages"][0]["text"].replace("toy", "other") == other_name["messages"][0]["text"]
    assert warm["messages"][0]["text"].replace("toy", "nowhere") == unknown_parent["messages"][0]["text"]


def test_a_missing_as_found_temperature_is_reported(
    running_server: RunningServer, client: httpx.Client
) -> None:
    spec = toy_spec(space={"scale.temperature_init": {"low": 0.1, "high": 1.0}})
    spec["temperatures"] = {"scale": {"value": "scale"}}
    report = check(client, text_of(spec))
    assert not report["valid"]
    assert [message["path"] for message in report["messages"]] == ["temperatures.scale"]
    assert "as_found" in report["messages"][0]["text"]
    response = client.post("/api/studies", json={"spec": spec})
    assert (response.status_code, code(response)) == (422, "spec")
    assert running_server.store.list_studies() == []
    spec["temperatures"]["scale"]["as_found"] = 0.5
    assert check(client, text_of(spec))["valid"]
    assert client.post("/api/studies", json={"spec": spec}).status_code == 201
    # what was found is in the study that is there
    del spec["temperatures"]["scale"]["as_found"]
    assert check(client, text_of(spec))["valid"]
