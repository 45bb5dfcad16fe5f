"""What is measured at the end of a run: its metric as trained, and under other temperatures at inference.

Trained weights may do better at another temperature than the one they were trained with. That costs no
training, so the models of the winner, of the baseline and of the winner's twin are all measured under the
same plans: constants over the searched range and beyond, with and without length scaling, and the winner's.
A plan of constants changes one temperature of the model, and leaves all others as the model was trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from tempopt.spec.domains import Choices, RangeDomain
from tempopt.storage.rows import SAMPLED_KINDS, Kind
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
"""Arms whose confirming runs have their attention looked at: the winner's, and the baseline's."""
WINNER = "winner"
"""Name of the winner's final plan among those of inference."""

_CONSTANT = "constant"
_SCALED = ",length_scaling="
_AT_ONE = f"{_CONSTANT}=1"
_RANGE = (0.25, 4.0)
_BEYOND = 4.0
_PLANS = 16
_FINEST = 0.5
_PLAIN_SCALINGS = ("log_n", "clipped_log_n")

On = Literal["validate", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantPlan:
    """A plan of inference that holds one temperature of a model: ``constant=0.5``, ``gate.constant=0.5``.

    Args:
        temperature: Which: attention's, the empty text, or the name of another.
        tau: The temperature.
        length_scaling: Name of the length scaling beside it, or ``none``.
    """

    temperature: str
    tau: float
    length_scaling: str

    @classmethod
    def of(cls, plan: str) -> Self | None:
        """Return it from the name of a plan; None: it is no constant."""
        prefix, separator, level_text = plan.partition("=")
        temperature, _, kind = prefix.rpartition(".")
        if not separator or kind != _CONSTANT:
            return None
        tau, _, scaling = level_text.partition(_SCALED)
        return cls(temperature=temperature, tau=float(tau), length_scaling=scaling or "none")


def dataloader(kind: Kind, spec: StudySpec) -> On:
    """Return the data on which the value of a run of this kind is counted."""
    confirming = kind in ("confirm", "ablation")
    return "test" if confirming and spec.study.confirm_on == "test" else "validate"


def metric_name_for_kind(kind: Kind, spec: StudySpec) -> str:
    """Return the name of the measurement whose value becomes the value of a ticket of this kind."""
    split = dataloader(kind, spec)
    return split if spec.study.validate_at == "final" else f"{split}_current"


def value_of(kind: Kind, spec: StudySpec, measured: Mapping[str, float]) -> float:
    """Return the value of a complete run from what it measured, by name."""
    return measured[metric_name_for_kind(kind, spec)]


def inference_constants(spec: StudySpec, temperature: str = "") -> list[float]:
    """Return the constant temperatures of inference, ascending; that of the baseline is not among them.

    Powers of √2 times the baseline's temperature, from a quarter of the lowest that is searched to four times
    the highest, farther apart where that would be more than sixteen.

    Args:
        spec: The study's spec.
        temperature: Which temperature: attention's, the empty text, or the name of another.
    """
    baseline_tau = spec.temperatures[temperature].as_found or 1.0 if temperature else 1.0
    low, high = (bound / baseline_tau for bound in _searched_range(spec, temperature))
    first_power, last_power = (math.log2(low / _BEYOND), math.log2(high * _BEYOND))
    first_power, last_power = min(first_power, 0.0), max(last_power, 0.0)
    step = max(_FINEST, math.ceil((last_power - first_power) / _PLANS / _FINEST) * _FINEST)
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
    """Return the plans of inference by name, as temperature parameters; a model's own is not among them.

    Args:
        spec: The study's spec.
        winner: The winner's parameters; what its length scaling and its final temperatures are. One whose
            temperatures follow a target of the entropy has no plan of inference.
    """
    winner_plan: dict[str, Any] = {}
    plans: dict[str, dict[str, Any]] = {}
    # what attention's temperature is at the end of a controlled training, no parameter says
    if spec.attends and not is_controlled(winner):
        winner_plan |= {n: value for n, value in winner.items() if n in CREDITED and not split_name(n)[0]}
    if spec.attends:
        plans |= _of_attention(spec, winner)
    for name in filter(None, spec.evaluated):
        winner_plan |= {join_name(name, bare): value for bare, value in _final(winner, name).items()}
        for tau in inference_constants(spec, name):
            plans[f"{name}.{_CONSTANT}={tau:.4g}"] = {join_name(name, "temperature_init"): tau}
    return {**({WINNER: winner_plan} if winner_plan else {}), **plans}


def _of_attention(spec: StudySpec, winner: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    plans: dict[str, dict[str, Any]] = {}
    for label, scaling in _scalings(spec, winner).items():
        constants = sorted([*inference_constants(spec), 1.0])
        if label:
            # every other one, 1 among them: evaluations are not free where trainings are short
            constants = constants[constants.index(1.0) % 2 :: 2]
        for tau in constants:
            plans[f"{_CONSTANT}={tau:.4g}{label}"] = {"temperature_init": tau, **scaling}
    return plans


def _final(winner: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the schedule of a named temperature of the winner, of which inference reads the end."""
    return named_schedule_params(winner, name) or {
        "temperature_init": initial_named_temperatures(winner)[name]
    }


def _scalings(spec: StudySpec, winner: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return length scalings by label: none, the winner's, or the plain ones that were searched."""
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
    """Return what is measured at the end of a run.

    Every run is measured at its plan's final temperature and at its current one. The confirm runs of the
    winner, the baseline and the twin are measured under the plans of inference, too, on the validation data,
    where the best is picked, and on those of the confirmation; the runs of a comparison are not. What is
    guarded is measured with the value of the runs that search, by which further ones are chosen, and of those
    that confirm or take the winner apart; of the baseline's models under each plan of inference, too.

    Args:
        kind: Kind of the ticket.
        arms: Arms of the ticket.
        spec: The study's spec.
        winner: Parameters of the search arm's choice; read for confirm runs only.
        parameters: Those of the ticket, whose normaliser stays at inference.
    """
    split = dataloader(kind, spec)
    guards = spec.study.guarded_metrics if kind in (*SAMPLED_KINDS, "confirm", "ablation") else []
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
        # as it was trained
        plans.pop(_AT_ONE, None)
    normalisation = {name: value for name, value in parameters.items() if name in NORMALISATION}
    return base_evaluations + [
        # under some normalisers there is no temperature to speak of
        Evaluation(
            name=f"{loader}:{name}",
            on=loader,
            temperature=drop_unused_params({**plan, **normalisation} if _of_attentions(plan) else plan),
            guards=guards if loader == split and "baseline" in arms else [],
        )
        for loader in loaders
        for name, plan in plans.items()
    ]


def _of_attentions(plan: Mapping[str, Any]) -> bool:
    return any(not split_name(name)[0] for name in plan)
