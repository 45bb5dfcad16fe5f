"""What searches came to: lines of a file while they are run, a table in the repository when they are packed.

A result is of one world. A task of which more was recorded is another world, and what was found in the old
one is left out. So is what tempopt came to in the repetitions by which its defaults were chosen: the best of
several on some seeds is partly lucky there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.recorded.world import RecordedWorld

SEARCHES_PATH = Path(__file__).with_name("searches.parquet")
LINES = Path("build/search.jsonl")
OURS = "tempopt"
"""How the names of all of tempopt's searches begin."""
CHOSEN_BY = 30
"""So many repetitions, the first ones, have chosen what tempopt does by default."""
_WHICH = ("task", "tuner", "repetition", "see", "budget", "workers", "world")


def is_peer(tuner: str) -> bool:
    """Return whether a tuner is none of tempopt's own."""
    return not tuner.startswith(OURS)


def result_key(result: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells one search from another."""
    return tuple(result[name] for name in _WHICH)


def load_results(lines: Path = LINES) -> list[dict[str, Any]]:
    """Return what there is of all searches; of one that was run again, the last result."""
    rows: list[dict[str, Any]] = pq.read_table(SEARCHES_PATH).to_pylist() if SEARCHES_PATH.exists() else []
    if lines.exists():
        rows += [json.loads(line) for line in lines.read_text().splitlines()]
    return list({result_key(row): row for row in rows}.values())


def keep(result: dict[str, Any], lines: Path = LINES) -> None:
    """Write one result down."""
    lines.parent.mkdir(parents=True, exist_ok=True)
    with lines.open("a") as file:
        file.write(json.dumps(result) + "\n")


def of_worlds(
    worlds: Mapping[str, RecordedWorld], lines: Path = LINES, *, first: int = CHOSEN_BY
) -> list[dict[str, Any]]:
    """Return what there is of searches in the worlds that there are.

    Args:
        worlds: By task.
        lines: What has not been packed.
        first: Repetition from which on tempopt's own count.
    """
    marks = {task: world.mark for task, world in worlds.items()}
    of_these = [row for row in load_results(lines) if row["world"] == marks.get(row["task"])]
    return [row for row in of_these if row["repetition"] >= first or is_peer(row["tuner"])]


def pack(worlds: Mapping[str, RecordedWorld], lines: Path = LINES) -> None:
    """Put what there is of searches in the worlds of all tasks into the table of the repository."""
    rows = of_worlds(worlds, lines)
    pq.write_table(pa.Table.from_pylist(rows), SEARCHES_PATH, compression="zstd")
    lines.unlink(missing_ok=True)
    print(f"{SEARCHES_PATH.name}: {len(rows)} searches, {SEARCHES_PATH.stat().st_size} bytes")
