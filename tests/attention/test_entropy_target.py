"""Which entropy each layer is to have: one curriculum for all, or layers that move apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.attention.modules.entropy_controller import ARRANGEMENTS, EntropyTarget, contrast, curriculum
from tempopt.errors import SpecError
from tempopt.temperature import SCHEDULES, Constant, Cosine, Linear


def odds(level: float) -> float:
    return level / (1 - level)


def test_a_curriculum_goes_from_broad_to_sharp_in_every_layer() -> None:
    target = curriculum(init=0.9, final=0.4, schedule="cosine")
    schedule = Cosine(temperature_init=0.9, temperature_final=0.4)
    for at in (0.0, 0.25, 0.5, 1.0):
        assert target.entropies(at, 4) == (schedule(at),) * 4


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "constant"])
def test_every_schedule_that_moves_leads_from_one_end_to_the_other(schedule: str) -> None:
    target = curriculum(init=0.8, final=0.3, schedule=schedule)
    assert (target.entropies(0.0, 1), target.entropies(1.0, 1)) == ((0.8,), (0.3,))
    contrast_target = contrast(level=0.6, spread=9.0, schedule=schedule)
    assert contrast_target.entropies(0.0, 3) == (0.6,) * 3
    assert odds(contrast_target.entropies(1.0, 3)[0]) == pytest.approx(3 * odds(0.6))


def test_contrast_by_depth_is_broad_at_first_and_sharp_at_last() -> None:
    target = contrast(level=0.6, spread=9.0)
    assert target.entropies(0.0, 5) == (0.6,) * 5
    shares = [odds(entropy) / odds(0.6) for entropy in target.entropies(1.0, 5)]
    assert shares == pytest.approx([9**0.5, 9**0.25, 1.0, 9**-0.25, 9**-0.5])
    halfway = [odds(entropy) for entropy in target.entropies(0.5, 5)]
    assert halfway[0] / halfway[-1] == pytest.approx(3.0)


def test_contrast_may_alternate_from_layer_to_layer() -> None:
    target = contrast(level=0.6, spread=9.0, arrangement="alternate")
    four = [odds(entropy) / odds(0.6) for entropy in target.entropies(1.0, 4)]
    assert four == pytest.approx([3.0, 1 / 3, 3.0, 1 / 3])
    three = [odds(entropy) / odds(0.6) for entropy in target.entropies(1.0, 3)]
    assert three[0] / three[1] == pytest.approx(9.0)
    assert math.prod(three) == pytest.approx(1.0)


@given(
    st.floats(1e-3, 0.999),
    st.floats(1e-4, 1e4),
    st.floats(0, 1),
    st.integers(1, 40),
    st.sampled_from(sorted(ARRANGEMENTS)),
)
def test_targets_are_shares_around_their_level(
    level: float, spread: float, at: float, num_layers: int, arrangement: str
) -> None:
    target = EntropyTarget(
        level=Constant(temperature_init=level),
        spread=Linear(temperature_init=1.0, temperature_final=spread),
        arrangement=arrangement,
    )
    shares = target.entropies(at, num_layers)
    assert len(shares) == num_layers
    assert all(0 < share < 1 for share in shares)
    mean = math.fsum(math.log(odds(share)) for share in shares) / num_layers
    assert mean == pytest.approx(math.log(odds(level)), abs=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EntropyTarget(level=Constant(temperature_init=1.0)),
            r"progress 0\.0 is 1\.0.*between 0 and 1",
        ),
        (lambda: EntropyTarget(level=Linear(temperature_init=0.5, temperature_final=2.0)), r"is 1\.25"),
        (lambda: contrast(arrangement="deep"), 'Unknown arrangement "deep".*Known: depth, alternate'),
        (lambda: contrast(spread=1.0), "no contrast"),
        (lambda: contrast(spread=-2.0), r"spread=-2\.0 is out of range"),
        (lambda: contrast(schedule="cosin"), 'Unknown schedule that moves "cosin". Did you mean "cosine"'),
        (lambda: curriculum(init=0.3, final=0.6), r"final=0\.6 is not below init=0\.3"),
        (lambda: curriculum(schedule="constant"), 'Unknown schedule that moves "constant"'),
        (lambda: curriculum(init=1.5), r"is 1\.5"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()
