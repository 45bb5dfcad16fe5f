"""Maps from logits to attention weights, by name; they are computed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from tempopt.temperature.ranges import ValidatedParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser(ValidatedParameters):
    """A map from a row of logits to weights; subclasses are final, frozen dataclasses.

    ``tempopt.attention.functional.normalisers`` computes the normaliser of the same name.

    Attributes:
        limit: Name of the number that decides which weights are 0; empty if there is none.
    """

    name: ClassVar[str]
    limit: ClassVar[str] = ""

    @classmethod
    def limited(cls, limit: Any) -> dict[str, Any]:
        """Return a number under the name of the limit, as a keyword of attention; empty without a limit."""
        return {cls.limit: limit} if cls.limit else {}

    @property
    def limits(self) -> dict[str, Any]:
        """The limit by name; empty if there is none."""
        return self.limited(getattr(self, self.limit, None))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxNormaliser(Normaliser):
    """exp(s) over its sum: the usual attention."""

    name: ClassVar[str] = "softmax"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopKNormaliser(Normaliser):
    """Softmax over the ``top_k`` largest logits, 0 elsewhere; over all visible keys if there are fewer."""

    name: ClassVar[str] = "top_k"
    limit: ClassVar[str] = "top_k"

    top_k: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdNormaliser(Normaliser):
    """Softmax with weights below ``min_weight`` set to 0 and the others renormalised; the largest stays."""

    name: ClassVar[str] = "threshold"
    limit: ClassVar[str] = "min_weight"

    min_weight: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SparsemaxNormaliser(Normaliser):
    """The point of the simplex that is nearest to the logits (Martins & Astudillo 2016)."""

    name: ClassVar[str] = "sparsemax"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Entmax15Normaliser(Normaliser):
    """max(s / 2 - threshold, 0)^2: halfway between softmax and sparsemax (Peters et al. 2019)."""

    name: ClassVar[str] = "entmax15"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearNormaliser(Normaliser):
    """phi(q) phi(k) over its sum, phi = elu + 1 (Katharopoulos et al. 2020); it has no temperature."""

    name: ClassVar[str] = "linear"


NORMALISERS: dict[str, type[Normaliser]] = {
    normaliser.name: normaliser
    for normaliser in (
        SoftmaxNormaliser,
        TopKNormaliser,
        ThresholdNormaliser,
        SparsemaxNormaliser,
        Entmax15Normaliser,
        LinearNormaliser,
    )
}
"""Name of a normaliser to its class."""
