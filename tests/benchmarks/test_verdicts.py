"""Whole studies in memory, as the product does them, and what is counted of their verdicts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import binomtest

from benchmarks.false_positives import CLAIMS, list_claims, with_named
from benchmarks.recorded.world import RecordedWorld
from benchmarks.simulated import judged
from benchmarks.simulated.judged import Cell
from benchmarks.simulated.whole import sampled_by, with_study
from benchmarks.simulated.worlds import PAIR, world_of
from benchmarks.verdict_runs import STUDIES, table_cells
from tempopt.spec.load import load_spec
from tempopt.temperature import add_learned_temperatures

_CELL = Cell(world="null-3", trials=6, rounds=2, sampler="random")


@pytest.fixture(scope="module")
def record() -> dict[str, object]:
    return _CELL.study(3)


def test_a_study_is_the_same_twice(record: dict[str, object]) -> None:
    # as text: a p-value that is not there is nan, which equals nothing
    first, second_record = (
        json.dumps({**study_record, "seconds": 0}) for study_record in (record, _CELL.study(3))
    )
    assert second_record == first


def test_a_record_has_every_answer_with_its_truth(record: dict) -> None:
    assert len(record["verdicts"]) == 2
    for verdict in record["verdicts"]:
        answers = {answer["name"]: answer for answer in verdict["answers"]}
        answer_names = {"total", "over_baseline", "over_twin", "inference_only"}
        assert {name for name, answer in answers.items() if answer.get("truth") is not None} >= answer_names
        for answer in (answers[name] for name in answer_names):
            assert answer["held"] == (answer["low"] <= answer["truth"] <= answer["high"])
        # where temperature does nothing, neither does another one at the end, nor is a twin worse
        assert answers["inference_only"]["truth"] == answers["over_twin"]["truth"] == 0
        # constants are compared with once a gain is shown
        assert answers["total"]["shown"] or "against_constant" not in answers
        assert {run_count["kind"] for run_count in verdict["runs"]} >= {"search", "choose", "confirm"}


def test_records_outlive_the_script_and_a_line_that_was_cut_off(record: dict, tmp_path: Path) -> None:
    lines = tmp_path / "verdicts.jsonl"
    judged.keep(record, lines)
    with lines.open("a") as file:
        file.write('{"world": "null-3", "tri')
    assert judged.record_key(record) in {
        judged.record_key(stored_record) for stored_record in judged.load_records(lines)
    }


def test_what_learned_temperatures_gain_and_what_is_recommended_is_recorded() -> None:
    record = Cell(world="two-level-3@4", trials=10, rounds=1, sampler="random", explain=True).study(3)
    answers = {answer["name"]: answer for answer in record["verdicts"][0]["answers"]}
    assert answers["total"]["shown"] and answers["recommends"]["shown"]
    assert answers["against_constant"]["truth"] is not None
    half, winner = answers["learned"]["truth"], answers["over_baseline"]["truth"]
    assert half == pytest.approx(0.5 * 4.0 * PAIR, abs=1e-4)
    assert answers["over_learned"]["truth"] == pytest.approx(winner - half, abs=2e-4)
    assert answers["share:learned"]["truth"] == pytest.approx(half / winner, abs=0.01)


def test_claims_where_nothing_is_to_be_gained_are_as_rare_as_is_allowed() -> None:
    records = [Cell(world="two-0", trials=8, rounds=1, sampler="random").study(seed) for seed in range(60)]
    # 2 % are allowed of each; six or more of 60 have then a chance of 1 in 1,000
    for answer in ("total", "learned", "against_constant", "recommends"):
        assert world_of("two-0").false(answer)
        assert judged.by_then(records, answer, 1) < 6


@pytest.mark.parametrize("task", ["max_retrieval", "digits"])
def test_recorded_trainings_with_named_temperatures_make_a_study_without_differences(task: str) -> None:
    world = RecordedWorld(task, is_shuffled=True)
    spec = with_named(world.spec)
    assert spec.temperatures.keys() == {"contrast", "teacher"}
    counts = Counter[str]()
    for seed in range(6):
        counts.update(list_claims(world, with_study(spec, seed=seed, trials=6, **sampled_by("random"))))
    assert set(counts) <= set(CLAIMS)
    assert sum(counts.values()) < 4
    # what is learned is another training, and so is another temperature
    baseline = spec.parameters("baseline", {name: 0.003 for name in spec.ordinary_names})
    for changed_params in (
        add_learned_temperatures(baseline, 1.0),
        {**baseline, "contrast.temperature_init": 0.7},
    ):
        assert any(world.train(changed_params, s).test != world.train(baseline, s).test for s in range(4))


def _of_readme() -> dict[str, list[str]]:
    """Return README's table of the runs that a verdict takes: its cells by study."""
    text = Path("benchmarks/README.md").read_text()
    section = text.partition("## Runs that a verdict takes")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in lines}


def test_readme_counts_the_runs_of_every_bundled_study() -> None:
    cells_by_study = _of_readme()
    assert set(STUDIES) <= cells_by_study.keys()
    for name in ("clip_digits", "gumbel_digits", "distillation", "qk_norm_lm"):
        assert cells_by_study[name] == table_cells(load_spec(name))


def _make_record(seed: int, *is_shown: bool) -> dict:
    answers = [{"name": "total", "shown": is_claimed} for is_claimed in is_shown]
    verdicts = [{"answers": [answer], "runs": [{"kind": "search", "runs": 20}]} for answer in answers]
    cell = {"world": "null-0", "trials": 20, "rounds": 5, "sampler": "random", "explain": False}
    return {**cell, "seed": seed, "seconds": 1.0, "verdicts": verdicts}


def test_a_claim_counts_from_the_verdict_on_that_made_it() -> None:
    quiet = [_make_record(seed, *[False] * 5) for seed in range(97)]
    loud = [_make_record(100, True, *[False] * 4), _make_record(101, False, False, True, False, False)]
    records = [*quiet, *loud, _make_record(102, False, True, False, False, True)]
    assert [judged.by_then(records, "total", num_verdicts) for num_verdicts in (1, 2, 5)] == [1, 2, 3]
    line = next(line for line in judged.tables(records) if line.startswith("| null-0"))
    p = binomtest(3, 100, 0.025, alternative="greater").pvalue
    assert f"| 1 (1.0%) | 2 (2.0%) | 3 (3.0%) | {p:.2g} |" in line


def test_holm_allows_for_as_many_as_there_are() -> None:
    assert judged.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
