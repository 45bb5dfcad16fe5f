"""The sections that jsonargparse reads (``model:``, ``data:``, ``trainer:``), checked as plain data.

``training/build.py``, which imports the classes, checks whether they exist and take these arguments.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import yaml

from tempopt.class_loading import dotted_path
from tempopt.errors import unknown
from tempopt.spec.yaml_source import CollectedSpecError, has_reference

# A copy, so that a spec is validated without Lightning; a test compares it with Lightning's own.
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
"""Argument to the description of its plain value; None: checked elsewhere, or by Lightning."""

_TYPES: dict[str, tuple[type, ...]] = {WHOLE_NUMBER: (int,), NUMBER: (int, float), SWITCH: (bool,)}

_NOWHERE = "Nothing has to be written in its place: take it out."
_CHECKPOINTS = f"tempopt writes checkpoints itself, so that an interrupted run can go on. {_NOWHERE}"
_SCREEN = f"tempopt shows the progress of all workers itself. {_NOWHERE}"

SCREEN_CALLBACKS = ("RichProgressBar", "TQDMProgressBar", "ProgressBar", "ModelSummary", "RichModelSummary")
LOGGER_CALLBACKS = ("LearningRateMonitor", "DeviceStatsMonitor", "ThroughputMonitor")
"""Callbacks that runs leave out: those that show something on a screen, and those that need a logger."""

GOVERNED: dict[str, str] = {
    "barebones": f"it switches off the validation and the checkpoints that tempopt goes by. {_NOWHERE}",
    "default_root_dir": f"the folder of a run follows from its ticket. {_NOWHERE}",
    "enable_checkpointing": _CHECKPOINTS,
    "enable_model_summary": _SCREEN,
    "enable_progress_bar": _SCREEN,
    "fast_dev_run": 'a run that ends after a batch has no result. Use "tempopt check --dry-run" for that.',
    "max_time": "a run that ends by the clock is not the same run twice. Give max_steps or max_epochs.",
    "num_nodes": "one run trains on one machine; more machines train more runs at a time. Take it out.",
    "num_sanity_val_steps": f"tempopt trains two steps and validates once before a study begins. {_NOWHERE}",
    "use_distributed_sampler": "the order of the data follows from the seed and the epoch, and each device "
    f"gets its share. {_NOWHERE}",
}
"""Arguments of ``lightning.Trainer`` that tempopt sets itself, with the reason and what to do."""

UNSEARCHED: dict[str, str] = {
    **GOVERNED,
    **dict.fromkeys(
        ("accelerator", "devices", "strategy"),
        "the processes that train are started before parameters are drawn. Give one under trainer:.",
    ),
    "logger": "what is logged changes no run. Give it under trainer:.",
}
"""Arguments of ``lightning.Trainer`` that cannot be searched, with the reason and what to do."""

SETTABLE = tuple(name for name in TRAINER_ARGUMENTS if name not in GOVERNED)
"""Arguments of ``lightning.Trainer`` that a spec may give."""

SEARCHABLE = tuple(name for name in TRAINER_ARGUMENTS if name not in UNSEARCHED)
"""Arguments of ``lightning.Trainer`` that may be searched."""

_BELONGS: dict[str, str] = {
    "seed_everything": "seeds come from tickets. Take it out; study.seed is the study's seed.",
    "ckpt_path": "runs begin fresh and go on from their own checkpoints. Take it out; to search the "
    "temperature of a trained model: tempopt evaluate SPEC --weights FILE.",
    "fit": "the sections of a subcommand stand at the top here. Move what is under fit: one level up.",
    **dict.fromkeys(
        ("optimizer", "lr_scheduler"),
        "the module makes it in configure_optimizers. Take it out, and make what should be searched an init "
        "argument of the model.",
    ),
}
"""Keys at the top of a LightningCLI config that a study spec refuses, with the reason and what to do."""

# the largest step that a database stores
_MAX_STEPS = 2**31 - 1
_OWN_PROCESSES = re.compile(r"(^|_)(spawn|fork|notebook)|^forkserver$")
_FOLDERS = ("deepspeed", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAFSDPStrategy")
_ONE_FILE = (
    "A run's checkpoint is one file, which is placed whole or not at all, and known by the hash of its bytes."
)
_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


LENGTHS = ("max_steps", "max_epochs")


def unknown_key(path: str, key: str, known_keys: Collection[str]) -> str:
    """Return the message for a key that a section does not have."""
    if not path and key in _BELONGS:
        return f"{key} has no place in a study spec: {_BELONGS[key]}"
    return unknown("key", key, known_keys)


def parse_class_section(value: object, *, section: str) -> dict[str, Any]:
    """Return ``{"class_path": ..., "init_args": {...}}`` of a ``model:`` or ``data:`` section.

    Raises:
        CollectedSpecError: It does not have that shape; the message shows the corrected text.
    """
    if isinstance(value, str):
        raise CollectedSpecError(
            [(section, f"given the text {value!r}. Write {section}: {{class_path: {value}}}.")]
        )
    if not isinstance(value, Mapping):
        example = "{class_path: package.module.Class, init_args: {...}}"
        raise CollectedSpecError([(section, f"given {value!r}. Write {section}: {example}.")])
    if "class_path" not in value:
        arguments = json.dumps(value.get("init_args", dict(value)), default=str)
        rewrite = f"{section}: {{class_path: package.module.Class, init_args: {arguments}}}"
        raise CollectedSpecError(
            [(section, f"class_path is missing, so there is no class to make. Write {rewrite}.")]
        )
    known_keys = ("class_path", "init_args")
    lines = [
        (f"{section}.{key}", unknown("key", key, known_keys, "Arguments go under init_args."))
        for key in value
        if key not in known_keys
    ]
    class_path, init_args = value["class_path"], value.get("init_args")
    if not isinstance(class_path, str) or not _CLASS_PATH.fullmatch(dotted_path(class_path)):
        message = f"given {class_path!r}. Give an import path: package.module.Class."
        lines.append((f"{section}.class_path", message))
    elif dotted_path(class_path) != class_path:
        message = f'given "{class_path}". Write it with dots: {dotted_path(class_path)}.'
        lines.append((f"{section}.class_path", message))
    if init_args is not None and not isinstance(init_args, Mapping):
        lines.append((f"{section}.init_args", f"given {init_args!r}. Give a mapping of argument to value."))
    if lines:
        raise CollectedSpecError(lines)
    return {"class_path": class_path, "init_args": dict(init_args or {})}


def argument_problem(name: str, *, choices: Collection[str]) -> str | None:
    """Return what is wrong with the name of an argument of the Trainer, or None.

    Args:
        name: As a person wrote it.
        choices: The arguments that are allowed here, for the message.
    """
    if name in TRAINER_ARGUMENTS:
        return None
    return unknown("argument of lightning.Trainer", name, choices)


def value_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with the value of an argument of the Trainer, or None."""
    expected_type = TRAINER_ARGUMENTS.get(name)
    if expected_type is None or value is None or has_reference(value):
        return None
    value_text = f'the text "{value}"' if isinstance(value, str) else repr(value)
    if isinstance(value, str):
        # a quoted number is accepted as a number
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.safe_load(value)
    is_wrong = not isinstance(value, _TYPES[expected_type]) or (
        expected_type != SWITCH and isinstance(value, bool)
    )
    return f"given {value_text}. Give {expected_type}." if is_wrong else None


def parse_trainer(arguments: object) -> dict[str, Any]:
    """Return the arguments of the Trainer, without any that tempopt sets itself.

    Raises:
        CollectedSpecError: It is not a mapping, holds an argument that tempopt sets, a strategy that cannot
            resume, or devices and lengths that are not numbers.
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise CollectedSpecError(
            [("trainer", f"given {arguments!r}. Give a mapping, as in trainer: {{max_steps: 500}}.")]
        )
    lines = []
    if "class_path" in arguments or "init_args" in arguments:
        message = "it is always lightning.Trainer. Write its arguments directly under trainer:."
        lines.append(("trainer", message))
    for key, value in arguments.items():
        is_class = key in ("class_path", "init_args")
        if not is_class and (problem := _trainer_problem(str(key), value)):
            lines.append((f"trainer.{key}", problem))
    lines += _strategy_problems(arguments.get("strategy", "auto"))
    if lines:
        raise CollectedSpecError(lines)
    return dict(arguments)


def _trainer_problem(key: str, value: Any) -> str | None:
    if key in GOVERNED:
        return f"a spec cannot set {key}: {GOVERNED[key]}"
    accepts, allowed_text = _VALUES.get(key, (None, ""))
    if accepts is not None and not accepts(value):
        return f"given {value!r}. Give {allowed_text}."
    return argument_problem(key, choices=SETTABLE) or value_problem(key, value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_length(value: Any) -> bool:
    is_number = _is_whole(value) and (0 < value <= _MAX_STEPS or value == -1)
    return value is None or has_reference(value) or is_number


def _is_interval(value: Any) -> bool:
    """Return whether a run can be validated at this interval; Lightning checks other types."""
    if isinstance(value, int):
        return _is_whole(value) and 1 <= value <= _MAX_STEPS
    return not isinstance(value, float) or 0 < value <= 1


_LENGTH = (_is_length, f"a whole number from 1 to {_MAX_STEPS}, or -1 for no limit")
_BATCHES = (lambda value: value != 0, "1 or more, or a share: a run has to train and to validate")
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(LENGTHS, _LENGTH),
    "val_check_interval": (
        _is_interval,
        f"a whole number of batches from 1 to {_MAX_STEPS}, or a share of an epoch above 0 and up to 1.0",
    ),
    "limit_train_batches": _BATCHES,
    "limit_val_batches": _BATCHES,
    "devices": (
        lambda value: _is_whole(value) and value >= 1,
        "the number of devices that train one run, at least 1. It is part of the study's identity, so it is "
        "the same on every machine. Which GPUs these are is decided there (resources.gpus)",
    ),
}
"""Argument of the Trainer to a predicate for its value and a description of the allowed values."""


def _strategy_problems(strategy: object) -> list[tuple[str, str]]:
    """Return the errors in ``trainer.strategy``, as far as its name and arguments show them."""
    settings: Mapping[str, Any] = strategy if isinstance(strategy, Mapping) else {"class_path": strategy}
    name = str(settings.get("class_path")).rpartition(".")[2]
    options = settings.get("init_args") or {}
    lines = []
    if _OWN_PROCESSES.search(name) or _OWN_PROCESSES.search(str(options.get("start_method", ""))):
        message = f"given {strategy!r}, which starts processes itself. tempopt starts them, as many as"
        lines.append(("trainer.strategy", f"{message} trainer.devices says: write strategy: ddp."))
    if options.get("cluster_environment") is not None:
        message = "tempopt starts the processes itself, and says where they are. Take it out."
        lines.append(("trainer.strategy.init_args.cluster_environment", message))
    if options.get("state_dict_type") == "sharded":
        message = f"given sharded, which writes a folder of parts. {_ONE_FILE} Give full."
        lines.append(("trainer.strategy.init_args.state_dict_type", message))
    if name.startswith(_FOLDERS):
        message = f"given {name}, which writes a folder of parts. {_ONE_FILE} Give ddp or fsdp."
        lines.append(("trainer.strategy", message))
    return lines


def length_problems(trainer: Mapping[str, Any], searched_names: Collection[str]) -> list[tuple[str, str]]:
    """Return an error if neither the Trainer nor the search space sets the length of a run."""
    if any(trainer.get(key) not in (None, -1) or f"trainer.{key}" in searched_names for key in LENGTHS):
        return []
    message = "the length of a run is not set. Give max_steps or max_epochs, as in max_steps: 500."
    return [("trainer", message)]
