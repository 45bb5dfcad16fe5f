"""The recommendation in plain words; decides nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tempopt.confirmation.guards import Guard
from tempopt.confirmation.recommendation import PassedOver, Recommendation
from tempopt.confirmation.widening import Widening
from tempopt.results.wording import (
    confidence,
    duration,
    numbers,
    parameters_text,
    plan_text,
    rounded,
    signed,
    temperature_text,
)
from tempopt.temperature import CREDITED

if TYPE_CHECKING:
    from tempopt.confirmation.verdict import Verdict
    from tempopt.results.study_result import StudyResult

HEAD = "What to do: "
"""What the recommendation begins with wherever it is printed."""


def recommendation_line(result: StudyResult, storage: str = "") -> str | None:
    """Return what to do, in a few sentences on one line; None without a verdict."""
    verdict = result.verdict
    if verdict is None or verdict.recommendation is None:
        return None
    return f"{HEAD}{recommendation_text(result, storage)}"


def recommendation_text(result: StudyResult, storage: str = "") -> str:
    """Return what to do and why, for a study that has a verdict.

    Args:
        result: The study.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
    """
    verdict = result.verdict
    assert verdict is not None and verdict.recommendation is not None
    found = verdict.recommendation
    where = f"{shlex.quote(result.name)}{storage}"
    if found.action == "widen_range":
        return f"{_widen(found, where)} Until then: {_now(result, verdict, found, where)}"
    if found.action == "more_pairs":
        return _more_pairs(result, found, where)
    return _now(result, verdict, found, where)


def _now(result: StudyResult, verdict: Verdict, found: Recommendation, where: str) -> str:
    if found.now == "change_nothing":
        return _change_nothing(result, verdict, found)
    text = _inference_only(verdict, found) if found.now == "inference_only" else _train(verdict, found)
    return f"{text} As code: `tempopt export {where}`."


def _train(verdict: Verdict, found: Recommendation) -> str:
    constant = found.now == "train_at_constant"
    how = "at a constant temperature" if constant else "with a schedule"
    where = f"at {plan_text(found.plan)}" if found.plan is not None else "at its last temperature"
    if constant and found.plan is None:
        where = "at the same temperature"
    text = f"train {how}: {temperature_text(found.parameters)}. Evaluate {where}"
    if found.parameters == verdict.params:
        simpler = _passed_over(found) or " Nothing simpler is shown to do as well."
        return f"{text}.{simpler}"
    test = None if found.gain is None else found.gain.paired
    gain = "" if test is None else f" That gains {signed(test)} over τ = 1 ({numbers(test)})."
    winner = _without_winner(verdict) or f" The winner is not shown to be better than this{_by(found)}."
    return f"{text}.{gain}{winner}{_passed_over(found)}"


def _inference_only(verdict: Verdict, found: Recommendation) -> str:
    assert found.gain is not None and found.plan is not None
    others = _others(found)
    # what was tuned for τ = 1 may not be what a person trains with so far
    train = f"train at τ = 1{others} (tuned for τ = 1)" if others else "train as before, at τ = 1"
    text = (
        f"{train}, and evaluate at {plan_text(found.plan)}. That gains {signed(found.gain.paired)} "
        f"({numbers(found.gain.paired)})."
    )
    if verdict.total.significant:
        end = f"is not shown to be worth more{_by(found)}"
    else:
        end = "is not shown to gain anything"
    training = _without_winner(verdict) or f" Training at another temperature {end}."
    return f"{text}{training}{_passed_over(found)}"


def _change_nothing(result: StudyResult, verdict: Verdict, found: Recommendation) -> str:
    others = _others(found).removeprefix(" with ")
    if verdict.untrained and not verdict.total.significant:
        return (
            "change nothing yet: τ = 1 diverged on every seed, so there is nothing to compare with. Have it "
            "train to its end (a smaller learning rate, clipped gradients), and search again."
        )
    tuned = f", with {others} (tuned for τ = 1)" if others else ""
    text = f"change nothing: train and evaluate at τ = 1{tuned}."
    if verdict.total.significant and not verdict.guards_kept:
        but = _without_winner(verdict).removeprefix(" The").removesuffix(".")
        return f"{text} The gain is shown, but the{but}.{_passed_over(found)}"
    if verdict.total.significant:
        return (
            f"{text} The gain is shown, but smaller than study.min_gain, {result.spec.study.min_gain}"
            f"{_in_units(result, found)}."
        )
    text += _passed_over(found)
    if verdict.at_one:
        return f"{text} The search found nothing better."
    if found.excluded is None:
        return f"{text} No temperature is shown to gain anything."
    if verdict.total.worse:
        return f"{text} The winner of the search is shown to be worse."
    above = rounded(found.excluded, verdict.total.paired).lstrip("+")
    text += f" A gain of the winner above {above} is excluded ({confidence(verdict.total.paired)})."
    if not found.min_gain:
        return f"{text} If a smaller gain is worth more pairs to you, set study.min_gain to see how many."
    if found.excluded < found.min_gain:
        return f"{text} That is less than study.min_gain, {result.spec.study.min_gain}."
    return text


def _more_pairs(result: StudyResult, found: Recommendation, where: str) -> str:
    assert found.pairs is not None and result.verdict is not None
    pairs = found.pairs
    cost = f"{pairs.runs} runs, about {duration(pairs.seconds)} of training"
    if pairs.gpu_seconds is not None:
        cost += f", {duration(pairs.gpu_seconds)} of GPUs"
    gain = f"{result.spec.study.min_gain}{_in_units(result, found)}"
    return (
        f"it is not decided whether there is a gain of {gain} (study.min_gain)."
        f" If there is, {pairs.pairs} more pairs ({cost}) show it with a chance of 80 %: "
        f"`tempopt resume {where} --pairs +{pairs.pairs}`. Until they are trained, change "
        f"nothing.{_passed_over(found)}"
    )


def _widen(found: Recommendation, where: str) -> str:
    texts = [_range(each) for each in found.widen]
    return f"widen {' and '.join(texts)}, and continue the search: `{widen_command(where, found.widen)}`."


def widen_command(where: str, widen: tuple[Widening, ...]) -> str:
    """Return the command that widens ranges of a study and goes on searching.

    Args:
        where: The study and its database, as a shell reads them.
        widen: The ranges.
    """
    # the end alone, so that log, step, baseline and when: stay
    sets = (
        f"search.{each.name}.low={each.to_low:g}"
        if each.to_low < each.low
        else f"search.{each.name}.high={each.to_high:g}"
        for each in widen
    )
    return " ".join([f"tempopt resume {where}", *(f"--amend {text}" for text in sets)])


def _range(each: Widening) -> str:
    end = "lower" if each.to_low < each.low else "upper"
    return (
        f"the range of {each.name} from {each.low:g} - {each.high:g} to {each.to_low:g} - {each.to_high:g} "
        f"({each.value:.4g} is at its {end} end)"
    )


def _without_winner(verdict: Verdict) -> str:
    """Return a sentence on the guards that the winner is not recommended for; empty if there are none."""
    if not verdict.total.significant or verdict.guards_kept:
        return ""
    return f" The winner {_broken(guard for guard in verdict.guards if guard.in_the_way)}."


def _passed_over(found: Recommendation) -> str:
    """Return a sentence on each of what is not recommended because of a guard alone; empty without."""
    return "".join(f" {_in_the_way(each)}." for each in found.passed_over)


def _in_the_way(each: PassedOver) -> str:
    if each.plan is not None:
        what = f"Training at τ = 1 and evaluating at {plan_text(each.plan)}"
    else:
        what = f"Training with {temperature_text(each.parameters)}"
    return f"{what} gains as well, but {_broken(each.guards)}"


def _broken(guards: Iterable[Guard]) -> str:
    """Return how guards stand in the way, ``breaks the guard on val_loss``."""
    each = list(guards)
    broken = [guard.name for guard in each if guard.state == "broken"]
    unmeasured = [guard for guard in each if guard.state == "not_measured"]
    others = [guard.name for guard in each if guard.state not in ("broken", "not_measured")]
    why = [f"breaks the guard on {' and '.join(broken)}"] if broken else []
    why += [f"is not shown to keep the guard on {' and '.join(others)}"] if others else []
    why += [f"was not tested on the guard on {guard.name}, since {guard.why}" for guard in unmeasured]
    return ", and ".join(why)


def _others(found: Recommendation) -> str:
    """Return the ordinary parameters to train with, ` with lr=0.002`; empty if there are none."""
    others = {name: value for name, value in found.parameters.items() if name not in CREDITED}
    return f" with {parameters_text(others)}" if others else ""


def _by(found: Recommendation) -> str:
    """Return the end of a sentence on what the winner is not shown to be better by."""
    if found.winner is None:
        return ""
    by = f" by {found.min_gain:.3g} or more" if found.min_gain else ""
    return f"{by} ({signed(found.winner.paired)}, {numbers(found.winner.paired)})"


def _in_units(result: StudyResult, found: Recommendation) -> str:
    given = result.spec.study.min_gain
    return f" = {found.min_gain:.3g}" if isinstance(given, str) else ""
