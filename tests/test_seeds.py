"""Seeds follow from names, on every machine the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import qmc

from tempopt.seeds import derive, shared_seed

parts = st.lists(st.one_of(st.integers(), st.text()), min_size=1, max_size=4)


@given(parts)
def test_a_seed_fits_every_generator_and_is_the_same_again(names: list[int | str]) -> None:
    assert 0 <= derive(*names) < 2**63
    assert derive(*names) == derive(*names)


@given(parts, parts)
def test_different_names_give_different_seeds(
    name_parts: list[int | str], other_parts: list[int | str]
) -> None:
    assert (derive(*name_parts) == derive(*other_parts)) == (name_parts == other_parts)


def test_a_seed_does_not_change_between_versions() -> None:
    assert derive(0, "confirm", 3) == 4320395554921044851


def test_shared_seeds_have_as_many_runs_each_in_an_order_that_changes() -> None:
    for num_shared in (1, 2, 3):
        seeds = [shared_seed(number, num_shared) for number in range(30 * num_shared)]
        blocks = [seeds[start : start + num_shared] for start in range(0, len(seeds), num_shared)]
        assert all(sorted(block) == list(range(num_shared)) for block in blocks)
        assert len(set(map(tuple, blocks))) == num_shared


def test_no_half_of_a_design_lies_on_one_shared_seed() -> None:
    points = qmc.Sobol(4, seed=1).random(16)
    seeds = np.array([shared_seed(number, 2) for number in range(16)])
    for places in points.T:
        assert len({seeds[number] for number in range(16) if places[number] < 0.5}) == 2
