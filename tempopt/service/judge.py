"""A verdict on existing results: read a table of them, and compare the variants."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tempopt.errors import UsageError, unknown
from tempopt.files import read_text
from tempopt.report.judgement import Judgement
from tempopt.storage.rows import MAX_VALUE
from tempopt.verdict.judgement import compare_values
from tempopt.verdict.statistics.paired_tests import Direction

COLUMNS = ("variant", "seed", "value")
_SEPARATORS = ",;\t"
_FORMAT = f"the columns {', '.join(COLUMNS)}, separated by commas, semicolons or tabs"
_MAX_NAME = 100
_INTEGER = re.compile(r"([+-]?[0-9]+)(\.0*)?")
_MISSING = ("", "<NA>")
"""Texts of a missing value, in a CSV file and in pandas."""

_Row = tuple[str, object, object, object]
"""Location of a row for messages, and its variant, seed and value."""


def judge(data: Any, *, direction: Direction = "maximize", baseline: str | None = None) -> Judgement:
    """Compare each variant with a baseline, given one value for each variant and seed.

    Variants with two or more common seeds are compared on these by the paired t-test, others by Welch's test.
    The level of 5 %, two-sided, is shared evenly by all variants. A value that is missing, NaN, infinite or
    beyond ±10¹⁰⁰ is a failed run, which counts with the worst value of the two variants.

    Args:
        data: ``{variant: {seed: value}}``; ``{variant: [values]}``, whose runs make no pairs; a pandas or
            polars frame with the columns ``variant``, ``seed`` and ``value``; a sequence of such rows, as
            mappings or tuples; or the path of a CSV file with these columns.
        direction: ``maximize`` where a higher value is better, or ``minimize``.
        baseline: Name of the variant that the others are compared with; None: the first one.

    Returns:
        The verdict. ``print`` shows it, ``to_json`` has it as plain data, and ``comparison.outcome`` is
        ``better``, ``not_shown`` or ``worse``.

    Raises:
        UsageError: The data cannot be read, have fewer than two variants or no finite value, have a seed of a
            variant twice, or hold something that is no number; or there is no such direction or baseline.
    """
    if direction not in ("maximize", "minimize"):
        raise UsageError(unknown("direction", direction, ("maximize", "minimize")))
    values = _read_values(data)
    source = f"{data}" if isinstance(data, str | Path) else "The data"
    if len(values) < 2:
        variants = f"only the variant {next(iter(values))}" if values else "no rows"
        raise UsageError(f"{source} has {variants}. Give the values of a baseline and of another variant.")
    if baseline is not None and baseline not in values:
        raise UsageError(unknown("baseline", baseline, values, "Give the name of a variant."))
    if all(value is None for runs in values.values() for value in runs.values()):
        raise UsageError(f"{source}: no value is finite, so nothing is compared. Give runs that have ended.")
    comparison, seeds_needed = compare_values(values, baseline or next(iter(values)), direction)
    return Judgement(comparison=comparison, values=values, seeds_needed=seeds_needed, direction=direction)


def _read_values(data: Any) -> dict[str, dict[str, float | None]]:
    """Return the value of each run by variant and seed, None for a failed run."""
    values: dict[str, dict[str, float | None]] = {}
    locations: dict[tuple[str, str], str] = {}
    for location, variant_entry, seed_entry, value in _iter_rows(data):
        variant = _parse_name(variant_entry, "variant", location)
        seed = _parse_name(seed_entry, "seed", location)
        # a pandas column with missing seeds has 1.0 in place of 1
        if integer := _INTEGER.fullmatch(seed):
            seed = str(int(integer[1]))
        first_location = locations.setdefault((variant, seed), location)
        if first_location != location or seed in values.get(variant, ()):
            raise UsageError(
                f"{location}: variant {variant} has seed {seed} twice, first in {first_location}. "
                "Keep one row for each variant and seed."
            )
        values.setdefault(variant, {})[seed] = _parse_value(value, location)
    return values


def _parse_name(entry: object, column: str, location: str) -> str:
    """Return the name of a variant or seed."""
    text = "" if entry is None else str(entry).strip()
    if text in _MISSING or text.lower() == "nan":
        raise UsageError(f"{location}: there is no {column}. Give each row a variant, a seed and a value.")
    if len(text) > _MAX_NAME or not text.isprintable():
        raise UsageError(
            f"{location}: the {column} {text[:_MAX_NAME]!a} is too long or has a character that cannot be "
            f"printed. Give a name of at most {_MAX_NAME} printable characters."
        )
    return text


def _parse_value(value: Any, location: str) -> float | None:
    """Return a value, None for a failed run."""
    text = "" if value is None else str(value).strip()
    if text in _MISSING:
        return None
    try:
        if "_" in text:  # which Python takes for a digit separator
            raise ValueError(text)
        number = float(text if isinstance(value, str) else value)
    except (OverflowError, TypeError, ValueError):
        raise UsageError(
            f"{location}: the value {text[:_MAX_NAME]!a} is not a number. Give a number such as 0.93, and "
            "of a run that failed nothing, nan or inf."
        ) from None
    return number if abs(number) <= MAX_VALUE else None


def _iter_rows(data: Any) -> Iterator[_Row]:
    if isinstance(data, str | Path):
        yield from _iter_file_rows(Path(data))
    elif hasattr(data, "columns"):
        _check_columns([str(name) for name in data.columns], "The frame")
        for index, row in enumerate(zip(*(data[name] for name in COLUMNS), strict=True)):
            yield (f"row {index}", *row)
    elif isinstance(data, Mapping):
        for variant, runs in data.items():
            # values without seeds make no pairs: each has a seed that no other variant has
            values_by_seed = runs if isinstance(runs, Mapping) else _number_values(variant, runs)
            for seed, value in values_by_seed.items():
                yield f"variant {variant}, seed {seed}", variant, seed, value
    elif isinstance(data, Iterable):
        for index, row in enumerate(data):
            entries = [row.get(name) for name in COLUMNS] if isinstance(row, Mapping) else row
            if not isinstance(entries, Sequence) or isinstance(entries, str) or len(entries) != len(COLUMNS):
                raise UsageError(f"row {index}: {row!r:.100} is not a variant, a seed and a value.")
            yield f"row {index}", entries[0], entries[1], entries[2]
    else:
        raise UsageError(
            f"The data are of type {type(data).__name__}. Give {{variant: {{seed: value}}}}, a frame or rows "
            "with variant, seed and value, or the path of a CSV file."
        )


def _number_values(variant: object, values: Any) -> dict[str, Any]:
    try:
        return {f"{variant} #{number}": value for number, value in enumerate(values, start=1)}
    except TypeError:
        raise UsageError(
            f"variant {variant}: {values!r:.100} is neither values by seed nor a list of values."
        ) from None


def _iter_file_rows(path: Path) -> Iterator[_Row]:
    text, _ = read_text(path, _FORMAT)
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    separator = next((s for s in _SEPARATORS if first_line.count(s) >= len(COLUMNS) - 1), ",")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    header: list[str] = []
    try:
        for row in reader:
            location = f"{path}, line {reader.line_num}"
            if not row:
                continue
            if not header:
                header = [name.strip().lower() for name in row]
                _check_columns(header, location)
            elif len(row) != len(header):
                raise UsageError(
                    f"{location}: there are {len(row)} fields and {len(header)} columns. Give each row a "
                    "field for each column, and write numbers with a decimal point."
                )
            else:
                variant, seed, value = (row[header.index(name)] for name in COLUMNS)
                yield location, variant, seed, value
    except csv.Error as error:
        raise UsageError(
            f"{path}, line {reader.line_num}: {error}. Give a CSV file with {_FORMAT}."
        ) from error
    if not header:
        raise UsageError(f"{path} is empty. Give a CSV file with {_FORMAT}.")


def _check_columns(names: Sequence[str], location: str) -> None:
    """Refuse a table in which one of the columns is missing or occurs twice."""
    for name in COLUMNS:
        if (count := list(names).count(name)) != 1:
            problem = "no column" if not count else "more than one column"
            columns = f"{', '.join(names)!a:.300}"
            raise UsageError(f"{location}: the header {columns} has {problem} {name}. Give {_FORMAT}.")
