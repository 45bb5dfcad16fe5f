"""What all sections of a study spec share, what keys of ``study:`` hold, and the section ``attach:``.

``study:`` itself is study_section.py's, ``resources:`` is resources.py's; how the sections fit together is
study_spec.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_serializer, model_validator

from tempopt.spec.alpha_levels import Test, least_pairs, spent

KNOWLEDGE_GRADIENT = "knowledge_gradient"
"""Name of tempopt's own sampler and pruner."""

FEWEST = 3
"""Complete runs of an arm below which that sampler says nothing."""

SAMPLERS: dict[str, str | None] = {
    KNOWLEDGE_GRADIENT: None,
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
}
"""Name of a sampler to its class in ``optuna.samplers``; None: tempopt's own."""

PRUNERS: dict[str, str | None] = {
    KNOWLEDGE_GRADIENT: None,
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "hyperband": "HyperbandPruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "threshold": "ThresholdPruner",
    "none": "NopPruner",
}
"""Name of a pruner to its class in ``optuna.pruners``; None: tempopt's own."""


class SpecSection(BaseModel):
    """What all sections share: no unknown keys, no silent conversion, no change after the making."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


MOST_RUNS = 100_000
"""Most trials of a search, and most runs of any other kind but those on fresh seeds."""
MOST_SEEDS = 1000
"""Most fresh seeds to choose on, and to confirm on."""
Count = Annotated[int, Field(ge=1, le=MOST_RUNS, description=f"a whole number from 1 to {MOST_RUNS}")]
_Runs = Annotated[
    int | None, Field(ge=1, le=MOST_RUNS, description=f"a whole number from 1 to {MOST_RUNS}, or null")
]
_Seeds = Annotated[int, Field(ge=2, le=MOST_SEEDS, description=f"a whole number from 2 to {MOST_SEEDS}")]
_PositiveLimit = Annotated[
    float | None, Field(gt=0, allow_inf_nan=False, description="a number above 0, or null for no limit")
]


class ArmCounts(SpecSection):
    """Number of runs in the first design of the search beside its trials; None for the default.

    Args:
        baseline: Runs at the baseline's temperature; None: 4 where ordinary parameters are searched, which
            they tune, else 2.
        constant: Runs at constant temperatures that span the searched range; None: 4.
    """

    baseline: _Runs = None
    constant: _Runs = None


class Pairs(SpecSection):
    """Number of confirming seeds: looked at after every ``min``, decided at ``max`` at the latest."""

    min: _Seeds
    max: _Seeds

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MOST_SEEDS:
            return {"min": value, "max": value}
        if isinstance(value, Mapping):
            return value
        raise ValueError(
            f"given {value!r}. Give a whole number from 2 to {MOST_SEEDS}, or {{min: 4, max: 16}}."
        )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}. Give a min of at most the max.")
        return self

    @model_serializer
    def _as_written(self) -> int | dict[str, int]:
        return self.max if self.min == self.max else {"min": self.min, "max": self.max}

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of pairs after which the confirmation is looked at, ascending; the last is ``max``."""
        return (*range(self.min, self.max, self.min), self.max)

    def enough(self, test: Test, alpha: float) -> int:
        """Return the fewest pairs, this maximum at least, at which a test can show something at a level.

        A look may spend its share of the level alone.
        """
        for max_pairs in count(self.max):
            looks = Pairs(min=max_pairs if self.min == self.max else self.min, max=max_pairs).looks
            shares = [0.0, *(spent(look, max_pairs) for look in looks)]
            increments = zip(looks, pairwise(shares), strict=True)
            if any(
                least_pairs(test, alpha * (share - previous_share)) <= look
                for look, (previous_share, share) in increments
            ):
                return max_pairs
        raise AssertionError("there is a number of pairs at which any test can show something")


class Seeds(SpecSection):
    """Number of fresh seeds on which candidates are chosen, and of others on which the gain is estimated.

    Args:
        search: Seeds that search trials share by turns, so that what a seed does to all of them is no reason
            to prefer one; None: each has its own.
    """

    search: _Runs = 2
    choose: Annotated[
        int, Field(ge=1, le=MOST_SEEDS, description=f"a whole number from 1 to {MOST_SEEDS}")
    ] = 2
    confirm: Pairs = Pairs(min=4, max=16)


class StudyLimits(SpecSection):
    """When a study stops searching by itself, whatever is left to search; None: when all is searched.

    Args:
        hours: Hours since the study was begun.
        gpu_hours: Hours of cards, added up over all trials, a share of a GPU counting as that share; where
            trials train on no card, their hours of training.
        standard_errors: The search ends as soon as all that is left of it is expected to raise what would be
            named by less than so many standard errors of the confirmation, which could not tell.
    """

    hours: _PositiveLimit = None
    gpu_hours: _PositiveLimit = None
    standard_errors: _PositiveLimit = None

    @property
    def ends(self) -> tuple[str, ...]:
        """Names of the limits that are set, each of which may end the search."""
        names = ("hours", "gpu_hours", "standard_errors")
        return tuple(name for name in names if getattr(self, name) is not None)


class SamplerOrPrunerConfig(SpecSection):
    """A sampler or pruner by its short name, with its options: Optuna's, or tempopt's own."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "name" in value:
            return {"name": value["name"], "options": {k: v for k, v in value.items() if k != "name"}}
        raise ValueError(f"given {value!r}. Give a name, or {{name: ..., option: ...}}.")

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}


class AttachSection(SpecSection):
    """The ``attach:`` section: which layers of a module that is not a TemperedModule are tempered, and how.

    Args:
        layers: Patterns of their names, or ``auto``.
        method: ``query_rows`` fits most models; ``attention_interface``, for models of transformers, can
            deliver length scaling, the entropy term and other normalisers too, and works behind QK-norm.
    """

    layers: Literal["auto"] | list[str] = "auto"
    method: Literal["query_rows", "attention_interface"] = "query_rows"

    @field_validator("layers", mode="before")
    @classmethod
    def _patterns(cls, value: object) -> object:
        is_pattern_list = (
            isinstance(value, list) and value and all(isinstance(pattern, str) for pattern in value)
        )
        if value == "auto" or is_pattern_list:
            return value
        example = "[encoder.layers.*.self_attn]"
        raise ValueError(f"given {value!r}. Give auto, or a list of patterns, as in {example}.")
