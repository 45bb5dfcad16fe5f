"""Inverse temperature over the number of keys that a query sees; counting them is not done here."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

from tempopt.temperature.ranges import Checked

# A query that sees one key attends to it at any temperature, but ln 1 = 0 would make that infinite.
FEWEST_KEYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthScaling(Checked, ABC):
    """A positive factor on the inverse temperature; subclasses are final, frozen dataclasses."""

    name: ClassVar[str]

    def factor(self, num_keys: float) -> float:
        """Return the factor on 1/tau for a query that sees ``num_keys`` keys; fewer than 2 count as 2."""
        return float(self.factor_of(max(num_keys, FEWEST_KEYS), math.log))

    @property
    def constant(self) -> float:
        """The number in which two scalings of a kind differ; 1 if they do not."""
        return 1.0

    @abstractmethod
    def factor_of(self, num_keys: Any, log: Callable[[Any], Any], constant: Any = None) -> Any:
        """Return the factor for numbers of keys of at least ``FEWEST_KEYS``, elementwise.

        Args:
            num_keys: A float or an array of any library.
            log: That library's natural logarithm, as ``math.log`` or ``torch.log``.
            constant: :attr:`constant` as that library holds it; None for the float itself. With a tensor
                one compiled graph serves every scaling of a kind.
        """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoLengthScaling(LengthScaling):
    """1, whatever the length."""

    name: ClassVar[str] = "none"

    def factor_of(self, num_keys: Any, log: Callable[[Any], Any], constant: Any = None) -> Any:
        return 1.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogNScaling(LengthScaling):
    """ln n / ln n0: logits sharpen as keys are added, and are unchanged where n = n0.

    Known as entropy invariance (Su), scalable softmax (SSMax) and, as a bound on what softmax needs
    to be able to single out one key, from Chiang & Cholak 2022.
    """

    name: ClassVar[str] = "log_n"

    n0: float

    @property
    def constant(self) -> float:
        return math.log(self.n0)

    def factor_of(self, num_keys: Any, log: Callable[[Any], Any], constant: Any = None) -> Any:
        return log(num_keys) / (self.constant if constant is None else constant)


LENGTH_SCALINGS: dict[str, type[LengthScaling]] = {
    scaling.name: scaling for scaling in (NoLengthScaling, LogNScaling)
}
