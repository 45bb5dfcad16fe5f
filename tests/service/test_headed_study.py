"""Heads that were planted are named by a study, and those of an untrained model are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tempopt.api.calls import search
from tempopt.cli import main
from tempopt.report.heads_text import head_runs
from tempopt.service.studies import load_study
from tests.toy_study import SMALL, URL, toy_spec, work_in

PLANTED = {0: "previous_token", 1: "first_token", 2: "diagonal", 3: "uniform"}


@pytest.fixture(scope="module", params=[True, False], ids=["planted", "untrained"])
def ended_study(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a study, and whether its heads were planted."""
    folder = tmp_path_factory.mktemp("heads")
    space = {"temperature_init": {"low": 0.9, "high": 1.1}}
    trainer = {"max_steps": 12, "val_check_interval": 6}
    spec = toy_spec(space=space, trainer=trainer, learned=False, **SMALL)
    spec["model"] = {"class_path": "headed_modules.HeadedModule", "init_args": {"planted": request.param}}
    spec["data"] = {"class_path": "headed_modules.HeadedData"}
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        search(spec, storage=URL, workers=1)
    return folder, request.param


def test_heads_are_named_in_show_and_in_json(
    ended_study: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, is_planted = ended_study
    work_in(folder, monkeypatch)
    result = load_study(URL, "toy")
    runs = head_runs(result)
    assert set(runs) == {"winner", "baseline"}
    assert {run.pair for run in runs.values()} == {0} and len({run.seed for run in runs.values()}) == 1
    expected = PLANTED if is_planted else {}
    assert main(["show", "toy", "--storage", URL, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["heads"]
    for name in ("winner", "baseline"):
        assert data[name]["run"] == runs[name].name and data[name]["notes"] == []
        for moment, step in (("start", 0), ("middle", 5), ("end", 11)):
            moment_data = data[name][moment]
            assert moment_data["step"] == step
            assert {head["head"]: head["measure"] for head in moment_data["named"]} == expected
            for head in moment_data["named"]:
                assert head["chance"] < head["score"] and head["low"] <= head["score"] <= head["high"]
    assert main(["show", "toy", "--storage", URL, "--full"]) == 0
    show_output = capsys.readouterr().out
    assert "heads of the winner at the end of confirm-0: " in show_output
    assert ("previous token (" in show_output) == is_planted
    assert ("none specialises in a position" in show_output) == (not is_planted)
    assert main(["show", "toy", "--storage", URL, "--heads"]) == 0
    stdout = capsys.readouterr().out
    assert "the winner, confirm-0, step 11; queries down, keys across, █ is the greatest weight:" in stdout
    if is_planted:
        picture = stdout[stdout.index("layer 0 head 2, diagonal (") :].split("\n")[1:33]
        assert [line.index("█") for line in picture] == list(range(32))
    assert main(["show", "toy", "--storage", URL, "--heads", "--json"]) == 2
    assert "--heads prints pictures" in capsys.readouterr().err
