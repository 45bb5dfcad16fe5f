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
_ROWS = {"layers": "auto", "method": "query_rows"}
_SETS = [{"name": "A", "parameters": {}}, {"name": "B", "parameters": {"length_scaling": "log_n"}}]


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
    "entropy term by query rows": (
        _text(attach=_ROWS, search={"entropy_lambda": {"low": 0.0, "high": 0.1}}),
        "given 0.1, but attach: {method: query_rows} cannot set it",
        "Only entropy_lambda=0.0 is allowed there. Write attach: {method: attention_interface}",
    ),
    "compared length scaling by query rows": (
        _text(attach=_ROWS, search=None, compare=_SETS),
        "given 'log_n', but attach: {method: query_rows} cannot set it",
        "Only length_scaling='none' is allowed there",
    ),
    "no data": (
        _text(data=None, search={"data.batch_size": [4, 8]}),
        "data.batch_size is given, but the spec has no data: section",
        "Add one, or take data.batch_size out.",
    ),
}
"""Text of a spec, what is said to be given, and what is said to be allowed."""
