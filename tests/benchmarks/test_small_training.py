"""Real small trainings are tempopt's to the bit, and a loss is judged the other way round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import answer_cost, answer_peers, small_training
from benchmarks.simulated.answers import known
from benchmarks.small_tasks import TASKS, Task
from benchmarks.small_training import check

LOSS = TASKS["qk_norm_lm"]


def shorter(task: Task) -> Task:
    """Return a task with fewer steps."""
    found: Task = type("Shorter", (type(task),), {"total": 10, "every": 2})()
    return found


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_training_is_a_workers_to_the_bit_at_both_sizes(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    check(shorter(task))
    assert capsys.readouterr().out.count("to the bit") == 2


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_less_is_better_of_a_loss_alone(task: Task) -> None:
    assert task.sign == (-1.0 if task is LOSS else 1.0)


def test_the_proxy_of_the_language_model_reads_a_quarter_of_the_length() -> None:
    for small, length in ((False, 64), (True, 16)):
        assert LOSS.batch(1, 0, small).bytes_BN.shape == (8, length)
        assert {batch.bytes_BN.shape[1] for each in LOSS.validation(small) for batch in each} == {length}
        assert LOSS.spec_with(LOSS.proxy if small else {}).program().data["init_args"]["length"] == length


def test_what_a_study_names_is_worth_the_more_the_smaller_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_training, "fresh", lambda task, each: [3.5, 3.75])
    monkeypatch.setattr(answer_cost, "answered", lambda study, worth, more: [{"worth": worth({})}])
    found = list(answer_cost.in_trained(LOSS.name, 0, "plain"))
    assert [(each["way"], each["verdicts"][0]["worth"]) for each in found] == [("plain", -3.625)]
    found = list(answer_cost.in_trained("max_retrieval", 0, "plain"))
    assert found[0]["verdicts"][0]["worth"] == 3.625


def test_one_way_alone_is_run_and_what_is_there_is_not_written_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines, runs = tmp_path / "lines.jsonl", []
    monkeypatch.setattr(answer_cost, "LINES", lines)

    def run(*ways: str) -> None:
        def job() -> Iterator[answer_cost.Record]:
            runs.append(ways)
            yield from ({"way": way} for way in ways)

        answer_cost._run("trained", [("world", 3, job)], math.inf, ways[0])

    for ways in (("proxy",), ("plain", "proxy")):
        run(*ways)
        run(*ways)
    assert runs == [("proxy",), ("plain", "proxy")]
    assert [each["way"] for each in known(lines)] == ["proxy", "plain"]


def _study(direction: str) -> Any:
    rows = [
        SimpleNamespace(id=place, kind="search", outcome="complete", value=value, parameters={"at": value})
        for place, value in enumerate([3.75, 3.5, None, 4.0])
    ]
    return SimpleNamespace(rows=rows, spec=SimpleNamespace(study=SimpleNamespace(direction=direction)))


def test_the_best_of_what_was_searched_has_the_smallest_loss() -> None:
    assert answer_peers._best(_study("minimize")) == {"at": 3.5}
    assert answer_peers._best(_study("maximize")) == {"at": 4.0}


def test_a_smaller_loss_is_a_gain_in_the_table() -> None:
    def record(searcher: str, loss: float, steps: int = 800, repetition: int = 0) -> dict[str, Any]:
        tested = list(loss + np.array([0.0, 0.125]))
        return {"searcher": searcher, "repetition": repetition, "steps": steps, "tested": tested}

    constants = [record(answer_peers._constant(tau), 3.5 + tau / 4, 0) for tau in LOSS.constants]
    searched = [record(answer_peers.DEFAULT, 3.5), record("Optuna GP", 3.625)]
    lines = answer_peers.table(LOSS, [*constants, *searched]).splitlines()
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in lines}
    assert cells[answer_peers.DEFAULT][5:7] == ["+0.250", "+0.062"]
    assert cells["Optuna GP"][5:8] == ["+0.125", "−0.062", "−0.125"]
    assert lines[-1] == "| τ = 2 | | | 4.0625 | | −0.250 (−0.250 to −0.250) | | |"


@pytest.mark.parametrize("kind", ["PBT", "PB2"])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_ray_is_given_the_direction_of_the_task(task: Task, kind: str) -> None:
    pytest.importorskip("ray.tune")
    assert answer_peers._noting(task, kind)._metric_op == task.sign


def test_optunas_gaussian_process_is_given_the_direction_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[Any] = []

    class Made(small_training.Trained):
        def __init__(self, task: Task) -> None:
            super().__init__(task)
            worlds.append(self)

        def reached(self, parameters: Any, seed: int, until: float) -> float:
            self.steps += self.total_steps
            return float(abs(math.log(parameters["temperature_init"])))

    monkeypatch.setattr(answer_peers, "Trained", Made)
    found = answer_peers.by_gp(LOSS, 0)
    others = answer_peers.by_gp(TASKS["max_retrieval"], 0)
    assert [each.steps for each in worlds] == [found["steps"], others["steps"]]
    near, far = (abs(math.log(each["parameters"]["temperature_init"])) for each in (found, others))
    assert near < far
