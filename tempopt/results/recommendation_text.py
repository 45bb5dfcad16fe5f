"""The recommendation in plain words; decides nothing."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tempopt.confirmation.evaluations import WINNER, ConstantPlan
from tempopt.confirmation.inference import Tuned
from tempopt.confirmation.recommendation import ALONE_SHARE, PassedOver, Recommendation
from tempopt.confirmation.verdict import standing
from tempopt.confirmation.widening import Widening, at_ends
from tempopt.results.guard_text import not_kept
from tempopt.results.wording import (
    baseline_name,
    confidence,
    duration,
    numbers,
    numbers_of_size,
    parameters_text,
    plan_text,
    signed,
    size,
    temperature_text,
    unsigned,
)
from tempopt.spec.sections import KNOWLEDGE_GRADIENT
from tempopt.temperature import CREDITED, active_groups

if TYPE_CHECKING:
    from tempopt.confirmation.verdict import Verdict
    from tempopt.results.study_result import StudyResult
    from tempopt.spec.study_spec import StudySpec

HEAD = "What to do: "
"""What the recommendation begins with wherever it is printed."""
_PAIRS = "a pair is one fresh seed, trained with the winner and with what it is compared with"


def recommendation_line(result: StudyResult, storage: str = "") -> str | None:
    """Return what to do, in a few sentences on one line; None without a verdict."""
    verdict = result.verdict
    if verdict is None or verdict.recommendation is None:
        return None
    return f"{HEAD}{recommendation_text(result, storage)}"


def recommendation_text(result: StudyResult, storage: str = "", *, as_code: bool = True) -> str:
    """Return what to do and why, for a study that has a verdict.

    Args:
        result: The study.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
        as_code: Whether to name the command that gives it as code.
    """
    verdict = result.verdict
    assert verdict is not None and verdict.recommendation is not None
    found = verdict.recommendation
    where = f"{shlex.quote(result.name)}{storage}"
    code = f" As code: `tempopt export {where}`." if as_code else ""
    if (stands := result.standing) is not None:
        return _stays_valid(result, verdict, stands, where, code)
    if found.action == "widen_range":
        now = f"Until then: {_now(result, verdict, found, code)}"
        return f"{_widen(found, result, storage)} {now}"
    if found.action == "more_pairs":
        pairs = _more_pairs(result, found, where)
        passed_over = _passed_over(found, baseline_name(result.spec))
        return f"{pairs} Until they are trained, change nothing.{passed_over}"
    return _now(result, verdict, found, code)


def _stays_valid(result: StudyResult, verdict: Verdict, stands: Verdict, where: str, code: str) -> str:
    """Return what to do where an earlier verdict recommends a change, and the latest shows no other."""
    assert stands.recommendation is not None and verdict.recommendation is not None
    found = verdict.recommendation
    before, now = f"verdict {stands.looks}", f"Verdict {verdict.looks}"
    text = (
        f"what {before} recommends, which stays valid: {_in_short(result.spec, stands.recommendation)}."
        f"{code} {now} has the smaller share of the error rate and shows no other change that is worth "
        "making; it takes nothing back."
    )
    if found.action == "more_pairs":
        return f"{text} By {now.lower()} {_more_pairs(result, found, where)}"
    return f"{text}{_passed_over(found, baseline_name(result.spec))}"


def earlier_advice(result: StudyResult, verdict: Verdict) -> str:
    """Return in a few words what an earlier verdict recommended, beside those before it."""
    found, before = verdict.recommendation, result.earlier_verdicts
    assert found is not None
    advice = _in_short(result.spec, found)
    stands = standing(verdict, before[: before.index(verdict)])
    if stands is not None and stands.recommendation is not None:
        advice = f"{_in_short(result.spec, stands.recommendation)}, as verdict {stands.looks}"
    if found.action == "widen_range":
        return f"widen {' and '.join(map(_range, found.widen))}, and until then {advice}"
    if found.action == "more_pairs":
        assert found.pairs is not None
        return f"add {found.pairs.pairs} pairs, and until then {advice}"
    return advice


def _in_short(spec: StudySpec, found: Recommendation) -> str:
    """Return what a recommendation has people do now, without why."""
    if found.now == "change_nothing":
        return "change nothing"
    plan = "" if found.plan is None else f", and evaluate at {plan_text(found.plan)}"
    if found.now == "inference_only":
        return f"train at {baseline_name(spec)}{others_text(found)}{plan}"
    return f"train {_how(found)}: {temperature_text(found.parameters)}{plan}"


def _how(found: Recommendation) -> str:
    if found.now == "train_with_control":
        return "under control of the entropy"
    if found.now != "train_at_constant":
        return "with a schedule"
    return "at constant temperatures" if len(_changed(found)) > 1 else "at a constant temperature"


def _changed(found: Recommendation) -> set[str]:
    """Return the temperatures that a recommendation changes in training; attention's is the empty text."""
    return {part.rpartition(".")[0] for part in active_groups(found.parameters)}


def _now(result: StudyResult, verdict: Verdict, found: Recommendation, code: str) -> str:
    if found.now == "change_nothing":
        return _change_nothing(result, verdict, found)
    told = _inference_only if found.now == "inference_only" else _train
    return f"{told(result, verdict, found)}{code}"


def _train(result: StudyResult, verdict: Verdict, found: Recommendation) -> str:
    baseline = baseline_name(result.spec)
    constant = found.now == "train_at_constant"
    tuned = None if verdict.inference_only is None else verdict.inference_only.winner
    where = "at the same temperature" if constant else "at its last temperature"
    if found.now == "train_with_control":
        where = "at the temperatures that the training ends with, which its checkpoint holds"
    if found.plan is not None and tuned is not None:
        where = (
            f"at {plan_text(found.plan)} ({best_of(tuned)}), which gains its models another "
            f"{size(tuned.answer.paired)} ({numbers_of_size(tuned.answer.paired)})"
        )
    text = f"train {_how(found)}: {temperature_text(found.parameters)}."
    # attention's is read by every evaluation, whatever of it is changed
    read = _changed(found).intersection(result.spec.evaluated) if result.spec.temperatures else {""}
    if read or found.plan is not None:
        text += f" Evaluate {where}."
    if found.parameters == verdict.params:
        simpler = _passed_over(found, baseline) or " Nothing simpler is shown to do as well."
        return f"{text} That is the winner of the search.{simpler}"
    test = None if found.gain is None else found.gain.paired
    gain = "" if test is None else f" That gains {size(test)} over {baseline} ({numbers_of_size(test)})."
    winner = _without_winner(verdict) or _no_better(verdict, found, "has more parts")
    return f"{text}{gain}{winner}{_passed_over(found, baseline)}"


def _inference_only(result: StudyResult, verdict: Verdict, found: Recommendation) -> str:
    assert found.gain is not None and found.plan is not None
    baseline = baseline_name(result.spec)
    others = others_text(found)
    # what was tuned for the baseline may not be what a person trains with so far
    tuned = f"train at {baseline}{others} (tuned for {baseline})"
    train = tuned if others else f"train as before, at {baseline}"
    assert verdict.inference_only is not None
    gain = found.gain.paired
    text = (
        f"{train}, and evaluate at {plan_text(found.plan)} ({best_of(verdict.inference_only.baseline)}). "
        f"That gains {size(gain)} ({numbers_of_size(gain)})"
    )
    if not verdict.total.significant:
        return (
            f"{text}, while the winner of the search, which is trained at another temperature, is not shown "
            f"to gain anything.{_passed_over(found, baseline)}"
        )
    needs = "needs training at another temperature"
    winner = _without_winner(verdict) or _no_better(verdict, found, needs)
    return f"{text}.{winner}{_passed_over(found, baseline)}"


def _change_nothing(result: StudyResult, verdict: Verdict, found: Recommendation) -> str:
    baseline = baseline_name(result.spec)
    others = others_text(found).removeprefix(" with ")
    if verdict.untrained and not verdict.total.significant:
        return (
            f"change nothing yet: {baseline} diverged on every seed, so there is nothing to compare with. "
            "Have it train to its end (a smaller learning rate, clipped gradients), and search again."
        )
    tuned = f", with {others} (tuned for {baseline})" if others else ""
    text = f"change nothing: train and evaluate at {baseline}{tuned}."
    if verdict.total.significant and not verdict.guards_kept:
        passed = _passed_over(found, baseline)
        return f"{text} The gain is shown, but the winner {not_kept(verdict.guards)}.{passed}"
    if verdict.total.significant:
        return (
            f"{text} The gain is shown, but smaller than study.min_gain, {result.spec.study.min_gain}"
            f"{_in_units(result, found)}."
        )
    text += _passed_over(found, baseline) + _not_alone(verdict, found)
    if verdict.at_one:
        return f"{text} The search found nothing better."
    if found.excluded is None:
        return f"{text} No temperature is shown to gain anything."
    if verdict.total.worse:
        return f"{text} The winner of the search is shown to be worse."
    above = unsigned(found.excluded, verdict.total.paired)
    text += f" A gain of the winner above {above} is excluded ({confidence(verdict.total.paired)})."
    if not found.min_gain:
        return (
            f"{text} If a smaller gain is worth more pairs to you ({_PAIRS}), set study.min_gain to see how "
            "many."
        )
    if found.excluded < found.min_gain:
        return f"{text} That is less than study.min_gain, {result.spec.study.min_gain}."
    return text


def _not_alone(verdict: Verdict, found: Recommendation) -> str:
    """Return why another temperature at inference is not recommended that is shown to gain, or nothing."""
    inference = verdict.inference_only
    if inference is None or not inference.answer.significant:
        return ""
    test = inference.answer.paired
    if test.gain < max(found.min_gain, 0.0) or test.p_value < ALONE_SHARE * test.alpha:
        return ""
    return (
        f" Evaluating the same models at {plan_text(inference.plan)} gains {size(test)} "
        f"({numbers_of_size(test)}); where no gain of the winner is shown, that is recommended only if p is "
        f"below {ALONE_SHARE * test.alpha:.4g}."
    )


def _more_pairs(result: StudyResult, found: Recommendation, where: str) -> str:
    assert found.pairs is not None and result.verdict is not None
    pairs = found.pairs
    cost = f"{pairs.runs} runs, about {duration(pairs.seconds)} of training"
    if pairs.gpu_seconds is not None:
        cost += f", {duration(pairs.gpu_seconds)} of GPUs"
    gain = f"{result.spec.study.min_gain}{_in_units(result, found)}"
    return (
        f"it is not decided whether there is a gain of {gain} (study.min_gain)."
        f" If there is, {pairs.pairs} more pairs ({cost}; {_PAIRS}) show it with a chance of 80 %: "
        f"`tempopt resume {where} --pairs +{pairs.pairs}`."
    )


def _widen(found: Recommendation, result: StudyResult, storage: str) -> str:
    texts = [_range(each) for each in found.widen]
    can_learn = result.spec.study.sampler.name == KNOWLEDGE_GRADIENT
    command = widen_command(result.name, found.widen, storage, can_learn=can_learn)
    which = " that learns from this one" if can_learn else ""
    return f"widen {' and '.join(texts)}, in a new study{which}: `{command}`."


def widen_command(
    name: str, widen: tuple[Widening, ...], storage: str = "", *, can_learn: bool = True
) -> str:
    """Return the command that searches wider ranges in a new study, with SPEC for the file of the spec.

    Args:
        name: The study that searched the ranges.
        widen: The ranges.
        storage: Option that leads to its database, ` --storage URL`; empty: none is needed.
        can_learn: Whether the sampler can learn from the study (``warm_start``).
    """
    # the end alone, so that log, step, baseline and when: stay
    sets = (
        f"search.{each.name}.low={each.to_low:g}"
        if each.to_low < each.low
        else f"search.{each.name}.high={each.to_high:g}"
        for each in widen
    )
    settings = [f"--set {text}" for text in sets]
    if can_learn:
        settings.append(f"--set {shlex.quote(f'study.warm_start=[{name}]')}")
    return f"tempopt search SPEC --name {shlex.quote(f'{name}_wider')} {' '.join(settings)}{storage}"


def _range(each: Widening) -> str:
    down = each.to_low < each.low
    to, end = (f"down to {each.to_low:g}", "lower") if down else (f"up to {each.to_high:g}", "upper")
    return (
        f"the range of {each.name}, now {each.low:g} to {each.high:g}, {to} "
        f"({each.value:.4g} is at its {end} end)"
    )


def _without_winner(verdict: Verdict) -> str:
    """Return a sentence on the guards that the winner is not recommended for; empty if there are none."""
    if not verdict.total.significant or verdict.guards_kept:
        return ""
    gain = f"gains {size(verdict.total.paired)}"
    return f" The winner of the search {gain}, but is not recommended: it {not_kept(verdict.guards)}."


def _no_better(verdict: Verdict, found: Recommendation, why: str) -> str:
    """Return how the winner's gain and what is recommended in its place go together."""
    by = f" by {found.min_gain:.3g} or more" if found.min_gain else ""
    over = None if found.winner is None else found.winner.paired
    at_best = ", at its own best temperature at inference," if found.now == "inference_only" else ""
    difference = "" if over is None else f" (winner{at_best} less this: {signed(over)}, {numbers(over)})"
    gained = f" The winner of the search gains {size(verdict.total.paired)}"
    if found.winner is not None and found.winner.worse:
        return f"{gained}, but is shown to be worse than this{difference}."
    return (
        f"{gained}, but {why} and is not shown to be better than this{by}{difference}, so the simpler change "
        "is recommended."
    )


def best_of(tuned: Tuned) -> str:
    """Return what a temperature at inference was chosen from, and on what data."""
    return f"the best of {len(tuned.curve)} tried on the validation data"


def choice_text(tuned: Tuned, confirmed_on: str) -> str:
    """Return the grid that a temperature at inference was chosen from, and the seeds that chose it."""
    constants = [each for each in map(ConstantPlan.of, tuned.curve) if each is not None]
    grids = []
    for name in dict.fromkeys(each.temperature for each in constants):
        of = f" of {name}" if name else ""
        levels = [each.tau for each in constants if each.temperature == name]
        grids.append(f"a log-spaced grid of constants{of} from {min(levels):.4g} to {max(levels):.4g}")
    scaled = any(each.length_scaling != "none" for each in constants)
    scaling = ", with and without length scaling" if scaled else ""
    seeds = (
        "of these models"
        if confirmed_on == "test"
        else "of every other fresh seed; what it gains is counted on the other seeds"
    )
    winners = " the winner's final temperature," if WINNER in tuned.curve else ""
    return (
        f"{plan_text(tuned.plan)} has the best mean of {len(tuned.curve)} on the validation data {seeds}: "
        f"{', '.join(grids)}{scaling},{winners} and the temperature of the training."
    )


def ends_text(result: StudyResult, verdict: Verdict) -> str:
    """Return which of the winner's values lie at the end of their range and are not to be widened, and why.

    Empty if there are none: what is to be widened is named in the recommendation.
    """
    found = verdict.recommendation
    widened = {each.name for each in found.widen} if found is not None else set()
    ends = [each.name for each in at_ends(verdict.params, result.spec) if each.name not in widened]
    if found is None or not ends:
        return ""
    if not verdict.total.significant:
        why = "no gain is shown there"
        why += f" by verdict {verdict.looks}" if result.earlier_verdicts else ""
    elif found.now == "inference_only":
        why = f"training at {baseline_name(result.spec)} is recommended"
    elif found.now == "change_nothing":
        why = "the winner is not recommended"
    else:
        why = "something simpler than the winner is recommended"
    return f"; at the end of the searched range: {', '.join(ends)} (not to be widened, since {why})"


def _passed_over(found: Recommendation, baseline: str) -> str:
    """Return a sentence on each of what is not recommended because of a guard alone; empty without."""
    return "".join(f" {_in_the_way(each, baseline)}." for each in found.passed_over)


def _in_the_way(each: PassedOver, baseline: str) -> str:
    if each.plan is not None:
        what = f"Training at {baseline} and evaluating at {plan_text(each.plan)}"
    else:
        what = f"Training with {temperature_text(each.parameters)}"
    return f"{what} gains as well, but {not_kept(each.guards)}"


def others_text(found: Recommendation) -> str:
    """Return the ordinary parameters to train with, ` with lr=0.002`; empty if there are none."""
    others = {name: value for name, value in found.parameters.items() if name not in CREDITED}
    return f" with {parameters_text(others)}" if others else ""


def _in_units(result: StudyResult, found: Recommendation) -> str:
    given = result.spec.study.min_gain
    return f" = {found.min_gain:.3g}" if isinstance(given, str) else ""
