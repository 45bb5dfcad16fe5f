"""Inverse temperature over the number of keys that a query sees; the keys are counted elsewhere."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

from tempopt.temperature.ranges import ValidatedParameters

# With one key the temperature has no effect, but ln 1 = 0 would make it infinite.
MIN_KEYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthScaling(ValidatedParameters, ABC):
    """A positive factor on the inverse temperature; subclasses are final, frozen dataclasses."""

    name: ClassVar[str]

    def factor(self, num_keys: float) -> float:
        """Return the factor on 1/tau for a query that sees ``num_keys`` keys; below 2 counts as 2."""
        return float(self.elementwise_factor(max(num_keys, MIN_KEYS), math.log))

    @property
    def constant(self) -> tuple[float, float]:
        """The two numbers in which two scalings of a class may differ; 1 for one that is not used."""
        return 1.0, 1.0

    def elementwise_factor(self, num_keys: Any, log: Callable[[Any], Any], constant: Any = None) -> Any:
        """Return the factors for numbers of keys of at least ``MIN_KEYS``, elementwise.

        Args:
            num_keys: A float or an array of any library.
            log: The natural logarithm of that library, such as ``math.log`` or ``torch.log``.
            constant: :attr:`constant` in that library's type; None for the floats themselves. With a tensor,
                one compiled graph serves every scaling of a class.
        """
        constants = self.constant if constant is None else constant
        return self._factor(num_keys, log, constants[0], constants[1])

    @abstractmethod
    def _factor(self, num_keys: Any, log: Callable[[Any], Any], first: Any, second: Any) -> Any:
        """Return the factor from both numbers of :attr:`constant`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogNScaling(LengthScaling):
    n0: float

    @property
    def constant(self) -> tuple[float, float]:
        return math.log(self.n0), 1.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoLengthScaling(LengthScaling):
    """1 at every length."""

    name: ClassVar[str] = "none"

    def _factor(self, num_keys: Any, log: Callable[[Any], Any], first: Any, second: Any) -> Any:
        return 1.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogNScaling(_LogNScaling):
    """ln n / ln n0: logits sharpen as keys are added, and are unchanged where n = n0.

    Known as entropy invariance (Su) and scalable softmax (SSMax); by Chiang & Cholak 2022 it bounds what
    softmax needs to single out one key. On top of 1 / sqrt(d) it is Su's kappa ln n / d with kappa = sqrt(d)
    / ln n0. Choosing n0 fixes kappa, and so lambda, Su's name for the whole factor on the logits.
    """

    name: ClassVar[str] = "log_n"

    def _factor(self, num_keys: Any, log: Callable[[Any], Any], first: Any, second: Any) -> Any:
        return log(num_keys) / first


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedLogNScaling(_LogNScaling):
    """max(1, ln n / ln n0): equals ``log_n`` above n0 keys, and 1 up to n0 keys.

    For a model trained without scaling on n0 keys, and fine-tuned or used with more (Su; Qwen).
    """

    name: ClassVar[str] = "clipped_log_n"

    def _factor(self, num_keys: Any, log: Callable[[Any], Any], first: Any, second: Any) -> Any:
        ratio = log(num_keys) / first
        return ratio * (ratio > 1.0) + 1.0 * (ratio <= 1.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogNPowerScaling(_LogNScaling):
    """(ln n / ln n0)^p with p = ``length_power``: 0 is ``none``, 1 is ``log_n``.

    How fast logits have to grow for attention to stay critical depends on their gaps: between the root of ln
    n, which keeps the entropy of random keys a constant share of ln n, and its square.
    """

    name: ClassVar[str] = "log_n_power"

    length_power: float

    @property
    def constant(self) -> tuple[float, float]:
        return math.log(self.n0), self.length_power

    def _factor(self, num_keys: Any, log: Callable[[Any], Any], first: Any, second: Any) -> Any:
        return (log(num_keys) / first) ** second


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling(_LogNScaling):
    """(c ln s + 1)^2 with s = max(n / n0, 1) and c = ``length_slope``, the source's 0.1.

    In YaRN (Peng et al. 2023) cosine and sine of the rotary embedding are multiplied by 0.1 ln s + 1, and so
    are queries and keys; their product, the logit, is multiplied by its square. There s is the same for all
    queries: the extended length over the length of training. Here it follows the number of keys that the
    query sees.
    """

    name: ClassVar[str] = "yarn"

    length_slope: float

    @property
    def constant(self) -> tuple[float, float]:
        return math.log(self.n0), self.length_slope

    def _factor(self, num_keys: Any, log: Callable[[Any], Any], first: Any, second: Any) -> Any:
        growth = log(num_keys) - first
        return (second * (growth * (growth > 0.0)) + 1.0) ** 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Scaling(_LogNScaling):
    """1 + c ln(1 + floor(n / n0)) with c = ``length_slope``, the source's 0.1: a step at each multiple of n0.

    Llama 4 uses it in its layers without rotary embedding, with n0 = 8192 and n the position plus 1, which
    under a causal mask is the number of keys that the query sees.
    """

    name: ClassVar[str] = "llama4"

    length_slope: float

    @property
    def constant(self) -> tuple[float, float]:
        return self.n0, self.length_slope

    def _factor(self, num_keys: Any, log: Callable[[Any], Any], first: Any, second: Any) -> Any:
        return second * log(num_keys // first + 1.0) + 1.0


LENGTH_SCALINGS: dict[str, type[LengthScaling]] = {
    scaling.name: scaling
    for scaling in (
        NoLengthScaling,
        LogNScaling,
        ClippedLogNScaling,
        LogNPowerScaling,
        YarnScaling,
        Llama4Scaling,
    )
}
"""Name of a length scaling to its class."""
