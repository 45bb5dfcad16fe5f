"""Specs whose text is wrong, and what is said of each: to every door of tempopt the same."""

from __future__ import annotations

from typing import Any

import yaml

_SPEC: dict[str, Any] = {
    "study": {"name": "toy", "metric": "val_loss", "direction": "minimize"},
    "model": {"class_path": "toy_modules.Plain"},
    "data": {"class_path": "toy_modules.ToyData"},
    "trainer": {"max_steps": 10, "accelerator": "cpu"},
    "search": {"temperature_init": {"low": 0.25, "high": 4.0}},
}


def _text(**sections: dict[str, Any] | list[Any] | None) -> str:
    """Return the text of the spec with sections merged in, or taken out by None."""
    merged = {
        name: {**_SPEC.get(name, {}), **section} if isinstance(section, dict) else section
        for name, section in sections.items()
    }
    spec = {name: section for name, section in (_SPEC | merged).items() if section is not None}
    return yaml.safe_dump(spec, sort_keys=False)


REFUSED: dict[str, tuple[str, str, str]] = {
    "tab": ("study:\n\tname: toy\n", "found character", "replace the tab"),
    "misspelt key": (
        _text(study={"trails": 4}),
        'Unknown key "trails"',
        'Did you mean "trials"? Known: name',
    ),
    "one parameter as two": (
        _text(search={"n0": {"low": 2.0, "high": 64.0}, "length_scaling": ["log_n"]}),
        "given a range of n0 beside one of temperature_init",
        "Take n0 out of search.",
    ),
    "no data": (
        _text(data=None, search={"data.batch_size": [4, 8]}),
        "data.batch_size is given, but the spec has no data: section",
        "Add one, or take data.batch_size out.",
    ),
}
"""Text of a spec, what is said to be given, and what is said to be allowed."""
