"""What Optuna's own study says of a study that is over."""

from __future__ import annotations

import optuna
import pytest

import tempopt
from tempopt.report.decision import decide
from tempopt.storage.optuna_tables import RECOMMENDATION
from tests.toy_study import SMALL, URL, toy_spec


@pytest.mark.usefixtures("fake_workers")
def test_optunas_study_says_what_is_recommended_once_there_is_a_verdict() -> None:
    result = tempopt.search(toy_spec(**SMALL), progress=False, storage=URL, workers=1)
    advice, decision = result.recommendation, decide(result)
    assert advice is not None and decision is not None
    attributes = optuna.load_study(study_name="toy", storage=URL).user_attrs
    assert RECOMMENDATION == "tempopt:recommendation"
    assert attributes[RECOMMENDATION] == {
        "headline": decision.headline,
        "action": advice.action_without_training,
        "params": advice.params,
        "at_inference": advice.at_inference,
    }
