"""Whole studies in simulated worlds, by tempopt's own decisions, whose reports say what to do and how."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from html import unescape
from typing import Any

import pytest

from benchmarks.simulated.whole import StudySimulation, with_study
from benchmarks.simulated.worlds import ModelWorld, world_of
from tempopt import cli
from tempopt.report.page.html import render_report
from tempopt.report.study_result import StudyResult
from tempopt.spec.domains import RangeDomain
from tempopt.spec.study_spec import StudySpec
from tempopt.verdict.pairs import more_pairs
from tests.report.full_text import full_lines

URL = "sqlite:///the lab's.db"
FAST = {"sampler": "random", "pruner": "none"}

RunStudy = Callable[..., StudyResult]


@pytest.fixture(scope="module")
def carry_out(result_of: Callable[..., StudyResult]) -> RunStudy:
    """Return what carries out a study in a world and reads it; keyword arguments go to ``study:``."""

    def run_study(world: ModelWorld, space: Mapping[str, tuple[float, float]], **study: Any) -> StudyResult:
        ranges = {name: {"low": low, "high": high, "log": True} for name, (low, high) in space.items()}
        schedule = {"schedule": ["linear"]} if len(space) > 1 else {}
        spec = StudySpec.from_json({**world.spec.to_json(), "search": {**ranges, **schedule}})
        simulation = StudySimulation(world, with_study(spec, **study))
        assert simulation.run() is not None
        return result_of(
            with_study(spec, **study),
            simulation.rows,
            [*simulation.reports, *simulation.measurements],
            "done",
        )

    return run_study


def page_parts(result: StudyResult) -> tuple[str, str, list[str]]:
    """Return the answer and what to do on the page of a study, and the commands there."""
    page = render_report(result, plotlyjs="cdn", storage=URL)
    answer = re.search(r'class="word">(.*?)</h2>', page)
    todo = re.search(r"<b>What to do:</b> (.*?)</p>", page, re.DOTALL)
    assert answer is not None and todo is not None
    commands = [unescape(command) for command in re.findall(r"<code>(.*?)</code>", todo[1])]
    return answer[1], unescape(re.sub("<[^>]*>", "", todo[1])), commands


def parse_command(command: str) -> Any:
    """Return what the command line makes of a copied command."""
    parser, _ = cli.build_parsers()
    tempopt, *words = shlex.split(command)
    assert tempopt == "tempopt"
    namespace = parser.parse_args(words)
    assert namespace.storage == URL
    return namespace


def test_a_gain_that_is_not_decided_names_the_pairs_that_decide_it(carry_out: RunStudy) -> None:
    result = carry_out(world_of("level-0@0.5"), {"temperature_init": (0.25, 4.0)}, trials=4, min_gain=0.01,
                     seeds={"confirm": 6}, **FAST)  # fmt: skip
    answer, todo, (command, _) = page_parts(result)
    assert answer == "No gain shown"
    assert todo.startswith("Use τ = 1, as now. ") and " show a gain of 0.01, study.min_gain, with " in todo
    namespace = parse_command(command)
    assert (namespace.command, namespace.name) == ("resume", result.name)
    extra_tickets = more_pairs(result.runs, result.spec, namespace.add_pairs)
    assert f"{namespace.add_pairs} more pairs ({len(extra_tickets)} runs, " in todo


def test_a_gain_that_grows_to_the_end_of_the_range_names_what_widens_it(carry_out: RunStudy) -> None:
    result = carry_out(world_of("level-0@5"), {"temperature_init": (0.7, 1.5)}, trials=4,
                     enqueue=[{"temperature_init": 0.7}], **FAST)  # fmt: skip
    answer, todo, (wider, export) = page_parts(result)
    assert answer == "Gain shown"
    assert todo.startswith("Use τ = 0.7. ")
    namespace = parse_command(wider)
    name = f"{result.name}_wider"
    assert (namespace.command, namespace.name, parse_command(export).command) == ("search", name, "export")
    domain = result.spec.with_overrides([*namespace.set, f"study.name={name}"]).search["temperature_init"]
    assert isinstance(domain, RangeDomain) and domain.low < 0.7 and (domain.high, domain.log) == (1.5, True)
    assert "the range of temperature_init (0.7 to 1.5)" in todo
    # the winner is a constant, with which it is not compared
    assert not any("constant temperature" in line for line in full_lines(result))
