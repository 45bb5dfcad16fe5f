"""Measurements at the end of a run: its metric as trained, and under other temperatures at inference.

Trained weights may be better at another temperature than that of their training. Testing this needs no
training, so the models of the winner, of the baseline and of the winner's twin are measured under the same
plans: constants over the searched range and beyond, with and without length scaling, and the winner's plan. A
plan of constants changes one temperature of the model and no others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from tempopt.spec.domains import Choices, RangeDomain
from tempopt.storage.rows import SEARCH_KINDS, Kind
from tempopt.temperature import (
    CREDITED,
    GROUPS,
    NORMALISATION,
    drop_unused_params,
    initial_named_temperatures,
    is_controlled,
    is_neutral,
    join_name,
    named_schedule_params,
    split_name,
)
from tempopt.training.messages import Evaluation

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

INFERENCE_ARMS = ("search", "baseline", "twin")
"""Arms whose models are measured under other temperatures."""
OBSERVED = ("search", "baseline")
"""Arms whose confirming runs have their attention observed: the winner's and the baseline's."""
WINNER = "winner"
"""Name of the winner's final plan among the plans of inference."""

_CONSTANT = "constant"
_SCALED = ",length_scaling="
_AT_ONE = f"{_CONSTANT}=1"
_RANGE = (0.25, 4.0)
_RANGE_MARGIN = 4.0
_MAX_PLANS = 16
_MIN_STEP = 0.5
_PLAIN_SCALINGS = ("log_n", "clipped_log_n")

On = Literal["validate", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceConstant:
    """A plan of inference that sets one temperature of a model: ``constant=0.5``, ``gate.constant=0.5``.

    Args:
        temperature: Name of the temperature; attention's is the empty text.
        tau: The temperature.
        length_scaling: Name of the length scaling with it, or ``none``.
    """

    temperature: str
    tau: float
    length_scaling: str

    @classmethod
    def of(cls, plan: str) -> Self | None:
        """Return the plan of a name; None if the name is not a constant's."""
        prefix, separator, level_text = plan.partition("=")
        temperature, _, kind = prefix.rpartition(".")
        if not separator or kind != _CONSTANT:
            return None
        tau, _, scaling = level_text.partition(_SCALED)
        return cls(temperature=temperature, tau=float(tau), length_scaling=scaling or "none")


def dataloader(kind: Kind, spec: StudySpec) -> On:
    """Return the data of the value of a run of this kind."""
    is_confirming = kind in ("confirm", "ablation")
    return "test" if is_confirming and spec.study.confirm_on == "test" else "validate"


def metric_name_for_kind(kind: Kind, spec: StudySpec) -> str:
    """Return the name of the measurement that is the value of a ticket of this kind."""
    split = dataloader(kind, spec)
    return split if spec.study.validate_at == "final" else f"{split}_current"


def value_of(kind: Kind, spec: StudySpec, measured: Mapping[str, float]) -> float:
    """Return the value of a complete run from its measurements, by name."""
    return measured[metric_name_for_kind(kind, spec)]


def inference_constants(spec: StudySpec, temperature: str = "") -> list[float]:
    """Return the constant temperatures of inference, ascending, without that of the baseline.

    They are powers of √2 times the baseline's temperature, from a quarter of the lowest searched one to four
    times the highest, with wider steps if there would be more than sixteen.

    Args:
        spec: The study's spec.
        temperature: Name of the temperature; attention's is the empty text.
    """
    baseline_tau = spec.temperatures[temperature].as_found or 1.0 if temperature else 1.0
    low, high = (bound / baseline_tau for bound in _searched_range(spec, temperature))
    first_power, last_power = (math.log2(low / _RANGE_MARGIN), math.log2(high * _RANGE_MARGIN))
    first_power, last_power = min(first_power, 0.0), max(last_power, 0.0)
    step = max(_MIN_STEP, math.ceil((last_power - first_power) / _MAX_PLANS / _MIN_STEP) * _MIN_STEP)
    powers = range(math.ceil(first_power / step - 1e-9), math.floor(last_power / step + 1e-9) + 1)
    return [baseline_tau * 2.0 ** (power * step) for power in powers if power]


def _searched_range(spec: StudySpec, temperature: str) -> tuple[float, float]:
    levels: list[float] = []
    for name in GROUPS["level"]:
        match spec.search.get(join_name(temperature, name)):
            case RangeDomain(low=low, high=high):
                levels += [float(low), float(high)]
            case Choices(choices=choices):
                levels += [float(choice) for choice in choices if isinstance(choice, int | float)]
    return (min(levels), max(levels)) if levels else _RANGE


def inference_plans(spec: StudySpec, winner: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the plans of inference by name, as temperature parameters, without a model's own plan.

    Args:
        spec: The study's spec.
        winner: The winner's parameters: its length scaling and its final temperatures. A winner under entropy
            control has no plan of inference.
    """
    winner_plan: dict[str, Any] = {}
    plans: dict[str, dict[str, Any]] = {}
    # parameters do not determine the final temperature of attention in a controlled training
    if spec.attends and not is_controlled(winner):
        winner_plan |= {n: value for n, value in winner.items() if n in CREDITED and not split_name(n)[0]}
    if spec.attends:
        plans |= _attention_plans(spec, winner)
    for name in filter(None, spec.evaluated):
        winner_plan |= {join_name(name, bare): value for bare, value in _final_schedule(winner, name).items()}
        for tau in inference_constants(spec, name):
            plans[f"{name}.{_CONSTANT}={tau:.4g}"] = {join_name(name, "temperature_init"): tau}
    return {**({WINNER: winner_plan} if winner_plan else {}), **plans}


def _attention_plans(spec: StudySpec, winner: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    plans: dict[str, dict[str, Any]] = {}
    for label, scaling in _scalings(spec, winner).items():
        constants = sorted([*inference_constants(spec), 1.0])
        if label:
            # every second one, including 1: evaluations are not free where trainings are short
            constants = constants[constants.index(1.0) % 2 :: 2]
        for tau in constants:
            plans[f"{_CONSTANT}={tau:.4g}{label}"] = {"temperature_init": tau, **scaling}
    return plans


def _final_schedule(winner: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the schedule of a named temperature of the winner, whose end is used at inference."""
    return named_schedule_params(winner, name) or {
        "temperature_init": initial_named_temperatures(winner)[name]
    }


def _scalings(spec: StudySpec, winner: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return length scalings by label: none, the winner's, or the plain searched ones."""
    scalings: dict[str, dict[str, Any]] = {"": {}}
    if winner.get("length_scaling", "none") != "none":
        names = GROUPS["length_scaling"]
        winner_scaling = {name: value for name, value in winner.items() if name in names}
        scalings[f"{_SCALED}{winner['length_scaling']}"] = winner_scaling
    elif isinstance(domain := spec.search.get("length_scaling"), Choices):
        plain_scalings = [scaling for scaling in _PLAIN_SCALINGS if scaling in domain.choices]
        scalings |= {f"{_SCALED}{scaling}": {"length_scaling": scaling} for scaling in plain_scalings[:1]}
    return scalings


def evaluations(
    kind: Kind,
    arms: tuple[str, ...],
    spec: StudySpec,
    winner: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> list[Evaluation]:
    """Return the evaluations at the end of a run.

    Every run is measured at its plan's final temperature and at its current one. The confirm runs of the
    winner, the baseline and the twin are also measured under the plans of inference, on the validation data,
    where the best is selected, and on the confirmation's data; runs of a comparison are not. Guarded metrics
    are measured with the value of search runs, which guides further ones, and with that of confirm and
    ablation runs; for the baseline's models also under each plan of inference.

    Args:
        kind: Kind of the ticket.
        arms: Arms of the ticket.
        spec: The study's spec.
        winner: Parameters of the search arm's choice; used for confirm runs only.
        parameters: Parameters of the ticket, whose normaliser also applies at inference.
    """
    split = dataloader(kind, spec)
    guards = spec.study.guarded_metrics if kind in (*SEARCH_KINDS, "confirm", "ablation") else []
    end_guards, current_guards = (
        guards if metric_name_for_kind(kind, spec) == name else [] for name in (split, f"{split}_current")
    )
    base_evaluations = [
        Evaluation(name=split, on=split, guards=end_guards),
        Evaluation(name=f"{split}_current", on=split, at="current", guards=current_guards),
    ]
    if (
        spec.compare is not None
        or not spec.evaluated
        or kind != "confirm"
        or not set(arms) & set(INFERENCE_ARMS)
    ):
        return base_evaluations
    loaders: list[On] = ["validate"] if split == "validate" else ["validate", "test"]
    if split == "test":
        base_evaluations.append(Evaluation(name="validate", on="validate"))
    plans = inference_plans(spec, winner)
    if is_neutral(parameters):
        # equals the model as trained
        plans.pop(_AT_ONE, None)
    normalisation = {name: value for name, value in parameters.items() if name in NORMALISATION}
    return base_evaluations + [
        # some normalisers have no temperature
        Evaluation(
            name=f"{loader}:{name}",
            on=loader,
            temperature=drop_unused_params(
                {**plan, **normalisation} if _is_plan_of_attention(plan) else plan
            ),
            guards=guards if loader == split and "baseline" in arms else [],
        )
        for loader in loaders
        for name, plan in plans.items()
    ]


def _is_plan_of_attention(plan: Mapping[str, Any]) -> bool:
    return any(not split_name(name)[0] for name in plan)
