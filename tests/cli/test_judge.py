"""``tempopt judge`` as a gate for scripts: exit codes, JSON, and what it does not load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tempopt
from tempopt import cli

BETTER = {"old": [0.50, 0.52, 0.49, 0.51], "new": [0.60, 0.63, 0.58, 0.61]}
EQUAL = {"old": [0.50, 0.52, 0.49, 0.51], "new": [0.51, 0.50, 0.50, 0.52]}
UP = ["--direction", "maximize"]
# What a verdict on given numbers has no use for.
NOT_LOADED = ("torch", "lightning", "optuna", "sqlalchemy", "scipy.stats", "pandas", "rich", "plotly")


@pytest.fixture
def results(folder: Path) -> Path:
    return write(folder / "results.csv", BETTER)


def write(path: Path, values: dict[str, list[float]]) -> Path:
    rows = [f"{name},{seed},{value}" for name, runs in values.items() for seed, value in enumerate(runs)]
    path.write_text("\n".join(["variant,seed,value", *rows]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("values", "options", "code", "words"),
    [
        (BETTER, UP, 0, "Gain shown: value is higher by 0.100 with new than with old (95 % interval 0.0"),
        (BETTER, ["--direction", "minimize"], 4, "No gain shown: new is worse: value is higher by 0.100"),
        (BETTER, [*UP, "--baseline", "new"], 4, "No gain shown: old is worse: value is lower by 0.100"),
        (BETTER, ["--baseline", "new", "--direction", "minimize"], 0, "Gain shown: value is lower by 0.100"),
        (EQUAL, UP, 3, "No gain shown: the gain of new over old in value is +0.00"),
        (
            BETTER | {"bad": [0.1, 0.2, 0.1, 0.1]},
            UP,
            0,
            "Gain shown: in value new is better than old; bad is",
        ),
    ],
)
def test_the_exit_code_and_the_first_line_are_those_of_compare(
    values: dict[str, list[float]],
    options: list[str],
    code: int,
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(folder / "results.csv", values)
    assert cli.main(["judge", "results.csv", *options]) == code
    text = capsys.readouterr().out
    assert text.startswith(words) and "paired t-test" in text
    assert cli.main(["judge", str(path), *options, "--json"]) == code
    comparison = json.loads(capsys.readouterr().out)["comparison"]
    assert comparison["outcome"] == {0: "better", 3: "not_shown", 4: "worse"}[code]


def test_json_is_what_python_returns(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["judge", "results.csv", "--json", *UP]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == json.loads(
        json.dumps(tempopt.judge(results, direction="maximize").to_json(), allow_nan=False)
    )
    assert set(data) == {"metric", "direction", "decision", "findings", "comparison"}
    decision, (variant,) = data["decision"], data["comparison"]["variants"]
    assert (decision["outcome"], decision["use"], decision["baseline"]) == ("gain", "new", "old")
    assert decision["change"] == variant["gain"] == pytest.approx(0.1)
    assert (variant["test"], variant["n_pairs"], variant["sample_sizes"]) == ("t", 4, None)
    assert data["findings"][0]["state"] == "shown"


def test_a_file_that_is_not_as_it_should_be_is_a_usage_error(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results.write_text(results.read_text() + "\nnew,3,0.5\n")
    assert cli.main(["judge", "results.csv", *UP]) == 2
    captured_output = capsys.readouterr()
    assert captured_output.out == ""
    assert captured_output.err == (
        "tempopt: error: results.csv, line 10: variant new has seed 3 twice, first in results.csv, line 9. "
        "Keep one row for each variant and seed.\n"
    )


def test_the_output_says_which_values_are_better(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["judge", "results.csv"]) == 0
    assert "a higher value is better" in capsys.readouterr().out.splitlines()[0]
    assert cli.main(["judge", "results.csv", "--direction", "minimize"]) == 4
    assert "a lower value is better" in capsys.readouterr().out.splitlines()[0]


def test_it_loads_neither_a_trainer_nor_a_database_nor_scipys_tests(results: Path) -> None:
    program = (
        f"import sys; from tempopt import cli; code = cli.main(['judge', 'results.csv', *{UP}]); "
        f"print(code, [name for name in {NOT_LOADED} if name in sys.modules], file=sys.stderr)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stderr == "0 []\n"
    assert "paired" in process.stdout
