"""Forms of results that ``tempopt.judge`` reads, and what it says of those that it cannot read."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tempopt
from tempopt.errors import UsageError

judge = functools.partial(tempopt.judge, direction="maximize")
OLD = {1: 0.91, 2: 0.92, 3: 0.90, 4: None}
NEW = {1: 0.93, 2: 0.95, 3: 0.92, 4: 0.96}
ROWS = [(name, seed, value) for name, runs in (("old", OLD), ("new", NEW)) for seed, value in runs.items()]
FRAME = pd.DataFrame(ROWS, columns=["variant", "seed", "value"])
HEADER = "variant,seed,value\n"
GOOD = f"{HEADER}old,1,0.5\nold,2,0.6\nnew,1,0.7\nnew,2,0.75\n"


class ColumnTable:
    """A frame of polars' form: columns by name, None for what is missing, and no index."""

    columns = ("value", "note", "seed", "variant")

    def __getitem__(self, name: str) -> list[Any]:
        variants, seeds, values = zip(*ROWS, strict=True)
        return list({"variant": variants, "seed": seeds, "value": values}[name])


@pytest.mark.parametrize(
    "data",
    [
        {"old": {**OLD, 4: math.nan}, "new": {"1": 0.93, "2.0": "0.95", 3.0: 0.92, 4: 0.96}},
        ROWS,
        [dict(zip(("variant", "seed", "value"), row, strict=True)) for row in ROWS],
        iter(ROWS),
        FRAME,
        FRAME.assign(note="x").sample(frac=1, random_state=1).sort_values("variant", ascending=False),
        FRAME.astype({"value": "Float64", "seed": "string"}),
        FRAME.astype({"value": "float32", "variant": "category"}),
        ColumnTable(),
    ],
    ids=["mappings", "tuples", "rows", "iterator", "frame", "shuffled", "nullable", "float32", "columns"],
)
def test_all_forms_of_the_same_results_have_the_same_verdict(data: Any) -> None:
    expected = judge({"old": OLD, "new": NEW}).to_json()["comparison"]
    comparison = judge(data).to_json()["comparison"]
    variant, expected_variant = comparison["variants"][0], expected["variants"][0]
    for name in ("gain", "ci_low", "ci_high", "p_value"):
        assert variant[name] == pytest.approx(expected_variant[name], rel=1e-4, abs=1e-8)
    assert (variant["n_pairs"], variant["reference_failed"], comparison["reference"]["name"]) == (4, 1, "old")


def test_a_file_is_read_as_its_rows_are(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "results.csv", index=False)
    for path in (tmp_path / "results.csv", str(tmp_path / "results.csv")):
        assert judge(path).to_json() == judge(ROWS).to_json()


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\n\n"),
        GOOD.rstrip("\n"),
        GOOD.replace(",", " , "),
        GOOD.replace("old", '"old"').replace("0.7\n", '"0.7"\n'),
        GOOD.replace("0.7\n", "7e-1\n").replace("0.5", "+.5"),
        GOOD.replace("1,0", "1.0,0").replace("new,2", "new,02"),
        GOOD.replace(",", ";"),
        GOOD.replace(",", "\t"),
        GOOD.replace(HEADER, "Variant, SEED, Value\n"),
        "value,note,variant,seed\n0.5,a,old,1\n0.6,,old,2\n0.7,c,new,1\n0.75,d,new,2\n",
    ],
)
def test_the_same_table_may_be_written_in_several_ways(text: str, tmp_path: Path) -> None:
    path, plain_path = tmp_path / "results.csv", tmp_path / "plain.csv"
    path.write_text(text, encoding="utf-8", newline="")
    plain_path.write_text(GOOD, encoding="utf-8")
    assert judge(path).to_json() == judge(plain_path).to_json()


@pytest.mark.parametrize("value", ["", " ", "nan", "NaN", "inf", "-Infinity", "1e101", "1e999"])
def test_a_run_without_a_finite_value_has_failed(value: str, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(GOOD.replace("0.75", value), encoding="utf-8")
    judgement = judge(path)
    assert judgement.comparison.variants[0].failed == 1
    assert "new: mean 0.7 of 1 seed, 1 failed." in str(judgement)


MALFORMED = {
    "empty": ("", "is empty"),
    "no rows": (HEADER, "has no rows"),
    "one variant": (f"{HEADER}old,1,0.5\nold,2,0.6\n", "has only the variant old"),
    "no header": (GOOD[len(HEADER) :], "line 1: the header 'old, 1, 0.5' has no column variant"),
    "no variant": (GOOD.replace("variant", "model"), "no column variant"),
    "capitals": (GOOD.replace(HEADER, "variant,seed,Value,value\n"), "more than one column value"),
    "nothing finite": (f"{HEADER}old,1,nan\nnew,1,\n", "no value is finite"),
    "word": (GOOD.replace("0.7\n", "good\n"), "line 4: the value 'good' is not a number"),
    "underscore": (GOOD.replace("0.7\n", "1_0\n"), "the value '1_0' is not a number"),
    "decimal comma": (GOOD.replace("0.7\n", "0,7\n"), "line 4: there are 4 fields and 3 columns"),
    "quoted comma": (GOOD.replace("0.7\n", '"0,7"\n'), "the value '0,7' is not a number"),
    "short row": (GOOD.replace("new,1,0.7", "new,1"), "line 4: there are 2 fields and 3 columns"),
    "second header": (f"{GOOD}{HEADER}", "line 6: the value 'value' is not a number"),
    "empty variant": (GOOD.replace("new,1", ",1"), "line 4: there is no variant"),
    "seed nan": (GOOD.replace("new,1", "new,nan"), "line 4: there is no seed"),
    "duplicate": (f"{GOOD}new,2,0.75\n", "line 6: variant new has seed 2 twice, first in "),
    "duplicate number": (f"{GOOD}new,2.0,0.75\n", "line 6: variant new has seed 2 twice, first in "),
    "quote left open": (GOOD.replace("new,1", '"new,1'), "unexpected end of data"),
    "text behind a quote": (GOOD.replace("new,1", '"new"er,1'), "line 4: ',' expected after '\"'"),
    "control character": (GOOD.replace("new,1", "n\x1b[2Jew,1"), r"the variant 'n\x1b[2Jew'"),
    "line break": (GOOD.replace("new,1", '"n\new",1'), r"the variant 'n\new'"),
    "long name": (GOOD.replace("new,1", "n" * 101 + ",1"), "is too long"),
    "sheet": ("PK\x03\x04\x14\0", "no column variant"),
}


@pytest.mark.parametrize(("text", "message"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_is_one_message(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(UsageError) as raised:
        judge(path)
    lines = str(raised.value).splitlines()
    assert len(lines) == 1 and lines[0].isprintable() and len(lines[0]) < 700
    assert message in lines[0] and str(path) in lines[0]
    assert any(remedy in lines[0] for remedy in ("Give ", "Keep one row"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(GOOD.replace("new", "n\xe4u").encode("latin-1"))
    for name, message in (("latin.csv", "not a text file"), ("no.csv", "cannot be read"), ("", "a folder")):
        with pytest.raises(UsageError, match=message):
            judge(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "The data are of type int"),
        ({}, "no rows"),
        ({"old": OLD}, "only the variant old"),
        ({"old": OLD, "new": 3}, "variant new: 3 is neither values by seed nor a list"),
        ({"old": OLD, "new": {1: "x"}}, "variant new, seed 1: the value 'x' is not a number"),
        ({"old": OLD, "new": {1: [0.5]}}, r"the value '\[0.5\]' is not a number"),
        ({"old": OLD, "new": {1: 10**400}}, "is not a number"),
        ({"old": OLD, "new": {1: 0.5, "1": 0.6}}, "variant new has seed 1 twice"),
        ([("old", 1)], "row 0: .* is not a variant, a seed and a value"),
        ([*ROWS, "abc"], "row 8: 'abc' is not a variant, a seed and a value"),
        ([{"variant": "old", "seed": 1}, {"variant": "new", "value": 1}], "row 1: there is no seed"),
        (FRAME.drop(columns="seed"), "The frame: the header .* has no column seed"),
        (FRAME.assign(seed=np.nan), "row 0: there is no seed"),
        (FRAME.assign(variant=pd.NA), "row 0: there is no variant"),
    ],
)
def test_data_of_another_form_are_refused(data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        judge(data)


def test_a_baseline_or_direction_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match='Unknown baseline "odl".*Did you mean "old"'):
        judge(ROWS, baseline="odl")
    with pytest.raises(UsageError, match='Unknown direction "up"'):
        tempopt.judge(ROWS, direction="up")  # type: ignore[arg-type]


def test_lists_make_no_pairs_and_seeds_do() -> None:
    lists = judge({"old": list(OLD.values()), "new": np.array([0.93, 0.95, 0.92])})
    assert lists.comparison.variants[0].answer.paired.sample_sizes == (3, 4)
    assert "independent samples (Welch's t-test)" in str(lists)
    assert "4 seeds, paired t-test" in str(judge({"old": OLD, "new": NEW}))


def test_what_is_said_of_seeds_that_one_variant_lacks() -> None:
    text = str(judge({"old": dict.fromkeys(range(20), 0.5), "new": {0: 0.6, 1: 0.5, 2: 0.4, "x": 1}}))
    assert "not in pairs, as new lacks them: seeds 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 7 more of old." in text
    assert "not in pairs, as old lacks them: seeds x of new." in text


@pytest.mark.parametrize(
    "new", [{1: 1.5, 2: 2.0, 3: 2.5}, {4: 1.5, 5: 2.0, 6: 2.5, 7: 2.0}], ids=["paired", "samples"]
)
def test_a_gain_that_is_not_shown_says_how_many_more_seeds_it_takes(new: dict[int, float]) -> None:
    judgement = judge({"old": {1: 1.0, 2: 2.0, 3: 1.5}, "new": new})
    variant = judgement.to_json()["comparison"]["variants"][0]
    assert variant["more_seeds"] == variant["seeds_needed"] - 3 > 0
    assert f"{variant['more_seeds']} more seeds would show a gain of new" in str(judgement)


@pytest.mark.parametrize(
    ("new", "gain"),
    [
        ({1: 1.2}, 0.2),  # its noise is not known
        ({1: 1.5, 2: 2.0, 3: 9.0, 4: None}, 2.0),  # it fails more often
        ({1: 0.5, 2: 2.1, 3: 1.4, 4: 1.2}, -0.1),
        ({1: 2.1, 2: 3.0, 3: 2.5, 4: 2.4}, 1.1),
    ],
)
def test_no_number_of_seeds_where_more_of_them_may_not_help(new: dict[int, float], gain: float) -> None:
    old = dict(zip(new, (1.0, 2.0, 1.5, 1.1), strict=False))
    judgement = judge({"old": old, "new": new})
    answer = judgement.comparison.variants[0].answer
    assert answer is not None and answer.paired.gain == pytest.approx(gain, abs=0.1)
    assert judgement.seeds_needed == {"new": None} and "more seeds would" not in str(judgement)


def test_the_baseline_is_the_first_variant_or_the_named_one() -> None:
    values = {name: {seed: float(seed % 3) for seed in range(5)} for name in ("a", "b", "c")}
    assert judge(values).comparison.reference == "a"
    judgement = judge(values, baseline="b")
    assert judgement.comparison.reference == "b"
    assert [variant.name for variant in judgement.comparison.variants] == ["a", "c"]
    assert "a and b have the same value on every seed: a has no effect on it." in str(judgement)
    assert repr(judgement).startswith("Judgement('No gain shown: in value none of a, c is shown")
