"""Rows with values that tempopt has not written: every reading command shows the rest, and says so."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tempopt.cli import main
from tempopt.storage.models import METADATA
from tests.rows import MAPS
from tests.spoiled import spoil_document
from tests.toy_study import EndedStudy

COMMANDS = (
    ("list",),
    ("list", "--json"),
    ("show", "toy"),
    ("show", "toy", "--full"),
    ("show", "toy", "--json"),
    ("show", "toy", "--heads"),
    ("logs", "toy"),
    ("export", "toy"),
    ("report", "toy"),
)
VALUES = [
    None,
    "",
    "text",
    "\x1b[2J",
    "x" * 100_000,
    b"\xff\xfe",
    -1,
    2**63 - 1,
    1e308,
    "NaN",
    "[" * 10_000,
    "[" * 400 + "]" * 400,
    '{"a":' * 400 + "1" + "}" * 400,
    "null",
    "[]",
    "{}",
    '"text"',
    "1" * 5000,
    "2026-13-45 99:99:99",
]
"""Values in place of a whole column."""


def columns() -> Iterator[tuple[str, str]]:
    """Yield table and column of every column but primary keys."""
    for table in METADATA.sorted_tables:
        for column in table.columns:
            if not column.primary_key:
                yield table.name, column.name


def spoil_row(path: Path, seed: int) -> str:
    """Change a value of a row, and return where."""
    chance = random.Random(seed)
    spots = list(columns())
    with closing(sqlite3.connect(path)) as connection, connection:
        while True:
            table, column = chance.choice(spots)
            rows = connection.execute(f'SELECT rowid, "{column}" FROM {table}').fetchall()
            if rows:
                break
        rowid, value = chance.choice(rows)
        try:
            document = json.loads(value)
        except (TypeError, ValueError):
            document = None
        draw = chance.random()
        if document is not None and draw < 0.7:
            text: Any = json.dumps(spoil_document(document, chance))
        elif isinstance(value, str) and draw < 0.8:
            text = value[: len(value) // 2]
        else:
            text = chance.choice(VALUES)
        try:
            connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (text, rowid))
        except sqlite3.IntegrityError:
            connection.execute(f"UPDATE {table} SET \"{column}\" = 'text' WHERE rowid = ?", (rowid,))
            text = "text"
    return f"{table}.{column} of row {rowid}: {str(text)[:300]!r}"


def add_rows(path: Path) -> None:
    """Add a row to the tables that the study of these tests leaves empty."""
    with closing(sqlite3.connect(path)) as connection, connection:
        pair = "SELECT id FROM tempopt_ticket WHERE kind = 'confirm' AND pair = 0 AND arm LIKE '%search%'"
        connection.execute(
            f"INSERT INTO tempopt_attention_map SELECT id, ? FROM ({pair})", (json.dumps(MAPS),)
        )
        connection.execute(
            "INSERT INTO tempopt_job (study, launcher, id, options, created) VALUES (?, ?, ?, ?, ?)",
            ("toy", "gone", "7", '{"address": "http://127.0.0.1:9"}', "2026-01-01 00:00:00.000000"),
        )


def read_all(where: str, capsys: pytest.CaptureFixture[str]) -> bool:
    """Run the reading commands, and return whether any said that something is damaged."""
    says = False
    for command in COMMANDS:
        code = main([*command])
        output = capsys.readouterr()
        assert code in (0, 1, 2), (where, command)
        assert "Traceback" not in output.out + output.err, (where, command, output.err)
        assert len(output.err) <= 2000, (where, command, output.err)
        says |= "damaged" in output.out + output.err
    return says


SEEDS = [[seed] for seed in range(30)]
# In few tests, since the long ones are split into groups by their number.
SEEDS_OF_LONG = [range(start, start + 47) for start in range(30, 500, 47)]


@pytest.mark.parametrize(
    "seeds", [*SEEDS, *(pytest.param(seeds, marks=pytest.mark.long) for seeds in SEEDS_OF_LONG)]
)
def test_a_damaged_value_keeps_no_study_from_being_read(
    seeds: Sequence[int], undisturbed_fake: EndedStudy, toy_folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("tempopt.db")
    for seed in seeds:
        shutil.copy(undisturbed_fake.folder / path, path)
        add_rows(path)
        read_all(spoil_row(path, seed), capsys)


def test_a_ticket_without_a_stage_is_left_out_of_the_list(
    undisturbed_fake: EndedStudy, toy_folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("tempopt.db")
    shutil.copy(undisturbed_fake.folder / path, path)
    assert main(["list", "--json"]) == 0
    (before,) = json.loads(capsys.readouterr().out)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tempopt_ticket SET stage = 'text' WHERE kind = 'search' AND number = 1")
    assert main(["list", "--json"]) == 0
    (study,) = json.loads(capsys.readouterr().out)
    assert study["tickets"]["done"] == before["tickets"]["done"] - 1


def test_a_line_says_what_is_left_out(
    undisturbed_fake: EndedStudy, toy_folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("tempopt.db")
    shutil.copy(undisturbed_fake.folder / path, path)
    add_rows(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tempopt_attention_map SET maps = '{\"moments\": 1}'")
        connection.execute("UPDATE tempopt_ticket SET parameters = '[' WHERE kind = 'search' AND number = 1")
    texts = {}
    for command in COMMANDS:
        assert main([*command]) == 0
        texts[command] = capsys.readouterr().out
    line = "search-1 counts as failed: its row is damaged in the database: parameters"
    assert line in texts["show", "toy"] and line in texts["show", "toy", "--full"]
    assert line in Path("toy.html").read_text()
    data = json.loads(texts["show", "toy", "--json"])
    assert [finding["kind"] for finding in data["findings"]].count("damaged") == 1
    assert data["trials"]["failed"] == 1 and data["heads"] is None
