"""What is said of learned temperatures: where they ended, and the winner against them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tempopt.report.findings import find
from tempopt.report.learned_text import ends_text
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import LEARNED
from tests.simulated import SimulatedStudy


@pytest.mark.parametrize(
    ("ends", "ends_words"),
    [
        ({"0": (0.5, 0.4, 0.6)}, "τ of layer 0 = 0.5 (0.4 to 0.6)"),
        (
            {"1.3": (0.5, 0.4, 0.6), "contrast": (0.1, 0.1, 0.2)},
            "contrast = 0.1 (0.1 to 0.2), τ of layer 1, head 3",
        ),
        (
            {f"{layer}.{head}": (1.0 + 2 * layer + head, 1.0, 9.0) for layer in (0, 1) for head in (0, 1, 2)},
            "at the end of training τ from 1 in layer 0, head 0 to 5 in layer 1, head 2",
        ),
    ],
)
def test_where_learned_temperatures_ended_is_told_by_layer_and_head(
    ends: dict[str, tuple[float, float, float]], ends_words: str
) -> None:
    assert ends_words in ends_text(ends)


@pytest.mark.parametrize(("worth_of_learned", "state"), [(0.3, "worse"), (0.0, "shown"), (0.1, "not_shown")])
def test_the_winner_is_compared_with_learned_temperatures_on_request(
    worth_of_learned: float, state: str, make_spec: Any, result_of: Any
) -> None:
    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        noise = np.random.default_rng([t.seed % 2**32, len(str(t.parameters))]).normal(0, 0.01)
        gain = 0.1 * (t.parameters["temperature_init"] != 1.0)
        return float(noise + (worth_of_learned if LEARNED in t.parameters else gain))

    study = SimulatedStudy(make_spec(trials=6, explain=True), worth).run()
    result = result_of(study.spec, study.rows, state="done")
    by_kind = {finding.kind: finding for finding in find(result)}
    assert any("learned" in arms_of(run) for run in result.runs if run.kind == "ablation")
    assert by_kind["over_learned"].state == state
    assert by_kind["learned"].state == ("not_shown" if worth_of_learned == 0.0 else "shown")


def test_nothing_is_said_of_learned_temperatures_where_no_explanation_is_asked_for(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    kinds = {finding.kind for finding in find(result_of(make_spec(), whole_study, state="done"))}
    assert not kinds & {"learned", "over_learned", "part", "simplest"}
