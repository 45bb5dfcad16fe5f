"""A study with a proxy is priced by the size that each of its runs has, and its limits count so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.programs import Programs
from tempopt.agent.stopping import ended_by
from tempopt.agent.study_cache import StudyCache
from tempopt.confirmation.costs import MeanCosts, costs_of
from tempopt.forecast.runs import Forecast
from tempopt.records.rows import AT_PROXY, KINDS
from tempopt.store.store import Store
from tempopt.study.checking import not_looked_up
from tempopt.study.pricing import price
from tempopt.workers.messages import Times
from tests.specs import make

PROXY = {"set": {"trainer.max_steps": 10}}
FEW: dict[str, Any] = {
    "study__trials": 4,
    "study__candidates": 2,
    "study__proxy": PROXY,
    "study__seeds": {"choose": 2, "confirm": 4},
    "data": None,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/a.db") as opened:
        yield opened


def test_a_forecast_takes_each_run_at_its_own_price() -> None:
    spec = make(**{**FEW, "study__pruner": "none"})
    forecast = Forecast(spec, studies=2)
    second, nothing = Times(start=1.0), Times(start=0.0)
    both, full = forecast.seconds(second), forecast.seconds(second, [nothing])
    assert both.expected == forecast.runs().expected
    assert full.expected == pytest.approx(forecast.runs_of_size(1).expected)
    assert forecast.seconds(nothing, [second]).expected == pytest.approx(forecast.runs_of_size(0).expected)


def test_without_earlier_runs_the_proxy_is_priced_by_its_steps(store: Store) -> None:
    found = price(make(**FEW), store, may_see=lambda name: True, seconds_per_run=100.0)
    assert "10 s a run of the proxy, by its number of steps" in found.rests_on.text
    assert found.train_seconds is not None
    # 10 of the 100 steps: at full size every run would take 100 s
    assert found.train_seconds.expected < 100.0 * found.runs.expected
    unpriced = price(make(**FEW), store, may_see=lambda name: True)
    assert unpriced.train_seconds is None and "is not known" in unpriced.rests_on.text


def test_each_of_several_proxies_is_priced_by_its_steps(store: Store) -> None:
    sets = [{"trainer.max_steps": 10}, {"trainer.max_steps": 50}]
    spec = make(**{**FEW, "study__proxy": {"set": sets}})
    found = price(spec, store, may_see=lambda name: True, seconds_per_run=100.0)
    assert "10 s a run of proxy 1, by its number of steps; 50 s a run of proxy 2" in found.rests_on.text
    runs = [span.expected for span in Forecast(spec).runs_by_size()]
    assert found.train_seconds is not None
    # what the pruner may end costs less, and evaluations at the end cost more
    assert found.train_seconds.expected == pytest.approx(10 * runs[0] + 50 * runs[1] + 100 * runs[2], rel=0.1)


def test_before_a_run_of_a_size_its_cost_follows_from_the_nearest_smaller_one(make_ticket: Any) -> None:
    sets = [{"trainer.max_steps": 10}, {"trainer.max_steps": 50}]
    spec = make(**{**FEW, "study__proxy": {"set": sets}}).with_found({}, sizes={"steps": [10, 50, 100]})
    search = make_ticket("search", 0, 0.5, seconds=20.0)
    middle = make_ticket("transfer", 0, 0.5, seconds=80.0, size=1)
    full = make_ticket("confirm", 0, 0.5, seconds=300.0)
    assert costs_of([search], spec) == MeanCosts(sizes=(20.0, 100.0, 200.0), basis="ratio")
    assert costs_of([search, middle], spec) == MeanCosts(sizes=(20.0, 80.0, 160.0), basis="ratio")
    assert costs_of([search, full], spec) == MeanCosts(sizes=(20.0, 100.0, 300.0), basis="measured")
    assert costs_of([full], spec) == MeanCosts(sizes=(30.0, 150.0, 300.0), basis="measured")


def test_a_limit_says_what_a_run_at_full_size_is_taken_to_cost(make_ticket: Any) -> None:
    spec = make(**{**FEW, "study__limits": {"gpu_hours": 3.0}})
    sized = spec.with_found({}, sizes={"steps": [10, 100], "parameters": [5, 5]})
    rows = [
        make_ticket("search", 0, 0.5, seconds=360.0),
        make_ticket("search", 1, state="waiting", seconds=0.0),
    ]
    assert "as one of the proxy, since their sizes are not known" in str(_ended(spec, rows))
    assert "times the ratio of their steps and parameters" in str(_ended(sized, rows))
    proved = [*rows, make_ticket("transfer", 0, 0.5, seconds=3600.0)]
    assert "runs at full size as measured" in str(_ended(sized, proved))


def _ended(spec: Any, rows: list[Any]) -> str | None:
    cache = StudyCache.__new__(StudyCache)
    cache.tickets = {row.id: row for row in rows}
    cache._of_kind = {kind: [row.id for row in rows if row.kind == kind] for kind in KINDS}
    cache.spent = sum(row.seconds for row in rows)
    cache.grow_to(0.0)
    return ended_by(spec.model_copy(update={"study": spec.study.model_copy()}), cache, workers=1)


def test_a_worker_is_sent_the_program_of_the_tickets_kind(make_ticket: Any) -> None:
    spec = make(**FEW)
    programs = Programs(spec, spec.program())
    for kind in KINDS:
        program = programs.of(make_ticket(kind))
        assert program.trainer == {"max_steps": 10 if kind in AT_PROXY else 100}, kind
        # it is made once
        assert programs.of(make_ticket(kind, 1)) is program
    assert programs.of(make_ticket("search")).identity != programs.of(make_ticket("confirm")).identity


def test_a_server_asks_for_the_size_that_it_cannot_look_up() -> None:
    proxy = {**PROXY, "temperature": "head_dim"}
    ((path, text),) = not_looked_up(make(**{**FEW, "study__proxy": proxy}))
    assert path == "study.proxy.head_dim" and "A server imports no module" in text
    assert not_looked_up(make(**{**FEW, "study__proxy": {**proxy, "head_dim": [8, 32]}})) == []
