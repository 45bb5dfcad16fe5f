"""Whole studies in memory, as the product does them, and what is counted of their verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.stats import binomtest

from benchmarks.simulated import judged, judgement
from benchmarks.simulated.judged import Cell
from benchmarks.simulated.whole import Whole, with_study
from benchmarks.simulated.worlds import world_of
from tempopt.confirmation.evaluations import evaluations
from tempopt.confirmation.pairs import winner_of
from tempopt.records.tickets import arms_of

_CELL = Cell(world="null-3", trials=6, rounds=2, sampler="random")


@pytest.fixture(scope="module")
def record() -> dict[str, object]:
    return _CELL.study(3)


def test_a_study_of_two_rounds_has_two_verdicts_on_fresh_seeds() -> None:
    world = world_of("level-3")
    study = Whole(world, with_study(world.spec, seed=1, trials=6, sampler="random", pruner="none"))
    found = list(study.rounds(2, 4))
    assert [verdict and verdict.round for verdict in found] == [0, 1]
    assert sum(row.kind == "search" for row in study.rows) == 10
    seeds = [{row.seed for row in study.rows if (row.kind, row.round) == ("confirm", n)} for n in (0, 1)]
    assert seeds[0] and seeds[1] and not seeds[0] & seeds[1]


def test_everything_that_a_verdict_asks_to_measure_is_measured() -> None:
    world = world_of("inference-80")
    spec = with_study(world.spec, seed=1, trials=6, sampler="random", pruner="none")
    study = Whole(world, spec)
    verdict = study.run()
    assert verdict is not None and verdict.inference_only is not None
    winner = winner_of(study.rows, spec) or {}
    for row in study.rows:
        if row.kind in ("choose", "confirm", "init_only"):
            asked = evaluations(row.kind, arms_of(row), spec, winner, row.parameters or {})
            names = {each.name for each in asked}
            measured = {each.name for each in study.measurements if each.ticket_id == row.id}
            assert measured == names


def test_what_is_enqueued_is_tried_first() -> None:
    world = world_of("null-1")
    wanted = {"temperature_init": 0.5, "schedule": "constant", "lr": 0.003}
    study = Whole(world, with_study(world.spec, trials=4, enqueue=[wanted], sampler="random", pruner="none"))
    first = next(study.searched())
    assert wanted.items() <= (first.parameters or {}).items()


def test_a_study_is_the_same_twice(record: dict[str, object]) -> None:
    # as text: a p-value that is not there is nan, which equals nothing
    first, again = (json.dumps({**each, "seconds": 0}) for each in (record, _CELL.study(3)))
    assert again == first


def test_a_record_has_every_answer_with_its_truth(record: dict) -> None:
    assert len(record["verdicts"]) == 2
    for verdict in record["verdicts"]:
        answers = {each["name"]: each for each in verdict["answers"]}
        known = {"total", "over_baseline", "over_twin", "against_constant", "inference_only", "init_only"}
        assert {name for name, each in answers.items() if each.get("truth") is not None} >= known
        for each in (answers[name] for name in known):
            assert each["held"] == (each["low"] <= each["truth"] <= each["high"])
        # where temperature does nothing, neither does another one at the end, nor is a twin worse
        assert answers["inference_only"]["truth"] == answers["over_twin"]["truth"] == 0
        assert sum(each["runs"] for each in verdict["runs"]) > 30


def test_records_outlive_the_script_and_a_line_that_was_cut_off(record: dict, tmp_path: Path) -> None:
    lines = tmp_path / "verdicts.jsonl"
    judged.keep(record, lines)
    with lines.open("a") as file:
        file.write('{"world": "null-3", "tri')
    assert judged.which(record) in {judged.which(each) for each in judged.known(lines)}


def _made(seed: int, *shown: bool) -> dict:
    answers = [{"name": "total", "shown": each} for each in shown]
    verdicts = [{"answers": [each], "runs": [{"kind": "search", "runs": 20}]} for each in answers]
    cell = {"world": "null-0", "trials": 20, "rounds": 5, "sampler": "random", "ablation": "auto"}
    return {**cell, "seed": seed, "seconds": 1.0, "verdicts": verdicts}


def test_a_claim_counts_from_the_verdict_on_that_made_it() -> None:
    quiet = [_made(seed, *[False] * 5) for seed in range(97)]
    loud = [_made(100, True, *[False] * 4), _made(101, False, False, True, False, False)]
    records = [*quiet, *loud, _made(102, False, True, False, False, True)]
    assert [judgement.by_then(records, "total", at) for at in (1, 2, 5)] == [1, 2, 3]
    line = next(line for line in judgement.tables(records) if line.startswith("| null-0"))
    p = binomtest(3, 100, 0.025, alternative="greater").pvalue
    assert f"| 1 (1.0%) | 2 (2.0%) | 3 (3.0%) | {p:.2g} |" in line


def test_holm_allows_for_as_many_as_there_are() -> None:
    assert judgement.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
