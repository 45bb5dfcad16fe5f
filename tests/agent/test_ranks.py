"""A study whose runs are trained by two processes each is the study that one device would have made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.api.calls import search
from tempopt.service.studies import check
from tests.servers import worker_pids
from tests.toy_study import SMALL, URL, EndedStudy, facts, read_study, reports, tickets, toy_spec, work_in

pytestmark = pytest.mark.long

# Without noise and dropout a step is a mean over the same items, however many processes take it.
PLAIN = {"init": {"dropout": 0.0}, **SMALL, "trials": 8}


def spec(folder: Path, *callbacks: dict[str, Any], devices: int) -> dict[str, Any]:
    """Return a study whose devices see six items a step, each of them writing down what it has."""
    recorder = {"class_path": "toy_modules.Recorder", "init_args": {"folder": str(folder)}}
    spec_data = toy_spec(trainer={"devices": devices, "callbacks": [recorder, *callbacks]}, **PLAIN)
    spec_data["data"]["init_args"] = {"batch_size": 6 // devices, "noise": 0.0}
    return spec_data


def lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    text_lines = (folder / f"{rank}.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "items"} for line in text_lines]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndedStudy]:
    """The study on two ranks, undisturbed."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        yield read_study(search(spec(folder, devices=2), storage=URL, workers=1))
        assert worker_pids(os.getpid()) == []


@pytest.mark.usefixtures("toy_folder")
def test_one_device_makes_the_same_decisions(on_two: EndedStudy, tmp_path: Path) -> None:
    single_run = read_study(search(spec(tmp_path, devices=1), storage=URL, workers=1))

    def decisions(study: EndedStudy) -> list[tuple[Any, ...]]:
        # kind, arm, number, seed, parameters, outcome: all but the numbers
        return [fact[:6] for fact in study.facts]

    assert decisions(single_run) == decisions(on_two)
    for (*report_key, value), (*other_key, other_value) in zip(
        single_run.reports, on_two.reports, strict=True
    ):
        assert report_key == other_key
        if report_key[-1].startswith(("entropy/", "max_logit/")):
            continue  # of the batch that the first rank sees, which is half of the step's
        assert value == pytest.approx(other_value, rel=1e-4)


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.parametrize("raises", [False, True], ids=["killed", "raises"])
def test_a_rank_that_is_lost_costs_one_attempt_and_changes_nothing(
    on_two: EndedStudy, tmp_path: Path, raises: bool
) -> None:
    marker = tmp_path / "struck"
    init_args = {"marker": str(marker), "step": 10, "raises": raises}
    callback = {"class_path": "toy_modules.KillRank", "init_args": init_args}
    search(spec(tmp_path, callback, devices=2), storage=URL, workers=1)
    assert marker.exists()
    assert facts() == on_two.facts
    assert reports() == on_two.reports
    (retried_ticket,) = (ticket for ticket in tickets() if ticket.attempt == 2)
    assert retried_ticket.failures == 1
    assert retried_ticket.outcome == "complete"


@pytest.mark.usefixtures("toy_folder")
def test_a_strategy_for_several_devices_trains_on_one(tmp_path: Path) -> None:
    spec_data = spec(tmp_path, devices=1)
    spec_data["trainer"]["strategy"] = "ddp"
    messages = check(spec_data, dry_run=True)
    assert "Two steps were trained" in messages[1]


@pytest.mark.usefixtures("toy_folder")
def test_a_check_trains_two_steps_on_all_ranks(tmp_path: Path) -> None:
    check(spec(tmp_path, devices=2), dry_run=True)
    assert lines(tmp_path, 0) == lines(tmp_path, 1)
