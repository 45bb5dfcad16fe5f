"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

SIZE = "bytes, a size with a unit (kB, MB, GB, TB, KiB, MiB, GiB, TiB) as in 8GB, or null"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]i?b)", re.IGNORECASE)
_UNITS = {
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}


def parse_byte_size(value: object) -> int | None:
    """Return a size in bytes; ValueError for what is none."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        size = float(match[1]) * _UNITS[match[2].lower()]
    elif value is None or (isinstance(value, int) and not isinstance(value, bool)):
        size = value
    else:
        raise ValueError(f"given {value!r}. Give {SIZE}.")
    if size is not None and size < 1:
        raise ValueError(f"given {value!r}. Give {SIZE}.")
    return None if size is None else int(size)
