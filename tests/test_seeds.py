"""Seeds follow from names, on every machine the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tempopt.seeds import derive

parts = st.lists(st.one_of(st.integers(), st.text()), min_size=1, max_size=4)


@given(parts)
def test_a_seed_fits_every_generator_and_is_the_same_again(names: list[int | str]) -> None:
    assert 0 <= derive(*names) < 2**63
    assert derive(*names) == derive(*names)


@given(parts, parts)
def test_different_names_give_different_seeds(one: list[int | str], other: list[int | str]) -> None:
    assert (derive(*one) == derive(*other)) == (one == other)


def test_a_seed_does_not_change_between_versions() -> None:
    assert derive(0, "confirm", 3) == 4320395554921044851
