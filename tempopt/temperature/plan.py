"""The temperature parameters and the plan that they define: progress and layer to temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Self

from tempopt.errors import SpecError, unknown
from tempopt.temperature.custom_schedules import (
    CUSTOM_SCHEDULE_HINT,
    check_custom_numbers,
    custom_schedule_fields,
    is_custom_schedule,
    schedule_class,
)
from tempopt.temperature.heads import HEAD_PATTERNS, HeadPattern, LocalHeads, UniformHeads
from tempopt.temperature.knots import INNER_KNOTS, KNOTS, Knot, check_knots, to_knots, unused_piecewise_params
from tempopt.temperature.layers import LAYER_PATTERNS, LayerPattern, UniformLayers
from tempopt.temperature.length import (
    LENGTH_SCALINGS,
    LengthScaling,
    Llama4Scaling,
    LogNPowerScaling,
    LogNScaling,
    NoLengthScaling,
    YarnScaling,
)
from tempopt.temperature.normalisers import NORMALISERS, LinearNormaliser, Normaliser
from tempopt.temperature.ranges import FINITE, FlatParameters, check_number
from tempopt.temperature.schedules import SCHEDULES, Constant, Piecewise, Schedule, WarmupAnneal
from tempopt.temperature.towers import layers_by_tower, over_towers

_REGISTRIES: dict[str, Mapping[str, type[Any]]] = {
    "schedule": SCHEDULES,
    "layer_pattern": LAYER_PATTERNS,
    "head_pattern": HEAD_PATTERNS,
    "length_scaling": LENGTH_SCALINGS,
    "normaliser": NORMALISERS,
}
CHOICES = {**_REGISTRIES, "entropy_schedule": SCHEDULES}
"""Parameters whose value is a name, each with the allowed names."""

_CUSTOM_FIELDS = frozenset({"temperature_init", "temperature_final", "schedule_args"})

CUSTOM_NUMBER_PREFIX = "schedule_args."
"""Prefix of the names of numbers that a schedule outside tempopt declares."""

_OPTIONAL = frozenset({"temperature_final", "hold_fraction", "num_knots", KNOTS, *INNER_KNOTS})
_MAY_BE_NONE = _OPTIONAL | {"entropy_lambda_final", "entropy_target"}

MOVING: frozenset[str] = frozenset(
    {"schedule", "schedule_args"}
    | {parameter.name for kind in SCHEDULES.values() for parameter in fields(kind)}
) - {"temperature_init"}
"""Names of the parameters that change a temperature during training, without declared numbers."""


def is_custom_number(name: object) -> bool:
    """Return whether a name is ``schedule_args.NAME``: a number that a schedule outside tempopt declares."""
    return isinstance(name, str) and name.startswith(CUSTOM_NUMBER_PREFIX)


def flatten_schedule_args(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with a mapping ``schedule_args`` as ``schedule_args.NAME``; flat ones take
    precedence.
    """
    flat_parameters, schedule_args = dict(parameters), parameters.get("schedule_args")
    if not isinstance(schedule_args, Mapping):
        return flat_parameters
    del flat_parameters["schedule_args"]
    return {f"{CUSTOM_NUMBER_PREFIX}{name}": value for name, value in schedule_args.items()} | flat_parameters


def progress(step: int, total_steps: int) -> float:
    """Return training progress in [0, 1]: 0 at step 0, and 1 from the last step, ``total_steps - 1``, on.

    With at most one step progress is 0.
    """
    if total_steps <= 1:
        return 0.0
    return min(max(step / (total_steps - 1), 0.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperaturePlan:
    """The temperature of every layer at every training progress.

    Args:
        num_layers: Number of attention layers, at least 1.
        layer_names: Their names, by which they form towers; empty for a single tower.
        schedule: Temperature over progress.
        layers: Factor on the temperature over the depth of each tower.
        heads: Factor on the temperature over the heads of a layer. It is not in ``temperatures``, since the
            number of heads is known only where attention is computed.
        length_scaling: Factor on the inverse temperature over the number of keys that a query sees. It is not
            in ``temperatures``, since that number is known only where attention is computed.
        normaliser: Map from the logits over the temperature to weights.
        local: Which heads see only the keys near each query.
    """

    num_layers: int
    schedule: Schedule
    layers: LayerPattern
    heads: HeadPattern
    length_scaling: LengthScaling
    normaliser: Normaliser
    local: LocalHeads
    layer_names: tuple[str, ...] = ()
    _factors: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number("num_layers", self.num_layers)
        object.__setattr__(self, "_factors", self._layer_factors())

    def _layer_factors(self) -> tuple[float, ...]:
        if self.layer_names:
            return over_towers(self.layer_names, self.layers.factors)
        return self.layers.factors(self.num_layers)

    def temperatures(self, progress: float) -> tuple[float, ...]:
        """Return the temperature of each layer, first layer first, without head factors and length scaling.

        It is the geometric mean over the heads of the layer. At progress 1 it is ``temperature_final`` times
        the layer's factor.

        Raises:
            UsageError: The progress is outside [0, 1].
        """
        level = self.schedule(progress)
        return tuple(level * factor for factor in self._factors)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureParameters(FlatParameters):
    """All parameters of a plan, as flat values; the defaults are neutral (temperature 1).

    Args:
        temperature_init: Temperature at progress 0 (for ``warmup_anneal`` at ``warmup_fraction``).
        temperature_final: Temperature at progress 1; None means ``temperature_init``.
        schedule: Name in ``SCHEDULES``, or ``package.module:Class`` of an imported schedule.
        layer_pattern: Name in ``LAYER_PATTERNS``.
        layer_ratio: Last layer over first (``linear``, ``exp``, ``cosine``) or ends over middle (``u``).
        head_pattern: Name in ``HEAD_PATTERNS``.
        head_ratio: Last head over first (``linear``, ``exp``), or every second head over the others
            (``alternate``).
        length_scaling: Name in ``LENGTH_SCALINGS``.
        n0: Number of keys, above 1, at which ``log_n``, ``clipped_log_n``, ``log_n_power`` and ``yarn``
            change nothing, and at whose multiples ``llama4`` steps.
        warmup_start: Temperature at progress 0 of ``warmup_anneal``.
        warmup_fraction: Progress, between 0 and 1, at which ``warmup_anneal`` reaches ``temperature_init``.
        cycles: Half-integer number of cycles of ``cyclic`` and ``triangular``.
        power: Exponent of ``polynomial``.
        num_steps: Number of levels of ``step``, at least 2.
        length_power: Exponent of ``log_n_power``, from 0 to 4.
        length_slope: Growth of ``yarn`` and ``llama4`` with ln n, at least 0.
        curvature: Deviation of ``inv_sqrt``, ``logarithmic`` and ``sigmoid`` from a straight line.
        hold_fraction: Progress in [0, 1) until which ``hold_anneal`` and ``piecewise`` stay at
            ``temperature_init``; None: 0.5 for ``hold_anneal`` and 0 for ``piecewise``.
        num_knots: Number of inner knots of ``piecewise``, 1 to 4, evenly spaced between ``hold_fraction`` and
            1; None: up to the last knot that has a temperature.
        temperature_knot_1: Temperature of the first inner knot of ``piecewise``; None omits the knot.
        temperature_knot_2: Temperature of the second inner knot.
        temperature_knot_3: Temperature of the third inner knot.
        temperature_knot_4: Temperature of the fourth inner knot.
        temperature_knots: The complete ``piecewise`` schedule as 2 to 16 pairs of progress and temperature,
            progress ascending in [0, 1]; None: the schedule follows from the parameters above and both ends.
        normaliser: Name in ``NORMALISERS``; ``linear`` has no temperature.
        top_k: Number of keys, at least 1, whose weights ``top_k`` keeps.
        min_weight: Attention weight, between 0 and 1, below which ``threshold`` sets weights to 0.
        window: A local head sees keys at most ``window`` - 1 positions away; at least 1.
        local_share: Share of the heads of each layer that are local, from 0 to 1.
        schedule_args: Numbers of a schedule outside tempopt by name; missing ones have their default.

    Raises:
        SpecError: A name is unknown, a number is out of range, ``constant`` is given a ``temperature_final``
            that it would never reach, ``temperature_knots`` is combined with another schedule or with
            parameters that it replaces, or ``linear`` is given a temperature other than 1.
    """

    temperature_init: float = 1.0
    temperature_final: float | None = None
    schedule: str = "constant"
    layer_pattern: str = "uniform"
    layer_ratio: float = 1.0
    head_pattern: str = "uniform"
    head_ratio: float = 1.0
    length_scaling: str = "none"
    n0: float = 16.0
    warmup_start: float = 1.0
    warmup_fraction: float = 0.1
    cycles: float = 1.5
    power: float = 2.0
    num_steps: int = 4
    length_power: float = 1.0
    length_slope: float = 0.1
    curvature: float = 10.0
    hold_fraction: float | None = None
    num_knots: int | None = None
    temperature_knot_1: float | None = None
    temperature_knot_2: float | None = None
    temperature_knot_3: float | None = None
    temperature_knot_4: float | None = None
    temperature_knots: tuple[Knot, ...] | None = None
    normaliser: str = "softmax"
    top_k: int = 8
    min_weight: float = 0.01
    window: int = 64
    local_share: float = 0.0
    schedule_args: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name in self.names():
            check_value(name, getattr(self, name))
        if self.temperature_knots is not None:
            object.__setattr__(self, KNOTS, to_knots(self.temperature_knots))
            self._check_drawn()
        if self.schedule == Constant.name and self.temperature_final not in (None, self.temperature_init):
            raise SpecError(
                f'temperature_final={self.temperature_final!r} has no effect: schedule "constant" stays at '
                f"temperature_init={self.temperature_init!r}. Leave temperature_final out, or choose a "
                'schedule that moves, as in schedule="cosine".'
            )
        if is_custom_schedule(self.schedule):
            check_custom_numbers(self.schedule, self.schedule_args or {})
        elif self.schedule_args:
            raise SpecError(
                f'schedule_args={dict(self.schedule_args)!r} has no effect: schedule "{self.schedule}" is '
                "tempopt's, whose numbers are parameters of their own. Leave schedule_args out."
            )
        self._check_has_temperature()

    def _check_drawn(self) -> None:
        """Refuse a list of knots beside another schedule, or beside parameters that it replaces."""
        # temperature_init is filled in for a named temperature, so its presence is no conflict
        names = [name for name in sorted(_OPTIONAL - {KNOTS}) if getattr(self, name) is not None]
        if self.schedule != Piecewise.name:
            names.insert(0, "schedule")
        if names:
            raise SpecError(
                f"{names[0]}={getattr(self, names[0])!r} cannot be combined with {KNOTS}, a complete "
                "piecewise schedule. Leave one of the two out."
            )

    def _check_has_temperature(self) -> None:
        """Refuse a temperature other than 1 beside a normaliser that uses none."""
        if self.normaliser != LinearNormaliser.name:
            return
        plain_parameters = canonicalize({name: getattr(self, name) for name in self.names()})
        for name in ("temperature_init", "schedule", "layer_pattern", "head_pattern", "length_scaling"):
            if plain_parameters[name] != _DEFAULTS[name]:
                raise SpecError(
                    f'{name}={getattr(self, name)!r} has no effect: normaliser "{self.normaliser}" makes its '
                    "weights of no exponential of the logits, so there is nothing for a temperature to "
                    f"divide. Leave {name} out, or choose another normaliser, as in "
                    'normaliser="softmax".'
                )

    @classmethod
    def from_mapping(cls, parameters: Mapping[str, Any]) -> Self:
        """Select the plan's parameters from a flat mapping that may hold others; missing ones are neutral.

        Of the numbers ``schedule_args.NAME``, those that the schedule does not have are left out.
        """
        unused_names = _unused_custom_numbers({"schedule": Constant.name, **parameters})
        schedule_args = {
            name.removeprefix(CUSTOM_NUMBER_PREFIX): value
            for name, value in parameters.items()
            if is_custom_number(name) and name not in unused_names
        }
        if schedule_args:
            schedule_args = {**(parameters.get("schedule_args") or {}), **schedule_args}
            parameters = {**parameters, "schedule_args": schedule_args}
        return cls(**{name: parameters[name] for name in cls.names() if name in parameters})

    def plan(self, layers: int | Sequence[str]) -> TemperaturePlan:
        """Return the plan for a model with so many attention layers, or with layers of these names."""
        names = tuple(layers) if isinstance(layers, Sequence) else ()
        scaling, heads = self.length_scaling, self.head_pattern
        if self.normaliser == LinearNormaliser.name:
            # a normaliser without a temperature allows only strategies that have no effect at their values
            scaling, heads = NoLengthScaling.name, UniformHeads.name
        return TemperaturePlan(
            num_layers=len(layers) if isinstance(layers, Sequence) else layers,
            layer_names=names if len(layers_by_tower(names)) > 1 else (),
            schedule=self._schedule(),
            layers=self._build(LAYER_PATTERNS[self.layer_pattern]),
            heads=self._build(HEAD_PATTERNS[heads]),
            length_scaling=self._build(LENGTH_SCALINGS[scaling]),
            normaliser=self._build(NORMALISERS[self.normaliser]),
            local=self._build(LocalHeads),
        )

    def _schedule(self) -> Schedule:
        kind = schedule_class(self.schedule)
        if not is_custom_schedule(self.schedule):
            schedule: Schedule = self._build(kind)
            return schedule
        final = self.temperature_init if self.temperature_final is None else self.temperature_final
        ends = {"temperature_init": self.temperature_init, "temperature_final": final}
        return kind(**ends, **(self.schedule_args or {}))

    def _build(self, kind: type[Any]) -> Any:
        values = {name: getattr(self, name) for name in _field_names(kind)}
        if "temperature_final" in values and self.temperature_final is None:
            values["temperature_final"] = self.temperature_init
        # missing values have the strategy's default
        return kind(**{name: value for name, value in values.items() if value is not None})


_DEFAULTS: dict[str, Any] = {parameter.name: parameter.default for parameter in fields(TemperatureParameters)}


def check_value(name: str, value: object) -> None:
    """Refuse a value that a parameter of the plan, the entropy term or generation cannot have.

    Raises:
        SpecError: The value is of the wrong type, out of range, or an unknown name.
    """
    if is_custom_number(name):
        # the schedule is not known here
        check_number(name, value, FINITE)
    elif name == "schedule_args":
        if not (value is None or isinstance(value, Mapping)):
            raise SpecError(
                f"schedule_args={value!r} is not a mapping. Give numbers by name, as in {{knee: 0.3}}."
            )
    elif name == "schedule" and is_custom_schedule(value):
        custom_schedule_fields(str(value))
    elif name in CHOICES:
        if not (isinstance(value, str) and value in CHOICES[name]):
            hint = CUSTOM_SCHEDULE_HINT if name == "schedule" else ""
            raise SpecError(unknown(name, value, CHOICES[name], hint))
    elif name == KNOTS and value is not None:
        check_knots(value)
    elif not (name in _MAY_BE_NONE and value is None):
        check_number(name, value)


def unused_plan_params(parameters: Mapping[str, Any], *, should_read_custom: bool = True) -> set[str]:
    """Return the parameters of the plan that have no effect, for canonical strategies.

    Args:
        parameters: Flat parameters.
        should_read_custom: Whether to look up the numbers of imported schedules outside tempopt.

    Raises:
        SpecError: A strategy is unknown.
    """
    unused_names = _unused_custom_numbers(parameters, should_read_custom=should_read_custom)
    for choice in _REGISTRIES.keys() & parameters.keys():
        unused_names |= _all_fields(choice) - _chosen_fields(choice, parameters)
    if parameters.get("schedule") == Piecewise.name:
        unused_names |= unused_piecewise_params(parameters)
    if parameters.get("local_share") == 0.0:
        unused_names.add("window")
    if parameters.get("normaliser") == LinearNormaliser.name:
        unused_names |= _field_names(TemperatureParameters) - {"normaliser"} - _field_names(LocalHeads)
        unused_names |= {name for name in parameters if is_custom_number(name)}
    return unused_names


def _unused_custom_numbers(parameters: Mapping[str, Any], *, should_read_custom: bool = True) -> set[str]:
    """Return the declared numbers that the schedule does not have, as far as the schedule is known."""
    schedule = parameters.get("schedule")
    number_names = {name for name in parameters if is_custom_number(name)}
    if schedule is None:
        return set()
    if not is_custom_schedule(schedule):
        return number_names
    known_numbers = custom_schedule_fields(schedule) if should_read_custom else None
    return (
        set()
        if known_numbers is None
        else number_names - {f"{CUSTOM_NUMBER_PREFIX}{name}" for name in known_numbers}
    )


_FLAT_PATTERNS = (
    ("layer_pattern", "layer_ratio", UniformLayers.name),
    ("head_pattern", "head_ratio", UniformHeads.name),
)


def canonicalize(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with each strategy replaced by the simplest one that is equal at its values."""
    result = dict(parameters)
    if result.get("schedule") == Piecewise.name and result.get(KNOTS) is not None:
        _canonicalize_knots(result)
    elif _is_flat_schedule(result):
        result["schedule"] = Constant.name
    for choice, ratio, plain_name in _FLAT_PATTERNS:
        if result.get(ratio) == 1.0 and ratio in _chosen_fields(choice, result):
            result[choice] = plain_name
    scaling = result.get("length_scaling")
    if scaling == LogNPowerScaling.name and result.get("length_power") in (0.0, 1.0):
        scaling_class = LogNScaling if result["length_power"] else NoLengthScaling
        result["length_scaling"] = scaling_class.name
    if scaling in (YarnScaling.name, Llama4Scaling.name) and result.get("length_slope") == 0.0:
        result["length_scaling"] = NoLengthScaling.name
    return result


def _canonicalize_knots(parameters: dict[str, Any]) -> None:
    """Write a list of knots as JSON has it, or as ``constant`` if all its temperatures are equal."""
    check_value(KNOTS, parameters[KNOTS])
    knots = to_knots(parameters[KNOTS])
    if len({level for _, level in knots}) > 1:
        parameters[KNOTS] = [list(knot) for knot in knots]
    else:
        parameters |= {"schedule": Constant.name, "temperature_init": knots[0][1]}


def _is_flat_schedule(parameters: Mapping[str, Any]) -> bool:
    if not {"schedule", "temperature_init", "temperature_final"} <= parameters.keys():
        return False
    level = parameters["temperature_init"]
    if parameters["schedule"] == WarmupAnneal.name and parameters.get("warmup_start") != level:
        return False
    if parameters["schedule"] == Piecewise.name:
        inner_names = set(INNER_KNOTS) - unused_piecewise_params(parameters)
        if any(parameters[name] != level for name in inner_names):
            return False
    return parameters["temperature_final"] in (None, level)


def _chosen_fields(choice: str, parameters: Mapping[str, Any]) -> frozenset[str]:
    """Return the parameters that the chosen strategy uses; empty if none is chosen."""
    if choice not in parameters:
        return frozenset()
    strategy_name = parameters[choice]
    check_value(choice, strategy_name)
    if choice == "schedule" and is_custom_schedule(strategy_name):
        return _CUSTOM_FIELDS
    return _strategy_fields(choice, strategy_name)


@cache
def _strategy_fields(choice: str, strategy_name: str) -> frozenset[str]:
    return _field_names(_REGISTRIES[choice][strategy_name])


@cache
def _all_fields(choice: str) -> frozenset[str]:
    """Return the parameters that any strategy of a choice uses."""
    own_names = _CUSTOM_FIELDS if choice == "schedule" else frozenset[str]()
    return own_names.union(*map(_field_names, _REGISTRIES[choice].values()))


def _field_names(strategy: type[Any]) -> frozenset[str]:
    return frozenset(parameter.name for parameter in fields(strategy))
