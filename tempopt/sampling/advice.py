"""What ``study.prior`` says of parameter sets, in the form in which an earlier study says it.

So the surrogate learns by which factor, if any, trials follow the advice: one that is wrong loses its say as
trials contradict it. What it says is bounded: the best agrees fully, with 1, the worst not at all, with 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from scipy.stats import qmc

from tempopt.sampling.prior_study import PriorStudy
from tempopt.sampling.unit_cube import at_places
from tempopt.seeds import derive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tempopt.spec.priors import Applied
    from tempopt.spec.study_spec import StudySpec

_SETS = 64


def agreement(parameters: Mapping[str, Any], prior: Applied) -> float:
    """Return how well a whole parameter set agrees with a prior, from 0 to 1: the mean over what it names."""
    found = []
    for name, each in prior.numbers.items():
        value = prior.value(name, parameters)
        # greedy decoding, and a number that is not read, agree with nothing
        found.append(each.agreement(float(value)) if value else 0.0)
    found += [float(prior.value(name, parameters) == each) for name, each in prior.choices.items()]
    return fmean(found)


def advice(
    prior: Applied, spec: StudySpec, describe: Callable[[Mapping[str, Any]], NDArray[np.float64]]
) -> PriorStudy:
    """Return what a prior says of the search space of a study.

    Args:
        prior: The prior.
        spec: The study's spec.
        describe: Turns whole parameter sets into the features of the study.
    """
    space = spec.space("search")
    design = qmc.Sobol(len(space), seed=derive(spec.study.seed, "prior") & 0xFFFFFFFF).random(_SETS)
    sets = [spec.parameters("search", at_places(space, places)) for places in design]
    return PriorStudy([(each, agreement(each, prior)) for each in sets], describe, begins=False)
