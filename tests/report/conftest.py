"""Studies that every test of the report looks at, made once."""

from __future__ import annotations

import pytest

from tempopt.results.study_result import StudyResult
from tests.report.made_study import World, make


@pytest.fixture(scope="session")
def confirmed_result() -> StudyResult:
    """A study that is over and has everything to show."""
    return make(World()).result()


@pytest.fixture(scope="session")
def searching_result() -> StudyResult:
    """A study whose search is done and of which nothing is confirmed."""
    return make(World(confirmed=False, study={"pruner": "none"})).result()


@pytest.fixture(scope="session")
def untouched_result() -> StudyResult:
    """A study of which no trial is over."""
    synthetic = make(World(trials=1, confirmed=False))
    synthetic.tickets.clear()
    synthetic.measurements.clear()
    return synthetic.result()
