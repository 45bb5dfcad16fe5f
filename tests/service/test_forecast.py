"""What is said of a study before it begins, from workers that train and from the runs of earlier studies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tempopt
from tempopt.api.calls import plan, search
from tempopt.errors import SpecError, StudyNotFound, UsageError
from tempopt.storage.opening import open_store
from tests.fake_worker import TIMES
from tests.toy_study import SMALL, URL, toy_spec

DOCS = Path(__file__).parents[2] / "docs"
TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}
THREE = {**SMALL, "arms": {"baseline": 3, "constant": 1}}


def contents() -> list[Any]:
    """Return everything that a store holds of its studies."""
    with open_store(URL, create=False) as store:
        return [
            (study, store.tickets(study.id), store.measurements(study.id))
            for study in (store.load_study(entry.study.name) for entry in store.list_studies())
        ]


@pytest.mark.usefixtures("toy_folder")
def test_a_dry_run_measures_what_a_run_takes_and_stores_nothing(tmp_path: Path) -> None:
    files_before = sorted(tmp_path.iterdir())
    study_plan = tempopt.plan(toy_spec(space=TAU, **SMALL), storage=URL, workers=2)
    assert sorted(tmp_path.iterdir()) == files_before
    assert isinstance(study_plan, tempopt.StudyForecast)
    runs = study_plan.runs.total(gain=True)
    assert study_plan.run.workers == 2 and study_plan.run.gpus == 0.0
    assert study_plan.run.seconds is not None and study_plan.run.seconds > 0
    assert "measured on cpu" in study_plan.run.text and "24 steps" in study_plan.run.text
    hours, cards = study_plan.hours(runs), study_plan.gpu_hours(runs)
    assert hours is not None and cards is not None
    assert (
        cards.max == pytest.approx(2 * hours.max) == pytest.approx(study_plan.run.seconds * runs.max / 3600)
    )
    assert study_plan.noise is study_plan.smallest_gain is None


@pytest.mark.usefixtures("fake_workers")
def test_the_time_of_a_run_is_given_or_that_of_the_study_or_of_a_dry_run() -> None:
    spec = toy_spec(space=TAU, **THREE)
    # 1 s to start, 24 steps of 0.5 s, 6 validations of 2 s and one more, and a test
    end = 0 if TIMES.ends_validated else 2
    dry = plan(spec, storage=URL, workers=1).run
    assert dry.seconds == pytest.approx(1 + 24 * 0.5 + 6 * 2 + end + TIMES.test)
    assert plan(spec, storage=URL, workers=1, run_hours=2.0).run.seconds == 7200.0
    result = search(spec, storage=URL, workers=1)
    run_forecast = plan(spec, storage=URL, workers=3).run
    run_seconds = [run.seconds for run in result.runs if run.outcome == "complete"]
    assert (run_forecast.workers, "complete runs of toy" in run_forecast.text) == (3, True)
    assert run_forecast.seconds == pytest.approx(sum(run_seconds) / len(run_seconds), rel=0.5)


def documented_keys() -> set[str]:
    """Return the keys that the page says ``plan --json`` prints."""
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    section = page.partition("\n## What plan --json prints\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`([a-z_]+)`", section))


def keys(data: Any) -> set[str]:
    if not isinstance(data, dict):
        return set()
    return set(data) | {key for value in data.values() for key in keys(value)}


@pytest.fixture
def ended_spec(fake_workers: None) -> dict[str, Any]:
    """The spec of a study that is over."""
    spec = toy_spec(space=TAU, **THREE)
    search(spec, storage=URL, workers=1)
    return spec


def test_a_study_that_has_begun_tells_its_own_noise_as_documented_and_is_left_as_it_is(
    ended_spec: dict[str, Any],
) -> None:
    contents_before = contents()
    study_plan = plan(ended_spec, storage=URL, workers=1)
    assert contents() == contents_before
    assert (study_plan.noise_study, study_plan.noise is None) == ("toy", False)
    low, high = study_plan.smallest_gain or (0.0, 0.0)
    assert 0 < low < high
    plan_data = study_plan.to_json()
    assert json.loads(json.dumps(plan_data)) == plan_data
    assert keys(plan_data) <= documented_keys()
    assert plan_data["power"]["from"]["study"] == "toy"


def test_an_earlier_study_tells_the_noise_where_it_is_named(ended_spec: dict[str, Any]) -> None:
    new_spec = toy_spec(space=TAU, name="new", **THREE)
    assert plan(new_spec, storage=URL, workers=1).noise is None
    study_plan = plan(new_spec, storage=URL, workers=1, earlier="toy")
    assert (study_plan.noise_study, study_plan.noise is None) == ("toy", False)


def test_an_earlier_study_that_says_nothing_is_refused(ended_spec: dict[str, Any]) -> None:
    new_spec = toy_spec(space=TAU, name="new", **SMALL)
    with pytest.raises(StudyNotFound, match="toi"):
        plan(new_spec, storage=URL, earlier="toi")
    other_spec = {**new_spec, "study": {**new_spec["study"], "metric": "val_other"}}
    with pytest.raises(UsageError, match=r'"toy" has the metric val_loss, and this one val_other'):
        plan(other_spec, storage=URL, earlier="toy")
    warm = {**new_spec, "study": {**new_spec["study"], "warm_start": ["toi"]}}
    with pytest.raises(SpecError, match=r"study\.warm_start.*toi"):
        plan(warm, storage=URL)
