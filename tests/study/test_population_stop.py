"""A search by a population that is stopped: only its last interval can win, so what has begun is trained."""

from __future__ import annotations

import pytest

from tempopt.cli import main
from tempopt.errors import UsageError
from tempopt.results import study_result
from tempopt.results.study_result import StudyResult
from tempopt.store.store import Store
from tempopt.study import admin
from tests.agent.test_population import ENDS, MEMBERS, spec
from tests.toy_study import URL, begun, searched

TRIALS = MEMBERS * len(ENDS)


def loaded() -> StudyResult:
    with Store.open(URL, create=False) as store:
        return study_result.load(store, "toy", whole=True)


def test_a_population_that_has_begun_is_trained_to_its_end_by_a_study_that_is_stopped(
    fake_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(spec(trials=2 * TRIALS), when=searched(1))
    main(["stop", "toy", "--storage", URL])
    out = capsys.readouterr().out
    assert f"{TRIALS} tickets that waited were withdrawn" in out
    assert f"{TRIALS - 1} trials of it that are left are trained" in out
    rows = {r.number: r.state for r in loaded().runs if r.kind == "search"}
    assert {number for number, state in rows.items() if state == "withdrawn"} == set(
        range(TRIALS, 2 * TRIALS)
    )
    with pytest.raises(UsageError, match=r"tempopt pause toy.*tempopt delete toy"):
        admin.stop(URL, "toy")
    main(["resume", "toy", "--storage", URL, "--workers", "1"])
    assert loaded().verdict is not None


def test_a_single_population_is_not_stopped(fake_workers: None, capsys: pytest.CaptureFixture[str]) -> None:
    begun(spec(), when=searched(1))
    before = [(run.name, run.state) for run in loaded().runs]
    assert main(["stop", "toy", "--storage", URL]) != 0
    said = capsys.readouterr().err
    assert "only trials of the last interval can become the winner" in said
    assert "tempopt pause toy" in said and "tempopt delete toy" in said
    assert [(run.name, run.state) for run in loaded().runs] == before
