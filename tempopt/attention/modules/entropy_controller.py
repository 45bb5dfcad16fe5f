"""Feedback control that moves each layer's temperature until its attention has a target entropy.

Entropies are shares of the maximum, H / ln n, from 0 to 1
(:func:`tempopt.attention.functional.entropy.normalised_entropy`), averaged over a layer's queries that see
more than one key. The caller measures them and applies the temperatures to the model; Lightning is not used.

Shape suffixes: B batch, H heads, Q queries, K keys, D head dimension.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from tempopt.attention.functional.logits import (
    AttentionOptions,
    biased_logits,
    causal_mask,
    restrict_mask,
    scaled_products,
    visible_keys,
)
from tempopt.attention.modules.learned import check_count, check_scale
from tempopt.errors import SpecError, UsageError, unknown
from tempopt.temperature import SCHEDULES, Constant, ExponentialLayers, Schedule, TemperatureParameters
from tempopt.temperature.factors import center_geometric
from tempopt.temperature.towers import over_towers

# Half precision may put a share of entropy this far out of range; beyond it the input is invalid.
_SLACK = 0.02

Reduce = Callable[[list[float]], Sequence[float]]


def _factors_by_depth(spread: float, num_layers: int) -> tuple[float, ...]:
    return ExponentialLayers(layer_ratio=1.0 / spread).factors(num_layers)


def _alternating_factors(spread: float, num_layers: int) -> tuple[float, ...]:
    return center_geometric([math.log(spread) / 2.0 * (-1.0) ** layer for layer in range(num_layers)])


ARRANGEMENTS: dict[str, Callable[[float, int], tuple[float, ...]]] = {
    "depth": _factors_by_depth,
    "alternate": _alternating_factors,
}
"""Factors on the odds of entropy over the layers, with geometric mean 1; see :class:`EntropyTarget`."""

_ALIKE = Constant(temperature_init=1.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyTarget:
    """Target entropy of each layer at each training progress, as a share of ln n.

    A schedule gives the level h(t). The targets lie around it in terms of odds, h / (1 - h), so that they are
    inside (0, 1) for any spread, and the level is the geometric mean of the odds: H_l / (1 - H_l) = f_l h /
    (1 - h).

    Args:
        level: The level over progress, with values between 0 and 1, both excluded.
        spread: Over progress, the odds of the broadest layer over those of the sharpest; 1 for equal layers,
            below 1 for the reverse order.
        arrangement: ``depth``: the first layer is the broadest, the odds decrease by the same factor from
            layer to layer, the last is the sharpest. ``alternate``: layers 0, 2, ... are broad, 1, 3, ...
            sharp.

    Raises:
        SpecError: The arrangement is unknown or the level is outside (0, 1).
    """

    level: Schedule
    spread: Schedule = _ALIKE
    arrangement: str = "depth"

    def __post_init__(self) -> None:
        if self.arrangement not in ARRANGEMENTS:
            raise SpecError(unknown("arrangement", self.arrangement, ARRANGEMENTS))
        for progress in (0.0, 0.5, 1.0):
            self.entropies(progress, 1)

    def entropies(self, progress: float, layers: int | Sequence[str]) -> tuple[float, ...]:
        """Return the target of each layer, first layer first, in (0, 1).

        Args:
            progress: Training progress in [0, 1].
            layers: Number of layers, or their names; each tower of them is arranged by itself.

        Raises:
            UsageError: The progress is outside [0, 1].
            SpecError: The level at this progress is outside (0, 1).
        """
        names = [str(number) for number in range(layers)] if isinstance(layers, int) else layers
        level = self.level(progress)
        if not 0.0 < level < 1.0:
            raise SpecError(
                f"The target entropy at progress {progress!r} is {level!r}. Give a share of ln n, between 0 "
                "and 1, both excluded: at 0 the temperature would have to be 0, at 1 infinite."
            )
        spread = self.spread(progress)
        if spread == 1.0:
            return (level,) * len(names)
        odds = level / (1.0 - level)
        factors = over_towers(names, functools.partial(ARRANGEMENTS[self.arrangement], spread))
        return tuple(odds * factor / (1.0 + odds * factor) for factor in factors)


def curriculum(*, init: float = 0.9, final: float = 0.4, schedule: str = "cosine") -> EntropyTarget:
    """Return the target that changes from broad to sharp, equally in every layer.

    Args:
        init: Share of ln n at progress 0.
        final: Share at progress 1, less than ``init``.
        schedule: Name of the course between them, in :data:`tempopt.temperature.SCHEDULES`.

    Raises:
        SpecError: A share is outside (0, 1), ``final`` is not below ``init``, or the schedule is unknown.
    """
    if not final < init:
        raise SpecError(
            f"final={final!r} is not below init={init!r}, and a curriculum goes from broad to sharp. "
            "Exchange them, or give any schedule to EntropyTarget(level=...)."
        )
    return EntropyTarget(level=_build_schedule(schedule, init, final))


def contrast(
    *, level: float = 0.6, spread: float = 4.0, arrangement: str = "depth", schedule: str = "exponential"
) -> EntropyTarget:
    """Return the target under which initially equal layers diverge around a constant level.

    Args:
        level: Share of ln n at which all layers start, and the middle of them later.
        spread: At progress 1, the odds of the broadest layer over those of the sharpest.
        arrangement: Which layers are broad, as for :class:`EntropyTarget`.
        schedule: Name of the course from spread 1 to ``spread``, in :data:`tempopt.temperature.SCHEDULES`;
            with ``constant`` the layers differ from the start.

    Raises:
        SpecError: The level is outside (0, 1), the spread is 1 or out of range, or a name is unknown.
    """
    check_scale("spread", spread)
    if spread == 1.0:
        raise SpecError("spread=1.0 is no contrast. Give a number above 1, or below 1 for the reverse order.")
    spread_schedule = (
        Constant(temperature_init=spread)
        if schedule == Constant.name
        else _build_schedule(schedule, 1.0, spread)
    )
    return EntropyTarget(
        level=Constant(temperature_init=level), spread=spread_schedule, arrangement=arrangement
    )


class EntropyController:
    """Adjusts the temperature of each layer so that its entropy follows a target over training.

    Entropy rises with temperature, by d(H / ln n) / d ln tau = Var_a(s / tau) / ln n >= 0 for weights a of
    logits s. So ln tau is raised by rate * (target - H), with H an exponential moving average of the
    measurements, within its bounds; with ``newton`` the difference is first divided by that slope.

    Only every ``every``-th call of :meth:`update`, beginning with the first, changes the temperatures, and
    only then do the entropies have to be measured. Temperatures converge without overshoot if rate * slope is
    at most (1 - sqrt(decay)) / (1 + sqrt(decay)), 0.026 at the default; for many normally distributed logits
    a slope is at most 2, and with ``newton`` it counts as 1. Convergence takes about 1 / (rate * slope)
    changes, which are many where attention is nearly uniform and the slope nearly 0: start at a low
    temperature rather than a high one, or use ``newton``. The same calls give the same temperatures, to the
    last bit.

    Args:
        layers: Number of layers, >= 1, or their names, by which they form towers.
        target: Target entropies, as from :func:`curriculum` or :func:`contrast`.
        initial: Temperature at the start, one or one per layer, as from a plan at progress 0.
        lowest: Lower bound of the temperatures.
        highest: Upper bound of the temperatures.
        rate: Change of ln tau per unit of entropy, > 0; with ``newton`` the share of the Newton step.
        decay: Weight of the past in the moving average, in [0, 1); 0 for no average.
        every: Number of calls per change, >= 1.
        newton: Whether slopes are given and used.
        max_step: Largest change of ln tau per change, > 0. It is used where the slope vanishes, because
            attention is one-hot or uniform, or is negative, which a bias outside the temperature can cause.
        reduce: Returns the mean of its argument, the measurements of this process, over all processes; None
            for a single process. All processes call it at the same updates, so all have the same
            temperatures.

    Raises:
        SpecError: A number is out of range.
    """

    def __init__(
        self,
        layers: int | Sequence[str],
        *,
        target: EntropyTarget,
        initial: float | Sequence[float] = 1.0,
        lowest: float = 0.1,
        highest: float = 10.0,
        rate: float = 0.01,
        decay: float = 0.9,
        every: int = 1,
        newton: bool = False,
        max_step: float = 0.1,
        reduce: Reduce | None = None,
    ) -> None:
        num_layers = layers if isinstance(layers, int) else len(layers)
        check_count("num_layers", num_layers)
        check_count("every", every)
        starts = [*initial] if isinstance(initial, Sequence) else [initial] * num_layers
        for name, value in (("rate", rate), ("max_step", max_step), ("lowest", lowest), ("highest", highest)):
            check_scale(name, value)
        if len(starts) != num_layers or any(not lowest <= start <= highest for start in starts):
            raise SpecError(
                f"initial={initial!r} is out of range. Give one number, or one for each of {num_layers} "
                f"layers, between lowest={lowest!r} and highest={highest!r}."
            )
        if not 0.0 <= decay < 1.0:
            raise SpecError(f"decay={decay!r} is out of range. Give a number from 0 to 1, 1 excluded.")
        self.num_layers = num_layers
        self._layers = layers
        self.target = target
        self.every = every
        self.newton = newton
        self._bounds = (lowest, highest)
        self._rate = rate
        self._decay = decay
        self._max_step = max_step
        self._reduce = reduce
        self._temperatures = starts
        self._averages: list[float] | None = None
        self._calls = 0

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature of each layer, first layer first."""
        return tuple(self._temperatures)

    @property
    def due(self) -> bool:
        """Whether the next call of :meth:`update` changes the temperatures."""
        return self._calls % self.every == 0

    def update(
        self,
        entropies: Sequence[float] | Tensor | None,
        *,
        progress: float,
        slopes: Sequence[float] | Tensor | None = None,
    ) -> tuple[float, ...]:
        """Return the next temperatures; they change only if a change is due.

        Args:
            entropies: H / ln n of each layer, measured at the present temperatures; may be None if no change
                is :attr:`due`.
            progress: Training progress in [0, 1].
            slopes: Var_a(s / tau) / ln n of each layer (:func:`entropy_slope`), with ``newton`` only.

        Raises:
            UsageError: A change is due and there is not one share per layer; the state is then unchanged.
        """
        if self.due:
            self._move(self._average_measurements(entropies, slopes), progress)
        self._calls += 1
        return self.temperatures

    def state_dict(self) -> dict[str, Any]:
        """Return the state as numbers and lists, from which control continues exactly."""
        return {
            "temperatures": list(self._temperatures),
            "averages": None if self._averages is None else list(self._averages),
            "calls": self._calls,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict` of a controller with the same arguments.

        Raises:
            UsageError: The state is of another number of layers, or of a controller with another ``newton``.
        """
        averages = state["averages"]
        num_layers = len(state["temperatures"])
        if num_layers != self.num_layers or (averages is not None and len(averages) != self._num_measured):
            raise UsageError(
                f"The state is of {num_layers} layers and {len(averages or ())} averages; this controller "
                f"has {self.num_layers} layers and {self._num_measured} averages. Use the arguments "
                "it had when the state was saved."
            )
        self._temperatures = [float(temperature) for temperature in state["temperatures"]]
        self._averages = None if averages is None else [float(average) for average in averages]
        self._calls = int(state["calls"])

    @property
    def _num_measured(self) -> int:
        return self.num_layers * (2 if self.newton else 1)

    def _average_measurements(
        self, entropies: Sequence[float] | Tensor | None, slopes: Sequence[float] | Tensor | None
    ) -> list[float]:
        if (slopes is not None) != self.newton:
            raise UsageError(
                f"newton={self.newton}, and slopes are {'missing' if slopes is None else 'given'}. Give them "
                "with newton=True and only then: see entropy_slope."
            )
        values = _to_numbers("entropies", entropies, self.num_layers)
        if self.newton:
            values += _to_numbers("slopes", slopes, self.num_layers)
        # Checked after reduction, so that either all processes refuse it or none.
        means = values if self._reduce is None else [float(mean) for mean in self._reduce(values)]
        shares, mean_slopes = means[: self.num_layers], means[self.num_layers :]
        are_shares = all(-_SLACK <= share <= 1.0 + _SLACK for share in shares)
        if len(means) != len(values) or not are_shares or not all(map(math.isfinite, mean_slopes)):
            raise UsageError(
                f"The entropies are {shares} and the slopes {mean_slopes}. Give an entropy for each layer as "
                "a share of ln n, from 0 to 1 (tempopt.attention.normalised_entropy), and finite slopes."
            )
        return means

    def _move(self, means: list[float], progress: float) -> None:
        targets = self.target.entropies(progress, self._layers)
        if self._averages is None:
            averages = means
        else:
            decay = self._decay
            averages = [
                decay * old + (1.0 - decay) * new for old, new in zip(self._averages, means, strict=True)
            ]
        low, high = self._bounds
        for layer, target in enumerate(targets):
            step = self._rate * (target - averages[layer])
            if self.newton:
                step = _quotient(step, averages[self.num_layers + layer])
            step = min(max(step, -self._max_step), self._max_step)
            self._temperatures[layer] = min(max(self._temperatures[layer] * math.exp(step), low), high)
        self._averages = averages


@torch.no_grad()
def entropy_slope(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    valid_BQ: Tensor | None = None,
    num_queries: int | None = None,
) -> Tensor:
    """Return d(H / ln n) / d ln tau = Var_a(s / tau) / ln n, the mean over queries with more than one key,
    0-d.

    The temperature does not divide a floating mask that is added to the logits: with a finite bias b the
    slope is Cov_a(s / tau, s / tau + b) / ln n. The logits are materialised in float32 or better: for long
    sequences pass ``num_queries``.

    Args:
        q_BHQD: Queries, tempered already (:func:`tempopt.attention.functional.attention.temper_query`).
        k_BHKD: Keys; may have fewer heads, each of which serves a group of adjacent query heads.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: Boolean or floating mask that broadcasts to BHQK, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        valid_BQ: True where a query is not padding; None if there is no padding.
        num_queries: Number of queries, >= 1, to evaluate, evenly spaced over each sequence; None for all.
    """
    if num_queries is not None and num_queries < q_BHQD.shape[-2]:
        check_count("num_queries", num_queries)
        rows = torch.linspace(0, q_BHQD.shape[-2] - 1, num_queries, device=q_BHQD.device).round().long()
        if attn_mask is not None and attn_mask.ndim > 1 and attn_mask.shape[-2] == q_BHQD.shape[-2]:
            attn_mask = attn_mask.index_select(-2, rows)
        if is_causal:
            causal_QK = causal_mask(num_queries, k_BHKD.shape[-2], rows.device, position_Q=rows)
            attn_mask, is_causal = restrict_mask(attn_mask, causal_QK), False
        q_BHQD, valid_BQ = q_BHQD[..., rows, :], None if valid_BQ is None else valid_BQ[..., rows]
    options = AttentionOptions(attn_mask=attn_mask, is_causal=is_causal, scale=scale)
    biased_BHQK, hidden, _ = biased_logits(q_BHQD, k_BHKD, options)
    has_bias = attn_mask is not None and attn_mask.is_floating_point()
    logits_BHQK = scaled_products(q_BHQD, k_BHKD, scale) if has_bias else biased_BHQK
    q_len, k_len = logits_BHQK.shape[-2:]
    device = q_BHQD.device
    num_keys = visible_keys(q_len, k_len, attn_mask, is_causal, device=device)
    counts_BHQ = (num_keys > 1).expand(logits_BHQK.shape[:-1])
    if valid_BQ is not None:
        counts_BHQ = counts_BHQ & valid_BQ.unsqueeze(1)
    seen_BHQK = biased_BHQK if hidden is None else biased_BHQK.masked_fill(hidden, -math.inf)
    weights_BHQK = seen_BHQK.softmax(dim=-1)
    # Centred before multiplication: differences of large squares would lose all digits.
    aside_BHQK = logits_BHQK - (weights_BHQK * logits_BHQK).sum(dim=-1, keepdim=True)
    biased_aside_BHQK = biased_BHQK - (weights_BHQK * biased_BHQK).sum(dim=-1, keepdim=True)
    covariance_BHQ = (weights_BHQK * aside_BHQK * biased_aside_BHQK).sum(dim=-1)
    slope_BHQ = covariance_BHQ / num_keys.clamp(min=2).to(logits_BHQK.dtype).log()
    return slope_BHQ.masked_fill(~counts_BHQ, 0.0).sum() / counts_BHQ.sum().clamp(min=1)


def _build_schedule(name: str, init: float, final: float) -> Schedule:
    if name == Constant.name or name not in SCHEDULES:
        schedules = [schedule for schedule in SCHEDULES if schedule != Constant.name]
        raise SpecError(unknown("schedule that moves", name, schedules))
    parameters = TemperatureParameters(
        temperature_init=init, temperature_final=final, schedule=name, warmup_start=init
    )
    return parameters.plan(1).schedule


def _to_numbers(name: str, values: Sequence[float] | Tensor | None, num_layers: int) -> list[float]:
    if values is None:
        raise UsageError(f"A change of temperature is due, but {name} are missing. Measure them when due.")
    numbers = values.flatten().tolist() if isinstance(values, Tensor) else [float(value) for value in values]
    if len(numbers) != num_layers:
        raise UsageError(f"Given {len(numbers)} {name} for {num_layers} layers. Give one per layer.")
    return numbers


def _quotient(step: float, slope: float) -> float:
    if slope > 0.0:
        return step / slope
    return math.copysign(math.inf, step) if step else 0.0
