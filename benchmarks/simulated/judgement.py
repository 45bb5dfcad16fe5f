"""Tables of how often verdicts are wrong, and how often right, of the records that judged.py makes.

A gain is claimed in one direction, so a claim where nothing is to be gained is allowed in 2.5 % of all
studies, over all rounds of a study together.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from benchmarks.simulated.drawn import world_for
from benchmarks.simulated.judged import Cell, cell_of

ALLOWED = 0.025
READ_AT = (1, 2, 5)
"""Verdicts after which it is counted whether any so far has shown a gain."""

Record = Mapping[str, Any]
_HEAD = "| world | trials | rounds | sampler | studies "


def tables(records: Iterable[Record]) -> Iterator[str]:
    """Yield the lines of all tables."""
    cells: dict[Cell, list[Record]] = defaultdict(list)
    for record in records:
        cells[cell_of(record)].append(record)
    cells = dict(sorted(cells.items(), key=lambda entry: dataclasses.astuple(entry[0])))
    yield from _false(cells)
    yield from _true(cells)
    yield from _coverage_table(cells)
    yield from _cost(cells)


def first_shown(record: Record, answer: str) -> int | None:
    """Return at which verdict an answer shows a gain for the first time, from 1; None: at none."""
    for number, verdict in enumerate(record["verdicts"], 1):
        if any(
            answer_entry["name"] == answer and answer_entry["shown"] for answer_entry in verdict["answers"]
        ):
            return number
    return None


def by_then(records: Sequence[Record], answer: str, verdicts: int) -> int:
    """Return in how many studies an answer shows a gain at one of the first so many verdicts."""
    return sum((first_shown(record, answer) or verdicts + 1) <= verdicts for record in records)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that allow for one another (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def names(records: Iterable[Record]) -> list[str]:
    """Return the names of all answers, in the order in which verdicts have them."""
    answer_names = (
        answer["name"] for record in records for v in record["verdicts"] for answer in v["answers"]
    )
    return list(dict.fromkeys(answer_names))


def _start(cell: Cell, records: Sequence[Record]) -> str:
    sampler = f"{cell.sampler}, explained" if cell.explain else cell.sampler
    return f"| {cell.world} | {cell.trials} | {cell.rounds} | {sampler} | {len(records)} "


def _read_at(cells: Iterable[Cell]) -> list[int]:
    max_rounds = max((cell.rounds for cell in cells), default=1)
    return [num_verdicts for num_verdicts in READ_AT if num_verdicts <= max_rounds]


def _shares(cell: Cell, records: Sequence[Record], answer: str, reads: Sequence[int]) -> str:
    counts = [
        by_then(records, answer, num_verdicts) if num_verdicts <= cell.rounds else None
        for num_verdicts in reads
    ]
    return "".join(f"| {'' if n is None else f'{n} ({n / len(records):.1%})'} " for n in counts)


def _false(cells: Mapping[Cell, Sequence[Record]]) -> Iterator[str]:
    rows = [
        (cell, records, answer)
        for cell, records in cells.items()
        for answer in names(records)
        if world_for(cell.world).false(answer)
    ]
    p_values = []
    for cell, records, answer in rows:
        count = by_then(records, answer, cell.rounds)
        p_values.append(binomtest(count, len(records), ALLOWED, alternative="greater").pvalue)
    reads = _read_at(cells)
    yield "Claims of a gain that is not there:\n"
    yield (
        _HEAD
        + "| answer "
        + "".join(f"| by verdict {num_verdicts} " for num_verdicts in reads)
        + "| p | p (Holm) |"
    )
    yield "|---" * (8 + len(reads)) + "|"
    for (cell, records, answer), p, allowing in zip(rows, p_values, holm(p_values), strict=True):
        share_cells = _shares(cell, records, answer, reads)
        yield f"{_start(cell, records)}| {answer} {share_cells}| {p:.2g} | {allowing:.2g} |"


def _true(cells: Mapping[Cell, Sequence[Record]]) -> Iterator[str]:
    reads = _read_at(cells)
    yield "\nGains that are there and are shown:\n"
    yield _HEAD + "| answer " + "".join(f"| by verdict {num_verdicts} " for num_verdicts in reads) + "|"
    yield "|---" * (6 + len(reads)) + "|"
    for cell, records in cells.items():
        for answer in names(records):
            if world_for(cell.world).false(answer) is False:
                yield f"{_start(cell, records)}| {answer} {_shares(cell, records, answer, reads)}|"


def _coverage_table(cells: Mapping[Cell, Sequence[Record]]) -> Iterator[str]:
    yield "\nIntervals that hold the truth:\n"
    yield (
        _HEAD + "| answer | true gain, mean | said, mean | the same where shown | interval holds it "
        "| all of a study's hold |"
    )
    yield "|---" * 11 + "|"
    for cell, records in cells.items():
        for answer in names(records):
            answer_lists = [_entries_of(record, answer) for record in records]
            answer_lists = [answers for answers in answer_lists if answers]
            if not answer_lists:
                continue
            truth, gain = (
                np.mean([answers[0][key] for answers in answer_lists]) for key in ("truth", "gain")
            )
            first = np.mean([answers[0]["held"] for answers in answer_lists])
            rate_all = np.mean([all(entry["held"] for entry in answers) for answers in answer_lists])
            means_shown = _where_shown(answer_lists)
            numbers = f"| {truth:+.4f} | {gain:+.4f} | {means_shown} | {first:.1%} | {rate_all:.1%} |"
            yield f"{_start(cell, records)}| {answer} {numbers}"


def _where_shown(answer_lists: Sequence[Sequence[Record]]) -> str:
    """Return the means of the true gain and of the estimate over the studies that show one first."""
    first_answers = [answers[0] for answers in answer_lists if answers[0]["shown"]]
    if not first_answers:
        return ""
    truth, gain = (np.mean([entry[key] for entry in first_answers]) for key in ("truth", "gain"))
    return f"{truth:+.4f}, {gain:+.4f}"


def _entries_of(record: Record, answer: str) -> list[Record]:
    """Return what a study's verdicts say by an answer whose truth is known."""
    entries = (entry for verdict in record["verdicts"] for entry in verdict["answers"])
    return [entry for entry in entries if entry["name"] == answer and entry.get("held") is not None]


def _cost(cells: Mapping[Cell, Sequence[Record]]) -> Iterator[str]:
    kinds = sorted({run_count["kind"] for records in cells.values() for run_count in _first_runs(records)})
    yield "\nRuns to the first verdict, mean:\n"
    yield _HEAD + "".join(f"| {kind} " for kind in kinds) + "| all | CPU s a study |"
    yield "|---" * (7 + len(kinds)) + "|"
    for cell, records in cells.items():
        count: dict[str, float] = dict.fromkeys(kinds, 0.0)
        for run_count in _first_runs(records):
            count[run_count["kind"]] += run_count["runs"] / len(records)
        seconds = np.mean([record["seconds"] for record in records])
        numbers = "".join(f"| {count[kind]:.1f} " for kind in kinds)
        yield f"{_start(cell, records)}{numbers}| {sum(count.values()):.1f} | {seconds:.1f} |"


def _first_runs(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        yield from record["verdicts"][0]["runs"]
