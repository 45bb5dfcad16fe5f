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


def name_pattern(name: str) -> re.Pattern[str]:
    """Return the regular expression whose group is the value behind a name, not one inside a longer name."""
    whole_name = rf"(?<![\w/.-]){re.escape(name)}(?![\w/])(?![.-]\w)"
    return re.compile(f"{whole_name}(?i:{_BETWEEN}{_NUMBER})")
