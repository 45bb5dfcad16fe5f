"""Real workers on cards that are made up: torch finds none of them, and trains on the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.agent_loop import Agent
from tempopt.agent.observer import NullObserver
from tempopt.agent.run_requests import RunRequestBuilder
from tempopt.api.calls import resume, search
from tempopt.errors import UsageError
from tempopt.training.messages import RunRequest
from tests.fake_worker import AgentDied
from tests.toy_study import SMALL, URL, tickets, toy_spec

AGENT_TESTS = Path(__file__).parent
CARDS = ("GPU-first", "GPU-second")

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("toy_folder")]


@pytest.fixture(autouse=True)
def cards(toy_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(CARDS))
    monkeypatch.setenv("PYTHONPATH", f"{AGENT_TESTS}{os.pathsep}{os.environ['PYTHONPATH']}")


def hungry_spec(failures: int, resources: dict[str, Any], **study: Any) -> dict[str, Any]:
    init = {"folder": str(Path.cwd()), "failures": failures}
    spec = toy_spec(init=init, trainer={"accelerator": "auto"}, **SMALL, **study)
    model = {**spec["model"], "class_path": "hungry_modules.HungryModule"}
    return {**spec, "model": model, "resources": resources}


def runs() -> list[list[str]]:
    """Return process, mask and threads of each run that has begun."""
    return [line.split() for line in Path("runs").read_text().splitlines()]


class GpuNotes(NullObserver):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_each_worker_sees_the_card_that_was_dealt_to_it_and_no_other() -> None:
    search(hungry_spec(0, {"gpus": 0.5, "cpus": 1, "workers": 3, "threads": 2}), storage=URL)
    environments = {(mask, threads) for _, mask, threads in runs()}
    assert environments <= {(card, "2") for card in CARDS}
    of_process: dict[str, set[str]] = {}
    for pid, mask, _ in runs():
        of_process.setdefault(pid, set()).add(mask)
    assert all(len(masks) == 1 for masks in of_process.values())
    assert all(t.gpu_seconds == pytest.approx(t.seconds / 2) for t in tickets())
    assert all(t.peak_memory is None and not t.alone for t in tickets())


def test_a_run_that_ran_out_of_memory_ends_well_alone_in_a_fresh_process() -> None:
    watcher = GpuNotes()
    result = search(hungry_spec(1, {"gpus": 0.5, "workers": 2}), storage=URL, observer=watcher)
    assert result.verdict is not None
    (solo_ticket,) = [t for t in tickets() if t.alone]
    assert (solo_ticket.outcome, solo_ticket.attempt, solo_ticket.failures) == ("complete", 2, 1)
    assert result.to_json()["alone"] == [solo_ticket.name]
    assert any("Tried to allocate 80.00 GiB" in note for note in watcher.notes)
    assert any("tried once more, with a GPU to itself" in note for note in watcher.notes)
    # the two that were there, one for the run alone, and two with their caps again afterwards
    assert len({pid for pid, _, _ in runs()}) >= 3


def test_a_run_that_does_not_fit_alone_has_failed_for_good() -> None:
    result = search(hungry_spec(2, {"gpus": 1, "workers": 1}), storage=URL)
    (failed_ticket,) = [t for t in tickets() if t.state == "failed"]
    assert (failed_ticket.alone, failed_ticket.attempt, failed_ticket.failures) == (True, 2, 2)
    assert failed_ticket.error is not None and "with a GPU to itself" in failed_ticket.error
    assert result.tickets[failed_ticket.kind].failed == 1


def test_an_agent_that_dies_before_the_second_attempt_leaves_it_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = RunRequestBuilder.build
    dead_agents: set[str] = set()
    requests: list[RunRequest] = []

    def dying(self: RunRequestBuilder, ticket: Any, share: Any) -> RunRequest:
        if ticket.alone:
            raise AgentDied
        return request(self, ticket, share)

    with monkeypatch.context() as patch:
        patch.setattr(RunRequestBuilder, "build", dying)
        patch.setattr(Agent, "_leave", lambda self: dead_agents.add(self._client._name))
        with pytest.raises(AgentDied):
            search(hungry_spec(1, {"gpus": 0.5, "workers": 2}), storage=URL)
    monkeypatch.setattr("tempopt.agent.study_cache.is_dead", lambda agent: agent in dead_agents)

    def record_request(self: RunRequestBuilder, ticket: Any, share: Any) -> RunRequest:
        requests.append(request(self, ticket, share))
        return requests[-1]

    monkeypatch.setattr(RunRequestBuilder, "build", record_request)
    resume("toy", storage=URL, workers=2)
    (solo_ticket,) = [t for t in tickets() if t.alone]
    assert (solo_ticket.outcome, solo_ticket.attempt) == ("complete", 3)
    assert [run_request.memory_share for run_request in requests if run_request.ticket == solo_ticket.id] == [
        None
    ]
    assert {run_request.memory_share for run_request in requests if run_request.ticket != solo_ticket.id} == {
        0.5
    }


def test_cards_that_are_not_there_are_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"4 workers .*free GPUs: 2\. Give at most 2 workers"):
        search(hungry_spec(0, {"gpus": 1}), storage=URL, workers=4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(UsageError, match=r'none here \(CUDA_VISIBLE_DEVICES is "-1"\).*resources.gpus: 0'):
        search(hungry_spec(0, {"gpus": 1}), storage=URL)
