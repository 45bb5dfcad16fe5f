"""Who asks for a dry run hears of its parts while it goes on."""

from __future__ import annotations

from unittest.mock import Mock

from tempopt.agent.dry_run import note_long_stages, run_dry_run
from tempopt.spec.study_spec import StudySpec
from tempopt.training.messages import Finished, Stage

STAGES = [
    Stage(ticket=0, attempt=1, what="made model and data", seconds=0.04),
    Stage(ticket=0, attempt=1, what="tested the temperatures of 12 layers", seconds=41.26),
]


END = Finished(
    ticket=0, attempt=1, state="complete", step=2, measurements={}, metrics={}, seconds=0.0, reports=[]
)


def spec() -> StudySpec:
    return StudySpec.parse(
        {
            "study": {"name": "s", "metric": "val_loss", "direction": "minimize"},
            "model": {"class_path": "m.Model"},
            "trainer": {"max_steps": 2},
            "search": {"temperature_init": {"low": 0.5, "high": 2}},
        },
        source="test",
    )


def test_parts_are_told_as_they_end_and_a_search_notes_those_for_which_a_person_has_waited() -> None:
    stages: list[Stage] = []
    notes: list[str] = []
    for on_stage in (stages.append, note_long_stages(notes.append)):
        worker = Mock(receive=Mock(side_effect=[*STAGES, END]))
        run_dry_run(spec(), worker, task="dry_run", on_stage=on_stage)
    assert stages == STAGES
    assert notes == ["Dry run: tested the temperatures of 12 layers (41.3 s)."]
