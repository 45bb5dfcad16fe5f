"""How the value of a run stands in the output of a command: behind a name, or as the group of a pattern."""

from __future__ import annotations

import re

_NUMBER = (
    r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?))"
    # no part of 12abc, 1.2.3 or 1,000
    r"(?!\.?\w)(?!,\d{3}(?!\d))"
)
# between a name and its value: val_bpb: 1, "val_bpb": 1, val_bpb=1, val_bpb 1, | val_bpb | 1, and calls such
# as tensor(1)
_BETWEEN = r"""["']?[^\S\r\n]*(?:[:=|]|[-=]>)?[^\S\r\n]*["']?(?:[a-z_][\w.]*\()?"""


def num_groups_in(pattern: str) -> int:
    """Return the number of groups of a regular expression; 0 for a text that is none."""
    try:
        return re.compile(pattern).groups
    except re.error:
        return 0


def value_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of which the group is the value.

    Args:
        pattern: A name, which is no part of a longer name, or a regular expression with one group.
    """
    if num_groups_in(pattern):
        return re.compile(pattern, re.MULTILINE)
    name = rf"(?<![\w/.-]){re.escape(pattern)}(?![\w/])(?![.-]\w)"
    return re.compile(f"{name}(?i:{_BETWEEN}{_NUMBER})")
