"""The spec that tests of specs begin from, and what changes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tempopt.spec.study_spec import StudySpec

BASE = """
study:
  name: mine
  metric: val_accuracy
  direction: maximize
search:
  temperature_init: {low: 0.25, high: 4}
model:
  class_path: my_module.MyModule
data:
  class_path: my_module.MyData
  init_args: {root: "${DATA_ROOT}/mine", batch_size: 32}
trainer:
  max_steps: 100
"""

Write = Callable[[str], Path]


def change_spec(**settings: Any) -> dict[str, Any]:
    """Return the base spec with ``section__key=value`` set; None takes it away."""
    data: dict[str, Any] = yaml.safe_load(BASE)
    for name, value in settings.items():
        *parents, last = name.split("__")
        target = data
        for segment in parents:
            target = target.setdefault(segment, {})
        target[last] = value
        if value is None:
            del target[last]
    return data


def make(**settings: Any) -> StudySpec:
    return StudySpec.parse(change_spec(**settings), source="s.yaml")
