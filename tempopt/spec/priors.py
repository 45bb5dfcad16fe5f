"""Advice in circulation on temperatures as priors (``study.prior``): where good values are said to lie.

A prior is a hint for the search. What it says is weighed by how well trials follow it, and the verdict knows
nothing of it. Each number has its source; where that measured something it is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tempopt.errors import SpecError, unknown
from tempopt.spec.domains import Choices, Domain, Range, held_by
from tempopt.temperature.named import join_name, own_parameters, split_name
from tempopt.temperature.plan import TemperatureParameters

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """A belief on a positive number: ln x is normally distributed.

    Args:
        median: Its median, > 0.
        factor: Two thirds of the belief are between median / factor and median · factor; > 1.
    """

    median: float
    factor: float

    @property
    def low(self) -> float:
        """The lower end of what holds two thirds of the belief."""
        return self.median / self.factor

    @property
    def high(self) -> float:
        """The upper end of what holds two thirds of the belief."""
        return self.median * self.factor

    def agreement(self, value: float) -> float:
        """Return how well a value agrees, in (0, 1]: the density in ratio to that of the median.

        Raises:
            ValueError: The value is not above 0.
        """
        deviations = math.log(value / self.median) / math.log(self.factor)
        return math.exp(-0.5 * deviations**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is advised in one scenario.

    Args:
        about: The scenario, in a few words.
        numbers: Parameter to where it is said to lie.
        choices: Parameter to what it is said to be.
        trial: Parameter set to try first, after the neutral one; what it leaves out is neutral.
        sources: Where that comes from.
        named: Whether the parameters are those of a named temperature, as that of a loss.
    """

    about: str
    numbers: Mapping[str, LogNormal]
    choices: Mapping[str, str] = field(default_factory=dict)
    trial: Mapping[str, Any]
    sources: tuple[str, ...]
    named: bool = False


_ENDS = {"temperature_init": 0.0, "temperature_final": 1.0}


def _throughout(median: float, factor: float) -> dict[str, LogNormal]:
    """Return the same belief on a temperature at both ends of training."""
    return dict.fromkeys(_ENDS, LogNormal(median=median, factor=factor))


PRIORS: dict[str, Prior] = {
    "pretraining": Prior(
        about="training a transformer from scratch",
        numbers={
            "temperature_init": LogNormal(median=0.85, factor=1.6),
            "temperature_final": LogNormal(median=0.7, factor=1.6),
        },
        trial=dict.fromkeys(_ENDS, 0.74),
        sources=(
            "modded-nanogpt, record of 2025-01-16, queries and keys normalised: logits times 0.12 and not "
            "1/√128, which is τ = 0.74; 20 steps saved (measured)",
            "modded-nanogpt, record of 2025-09-10: 0.1 to 0.14 over training, which is τ from 0.88 to 0.63",
        ),
    ),
    "fine_tuning": Prior(
        about="fine-tuning a trained transformer",
        numbers=_throughout(0.7, 2.0),
        choices={"length_scaling": "clipped_log_n"},
        trial=dict.fromkeys(_ENDS, 0.7),
        sources=(
            "tutorials advise 0.5 to 1 on little data and 0.1 to 0.5 on much, without a measurement",
            "Su 2021, kexue.fm 8823: log n, clipped at 1, when a trained model is tuned further",
        ),
    ),
    "long_context": Prior(
        about="sequences that are longer in use than in training",
        numbers={**_throughout(0.5, 2.0), "length_slope": LogNormal(median=0.1, factor=2.0)},
        choices={"length_scaling": "log_n"},
        trial={"length_scaling": "log_n", **dict.fromkeys(_ENDS, 0.5)},
        sources=(
            "Chiang & Cholak 2022, arXiv 2202.12172, and Su 2021, kexue.fm 8823: log n (measured)",
            "Peng et al. 2023, arXiv 2309.00071 (YaRN): 0.1 ln s + 1 (measured)",
            "Veličković et al. 2024, arXiv 2410.01104: sharper at more keys (measured)",
        ),
    ),
    "distillation": Prior(
        about="the temperature of a distillation loss",
        numbers=_throughout(4.0, 2.0),
        trial=dict.fromkeys(_ENDS, 4.0),
        sources=(
            "Hinton et al. 2015, arXiv 1503.02531: 1 to 20; above 8 alike with many units, 2.5 to 4 best "
            "with few (measured)",
        ),
        named=True,
    ),
    "contrast": Prior(
        about="the temperature of a contrastive loss of cosines",
        numbers=_throughout(0.12, 2.0),
        trial=dict.fromkeys(_ENDS, 0.1),
        sources=(
            "Chen et al. 2020, arXiv 2002.05709 (SimCLR): 0.1 best of 0.05, 0.1, 0.5 and 1 (measured)",
            "Radford et al. 2021, arXiv 2103.00020 (CLIP): learned from 0.07, not below 0.01",
            "Wang & Liu 2021, arXiv 2012.09740: 0.3 best of 0.07, 0.3, 0.7 and 1 on CIFAR-10 (measured)",
        ),
        named=True,
    ),
    "generation": Prior(
        about="how a language model draws tokens",
        numbers={
            "sampling_temperature": LogNormal(median=0.6, factor=2.0),
            "top_p": LogNormal(median=0.93, factor=1.1),
            "min_p": LogNormal(median=0.07, factor=2.0),
        },
        trial={"sampling_temperature": 0.7, "top_p": 0.95},
        sources=(
            "Chen et al. 2021, arXiv 2107.03374 (Codex): 0.2 for pass@1 and 0.8 for pass@100 (measured)",
            "Holtzman et al. 2020, arXiv 1904.09751: top_p 0.95 (measured)",
            "Nguyen et al. 2024, arXiv 2407.01082: min_p 0.05 to 0.1 (measured)",
        ),
    ),
}
"""Scenario to what is advised in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a prior says of a study: of what that searches, under the names that it has there.

    Args:
        name: The scenario.
        temperature: The temperature that its levels are of; the empty text is attention's.
        numbers: Searched parameter to where it is said to lie.
        choices: Searched parameter to what it is said to be.
        trial: Set to try first, each value as its domain holds it; empty: there is none.
        sources: Where that comes from.
    """

    name: str
    temperature: str
    numbers: dict[str, LogNormal]
    choices: dict[str, str]
    trial: dict[str, Any]
    sources: tuple[str, ...]

    def value(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """Return what a whole parameter set has of what the prior speaks of; None: it does not read that.

        A temperature counts at the beginning and at the end of training, by whichever schedule it gets there.
        """
        at = _ENDS.get(split_name(name)[1])
        if at is None:
            return parameters.get(name)
        own = own_parameters(parameters, self.temperature)
        return TemperatureParameters.from_mapping(own).plan(1).schedule(at)


def applied_prior(spec: StudySpec) -> Applied | None:
    """Return what the prior of a study says of its search space; None: it has none."""
    name = spec.study.prior
    return None if name is None else _applied(name, spec.search, list(spec.temperatures))


def prior_problems(name: str | None, search: Mapping[str, Domain], named: list[str]) -> list[tuple[str, str]]:
    """Return what is wrong with the prior of a study: the path of each fault, and the message.

    Args:
        name: ``study.prior``.
        search: The searched names.
        named: Names of the temperatures that are not attention's.
    """
    path = "study.prior"
    if name is None:
        return []
    if name not in PRIORS:
        return [(path, unknown("prior", name, PRIORS))]
    prior = PRIORS[name]
    if prior.named and len(named) != 1:
        has = f"{', '.join(named)}" if named else "none"
        message = (
            f"{name} is about {prior.about}, so the spec needs one entry in temperatures:, and has {has}."
        )
        return [(path, message)]
    found = _applied(name, search, named)
    if found.numbers or found.choices:
        return []
    says = ", ".join([*prior.numbers, *prior.choices])
    message = f"{name} says nothing of what is searched here. It is about {says}. Search one of them."
    return [(path, message)]


def prior_notes(spec: StudySpec) -> list[str]:
    """Return what the prior of a study says of searched numbers whose range does not hold it."""
    applied = applied_prior(spec)
    if applied is None:
        return []
    said = {join_name(applied.temperature, n): each for n, each in PRIORS[applied.name].numbers.items()}
    return [
        f"study.prior: {applied.name} says that {name} is about {each.median:.3g}, which its range does not "
        "hold. That part is left out."
        for name, each in said.items()
        if name in spec.search and name not in applied.numbers
    ]


def _applied(name: str, search: Mapping[str, Domain], named: list[str]) -> Applied:
    prior = PRIORS[name]
    temperature = named[0] if prior.named else ""

    def known(values: Mapping[str, Any]) -> dict[str, Any]:
        own = {join_name(temperature, bare): value for bare, value in values.items()}
        return {name: value for name, value in own.items() if name in search}

    numbers = {n: each for n, each in known(prior.numbers).items() if _inside(search[n], each.median)}
    choices = {n: each for n, each in known(prior.choices).items() if _held(search[n], each) is not None}
    return Applied(
        name=name,
        temperature=temperature,
        numbers=numbers,
        choices=choices,
        trial=_trial(known(prior.trial), search),
        sources=prior.sources,
    )


def _trial(values: Mapping[str, Any], search: Mapping[str, Domain]) -> dict[str, Any]:
    held = {name: _held(search[name], value) for name, value in values.items()}
    return {name: value for name, value in held.items() if value is not None}


def _inside(domain: Domain, median: float) -> bool:
    """Return whether the middle of what is advised can be had: outside, it says little of what is inside."""
    if isinstance(domain, Range):
        return domain.low <= median <= domain.high
    numbers = [
        each for each in domain.choices if isinstance(each, int | float) and not isinstance(each, bool)
    ]
    return len(numbers) > 1 and min(numbers) <= median <= max(numbers)


def _held(domain: Domain, value: Any) -> Any:
    """Return the value as a domain holds it, None where it has no such value."""
    if isinstance(domain, Choices) and not isinstance(value, str):
        numbers = [
            each for each in domain.choices if isinstance(each, float | int) and not isinstance(each, bool)
        ]
        return min(numbers, key=lambda each: abs(each - value)) if numbers else None
    try:
        return held_by(domain, value)
    except SpecError:
        return None
