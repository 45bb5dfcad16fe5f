"""The schedule that a member of a population has really trained with, when others' weights were taken over.

A member that takes over a donor's checkpoint has from then on the donor's past up to the step of that
checkpoint, not its own, nor the donor's up to the donor's last step: an asynchronous donor may have trained
on since. Ray Tune's history of perturbations names the iteration that the donor has got to, and its
``PopulationBasedTrainingReplay`` changes the configuration there; here the step is read from the checkpoint.
Nothing is trained here and no tool is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Segments = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Taken:
    """One member that has taken over another one's checkpoint.

    Args:
        member: Who goes on from it.
        donor: Who has written it.
        step: Optimizer steps of the training in the checkpoint, >= 0.
        tau: The temperature with which the member goes on.
    """

    member: int
    donor: int
    step: int
    tau: float


def lineage(begun: Mapping[int, float], taken: Sequence[Taken], member: int) -> tuple[int, Segments]:
    """Return the member with whose seed and weights a member's training began, and its whole schedule.

    Args:
        begun: The first temperature of each member.
        taken: What was taken over, in the order in which it was.
        member: Whose training it is.

    Returns:
        The first of its line, and first step and temperature of each part of the schedule. Trained so from
        step 0, with the first one's seed, a training is what the member's has become.
    """
    held: dict[int, tuple[int, Segments]] = {each: (each, [(0, tau)]) for each, tau in begun.items()}
    for each in taken:
        first, before = held[each.donor]
        kept = [part for part in before if part[0] < each.step]
        held[each.member] = first, [*kept, (each.step, each.tau)]
    return held[member]
