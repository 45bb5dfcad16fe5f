"""What the winner is worth beside constant temperatures, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.confirmation.verdict import Verdict
from tempopt.results.wording import compared, moved_text, set_text
from tempopt.temperature import is_controlled, mean_level, temperatures_of, training_key

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult


def constant_lines(verdict: Verdict, result: StudyResult) -> list[str]:
    """Return the winner against the best constants: the tuned one, and the one in place of what moves it."""
    answer = verdict.against_constant
    if verdict.at_one:
        return []
    if answer is None:
        return ["  no constant temperature could be compared."]
    constants, moved = result.tickets["constant"], moved_text(verdict.params)
    controlled = is_controlled(verdict.params)
    spanned = "a quarter to four times the temperature that it begins with" if controlled else "it"
    said = []
    if verdict.constant_params is not None and verdict.over_constant is not None:
        tried = constants.done + constants.failed
        several = "s" if len(temperatures_of(verdict.constant_params)) > 1 else ""
        constant = set_text(verdict.constant_params)
        name = f"the best constant temperature{several}, chosen after {tried} runs ({constant})"
        if training_key(verdict.constant_params) == training_key(verdict.params):
            return [f"  {name} is the winner itself."]
        said.append(f"{name}: {compared(verdict.over_constant)}")
    own = verdict.constant_twin_params
    if own is not None and verdict.over_constant_twin is not None and not verdict.is_constant:
        name = (
            f"the winner with constant {_levels(own)} in place of its {moved} (the best on the choosing "
            f"seeds of constants that span {spanned}), all else as in the winner"
        )
        said.append(f"{name}: {compared(verdict.over_constant_twin)}")
    if not said:
        return (
            ["  the winner is a constant."] if verdict.is_constant else ["  no constant could be compared."]
        )
    lines = [f"  against {text}." for text in said[:-1]]
    if verdict.schedule_shown:
        end = f"the {moved} is worth more than one constant."
    elif verdict.is_constant:
        end = f"the winner is a constant{', too, and this one is better' if answer.worse else ''}."
    elif answer.worse:
        end = "the constant is better."
    else:
        end = f"the {moved} is not shown to be worth more than one constant"
        # it has to beat the baseline, too
        end += ", for no gain is shown." if answer.significant else "."
    return [*lines, f"  against {said[-1]}: {end}"]


def _levels(parameters: Mapping[str, Any]) -> str:
    """Return the levels of constant temperatures, ``τ = 0.5``."""
    names = temperatures_of(parameters)
    return ", ".join(f"{name or 'τ'} = {mean_level(parameters, name):.4g}" for name in names)
