"""The recorder's callback: validations under the last temperature and under that of the moment by turns."""

from __future__ import annotations

import dataclasses
from typing import Any

from tempopt.training.run import Run

MOVING = {"temperature_init": 4.0, "temperature_final": 0.5, "schedule": "linear"}


def test_every_second_validation_is_under_the_temperature_of_the_moment(
    request_for: Any, listener: Any
) -> None:
    def reports(validate_at: str, **trainer: Any) -> list[list[float]]:
        request = request_for(
            trainer={"max_steps": 24, "val_check_interval": 4, **trainer}, parameters=MOVING
        )
        program = dataclasses.replace(request.program, validate_at=validate_at)
        curve: list[list[float]] = (
            Run(dataclasses.replace(request, program=program), listener()).execute().reports
        )
        return curve

    alternate = {"class_path": "benchmarks.recorded.alternate.Alternate", "init_args": {"every": 4}}
    final, current = reports("final"), reports("current")
    assert [step for step, _ in final] == [4, 8, 12, 16, 20, 24]
    assert all(
        final_report != current_report
        for final_report, current_report in zip(final[:-1], current[:-1], strict=True)
    )
    mixed = [current[0], final[1], current[2], final[3], current[4], final[5]]
    assert reports("final", callbacks=[alternate]) == mixed
