"""Numbers, durations, parameters and plans of inference as text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

from tempopt.temperature import (
    AS_FOUND,
    CONTROL,
    CONTROL_PARAMETERS,
    KNOTS,
    NEUTRAL,
    TEMPERATURE_PARAMETERS,
    Piecewise,
    TemperatureParameters,
    drop_unused_params,
    is_controlled,
    join_name,
    list_temperatures,
    named_schedule_params,
    neutral_values,
    parameters_of_temperature,
    split_name,
)
from tempopt.temperature.knots import INNER_KNOTS
from tempopt.verdict.inference import AS_TRAINED
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.run_evaluations import WINNER, InferenceConstant
from tempopt.verdict.statistics.fieller import Ratio
from tempopt.verdict.statistics.paired_tests import PairedTest

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

ATTENTIONS_BASELINE = "τ = 1"
"""Reference of a study of attention's temperature."""
_SCHEDULE_PARAMS = ("schedule", "temperature_init", "temperature_final")
_SLOPE_TOLERANCE = 1e-9
_KNOTS = (KNOTS, *INNER_KNOTS, "num_knots", "hold_fraction")


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Return the parameters as text: ``temperature_init=1.52, schedule=cosine``."""
    named_params = {name: value for name, value in parameters.items() if split_name(name)[1] != AS_FOUND}
    texts = (f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in named_params.items())
    return ", ".join(texts) or "nothing was searched"


def baseline_name(spec: StudySpec) -> str:
    """Return the reference of a study, for a sentence.

    This is ``τ = 1``, ``contrast = 0.5 as found``, or for several ``the temperatures as found``. For a number
    that the module learns it is ``contrast as found, learned by the module from 0.5``. Where no temperature
    is searched it is ``qk_gain = 1``, or ``the baseline``.
    """
    values = _baseline_texts(spec)
    if not spec.has_temperature:
        return values[0] if len(values) == 1 else "the baseline"
    if not spec.temperatures:
        return ATTENTIONS_BASELINE
    if len(values) > 1:
        return "the temperatures as found"
    [(name, temperature)] = spec.temperatures.items()
    if temperature.trained and temperature.as_found is not None:
        return f"{name} as found, learned by the module from {temperature.as_found:.4g}"
    return f"{values[0]} as found"


def baseline_values(spec: StudySpec) -> str:
    """Return the values that :func:`baseline_name` leaves out, `` (τ = 1, contrast = 0.5)``."""
    values = _baseline_texts(spec)
    return f" ({', '.join(values)})" if len(values) > 1 else ""


def baseline_label(spec: StudySpec) -> str:
    """Return the reference of a study in one word, for a plot: ``τ = 1`` or ``baseline``."""
    return ATTENTIONS_BASELINE if spec.attends and not spec.temperatures else "baseline"


def _baseline_texts(spec: StudySpec) -> list[str]:
    """Return the temperature of the baseline for each searched one, or else the baseline's values."""
    if not spec.has_temperature:
        return [parameters_text({name: value}).replace("=", " = ") for name, value in spec.baselines.items()]
    texts = [ATTENTIONS_BASELINE] if spec.attends else []
    for name, temperature in spec.temperatures.items():
        relation = "learned from" if temperature.trained else "="
        value = "" if temperature.as_found is None else f" {relation} {temperature.as_found:.4g}"
        texts.append(f"{name}{value}")
    return texts


def format_ci_and_p(test: PairedTest) -> str:
    """Return the interval and p of a comparison."""
    if is_test_of_signs(test):
        return f"no interval: only the sign is tested, p = {test.p_value:.2g}"
    if math.isinf(test.ci_low) and math.isinf(test.ci_high):
        return f"no interval, p = {test.p_value:.2g}"
    interval = (
        f"{confidence(test)} interval {value_text(test.ci_low, test)} to {value_text(test.ci_high, test)}"
    )
    return f"{interval}, p = {test.p_value:.2g}"


def is_test_of_signs(test: PairedTest) -> bool:
    """Return whether all differences are equal, so that their noise is unknown and their sign is tested."""
    return test.is_equal and test.p_value < 1


def finite(value: float) -> float | None:
    """Return the value for JSON: None if it is not finite."""
    return value if math.isfinite(value) else None


def p_text(p_value: float) -> str:
    """Return a p-value: ``p = 0.013``, ``p < 0.0001``."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.2g}"


def confidence(test: PairedTest) -> str:
    """Return the coverage of the interval: ``96 %``."""
    return f"{100 * test.confidence:.4g} %"


def format_effect(test: PairedTest) -> str:
    """Return the gain without its sign, for a sentence that states the direction in words."""
    return unsigned_text(abs(test.gain), test)


def numbers_of_size(test: PairedTest) -> str:
    """Return the interval of :func:`format_effect`, and p."""
    if is_test_of_signs(test):
        return format_ci_and_p(test)
    ends = (test.ci_low, test.ci_high) if test.gain >= 0 else (-test.ci_high, -test.ci_low)
    low, high = (unsigned_text(end, test) for end in ends)
    return f"{confidence(test)} interval {low} to {high}, p = {test.p_value:.2g}"


def format_gain(answer: PairedResult) -> str:
    """Return a gain without its sign, its interval and p, for a sentence that states the direction."""
    return f"{format_effect(answer.paired)} ({numbers_of_size(answer.paired)})"


def unsigned_text(value: float, test: PairedTest) -> str:
    """Return the value as :func:`value_text`, without a plus."""
    return value_text(value, test).lstrip("+")


def format_signed(test: PairedTest) -> str:
    """Return the gain with its sign, for a sentence that does not state the direction."""
    return value_text(test.gain, test)


def value_text(value: float, test: PairedTest) -> str:
    """Return a signed value with two digits of the interval's half-width, more if an end would round to 0."""
    return value_text_in(value, test.gain, test.ci_low, test.ci_high)


def value_text_in(value: float, gain: float, low: float, high: float) -> str:
    """Return a value as :func:`value_text`, from the gain and the ends of its interval."""
    if math.isinf(value):
        return "−∞" if value < 0 else "+∞"
    return f"{value:+.{_decimals_in(gain, low, high)}f}".replace("-", "−")


def limit(value: float) -> str:
    """Return an upper limit, rounded up to three digits."""
    # exact decimal of the shortest representation, so that 0.07 is not rounded up
    exponent = Decimal(1).scaleb(-max(0, _decimals(value) + 2))
    return f"{Decimal(repr(value)).quantize(exponent, rounding=ROUND_CEILING):f}".replace("-", "−")


def _decimals_in(gain: float, low: float, high: float) -> int:
    """Return the decimals that numbers of a comparison are printed with."""
    width = (high - low) / 2
    digits = _decimals(width if 0 < width < math.inf else gain) + 1
    nearest = min(abs(low), abs(high))
    if 0 < nearest < math.inf:
        digits = max(digits, min(_decimals(nearest), digits + 2))
    return max(0, digits)


def _decimals(value: float) -> int:
    """Return the number of decimals up to the first nonzero digit; 3 for 0 itself."""
    return -math.floor(math.log10(abs(value))) if value else 3


def shorten(text: str, longest: int) -> str:
    """Return a text, truncated if it is long."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def duration(seconds: float) -> str:
    """Return seconds as text: ``1 h 12 min``, ``3 min 20 s``."""
    minutes, remaining_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {remaining_seconds} s" if minutes else f"{remaining_seconds} s"


def temperature_text(parameters: Mapping[str, Any]) -> str:
    """Return a parameter set as text without parameters that have no effect: ``τ = 2, lr=0.01``."""
    texts, covered_names = [], set()
    has_temperature = not parameters or any(name in TEMPERATURE_PARAMETERS for name in parameters)
    for name in list_temperatures(parameters) if has_temperature else ():
        temperature_params = {**NEUTRAL, **parameters_of_temperature(parameters, name)}
        first = temperature_params["temperature_init"]
        last = temperature_params["temperature_final"] or first
        if not name and is_controlled(parameters):
            texts.append(_controlled_text(drop_unused_params(parameters)))
            covered_names |= set(CONTROL_PARAMETERS)
        elif name and not named_schedule_params(parameters, name):
            texts.append(f"{name} = {first:.4g} as found")
        elif temperature_params["schedule"] == NEUTRAL["schedule"]:
            texts.append(f"{name or 'τ'} = {first:.4g}")
        elif course := describe_schedule(parameters, name):
            texts.append(f"{name or 'τ'} {course} ({temperature_params['schedule']})")
            covered_names |= {join_name(name, knot) for knot in _KNOTS}
        else:
            if (knots := temperature_params[KNOTS]) is not None:
                first, last = knots[0][1], knots[-1][1]
            texts.append(f"{name or 'τ'} from {first:.4g} to {last:.4g} ({temperature_params['schedule']})")
        covered_names |= {join_name(name, param) for param in _SCHEDULE_PARAMS}
    values = neutral_values(parameters)
    other_params = {
        n: v for n, v in parameters.items() if n not in covered_names and not (n in values and values[n] == v)
    }
    return ", ".join([*texts, *([parameters_text(other_params)] if other_params else [])])


def schedule_points(parameters: Mapping[str, Any], temperature: str = "") -> tuple[tuple[float, float], ...]:
    """Return start, bends and end of a piecewise schedule: training progress in [0, 1], and τ.

    Between two points ln τ is linear. Empty for other schedules, and for one without a bend.

    Args:
        parameters: A parameter set.
        temperature: Name of the temperature; empty for attention's.
    """
    schedule_params = parameters_of_temperature(parameters, temperature)
    if schedule_params.get("schedule") != Piecewise.name:
        return ()
    schedule = TemperatureParameters.from_mapping(schedule_params).plan(1).schedule
    if not isinstance(schedule, Piecewise):
        return ()
    knots = list(schedule.knots)
    # constant before the first knot and after the last
    if knots[0][0] > 0.0:
        knots.insert(0, (0.0, knots[0][1]))
    if knots[-1][0] < 1.0:
        knots.append((1.0, knots[-1][1]))
    points = [knots[0]]
    for knot, next_knot in itertools.pairwise(knots[1:]):
        if abs(_slope(points[-1], knot) - _slope(knot, next_knot)) > _SLOPE_TOLERANCE:
            points.append(knot)
    return (*points, knots[-1]) if len(points) > 1 else ()


def _slope(start: tuple[float, float], end: tuple[float, float]) -> float:
    return math.log(end[1] / start[1]) / (end[0] - start[0])


def describe_schedule(parameters: Mapping[str, Any], temperature: str = "") -> str:
    """Return the course of a piecewise schedule: ``1 until 70 % of training, 0.487 at 85 %, 0.885 at the
    end``.

    Empty if :func:`schedule_points` is.
    """
    knots = schedule_points(parameters, temperature)
    parts: list[str] = []
    index = 0
    while index < len(knots):
        (progress, tau), last_index = knots[index], index
        while last_index + 1 < len(knots) and knots[last_index + 1][1] == tau:
            last_index += 1
        parts.append(f"{tau:.4g} {_format_moment(progress, knots[last_index][0], first=not parts)}")
        index = last_index + 1
    return ", ".join(parts)


def _format_moment(start: float, end: float, *, first: bool) -> str:
    start_text, end_text = (f"{100 * progress:.3g} %" for progress in (start, end))
    suffix = " of training" if first else ""
    if start == end:
        return {0.0: "at first", 1.0: "at the end"}.get(start, f"at {start_text}{suffix}")
    if start == 0.0:
        return f"until {end_text}{suffix}"
    return f"from {start_text} on" if end == 1.0 else f"from {start_text} to {end_text}"


def _controlled_text(parameters: Mapping[str, Any]) -> str:
    numbers = {name: value for name, value in parameters.items() if name in CONTROL_PARAMETERS[1:]}
    target = ", ".join(f"{name.partition('_')[2]} {value:.4g}" for name, value in numbers.items())
    first = parameters.get("temperature_init", NEUTRAL["temperature_init"])
    return f"τ from {first:.4g}, entropy control {parameters[CONTROL]} ({target})"


def plan_text(plan_name: str) -> str:
    """Return a plan of inference as text for a sentence.

    Args:
        plan_name: Its name, as in ``TunedInference.plan_name``.
    """
    if plan_name == AS_TRAINED:
        return "the temperature of the training"
    constant = InferenceConstant.of(plan_name)
    if constant is None:
        assert plan_name == WINNER
        return "the winner's final temperature"
    text = f"{constant.temperature or 'τ'} = {constant.tau:.4g}"
    scaling = constant.length_scaling
    return text if scaling == "none" else f"{text} with length scaling {scaling}"


def describe_temperature_change(parameters: Mapping[str, Any]) -> str:
    """Return what changes the temperatures of a set: ``schedule``, or ``control of the entropy``."""
    return "control of the entropy" if is_controlled(parameters) else "schedule"


def format_comparison(answer: PairedResult) -> str:
    """Return a difference, its interval and p."""
    return f"{format_signed(answer.paired)} ({format_ci_and_p(answer.paired)})"


def share_text(share: Ratio | None, test: PairedTest) -> str:
    """Return the end of a sentence on a gain, with its share of the winner's gain."""
    if share is None or math.isnan(share.ratio):
        return "."
    if not math.isfinite(share.low) or not math.isfinite(share.high):
        return f": {_percent(share.ratio)} % of the winner's gain, too uncertain to give an interval."
    bounds = f"{_percent(share.low)} to {_percent(share.high)} %"
    if test.p_value >= test.alpha:
        return f": no gain shown; as a share of the winner's gain, {bounds}."
    level = confidence(test)
    return f": {_percent(share.ratio)} % of the winner's gain ({level} interval {bounds})."


def _percent(value: float) -> str:
    return f"{100 * value:.0f}".replace("-", "−")
