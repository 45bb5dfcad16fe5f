"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

SIZE = "bytes, a size with a unit (kB, MB, GB, TB, KiB, MiB, GiB, TiB) as in 8GB, or null"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]i?b)", re.IGNORECASE)
_UNITS = {
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}


def in_bytes(given: object) -> int | None:
    """Return a size in bytes; ValueError for what is none."""
    if isinstance(given, str) and (found := _SIZE.fullmatch(given.strip())):
        size = float(found[1]) * _UNITS[found[2].lower()]
    elif given is None or (isinstance(given, int) and not isinstance(given, bool)):
        size = given
    else:
        raise ValueError(f"given {given!r}. Give {SIZE}.")
    if size is not None and size < 1:
        raise ValueError(f"given {given!r}. Give {SIZE}.")
    return None if size is None else int(size)
