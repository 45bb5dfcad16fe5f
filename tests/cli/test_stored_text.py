"""Text of the database is shown as text, whatever it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempopt import cli
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tests.cli.test_show import SPEC


@pytest.mark.parametrize("metric", ["loss[/val]", "acc[top1]", "loss\x1b[31m"])
def test_the_name_of_a_metric_is_shown_as_text(
    metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'tempopt.db'}"
    spec = StudySpec.parse({**SPEC, "study": {**SPEC["study"], "metric": metric}}, source="the test")
    with open_store(url, create=True) as store:
        store.create_study("pairs", spec.to_json(), spec.identity())
    assert cli.main(["list", "--storage", url]) == cli.main(["show", "pairs", "--storage", url]) == 0
    assert capsys.readouterr().out.count(metric.replace("\x1b", r"\x1b")) == 2
