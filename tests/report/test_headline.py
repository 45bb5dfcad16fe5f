"""What report and dashboard lead with: the answer, the verdict, what to do, and what their words mean."""

from __future__ import annotations

from dataclasses import replace

from tempopt.report.export import to_python, to_yaml
from tempopt.report.findings import GAIN
from tempopt.report.headline import decision_lines, glossary, outcome_label, statements
from tempopt.report.note import escaped, render_note
from tempopt.report.study_result import StudyResult
from tempopt.verdict.guards import GuardResult
from tests.report.full_text import full_lines
from tests.report.made_study import World, make


def test_a_gain_whose_winner_breaks_a_guard_is_not_said_without_it(confirmed_result: StudyResult) -> None:
    assert confirmed_result.verdict is not None
    assert outcome_label(confirmed_result) == GAIN
    guard = GuardResult(
        name="val_loss", text="no worse than 5%", state="broken", side="most", margin=0.05, why="it diverged"
    )
    broken_result = replace(confirmed_result, verdict=replace(confirmed_result.verdict, guards=(guard,)))
    assert outcome_label(broken_result) == "Gain shown, but a guard is not kept"
    assert decision_lines(broken_result)[0].startswith("Gain shown: val_accuracy 0.")


def test_no_gain_beside_a_gain_at_inference_says_which_is_not_shown() -> None:
    narrow = {"low": 0.9, "high": 1.4, "log": True}
    result = make(World(search={"temperature_init": narrow, "temperature_final": narrow})).result()
    assert result.verdict is not None and not result.verdict.total.significant
    assert outcome_label(result) == "Gain shown at inference, none by training"
    sentence = f"{outcome_label(result)}: the gain of the winner of the search over τ = 1 in "
    assert full_lines(result)[0].startswith(sentence)
    for code in (to_python(result), to_yaml(result)):
        assert sentence in code.replace("\n# ", " ")
    # the note leads with what is recommended
    assert escaped("evaluated at τ = 0.") in render_note(result)


def test_a_statement_that_begins_with_a_temperature_keeps_its_letter(confirmed_result: StudyResult) -> None:
    statement_lines = [line for _, lines in statements(confirmed_result) for line in lines]
    (choice,) = [line for line in statement_lines if "has the best mean of" in line]
    assert choice.startswith("τ = 0.")


def test_terms_say_what_the_first_screen_shows_and_no_more(
    confirmed_result: StudyResult, searching_result: StudyResult
) -> None:
    assert (
        "τ is the temperature of attention" in glossary(searching_result)[0]
        and len(glossary(searching_result)) == 1
    )
    assert "n0" not in " ".join(glossary(confirmed_result))
    assert confirmed_result.verdict is not None
    scaled_params = {**confirmed_result.verdict.params, "length_scaling": "log_n", "n0": 16}
    terms_text = " ".join(
        glossary(replace(confirmed_result, verdict=replace(confirmed_result.verdict, params=scaled_params)))
    )
    assert "log_n multiplies it by ln n / ln n0" in terms_text and "Fresh seeds" in terms_text
