"""A study that is begun splits its budget once, and whoever works on it has the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.beginning import stand
from tempopt.agent.observer import Unobserved
from tempopt.errors import SpecError, StudyChanged
from tempopt.forecast.split import divided
from tempopt.forecast.split_text import split_text
from tempopt.records.rows import TicketRow
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.study.api import plan, resume, search, take_part
from tempopt.study.enlarge import ordered
from tests.toy_study import URL, toy_spec

TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}


class Notes(Unobserved):
    """What a person would read."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def open_spec(hours: float, *, run: float | None = None, **study: Any) -> dict[str, Any]:
    """Return a toy spec whose budget decides what is not given."""
    data = toy_spec(space=TAU, pruner="none", limits={"gpu_hours": hours, "run_gpu_hours": run})
    for name in ("trials", "arms", "candidates", "seeds"):
        del data["study"][name]
    return {**data, "study": {**data["study"], **study}}


def stored() -> tuple[StudySpec, list[TicketRow]]:
    with Store.open(URL, create=False) as store:
        row = store.load_study("toy")
        return StudySpec.stored(row), store.tickets(row.id)


@pytest.mark.usefixtures("fake_workers")
def test_a_search_measures_what_a_run_costs_and_keeps_to_the_split_that_follows() -> None:
    # a run that is timed takes more than half a minute: some forty runs, of which none takes as long
    hours, notes = 0.5, Notes()
    planned = plan(open_spec(hours), storage=URL, workers=1).split
    assert planned is not None
    result = search(open_spec(hours), storage=URL, workers=1, observer=notes)
    assert result.state == "done" and result.verdict is not None
    spec, tickets = stored()
    own = spec.study
    assert (own.limits.run_gpu_hours, own.trials) == (planned.costs.full, planned.chosen.numbers["trials"])
    assert own.seeds.confirm == planned.chosen.numbers["seeds.confirm"]
    counts = {kind: sum(row.kind == kind for row in tickets) for kind in ("search", "confirm", "ablation")}
    assert counts["search"] == own.trials
    assert len(tickets) * planned.costs.full <= hours
    assert {row.pair for row in tickets if row.kind == "confirm"} <= set(range(own.seeds.confirm.max))
    assert any(
        line.startswith("0.5 GPU-hours at ") and f"{own.trials} trials" in line for line in notes.lines
    )
    # the same file again is the same study, whatever it does not say
    again = search(open_spec(hours), storage=URL, workers=1)
    assert again.state == "done" and stored() == (spec, tickets)
    with pytest.raises(StudyChanged, match=f"{own.trials + 1} search tickets are asked now"):
        search(open_spec(hours, trials=own.trials + 1), storage=URL, workers=1)
    # and plan says what was decided
    found = plan(open_spec(hours), storage=URL, workers=1)
    assert found.by_kind["search"].most == own.trials
    resume("toy", storage=URL, workers=1, more=2)
    assert sum(row.kind == "search" for row in stored()[1]) == own.trials + 2


@pytest.mark.usefixtures("fake_workers")
def test_an_agent_that_is_launched_with_the_spec_splits_it_too() -> None:
    spec = StudySpec.parse(open_spec(0.5), source="the test")
    result = take_part(spec, "toy", storage=URL, workers=1)
    assert result.state == "done"
    assert stored()[0].study.limits.run_gpu_hours is not None


@pytest.mark.usefixtures("fake_workers")
def test_a_budget_that_is_too_small_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"trials": 4, "candidates": 2, "seeds": {"choose": 2, "confirm": 3}}
    for call in (plan, search):
        with pytest.raises(SpecError, match=r"given 0\.01, which is too little to prove a gain"):
            call(open_spec(0.01), storage=URL, workers=1)
        with pytest.raises(SpecError, match=r"takes 18 GPU-hours at most|takes [\d.]+ GPU-hours at most"):
            call(open_spec(2.0, run=1.0), storage=URL, workers=1)
        # all that the budget could decide is given, and then it does not even hold the proof
        with pytest.raises(SpecError, match="would end the search before its first run"):
            call(open_spec(2.0, run=1.0, **numbers), storage=URL, workers=1)
    with Store.open(URL) as store:
        assert not list(store.list_studies())


def test_of_two_that_begin_a_study_at_once_the_second_takes_over_what_the_first_has_split(
    tmp_path: Path,
) -> None:
    asked = StudySpec.parse(open_spec(60.0), source="the test")
    first, second = (
        divided(StudySpec.parse(open_spec(60.0, run=run), source="the test")) for run in (1.0, 0.5)
    )
    assert first.study.trials != second.study.trials and first.identity() != second.identity()
    with Store.open(f"sqlite:///{tmp_path}/a.db") as store:
        begun = stand(store, first, None, checkpoints="file:///a")
        late = stand(store, second, None, checkpoints="file:///a")
        assert late.id == begun.id
        assert StudySpec.stored(store.load_study("toy")).study.trials == first.study.trials
        searching = [row for row in store.tickets(begun.id) if row.kind == "search"]
        assert len(searching) == first.study.trials
    assert "not split" in str(split_text(asked))


def test_a_study_that_is_begun_where_no_run_can_be_timed_says_what_to_do(tmp_path: Path) -> None:
    notes: list[str] = []
    with Store.open(f"sqlite:///{tmp_path}/a.db") as store:
        spec = StudySpec.parse(open_spec(60.0), source="the test")
        row = stand(store, spec, None, checkpoints="file:///a", told=notes.append)
        assert StudySpec.stored(row).study.trials == 40
    (note,) = [each for each in notes if "gpu_hours" in each]
    assert "give study.limits.run_gpu_hours, which tempopt plan measures" in note


def test_at_a_stated_price_whoever_takes_the_order_splits_it(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/a.db") as store:
        asked = StudySpec.parse(open_spec(60.0, run=1.0), source="the test")
        found, study = ordered(store, asked)
        assert study is None and found.to_json() == divided(asked).to_json() != asked.to_json()
        with pytest.raises(SpecError, match="too little to prove a gain"):
            ordered(store, StudySpec.parse(open_spec(6.0, run=1.0), source="the test"))


@pytest.mark.usefixtures("fake_workers")
def test_where_the_search_trains_a_proxy_both_sizes_have_their_price() -> None:
    proxy = {"set": {"trainer.max_steps": 12}}
    planned = plan(open_spec(0.5, proxy=proxy), storage=URL, workers=1).split
    search(open_spec(0.5, proxy=proxy), storage=URL, workers=1)
    limits = stored()[0].study.limits
    assert planned is not None and limits.proxy_gpu_hours is not None
    assert (limits.run_gpu_hours, limits.proxy_prices) == (planned.costs.full, [*planned.costs.proxies])
    assert "a run of the proxy and" in str(split_text(stored()[0]))
    proxy_of = stored()[0].study.proxy
    assert proxy_of is not None and proxy_of.finalists == planned.chosen.numbers["proxy.finalists"]


def test_what_is_left_out_is_said() -> None:
    spec = divided(StudySpec.parse(open_spec(25.0, run=1.0), source="the test"))
    assert "without init_only, learned and ablation" in str(split_text(spec))
    large = divided(StudySpec.parse(open_spec(2000.0, run=1.0), source="the test"))
    assert "without" not in str(split_text(large))
    numbers: dict[str, Any] = {"trials": 3, "candidates": 2, "seeds": {"choose": 2, "confirm": 2}}
    assert split_text(StudySpec.parse(open_spec(25.0, **numbers), source="the test")) is None
