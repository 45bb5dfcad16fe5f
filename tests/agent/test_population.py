"""A search by a population: who goes on from whom, exactly, whoever trains it and whatever happens to it."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.checkpoint_reuse import beyond_quota
from tempopt.agent.observer import Unobserved
from tempopt.errors import SpecError, UsageError
from tempopt.records.rows import Checkpoint, TicketRow
from tempopt.study.api import resume, search
from tests.toy_study import URL, Ended, ended, reports, start, tickets, toy_spec, wait_until

MEMBERS, STEPS = 4, 24
# of 24 steps progress is step / 23: so many are at a progress of at most the end of an interval
ENDS = {0.211: 5, 0.526: 13, 1.0: STEPS}
SPACE: dict[str, Any] = {"temperature_init": {"low": 0.25, "high": 4.0}}
SAMPLER = {"name": "population", "members": MEMBERS, "intervals": len(ENDS)}


def spec(**study: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"sampler": SAMPLER, "arms": {"baseline": 1, "constant": 1}, "candidates": 1}
    data = toy_spec(space=SPACE, **{**options, "seeds": {"choose": 1, "confirm": 2}, **study})
    for name in ("trials", "pruner"):
        if name not in study:
            del data["study"][name]
    return data


class Searched(Unobserved):
    """Ends a study when its search is over."""

    def __init__(self) -> None:
        self._left = MEMBERS * len(ENDS)

    def finished(self, ticket: TicketRow) -> None:
        self._left -= ticket.kind == "search"
        if not self._left:
            raise KeyboardInterrupt


def searched(workers: int = 1, **study: Any) -> list[TicketRow]:
    """Return the search tickets by number, once all of them are over."""
    with pytest.raises(KeyboardInterrupt):
        search(spec(**study), storage=URL, workers=workers, observer=Searched())
    return sorted((t for t in tickets() if t.kind == "search"), key=lambda t: t.number)


def told(rows: list[TicketRow]) -> list[Any]:
    """Return what of search tickets may depend on nothing but the study's seed, reports included."""
    found = [(t.number, t.seed, t.parameters, t.sampled, t.outcome, t.value, t.steps) for t in rows]
    return [*found, [each for each in reports() if each[0][0] == "search"]]


@pytest.mark.usefixtures("toy_folder")
def test_members_go_on_from_checkpoints_to_the_values_of_runs_that_were_trained_from_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = searched()
    assert [t.outcome for t in forked] == 2 * MEMBERS * ["pruned"] + MEMBERS * ["complete"]
    assert [t.steps for t in forked] == [steps for steps in ENDS.values() for _ in range(MEMBERS)]
    # as many steps as whole runs of the members have
    assert sum(t.steps_trained or 0 for t in forked) == MEMBERS * STEPS
    lengths = [after - before for before, after in itertools.pairwise((0, *ENDS.values()))]
    assert [t.steps_trained for t in forked] == [each for each in lengths for _ in range(MEMBERS)]
    by_id = {t.id: t for t in forked}
    origins = [by_id[t.forked_from].number if t.forked_from else None for t in forked]
    taken_over = [(t.number, origin) for t, origin in zip(forked, origins, strict=True) if origin is not None]
    assert {origin // MEMBERS - number // MEMBERS for number, origin in taken_over} == {-1}
    # the worst has taken over the best
    assert any(number - MEMBERS != origin for number, origin in taken_over)
    other = tmp_path / "alone"
    other.mkdir()
    expected = told(forked)
    monkeypatch.chdir(other)
    alone = searched(checkpoint_quota=None)
    assert {t.forked_from for t in alone} == {None}
    assert [t.steps_trained for t in alone] == [t.steps for t in alone]
    assert told(alone) == expected


@pytest.mark.long
@pytest.mark.usefixtures("toy_folder")
def test_four_workers_side_by_side_train_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = told(searched())
    other = tmp_path / "four"
    other.mkdir()
    monkeypatch.chdir(other)
    assert told(searched(workers=4)) == expected


@pytest.mark.long
@pytest.mark.usefixtures("toy_folder")
def test_a_killed_agent_leaves_a_search_that_goes_on_to_the_values_it_would_have_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = told(searched())
    other = tmp_path / "killed"
    other.mkdir()
    monkeypatch.chdir(other)
    process = start(spec(), other)
    wait_until(lambda rows: sum(t.kind == "search" and t.state == "done" for t in rows) > MEMBERS)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=240)
    assert any(t.kind == "search" and t.state != "done" for t in tickets())
    with pytest.raises(KeyboardInterrupt):
        resume("toy", storage=URL, workers=1, observer=UntilSearched())
    assert told(sorted((t for t in tickets() if t.kind == "search"), key=lambda t: t.number)) == expected


class UntilSearched(Unobserved):
    """Ends a study that is gone on with when its search is over."""

    def finished(self, ticket: TicketRow) -> None:
        if all(t.state == "done" for t in tickets() if t.kind == "search" and t.id != ticket.id):
            raise KeyboardInterrupt


@pytest.fixture
def whole(fake_workers: None) -> Ended:
    """The study as one fake worker carries it out to its verdict."""
    return ended(search(spec(), storage=URL, workers=1))


def moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("fake_workers")
def test_a_study_goes_on_from_its_population_to_a_verdict(whole: Ended) -> None:
    rows = [t for t in tickets() if t.kind == "search"]
    complete = {t.number: t.parameters for t in rows if t.outcome == "complete"}
    assert complete.keys() == set(range(2 * MEMBERS, 3 * MEMBERS))
    assert whole.result.verdict is not None
    [best] = [
        t
        for t in rows
        if t.outcome == "complete" and t.value == min(r.value for r in rows if r.number in complete)
    ]
    winner = next(t.parameters for t in tickets() if t.kind == "confirm" and "search" in t.arm)
    assert winner == best.parameters


@pytest.mark.usefixtures("fake_workers")
def test_who_trains_how_much_of_it_and_where_it_was_cut_off_changes_nothing(
    whole: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(tmp_path / "four", monkeypatch)
    four = ended(search(spec(), storage=URL, workers=4))
    assert ([fact[:-1] for fact in four.facts], four.reports) == (
        [fact[:-1] for fact in whole.facts],
        whole.reports,
    )
    for place, count in enumerate((1, MEMBERS, 2 * MEMBERS + 1)):
        moved(tmp_path / f"cut-{place}", monkeypatch)
        process = start(spec(), Path.cwd(), fake=True)
        wait_until(lambda rows, n=count: sum(t.kind == "search" and t.state == "done" for t in rows) >= n)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=240)
        again = ended(resume("toy", storage=URL, workers=1))
        assert [fact[:-1] for fact in again.facts] == [fact[:-1] for fact in whole.facts]
        assert again.reports == whole.reports


@pytest.mark.usefixtures("fake_workers")
def test_no_member_begins_a_generation_before_all_have_ended_the_one_before() -> None:
    seen: list[tuple[int, int]] = []

    class Looks(Unobserved):
        def update(self, snapshot: Any) -> None:
            rows = [t for t in tickets() if t.kind == "search"]
            begun = max((t.number for t in rows if t.parameters is not None), default=0)
            seen.append((begun, min((t.number for t in rows if t.state != "done"), default=begun)))

    search(spec(parallel=12), storage=URL, workers=12, observer=Looks())
    assert len({begun for begun, _ in seen}) > 1
    assert all(begun // MEMBERS <= first // MEMBERS for begun, first in seen)


@pytest.mark.usefixtures("fake_workers")
def test_a_study_is_enlarged_by_whole_populations_in_the_same_space(whole: Ended) -> None:
    with pytest.raises(SpecError, match="5 trials were to be added .* one population has 12"):
        resume("toy", storage=URL, workers=1, more=5)
    with pytest.raises(UsageError, match="whose members go on from those before them"):
        resume("toy", storage=URL, workers=1, amend=["search.temperature_init.high=8"])
    again = resume("toy", storage=URL, workers=1, more=12)
    rows = [t for t in tickets() if t.kind == "search"]
    assert [t.outcome for t in rows[12:]] == 2 * MEMBERS * ["pruned"] + MEMBERS * ["complete"]
    first, second = (
        {t.sampled["temperature_init"] for t in rows[n : n + MEMBERS] if t.sampled} for n in (0, 12)
    )
    assert not first & second
    assert again.verdict is not None


def test_checkpoints_of_earlier_intervals_go_first_and_then_those_of_the_worst(
    make_spec: Any, make_ticket: Any
) -> None:
    kept = (Checkpoint(step=5, url="/runs/step-5-1.ckpt", digest="5", size=10),)
    values = {0: 9.0, 1: 8.0, MEMBERS: 1.0, MEMBERS + 1: 2.0}
    rows = [make_ticket("search", number, value, checkpoints=kept) for number, value in values.items()]
    for quota, gone in ((40, []), (30, [1]), (20, [1, 0]), (10, [1, 0, MEMBERS])):
        study = make_spec(sampler=SAMPLER, checkpoint_quota=quota)
        assert [t.number for t in beyond_quota(rows, study)] == gone
