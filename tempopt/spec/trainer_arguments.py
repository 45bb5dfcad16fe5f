"""The arguments of ``lightning.Trainer``, written down so that a spec is validated without Lightning.

tests/spec/test_trainer_arguments.py compares them with Lightning's own. What an object among them is called
with is found by training/build.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import yaml

from tempopt.errors import unknown
from tempopt.spec.yaml_source import unresolved

WHOLE_NUMBER, NUMBER, SWITCH = "a whole number", "a number", "true or false"

TRAINER_ARGUMENTS: dict[str, str | None] = {
    "accelerator": None,
    "strategy": None,
    "devices": None,
    "num_nodes": None,
    "precision": None,
    "logger": None,
    "callbacks": None,
    "fast_dev_run": None,
    "max_epochs": None,
    "min_epochs": WHOLE_NUMBER,
    "max_steps": None,
    "min_steps": WHOLE_NUMBER,
    "max_time": None,
    "limit_train_batches": NUMBER,
    "limit_val_batches": NUMBER,
    "limit_test_batches": NUMBER,
    "limit_predict_batches": NUMBER,
    "overfit_batches": NUMBER,
    "val_check_interval": None,
    "check_val_every_n_epoch": WHOLE_NUMBER,
    "num_sanity_val_steps": None,
    "log_every_n_steps": WHOLE_NUMBER,
    "enable_checkpointing": None,
    "enable_progress_bar": None,
    "enable_model_summary": None,
    "accumulate_grad_batches": WHOLE_NUMBER,
    "gradient_clip_val": NUMBER,
    "gradient_clip_algorithm": None,
    "deterministic": None,
    "benchmark": SWITCH,
    "inference_mode": SWITCH,
    "use_distributed_sampler": None,
    "profiler": None,
    "detect_anomaly": SWITCH,
    "barebones": None,
    "plugins": None,
    "sync_batchnorm": SWITCH,
    "reload_dataloaders_every_n_epochs": WHOLE_NUMBER,
    "default_root_dir": None,
    "enable_autolog_hparams": SWITCH,
    "model_registry": None,
}
"""Argument to what it may be, where that is a plain value; None: it is checked elsewhere, or by Lightning."""

_TYPES: dict[str, tuple[type, ...]] = {WHOLE_NUMBER: (int,), NUMBER: (int, float), SWITCH: (bool,)}


def argument_problem(name: str, *, choices: Collection[str]) -> str | None:
    """Return what is wrong with the name of an argument of the Trainer, or None.

    Args:
        name: As a person wrote it.
        choices: The arguments that may be given in that place, for the message.
    """
    if name in TRAINER_ARGUMENTS:
        return None
    return unknown("argument of lightning.Trainer", name, choices)


def value_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with the value of an argument of the Trainer, or None."""
    expected_type = TRAINER_ARGUMENTS.get(name)
    if expected_type is None or value is None or unresolved(value):
        return None
    value_text = f'the text "{value}"' if isinstance(value, str) else repr(value)
    if isinstance(value, str):
        # a number in quotes is read as one
        value = _parse_scalar(value)
    is_wrong = not isinstance(value, _TYPES[expected_type]) or (
        expected_type != SWITCH and isinstance(value, bool)
    )
    return f"given {value_text}. Give {expected_type}." if is_wrong else None


def _parse_scalar(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
