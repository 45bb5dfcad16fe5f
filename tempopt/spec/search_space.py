"""The search space: the ``search:`` section as domains, as Optuna's distributions and as spaces of the arms.

Defines what can be sampled, and the parameters that an arm trains with; it samples nothing itself.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from tempopt.errors import SpecError, unknown
from tempopt.spec.conditions import active_params, find_excluding_condition, parse_when, when_problems
from tempopt.spec.domains import UNSET, Choices, Domain, RangeDomain, domain_contains, is_plain, same_value
from tempopt.spec.parameter_names import name_problem
from tempopt.spec.temperatures import LEVELS
from tempopt.spec.yaml_source import CollectedSpecError
from tempopt.temperature.entropy_control import CONTROL, NO_CONTROL
from tempopt.temperature.generation import GENERATION
from tempopt.temperature.knots import INNER_KNOTS, KNOTS
from tempopt.temperature.length import LogNPowerScaling, LogNScaling, NoLengthScaling
from tempopt.temperature.named import group_by_temperature, initial_named_temperatures, join_name, split_name
from tempopt.temperature.parameters import (
    NEUTRAL,
    TEMPERATURE_PARAMETERS,
    check_parameter,
    drop_unused_params,
    neutral_values,
)
from tempopt.temperature.plan import CHOICES
from tempopt.temperature.plan_parts import CREDITED
from tempopt.temperature.ranges import RANGES, SCALE
from tempopt.temperature.schedules import SCHEDULES, WarmupAnneal

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SamplingArm = Literal["baseline", "constant", "search"]

# doubling and halving are equally far, so these are searched on a logarithmic scale by default
_RATIOS = {name for name, number_range in RANGES.items() if number_range is SCALE} - {"power", "curvature"}
_SCALES = _RATIOS | {"sampling_temperature"}
_STRATEGIES = (*CHOICES, CONTROL)
_CONSTANTS = (0.25, 4.0)
# bases of van der Corput's sequences, one for each temperature
_BASES = (2, 3, 5, 7, 11, 13, 17, 19)
_KEYS = ("low", "high", "log", "step", "choices", "baseline", "when")

_OWN_TEMPERATURE = re.compile(r"(^|[._])(temperature|temperatures|tau)([._]|$)")
_LABEL_SMOOTHING = re.compile(r"(^|[._])label_smoothing$")
_NO_EFFECT = (None, "none", False, "off", 1)


def parse_search(
    section: object, *, model_args: Mapping[str, Any] | None, temperatures: Collection[str] | None = ()
) -> dict[str, Domain]:
    """Return the domain of each name in a ``search:`` section.

    Args:
        section: Name to ``{low, high, log, step}``, to a list of choices, or to ``{choices: [...]}``.
        model_args: Init arguments that the ``model:`` section sets; None: a program trains.
        temperatures: Names in the section ``temperatures:``; None if that section is invalid.

    Raises:
        CollectedSpecError: A name or a domain is wrong; it lists all errors.
    """
    if not isinstance(section, Mapping) or not section:
        example = "{temperature_init: {low: 0.25, high: 4}, schedule: [constant, cosine]}"
        raise CollectedSpecError(
            [("search", f"given {section!r}. Say what is searched, as in search: {example}.")]
        )
    problems: list[tuple[str, str]] = []
    domains: dict[str, Domain] = {}
    for name, domain in section.items():
        problem = name_problem(name, model_args, temperatures=temperatures)
        if problem is None and f"model.{name}" in section:
            problem = f'"{name}" and "model.{name}" are the same. Take one of them out.'
        try:
            if problem is None:
                domains[name] = _parse_domain(name, domain)
        except SpecError as error:
            problem = str(error)
        if problem is not None:
            problems.append((f"search.{name}", problem))
    for name, problem in when_problems(domains).items() if not problems else ():
        problems.append((f"search.{name}.when", problem))
    if problems:
        raise CollectedSpecError(problems)
    return domains


def _parse_domain(name: str, settings: object) -> Domain:
    if isinstance(settings, RangeDomain | Choices):
        return settings
    if split_name(name)[1] == KNOTS:
        raise SpecError(
            "a list of knots is not searched. Search temperatures of inner knots, as in temperature_knot_1: "
            "{low: 0.25, high: 4}, or write the list under model.init_args."
        )
    if isinstance(settings, list | tuple):
        settings = {"choices": list(settings)}
    if not isinstance(settings, Mapping):
        raise SpecError(
            f"given {settings!r}. Give a range {{low: ..., high: ...}} or a list of choices; for a fixed "
            f"value, a list of one: [{settings}]."
        )
    for key in settings:
        if key not in _KEYS:
            raise SpecError(unknown("key", key, _KEYS))
    domain = _parse_choices(settings) if "choices" in settings else _parse_range(name, settings)
    if "when" in settings:
        domain = replace(domain, when=parse_when(settings["when"]))
    if name in TEMPERATURE_PARAMETERS:
        if "baseline" in settings:
            raise SpecError(
                "given a baseline, but at τ = 1 a temperature parameter is where it changes nothing. Take it "
                "out."
            )
        _check_temperature(name, domain)
        return domain
    return replace(domain, baseline=_parse_baseline(name, domain, settings))


def _parse_baseline(name: str, domain: Domain, settings: Mapping[str, Any]) -> Any:
    """Return the value that runs at τ = 1 hold a parameter of the model at; UNSET if they tune it."""
    if "baseline" in settings:
        value = settings["baseline"]
        if not is_plain(value):
            raise SpecError(f"given the baseline {value!r}. Give text, a finite number, true, false or null.")
        return value
    if _LABEL_SMOOTHING.search(name):
        return 0.0
    if not _OWN_TEMPERATURE.search(name):
        return UNSET
    if isinstance(domain, RangeDomain):
        return 1.0
    for choice in domain.choices:
        if any(same_value(choice, neutral_value) for neutral_value in _NO_EFFECT):
            return choice
    raise SpecError(
        "by its name it is a temperature of the model's own. Say at which value it changes nothing, which is "
        "what the runs at τ = 1 train with: {choices: [...], baseline: ...}."
    )


def _parse_choices(settings: Mapping[str, Any]) -> Choices:
    choices = settings["choices"]
    if other_keys := ", ".join(key for key in settings if key not in ("choices", "baseline", "when")):
        raise SpecError(f"given choices together with {other_keys}. Give either choices or a range.")
    if not isinstance(choices, list | tuple) or not choices:
        raise SpecError(f"given choices {choices!r}. Give a list with at least one value.")
    for choice in choices:
        if not is_plain(choice):
            raise SpecError(
                f"given the choice {choice!r}. A choice is text, a finite number, true, false or null."
            )
    counts = Counter(json.dumps(choice) for choice in choices)
    if duplicates := sorted(text for text, count in counts.items() if count > 1):
        raise SpecError(f"given {', '.join(duplicates)} more than once. Give each choice once.")
    return Choices(choices=tuple(choices))


def _parse_range(name: str, settings: Mapping[str, Any]) -> RangeDomain:
    bare_name = split_name(name)[1]
    if bare_name in _STRATEGIES:
        raise SpecError(f"given a range, but a {bare_name} has a name. Give a list of names.")
    for key in ("low", "high"):
        if key not in settings:
            raise SpecError(f"{key} is missing. Give {{low: ..., high: ...}}, or a list of choices.")
    low, high = (_parse_number(key, settings[key]) for key in ("low", "high"))
    step = None if settings.get("step") is None else _parse_number("step", settings["step"])
    if bare_name in RANGES and not RANGES[bare_name].is_integer:
        low, high = float(low), float(high)
    if low >= high:
        raise SpecError(f"low is {low!r} and high is {high!r}. Give a low that is less than high.")
    log = settings.get("log")
    if log is None:
        log = bare_name in _SCALES and step is None
    if not isinstance(log, bool):
        raise SpecError(f"log is {log!r}. Give true or false.")
    if log and low <= 0:
        remedy = "" if bare_name in _SCALES and not RANGES[bare_name].accepts(0.0) else ", or log: false"
        raise SpecError(f"low is {low!r}, but the range is logarithmic. Give a low above 0{remedy}.")
    if log and step is not None:
        raise SpecError("given log and step, but a logarithmic range has no steps. Take one of them out.")
    is_whole = isinstance(low, int) and isinstance(high, int) and (step is None or isinstance(step, int))
    if not is_whole:
        low, high = float(low), float(high)
    _check_step(low, high, step)
    return RangeDomain(low=low, high=high, log=log, step=step)


def _parse_number(key: str, value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpecError(
            f"{key} is {value!r}. Give a finite number{', without quotes' * isinstance(value, str)}."
        )
    return value


def _check_step(low: float, high: float, step: float | None) -> None:
    if step is None:
        return
    if step <= 0:
        raise SpecError(f"step is {step!r}. Give a step above 0.")
    span, size = Decimal(str(high)) - Decimal(str(low)), Decimal(str(step))
    if span % size:
        last_value = Decimal(str(low)) + span // size * size
        raise SpecError(
            f"steps of {step!r} from {low!r} do not meet the high {high!r}. "
            f"Give a high of {last_value} or {last_value + size}."
        )


def _check_temperature(name: str, domain: Domain) -> None:
    for value in domain.probes:
        try:
            check_parameter(name, value)
        except SpecError as error:
            is_inner = isinstance(domain, RangeDomain) and value not in (domain.low, domain.high)
            raise SpecError(f"{error}{' Give choices, or a step.' * is_inner}") from error


def parse_sets(
    raw_sets: Sequence[Mapping[str, Any]], *, search: Mapping[str, Domain], max_sets: int, path: str
) -> list[dict[str, Any]]:
    """Return parameter sets that a person enqueues, with values as their domains store them.

    Args:
        raw_sets: Searched names to values; missing names are sampled.
        search: The search space.
        max_sets: Number of trials of the study.
        path: Path of the sets in the spec, for messages.

    Raises:
        CollectedSpecError: There are too many, a name is not searched or is inactive in its set, or a value
            is not in its domain; it lists all errors.
    """
    if len(raw_sets) > max_sets:
        message = (
            f"given {len(raw_sets)} parameter sets, but study.trials is {max_sets}. Give at most that many"
        )
        raise CollectedSpecError([(path, f"{message}, or more trials.")])
    problems: list[tuple[str, str]] = []
    sets: list[dict[str, Any]] = []
    for index, raw_set in enumerate(raw_sets):
        if not raw_set:
            message = "given no value. Give at least one searched name, or take the set out."
            problems.append((f"{path}.{index}", message))
        parameters: dict[str, Any] = {}
        for name, value in raw_set.items():
            try:
                if name not in search:
                    raise SpecError(unknown("searched name", name, search))
                parameters[name] = domain_contains(search[name], value)
            except SpecError as error:
                problems.append((f"{path}.{index}.{name}", str(error)))
        for name in parameters:
            if problem := find_excluding_condition(search, parameters, name):
                problems.append((f"{path}.{index}.{name}", problem))
        sets.append(parameters)
    if problems:
        raise CollectedSpecError(problems)
    return sets


def unused_temperature_params(search: Mapping[str, Domain], fixed: Mapping[str, Any]) -> list[str]:
    """Return the searched temperature parameters that have no effect at any values of the others.

    Args:
        search: The search space.
        fixed: Temperature parameters that the model's init arguments set.
    """
    domains = {name: domain for name, domain in search.items() if name in TEMPERATURE_PARAMETERS}
    return [
        join_name(temperature, name)
        for temperature, group in group_by_temperature(domains).items()
        for name in _idle_params(group, {} if temperature else fixed)
    ]


def _idle_params(search: Mapping[str, Domain], fixed: Mapping[str, Any]) -> list[str]:
    names = list(search)
    strategies = [name for name in names if name in _STRATEGIES]
    numeric_probes = {name: search[name].probes for name in names if name not in _STRATEGIES}
    distinct_values: dict[str, set[str]] = {name: set() for name in names}
    for choices in itertools.product(*(search[name].probes for name in strategies)):
        for init_index, final_index in ((0, 1), (1, 0)):
            # both ends of the schedule differ, otherwise every schedule would be flat
            ends = {name: final_index if name.endswith("_final") else init_index for name in numeric_probes}
            values = {name: probes[ends[name] % len(probes)] for name, probes in numeric_probes.items()}
            all_values = {**NEUTRAL, **fixed, **values, **dict(zip(strategies, choices, strict=True))}
            # the meaning of a stored spec must not depend on imported modules
            effective_values = drop_unused_params(all_values, should_read_custom=False)
            for name in names:
                if name in effective_values:
                    distinct_values[name].add(json.dumps(effective_values[name]))
    has_choices = {name: name in strategies and len(search[name].probes) > 1 for name in names}
    return [name for name in names if len(distinct_values[name]) < 1 + has_choices[name]]


def is_n0_redundant(search: Mapping[str, Domain], fixed: Mapping[str, Any]) -> bool:
    """Return whether ``n0`` multiplies a temperature that the search multiplies already.

    Of ``log_n`` only τ ln n0 acts, of ``log_n_power`` τ (ln n0)^p.

    Args:
        search: The search space.
        fixed: Temperature parameters that the model's init arguments set.
    """
    level, n0 = search.get("temperature_init"), search.get("n0")
    if not isinstance(level, RangeDomain) or level.step or level.when or n0 is None or len(n0.probes) == 1:
        return False
    values = {name: {{**NEUTRAL, **fixed}[name]} for name in _STRATEGIES}
    values |= {name: set(search[name].probes) for name in search.keys() & values.keys()}
    scalings = values["length_scaling"] - {NoLengthScaling.name}
    # temperatures that are set hold the schedule, whose shape then changes with its level
    fixed_levels = {
        name for name in ("temperature_final", KNOTS, *INNER_KNOTS) if fixed.get(name) is not None
    }
    fixed_levels |= {"warmup_start"} if WarmupAnneal.name in values["schedule"] else set()
    return (
        bool(scalings)
        and scalings <= {LogNScaling.name, LogNPowerScaling.name}
        and values["schedule"] <= SCHEDULES.keys()
        and values[CONTROL] == {NO_CONTROL}
        and fixed_levels <= search.keys()
    )


def distributions(search: Mapping[str, Domain]) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution for each searched name."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    result: dict[str, BaseDistribution] = {}
    for name, domain in search.items():
        if isinstance(domain, Choices):
            result[name] = CategoricalDistribution(domain.choices)
        elif isinstance(domain.low, int) and isinstance(domain.high, int):
            step = 1 if domain.step is None else int(domain.step)
            result[name] = IntDistribution(domain.low, domain.high, log=domain.log, step=step)
        else:
            result[name] = FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    return result


def arm_space(
    space: Mapping[str, BaseDistribution], arm: SamplingArm, tuned_names: Collection[str]
) -> dict[str, BaseDistribution]:
    """Return what an arm samples.

    ``baseline`` samples only the names that every arm tunes, ``constant`` also a constant temperature,
    ``search`` the whole space.

    Args:
        space: The whole space.
        arm: The arm.
        tuned_names: Names that every arm tunes.
    """
    from optuna.distributions import FloatDistribution

    if arm == "search":
        return dict(space)
    tuned_space = {name: distribution for name, distribution in space.items() if name in tuned_names}
    if arm == "baseline":
        return tuned_space
    levels = {
        join_name(temperature, "temperature_init"): FloatDistribution(low, high, log=True)
        for temperature, (low, high) in constant_ranges(space).items()
    }
    return {**levels, **tuned_space}


def constant_ranges(space: Mapping[str, BaseDistribution]) -> dict[str, tuple[float, float]]:
    """Return by temperature the range of its searched constants; attention's if none is searched."""
    names = dict.fromkeys(split_name(name)[0] for name in space if name in CREDITED) or ("",)
    return {name: _constant_range(space, name) for name in names}


def _constant_range(space: Mapping[str, BaseDistribution], temperature: str) -> tuple[float, float]:
    """Return the range of the searched initial temperature, or a default if that has none."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    for level in LEVELS if temperature else LEVELS[:1]:
        distribution = space.get(join_name(temperature, level))
        if isinstance(distribution, FloatDistribution):
            return distribution.low, distribution.high
        if isinstance(distribution, CategoricalDistribution):
            values = [float(choice) for choice in distribution.choices if isinstance(choice, int | float)]
            if values and min(values) < max(values):
                return min(values), max(values)
    return _CONSTANTS


def constant_grid(space: Mapping[str, BaseDistribution], count: int) -> list[dict[str, float]]:
    """Return ``count`` different constant temperatures that cover the searched range evenly in ratio.

    Van der Corput's sequence (1935) from its second number on, without the middle of the range, where τ = 1
    often lies. Any beginning of the list covers the range, and a longer list begins with the shorter one.
    Several temperatures are varied together, each by the sequence of another base (Halton 1960).

    Args:
        space: The whole search space.
        count: Number of constants, at least 0.

    Returns:
        The parameters of each run: ``temperature_init`` of every searched temperature.
    """
    ranges = {
        join_name(temperature, "temperature_init"): span
        for temperature, span in constant_ranges(space).items()
    }
    constants: list[dict[str, float]] = [{} for _ in range(count)]
    for base, (level, (low, high)) in zip(_BASES, ranges.items(), strict=False):
        # the first number of base 2 is the middle
        for index, constant in enumerate(constants, 2 if base == 2 else 1):
            constant[level] = low * (high / low) ** _van_der_corput(index, base)
    return constants


def _van_der_corput(index: int, base: int) -> float:
    """Return the digits of ``index`` mirrored at the point, in (0, 1)."""
    position, scale = 0.0, 1.0
    while index:
        index, digit = divmod(index, base)
        scale /= base
        position += digit * scale
    return position


def arm_parameters(
    arm: SamplingArm, sampled: Mapping[str, Any], *, search: Mapping[str, Domain], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the complete parameter set that an arm trains with.

    Args:
        arm: ``baseline`` and ``constant`` set all temperature parameters of the study to neutral, and hold
            parameters with a baseline at it. Parameters of generation that are set and not searched stay.
        sampled: Values from the arm's space.
        search: The whole search space.
        fixed: Temperature parameters that the model's init arguments set.

    Returns:
        Name to value, without what has no effect.
    """
    if arm == "search":
        return active_params(search, drop_unused_params({**fixed, **sampled}))
    levels = (join_name(name, "temperature_init") for name in initial_named_temperatures(fixed))
    touched_names = {*search, *fixed, *levels}
    parameters = {name: value for name, value in neutral_values(fixed).items() if name in touched_names}
    parameters |= {name: fixed[name] for name in GENERATION if name in fixed and name not in search}
    parameters |= {name: domain.baseline for name, domain in search.items() if domain.baseline != UNSET}
    return active_params(search, drop_unused_params({**parameters, **sampled}))


def params_key(parameters: Mapping[str, Any]) -> str:
    """Return a key that is equal for parameter sets with equal effect."""
    return json.dumps(drop_unused_params(parameters), sort_keys=True)
