"""What a study learns from earlier ones: it finds sooner what they found, and unlearns what does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tempopt.agent.study_creation import load_warm_start_runs
from tempopt.api.calls import search
from tempopt.errors import SpecError
from tempopt.sampling.candidate_pool import WarmStartStudy
from tempopt.sampling.knowledge_gradient import KnowledgeGradient
from tempopt.sampling.unit_cube import from_unit, nearest
from tempopt.service.studies import load_study, run_agent
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import RunOutcome
from tempopt.storage.opening import open_store
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.rows import NewTicket
from tempopt.storage.store import Store
from tests.agent.test_many_agents import Watcher
from tests.sampling.test_knowledge_gradient import SPACE, describe, make_trial, start, truth
from tests.storage.scenes import TRIAL, take_next
from tests.storage.scenes import make_end as end_of
from tests.toy_study import URL, read_study, tickets, toy_spec

SPECS = Callable[..., StudySpec]


def runs(count: int, worth: Callable[[Any], float]) -> list[tuple[dict[str, Any], float]]:
    rng = np.random.default_rng(5)
    points = [{n: from_unit(d, rng.random()) for n, d in SPACE.items()} for _ in range(count)]
    return [(params, worth(params) + rng.normal(0, 0.05)) for params in points]


def opposite(params: Any) -> float:
    x, y = describe(params)
    return -4 * (x - 0.1) ** 2 - (y - 0.9) ** 2


def strategy(*earlier: WarmStartStudy) -> KnowledgeGradient:
    return KnowledgeGradient(SPACE, describe, maximize=True, num_seeds=2, seed=1, earlier=earlier)


def test_an_earlier_study_says_how_good_a_set_would_have_been() -> None:
    prior = WarmStartStudy(runs(40, truth), describe)
    rng = np.random.default_rng(0)
    points = [{n: from_unit(d, rng.random()) for n, d in SPACE.items()} for _ in range(200)]
    predictions = np.array([prior(describe(point)) for point in points])
    assert np.corrcoef(predictions, [truth(point) for point in points])[0, 1] > 0.95
    prior_means = [prior(describe(params)) for params in prior.parameters]
    assert (np.mean(prior_means), np.std(prior_means)) == (pytest.approx(0), pytest.approx(1))
    best = prior.best(np.array([describe(point) for point in points]), count=3, rng=rng)
    assert truth(points[best[0]]) > -0.05 and len(set(best)) == 3


def test_what_it_would_name_is_tried_after_the_first_trial_and_no_later() -> None:
    sampler = strategy(WarmStartStudy(runs(40, truth), describe))
    firsts = [sampler.warm_start_params(number) for number in range(6)]
    assert firsts[0] is None and firsts[-1] is None
    prior_sets = [params for params in firsts if params is not None]
    assert len(prior_sets) == 2 and truth(prior_sets[0]) > -0.05
    two_priors = strategy(
        WarmStartStudy(runs(40, truth), describe), WarmStartStudy(runs(40, opposite), describe)
    )
    first_set, second_set = two_priors.warm_start_params(1), two_priors.warm_start_params(2)
    assert first_set is not None and second_set is not None
    assert truth(first_set) > -0.05 and opposite(second_set) > -0.05
    assert strategy().warm_start_params(1) is None


@pytest.mark.parametrize(("worth", "soon"), [(truth, True), (opposite, False)])
def test_an_answer_that_holds_is_found_sooner_and_one_that_does_not_is_unlearnt(
    worth: Callable[[Any], float], soon: bool
) -> None:
    sampler = strategy(WarmStartStudy(runs(40, worth), describe))
    trials = start(3)
    for number in range(3, 24):
        params = sampler.ask(trials, [], number=number, seed=number, fixed={})
        assert params is not None
        trials.append(make_trial(number, params))
        if soon and number == 6:
            assert truth(sampler.recommend(trials, count=1, seed=0)[0]) > -0.05
    assert truth(sampler.recommend(trials, count=1, seed=0)[0]) > -0.05


def test_sets_of_another_space_are_moved_to_the_nearest_of_this_one(make_spec: SPECS) -> None:
    spec = make_spec()
    space = spec.space()
    nearest_params = nearest(space, {"temperature_init": 1e9, "schedule": "none such", "lr": 3})
    assert nearest_params["temperature_init"] == space["temperature_init"].high  # type: ignore[attr-defined]
    assert nearest_params.keys() == space.keys()
    spec.parameters("search", nearest_params)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/studies.db") as store:
        yield store


@pytest.fixture
def write_finished(store: Store, make_spec: SPECS) -> Callable[..., None]:
    """Return what writes a study of runs that came to these values."""

    def write(name: str, values: list[float | None], **study: Any) -> None:
        spec = make_spec(name=name, **study)
        make_study(store.url, name=name, direction=spec.study.direction, metric=spec.study.metric)
        row = store.create_study(name, spec.to_json(), "")
        store.add_tickets(
            row.id,
            [NewTicket(kind="search", arm="search", number=n, seed=n) for n in range(len(values) + 1)],
        )
        for number, value in enumerate(values):
            ticket = take_next(store, row)
            parameters = {"temperature_init": 0.5 + number / 1000}
            store.begin(ticket.id, ticket.attempt, parameters, {"x": 0.5}, TRIAL)
            outcome: Any = "diverged" if value is None else "complete"
            outcomes = RunOutcome(outcome=outcome, value=value, steps=10, seconds=1.0)
            store.write(row.id, [end_of(ticket, outcomes)], agent="agent", lease=60.0)

    return write


@pytest.mark.long
def test_complete_runs_are_kept_and_more_is_better(
    store: Store, make_spec: SPECS, write_finished: Callable[..., None]
) -> None:
    write_finished("losses", [0.5, None, 0.25, None, 0.75], direction="minimize")
    write_finished("many", [n / 300 for n in range(300)], direction="maximize")
    first, many_runs = load_warm_start_runs(store, make_spec(warm_start=["losses", "many"]))
    assert (first["name"], many_runs["name"]) == ("losses", "many")
    assert first["runs"] == [
        ({"temperature_init": tau}, value) for tau, value in [(0.5, -0.5), (0.502, -0.25), (0.504, -0.75)]
    ]
    values = [value for _, value in many_runs["runs"]]
    assert len(values) == 240 and max(values) == 299 / 300 and min(values) == 0.0


def test_a_study_that_is_not_there_or_has_shown_nothing_is_refused(
    store: Store, make_spec: SPECS, write_finished: Callable[..., None]
) -> None:
    write_finished("short", [0.5, 0.6])
    with pytest.raises(SpecError, match=r'study.warm_start: there is no study "shrot"'):
        load_warm_start_runs(store, make_spec(warm_start=["shrot"]))
    with pytest.raises(SpecError, match=r'2 complete runs of the study "short" fit .* 3 are needed'):
        load_warm_start_runs(store, make_spec(warm_start=["short"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "own", "warm_start": ["own"]}, "Give names of other studies"),
        ({"warm_start": ["a", "a"]}, "each of them once"),
        ({"warm_start": "a"}, r"a list of names of earlier studies, as in \[first, second\]"),
        ({"warm_start": ["a"], "sampler": "tpe"}, "sampler: tpe, which does not learn from other studies"),
    ],
)
def test_what_cannot_be_learnt_from_is_said(make_spec: SPECS, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_spec(**settings)


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.usefixtures("fake_workers")
@pytest.mark.long
def test_a_study_goes_on_as_it_began_when_the_earlier_one_is_gone() -> None:
    search({**toy_spec(name="first", pruner="none")}, storage=URL, workers=1)
    spec = toy_spec(warm_start=["first"], trials=10)
    watcher = Watcher()
    undisturbed = read_study(search(spec, storage=URL, workers=1, observer=watcher))
    assert "Begins with the results of 13 runs of first." in watcher.notes
    cold = toy_spec(trials=10)

    with open_store(URL) as store:
        store.delete_study("toy")

    def delete() -> None:
        with open_store(URL) as store:
            store.delete_study("first")
            store.set_state(store.load_study("toy").id, "paused")

    deleting_watcher = Watcher(lambda snapshot: snapshot.done["search"] >= 2, delete)
    assert search(spec, storage=URL, workers=1, observer=deleting_watcher).state == "paused"
    result = search(spec, storage=URL, workers=2)
    assert (read_study(result).facts, read_study(result).reports) == (undisturbed.facts, undisturbed.reports)
    warm = [t.parameters for t in tickets() if t.kind == "search"]
    with open_store(URL) as store:
        store.delete_study("toy")
    search(cold, storage=URL, workers=1)
    assert [t.parameters for t in tickets() if t.kind == "search"] != warm
    assert load_study(URL, "toy") == run_agent("toy", storage=URL)
