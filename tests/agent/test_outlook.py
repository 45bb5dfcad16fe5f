"""What a search says of itself where it begins and once its first runs tell of the noise."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tempopt.agent.observer import Unobserved
from tempopt.study.api import resume, search
from tests.toy_study import URL, toy_spec

pytestmark = pytest.mark.usefixtures("fake_workers")

TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}
TUNED = {**TAU, "lr": {"low": 0.1, "high": 1.0}}
SMALL: dict[str, Any] = {
    "trials": 2,
    "arms": {"baseline": 3, "constant": 1},
    "candidates": 2,
    "seeds": {"choose": 3, "confirm": 2},
}
BEGUN = "to the verdict: at most "
SHOWN = r"The smallest gain in val_loss that 2 pairs show with 80 % power is between [\d.]+ and [\d.]+ "


class Heard(Unobserved):
    """An observer that keeps the notes, and what came before each."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def update(self, snapshot: Any) -> None:
        if not self.said:
            self.said.append("the head")

    def finished(self, ticket: Any) -> None:
        self.said.append(ticket.kind)

    def note(self, text: str) -> None:
        self.said.append(text)


def test_a_new_study_says_how_many_runs_there_are_and_then_what_it_can_show() -> None:
    heard = Heard()
    search(toy_spec(space=TAU, **SMALL), storage=URL, workers=1, observer=heard)
    assert heard.said[0] == "the head"
    assert heard.said[1].startswith(BEGUN)
    told = [place for place, text in enumerate(heard.said) if re.match(SHOWN, text)]
    assert len(told) == 1
    assert heard.said[: told[0]].count("baseline") == 3
    assert "search" not in heard.said[: told[0]]
    assert re.search(r"from 3 runs at τ = 1\); about .* to the verdict on 1 worker\.$", heard.said[told[0]])


def test_a_study_that_tunes_more_says_it_after_choosing() -> None:
    heard = Heard()
    search(toy_spec(space=TUNED, **SMALL), storage=URL, workers=1, observer=heard)
    (told,) = [place for place, text in enumerate(heard.said) if re.match(SHOWN, text)]
    assert "choose" in heard.said[:told]
    assert "confirm" not in heard.said[:told]
    assert any(re.match(r"About .* to the verdict on 1 worker\.", text) for text in heard.said)


def test_what_was_said_is_not_said_again_by_who_continues() -> None:
    search(toy_spec(space=TAU, **SMALL), storage=URL, workers=1)
    heard = Heard()
    resume("toy", storage=URL, workers=1, more=1, observer=heard)
    assert "search" in heard.said
    assert not [text for text in heard.said if text.startswith(BEGUN) or re.match(SHOWN, text)]
