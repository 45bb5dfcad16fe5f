"""The scenarios of ``tempopt init --scenario``: ranges around published values, and a first parameter set.

docs/search.md has the sources of the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A use of temperatures on which there is published advice.

    Args:
        about: The use in a few words.
        ranges: Domain by searched name, as YAML.
        enqueue: The parameter set that the search tries first; only its searched names count.
        named: Whether the temperature is a named one, ``temperatures:`` of the scenario's name.
    """

    about: str
    ranges: Mapping[str, str]
    enqueue: Mapping[str, Any]
    named: bool = False


_SCHEDULES = "[constant, linear, cosine, exponential]"


def _build_loss_scenario(name: str, domain: str, value: float, about: str) -> Scenario:
    ends = (f"{name}.temperature_init", f"{name}.temperature_final")
    return Scenario(
        about=about,
        ranges={**dict.fromkeys(ends, domain), f"{name}.schedule": _SCHEDULES},
        enqueue=dict.fromkeys(ends, value),
        named=True,
    )


def _build_attention_scenario(
    about: str,
    first: str,
    last: str,
    value: float,
    *,
    more: Mapping[str, str] | None = None,
    enqueue: Mapping[str, str] | None = None,
) -> Scenario:
    return Scenario(
        about=about,
        ranges={
            "temperature_init": first,
            "temperature_final": last,
            "schedule": _SCHEDULES,
            **(more or {}),
        },
        enqueue={"temperature_init": value, "temperature_final": value, **(enqueue or {})},
    )


UNSPECIFIED = _build_attention_scenario("any use", "{low: 0.25, high: 4}", "{low: 0.25, high: 4}", 0.5)
"""The default without a scenario; its set is written as a comment."""

SCENARIOS: dict[str, Scenario] = {
    "pretraining": _build_attention_scenario(
        "training a transformer from scratch", "{low: 0.35, high: 2}", "{low: 0.3, high: 1.75}", 0.74
    ),
    "fine_tuning": _build_attention_scenario(
        "fine-tuning a trained transformer",
        "{low: 0.2, high: 2.5}",
        "{low: 0.2, high: 2.5}",
        0.7,
        more={"length_scaling": "[none, clipped_log_n]"},
    ),
    "long_context": _build_attention_scenario(
        "sequences that are longer in use than in training",
        "{low: 0.125, high: 2}",
        "{low: 0.125, high: 2}",
        0.5,
        more={"length_scaling": "[none, log_n]"},
        enqueue={"length_scaling": "log_n"},
    ),
    "distillation": _build_loss_scenario(
        "distillation", "{low: 1, high: 20}", 4.0, "the temperature of a distillation loss"
    ),
    "contrast": _build_loss_scenario(
        "contrast", "{low: 0.02, high: 1}", 0.1, "the temperature of a contrastive loss of cosines"
    ),
    "generation": Scenario(
        about="how a language model draws tokens",
        ranges={
            "temperature_init": "{low: 0.25, high: 4}",
            "sampling_temperature": "{low: 0.2, high: 1.5}",
            "top_p": "{low: 0.7, high: 1.0}",
            "min_p": "{low: 0.0, high: 0.3}",
        },
        enqueue={"sampling_temperature": 0.7, "top_p": 0.95},
    ),
}
"""The scenarios by name."""
