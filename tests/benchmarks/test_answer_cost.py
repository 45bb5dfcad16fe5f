"""What an answer costs: lines of a population beside an oracle that carries its past, and counted steps."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.lineage import Taken, lineage
from benchmarks.simulated.answers import Steps, equivalent, median, until_shown


def _population(seed: int) -> tuple[dict[int, float], list[Taken], dict[int, tuple[int, list[float]]]]:
    """Return a population whose members carry the temperature of each of their steps, and what was noted.

    Checkpoints may be older than what their donors have trained since.
    """
    draw = random.Random(seed)
    begun = {member: draw.uniform(0.25, 4.0) for member in range(5)}
    tau = dict(begun)
    past: dict[int, tuple[int, list[float]]] = {member: (member, []) for member in begun}
    saved = dict(past)
    taken = []
    for _ in range(60):
        member = draw.randrange(5)
        first, steps = past[member]
        past[member] = first, [*steps, *[tau[member]] * draw.randrange(1, 4)]
        if draw.random() < 0.5:
            saved[member] = past[member]
        if draw.random() < 0.3:
            donor = draw.choice([each for each in begun if each != member])
            past[member], tau[member] = saved[donor], draw.uniform(0.25, 4.0)
            # what one had written before is no checkpoint of what it has become
            saved[member] = past[member]
            taken.append(Taken(member, donor, len(saved[donor][1]), tau[member]))
    return begun, taken, past


@pytest.mark.parametrize("seed", range(20))
def test_a_line_is_what_its_member_has_really_trained_with(seed: int) -> None:
    begun, taken, past = _population(seed)
    assert taken
    for member, (first, steps) in past.items():
        found, segments = lineage(begun, taken, member)
        along = [
            next(tau for begins, tau in reversed(segments) if begins <= step) for step in range(len(steps))
        ]
        assert (found, along) == (first, steps)


def test_the_step_of_the_checkpoint_counts_and_not_the_last_step_of_the_donor() -> None:
    taken = [Taken(1, 0, 40, 2.0), Taken(0, 2, 60, 3.0)]
    assert lineage({0: 0.5, 1: 1.0, 2: 1.5}, taken, 1) == (0, [(0, 0.5), (40, 2.0)])
    assert lineage({0: 0.5, 1: 1.0, 2: 1.5}, taken, 0) == (2, [(0, 1.5), (60, 3.0)])


def test_steps_are_counted_by_size_and_by_stage() -> None:
    steps = Steps()
    for kind, count, small in (("search", 30, True), ("baseline", 7, False), ("confirm", 50, False)):
        steps.add(kind, count, small=small)
    assert (steps.full, steps.proxy, steps.by_stage) == (57, 30, {"search": 7, "prove": 50})
    assert equivalent(steps.full, steps.proxy, 0.5) == 72.0


def test_an_answer_that_is_not_shown_costs_without_end() -> None:
    def record(*shown: bool) -> dict[str, object]:
        verdicts = [
            {"full": 100 * n, "proxy": 40 * n, "shown": each} for n, each in enumerate(shown, start=1)
        ]
        return {"verdicts": verdicts}

    found = until_shown([record(True), record(False, True), record(False, False, False)], share=0.25)
    assert found == [110.0, 220.0, math.inf]
    assert median(found) == 220.0
    assert median(found[1:]) == math.inf
