"""The benchmark of a measured shift: its rules differ in what they say, and its races are tempopt's."""

from __future__ import annotations

import math

import pytest

from benchmarks.measured_shift import AGREEMENTS, SHIFTS, USES, changed, one, raced, table
from benchmarks.over_sizes import Proxy
from benchmarks.simulated.answers import asking, ways
from benchmarks.simulated.over_sizes import Larger
from tempopt.spec.size_race import FIRST_LARGER

CLASS, DRAW = "constant", 2


@pytest.fixture(scope="module")
def study() -> Proxy:
    small = Larger(CLASS, DRAW, 1.0, 0.0)
    found = Proxy(small, asking(small.spec, ways()["proxy"], seed=DRAW))
    assert found.searched_and_chosen()
    return found


def test_a_given_shift_is_what_the_rule_says_and_the_same_is_none(study: Proxy) -> None:
    world = Larger(CLASS, DRAW, 1.0, 0.4)
    for rule, shift in (("same", 0.0), (0.4, 0.4)):
        (worth, runs), found = raced(study, changed(study._spec, temperature=rule), world)
        assert found == shift and runs > 0 and math.isfinite(worth)


def test_a_measured_shift_is_one_of_those_that_are_tried_and_takes_more_runs(study: Proxy) -> None:
    world, few = Larger(CLASS, DRAW, 1.0, 0.4), changed(study._spec, temperature="same")
    (_, runs), found = raced(study, changed(study._spec, temperature="measured"), world)
    assert found in (-0.4, 0.0, 0.4) and runs > raced(study, few, world)[0][1]
    assert FIRST_LARGER == 1


def test_the_table_has_a_row_for_each_full_size_and_one_for_all() -> None:
    records = [each for draw in (1, 3) for each in one(CLASS, draw)]
    assert all(set(each["came"]) == set(USES) for each in records if each["came"])
    lines = list(table([each for each in records if each["came"]]))
    assert sum(line.startswith("| all | all |") for line in lines) == 1
    assert len([line for line in lines if line.startswith("| 0.")]) == 2 * len(AGREEMENTS) * len(SHIFTS)
