"""The recommendation in plain words; decides nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.report.formatting import (
    baseline_name,
    confidence,
    duration,
    format_ci_and_p,
    format_effect,
    format_gain,
    format_signed,
    limit,
    numbers_of_size,
    parameters_text,
    plan_text,
    temperature_text,
)
from tempopt.report.guard_text import not_kept
from tempopt.spec.sections import KNOWLEDGE_GRADIENT
from tempopt.temperature import CREDITED, NEUTRAL, active_groups
from tempopt.verdict.inference import TunedInference
from tempopt.verdict.recommendation import INFERENCE_ALPHA_SHARE, Recommendation
from tempopt.verdict.run_evaluations import WINNER, ConstantPlan
from tempopt.verdict.verdict import find_valid_earlier_verdict
from tempopt.verdict.widening import Widening, find_params_at_range_ends

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData
    from tempopt.spec.study_spec import StudySpec
    from tempopt.verdict.verdict import Verdict

HEAD = "What to do: "
"""What the recommendation begins with wherever it is printed."""
_PAIRS = "a pair is one fresh seed, trained with the winner and with what it is compared with"


def recommendation_text(result: StudyData, storage: str = "", *, as_code: bool = True) -> str:
    """Return what to do and why, for a study that has a verdict.

    Args:
        result: The study.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
        as_code: Whether to name the command that gives it as code.
    """
    verdict = result.verdict
    assert verdict is not None and verdict.recommendation is not None
    recommendation = verdict.recommendation
    study_args = f"{shlex.quote(result.name)}{storage}"
    code = f" As code: `tempopt export {study_args}`." if as_code else ""
    if (standing_verdict := result.valid_earlier_verdict) is not None:
        return _standing_advice_text(result, verdict, standing_verdict, study_args, code)
    if recommendation.action == "widen_range":
        now_text = f"Until then: {_advice_now_text(result, verdict, recommendation, code)}"
        return f"{_widen_text(recommendation, result, storage)} {now_text}"
    if recommendation.action == "more_pairs":
        pairs_text = _more_pairs_text(result, recommendation, study_args)
        blocked_text = _blocked_options_text(recommendation, baseline_name(result.spec))
        advice = _short_advice_text(result.spec, recommendation)
        return f"{pairs_text} Until they are trained, {advice}.{blocked_text}"
    return _advice_now_text(result, verdict, recommendation, code)


def _standing_advice_text(
    result: StudyData, verdict: Verdict, standing_verdict: Verdict, study_args: str, code: str
) -> str:
    """Return what to do where an earlier verdict recommends a change, and the latest shows no other."""
    assert standing_verdict.recommendation is not None and verdict.recommendation is not None
    recommendation = verdict.recommendation
    earlier_name, latest_name = f"verdict {standing_verdict.looks}", f"Verdict {verdict.looks}"
    advice = _short_advice_text(result.spec, standing_verdict.recommendation)
    text = (
        f"what {earlier_name} recommends, which stays valid: {advice}.{code} {latest_name} has the smaller "
        "share of the error rate and shows no other change that is worth making; it takes nothing back."
    )
    if recommendation.action == "more_pairs":
        return f"{text} By {latest_name.lower()} {_more_pairs_text(result, recommendation, study_args)}"
    return f"{text}{_blocked_options_text(recommendation, baseline_name(result.spec))}"


def earlier_advice(result: StudyData, verdict: Verdict) -> str:
    """Return in a few words what an earlier verdict recommended, beside those before it."""
    recommendation, earlier = verdict.recommendation, result.earlier_verdicts
    assert recommendation is not None
    advice = _short_advice_text(result.spec, recommendation)
    standing_verdict = find_valid_earlier_verdict(verdict, earlier[: earlier.index(verdict)])
    if standing_verdict is not None and standing_verdict.recommendation is not None:
        advice = _short_advice_text(result.spec, standing_verdict.recommendation)
        advice += f", as verdict {standing_verdict.looks}"
    if recommendation.action == "widen_range":
        return f"widen {_ranges_text(recommendation)}, and until then {advice}"
    if recommendation.action == "more_pairs":
        assert recommendation.more_pairs is not None
        return f"add {recommendation.more_pairs.pairs} pairs, and until then {advice}"
    return advice


def _short_advice_text(spec: StudySpec, recommendation: Recommendation) -> str:
    """Return what a recommendation has people do now, without why."""
    others_phrase = untested_text(spec, recommendation)
    if recommendation.action_without_training == "change_nothing":
        return f"train at {baseline_name(spec)}, as now{others_phrase}" if others_phrase else "change nothing"
    plan_phrase = (
        "" if recommendation.plan_name is None else f", and evaluate at {plan_text(recommendation.plan_name)}"
    )
    if recommendation.action_without_training == "inference_only":
        return f"train at {baseline_name(spec)}{others_phrase}{plan_phrase}"
    temperatures = temperature_text(recommendation.parameters)
    return f"train {_training_phrase(recommendation)}: {temperatures}{plan_phrase}"


def _training_phrase(recommendation: Recommendation) -> str:
    if recommendation.action_without_training == "train_with_control":
        return "under control of the entropy"
    if recommendation.action_without_training == "train_with_parameters":
        return "with other parameters"
    if recommendation.action_without_training != "train_at_constant":
        return "with a schedule"
    return (
        "at constant temperatures" if len(_changed_names(recommendation)) > 1 else "at a constant temperature"
    )


def _changed_names(recommendation: Recommendation) -> set[str]:
    """Return the temperatures that a recommendation changes in training; attention's is the empty text."""
    return {part.rpartition(".")[0] for part in active_groups(recommendation.parameters)}


def _advice_now_text(result: StudyData, verdict: Verdict, recommendation: Recommendation, code: str) -> str:
    blocked_text = _blocked_options_text(recommendation, baseline_name(result.spec))
    if recommendation.action_without_training == "change_nothing":
        return _change_nothing_text(result, verdict, recommendation, blocked_text)
    if recommendation.action_without_training == "inference_only":
        return f"{_inference_only_text(result, verdict, recommendation)}{blocked_text}{code}"
    text = _train_text(result, verdict, recommendation)
    if recommendation.parameters == verdict.params and not blocked_text:
        blocked_text = " Nothing simpler is shown to do as well."
    return f"{text}{blocked_text}{code}"


def _train_text(result: StudyData, verdict: Verdict, recommendation: Recommendation) -> str:
    is_constant = recommendation.action_without_training == "train_at_constant"
    tuned = None if verdict.inference_only is None else verdict.inference_only.winner
    evaluation_text = "at the same temperature" if is_constant else "at its last temperature"
    if recommendation.action_without_training == "train_with_control":
        evaluation_text = "at the temperatures that the training ends with, which its checkpoint holds"
    if recommendation.plan_name is not None and tuned is not None:
        evaluation_text = (
            f"at {plan_text(recommendation.plan_name)} ({best_of(tuned)}), which gains its models another "
            f"{format_gain(tuned.answer)}"
        )
    text = f"train {_training_phrase(recommendation)}: {temperature_text(recommendation.parameters)}."
    # attention's is read by every evaluation, whatever of it is changed
    has_attention_alone = bool(result.spec.evaluated) and not result.spec.temperatures
    is_read = has_attention_alone or _changed_names(recommendation).intersection(result.spec.evaluated)
    if is_read or recommendation.plan_name is not None:
        text += f" Evaluate {evaluation_text}."
    if recommendation.parameters == verdict.params:
        return f"{text} That is the winner of the search."
    if recommendation.gain is not None:
        test, baseline = recommendation.gain.paired, baseline_name(result.spec)
        text += f" That gains {format_effect(test)} over {baseline} ({numbers_of_size(test)})."
    return f"{text}{_beside_winner_text(verdict, recommendation, 'has more parts')}"


def _inference_only_text(result: StudyData, verdict: Verdict, recommendation: Recommendation) -> str:
    assert recommendation.gain is not None and recommendation.plan_name is not None
    assert verdict.inference_only is not None
    # what was tuned for the baseline may not be what a person trains with so far
    others_phrase = untested_text(result.spec, recommendation)
    text = (
        f"train as before, at {baseline_name(result.spec)}{others_phrase}, and evaluate at "
        f"{plan_text(recommendation.plan_name)} ({best_of(verdict.inference_only.baseline)}). That gains "
        f"{format_gain(recommendation.gain)}"
    )
    if not verdict.total.significant:
        winner = "the winner of the search, which is trained at another temperature,"
        return f"{text}, while {winner} is not shown to gain anything."
    return f"{text}.{_beside_winner_text(verdict, recommendation, 'needs training at another temperature')}"


def _change_nothing_text(
    result: StudyData, verdict: Verdict, recommendation: Recommendation, blocked_text: str
) -> str:
    baseline = baseline_name(result.spec)
    others_phrase = untested_text(result.spec, recommendation)
    if verdict.untrained and not verdict.total.significant:
        return (
            f"change nothing yet: {baseline} diverged on every seed, so there is nothing to compare with. "
            "Have it train to its end (a smaller learning rate, clipped gradients), and search again."
        )
    nothing = "" if others_phrase else "change nothing: "
    text = f"{nothing}train and evaluate at {baseline}{', as now' if others_phrase else ''}{others_phrase}."
    if verdict.total.significant and not verdict.guards_kept:
        return f"{text} The gain is shown, but the winner {not_kept(verdict.guards)}.{blocked_text}"
    if verdict.total.significant:
        min_gain = f"{result.spec.study.min_gain}{_in_units(result, recommendation)}"
        return f"{text} The gain is shown, but smaller than study.min_gain, {min_gain}."
    text += blocked_text
    if (inference := verdict.inference_only) is not None and (reason := why_not_inference(verdict)):
        gain = format_gain(inference.answer)
        text += f" Evaluating the same models at {plan_text(inference.plan_name)} gains {gain}{reason}."
    if verdict.at_one:
        return f"{text} The search found nothing better."
    if recommendation.excluded is None:
        subject = "temperature" if result.spec.attends or result.spec.temperatures else "parameter set"
        return f"{text} No {subject} is shown to gain anything."
    if verdict.total.worse:
        return f"{text} The winner of the search is shown to be worse."
    upper_bound = limit(recommendation.excluded, verdict.total.paired)
    text += f" A gain of the winner above {upper_bound} is excluded ({confidence(verdict.total.paired)})."
    if not recommendation.min_gain:
        condition = f"If a smaller gain is worth more pairs to you ({_PAIRS})"
        return f"{text} {condition}, set study.min_gain to see how many."
    if recommendation.excluded < recommendation.min_gain:
        return f"{text} That is less than study.min_gain, {result.spec.study.min_gain}."
    return text


def why_not_inference(verdict: Verdict) -> str:
    """Return in a clause why inference only is not recommended where it is shown to gain; else nothing."""
    inference, recommendation = verdict.inference_only, verdict.recommendation
    if inference is None or recommendation is None or not inference.answer.significant:
        return ""
    test, min_gain, reason = inference.answer.paired, recommendation.min_gain, ""
    if recommendation.action_without_training != "inference_only":
        reason = "what is recommended goes before it"
        if any(option.plan_name is not None for option in recommendation.passed_over):
            reason = "a guard is in the way"
        elif test.gain < min_gain:
            reason = f"it is smaller than is worth a change ({min_gain:.3g}, study.min_gain)"
        elif not verdict.total.significant:
            level = f"{INFERENCE_ALPHA_SHARE * test.alpha:.4g}"
            reason = f"where no gain of the winner is shown, p has to be below {level} for that"
        elif inference.keep_share_result is None or not inference.keep_share_result.significant:
            reason = "it is not shown to keep enough of the winner's gain"
    return f", but not recommended: {reason}" if reason else ""


def _more_pairs_text(result: StudyData, recommendation: Recommendation, study_args: str) -> str:
    assert recommendation.more_pairs is not None and result.verdict is not None
    more_pairs = recommendation.more_pairs
    cost = f"{more_pairs.runs} runs, about {duration(more_pairs.seconds)} of training"
    if more_pairs.gpu_seconds is not None:
        cost += f", {duration(more_pairs.gpu_seconds)} of GPUs"
    gain = f"{result.spec.study.min_gain}{_in_units(result, recommendation)}"
    return (
        f"it is not decided whether there is a gain of {gain} (study.min_gain)."
        f" If there is, {more_pairs.pairs} more pairs ({cost}; {_PAIRS}) show it with a chance of 80 %: "
        f"`tempopt resume {study_args} --pairs +{more_pairs.pairs}`."
    )


def _widen_text(recommendation: Recommendation, result: StudyData, storage: str) -> str:
    can_learn = result.spec.study.sampler.name == KNOWLEDGE_GRADIENT
    command = widen_command(result.name, recommendation.widen, storage, can_learn=can_learn)
    suffix = " that learns from this one" if can_learn else ""
    return f"widen {_ranges_text(recommendation)}, in a new study{suffix}: `{command}`."


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
    ends = (
        f"low={widening.to_low:g}" if widening.to_low < widening.low else f"high={widening.to_high:g}"
        for widening in widen
    )
    settings = [f"--set search.{w.name}.{end}" for w, end in zip(widen, ends, strict=True)]
    if can_learn:
        settings.append(f"--set {shlex.quote(f'study.warm_start=[{name}]')}")
    return f"tempopt search SPEC --name {shlex.quote(f'{name}_wider')} {' '.join(settings)}{storage}"


def _ranges_text(recommendation: Recommendation) -> str:
    texts = []
    for widening in recommendation.widen:
        is_lower = widening.to_low < widening.low
        bound_text = f"down to {widening.to_low:g}" if is_lower else f"up to {widening.to_high:g}"
        texts.append(
            f"the range of {widening.name}, now {widening.low:g} to {widening.high:g}, {bound_text} "
            f"({widening.value:.4g} is at its {'lower' if is_lower else 'upper'} end)"
        )
    return " and ".join(texts)


def _beside_winner_text(verdict: Verdict, recommendation: Recommendation, reason: str) -> str:
    """Return how the winner's gain and what is recommended in its place go together."""
    gain_text = f" The winner of the search gains {format_effect(verdict.total.paired)}, but"
    if verdict.total.significant and not verdict.guards_kept:
        return f"{gain_text} is not recommended: it {not_kept(verdict.guards)}."
    difference = ""
    if recommendation.winner_over_it is not None:
        is_inference_only = recommendation.action_without_training == "inference_only"
        at_best = ", at its own best temperature at inference," if is_inference_only else ""
        test = recommendation.winner_over_it.paired
        difference = f" (winner{at_best} less this: {format_signed(test)}, {format_ci_and_p(test)})"
        if recommendation.winner_over_it.worse:
            return f"{gain_text} is shown to be worse than this{difference}."
    margin_text = f" by {recommendation.min_gain:.3g} or more" if recommendation.min_gain else ""
    return (
        f"{gain_text} {reason} and is not shown to be better than this{margin_text}{difference}, so "
        "the simpler change is recommended."
    )


def best_of(tuned: TunedInference) -> str:
    """Return what a temperature at inference was chosen from, and on what data."""
    return f"the best of {len(tuned.curve)} tried on the validation data"


def choice_text(tuned: TunedInference, confirmed_on: str) -> str:
    """Return the grid that a temperature at inference was chosen from, and the seeds that chose it."""
    constants = [plan for plan in map(ConstantPlan.of, tuned.curve) if plan is not None]
    grids = []
    for name in dict.fromkeys(plan.temperature for plan in constants):
        suffix = f" of {name}" if name else ""
        levels = [plan.tau for plan in constants if plan.temperature == name]
        grids.append(f"a log-spaced grid of constants{suffix} from {min(levels):.4g} to {max(levels):.4g}")
    is_scaled = any(plan.length_scaling != "none" for plan in constants)
    scaling = ", with and without length scaling" if is_scaled else ""
    seeds = "of these models"
    if confirmed_on != "test":
        seeds = "of every other fresh seed; what it gains is counted on the other seeds"
    winners = " the winner's final temperature," if WINNER in tuned.curve else ""
    return (
        f"{plan_text(tuned.plan_name)} has the best mean of {len(tuned.curve)} on the validation data "
        f"{seeds}: {', '.join(grids)}{scaling},{winners} and the temperature of the training."
    )


def ends_text(result: StudyData, verdict: Verdict) -> str:
    """Return which of the winner's values lie at the end of their range and are not to be widened, and why.

    Empty if there are none: what is to be widened is named in the recommendation.
    """
    recommendation = verdict.recommendation
    if recommendation is None:
        return ""
    widened = {widening.name for widening in recommendation.widen}
    at_ends = (widening.name for widening in find_params_at_range_ends(verdict.params, result.spec))
    ends = [name for name in at_ends if name not in widened]
    if not ends:
        return ""
    if not verdict.total.significant:
        reason = "no gain is shown there"
        reason += f" by verdict {verdict.looks}" if result.earlier_verdicts else ""
    elif recommendation.action_without_training == "inference_only":
        reason = f"training at {baseline_name(result.spec)} is recommended"
    elif recommendation.action_without_training == "change_nothing":
        reason = "the winner is not recommended"
    else:
        reason = "something simpler than the winner is recommended"
    return f"; at the end of the searched range: {', '.join(ends)} (not to be widened, since {reason})"


def _blocked_options_text(recommendation: Recommendation, baseline: str) -> str:
    """Return a sentence for each option that only a guard excludes; empty without any."""
    text = ""
    for option in recommendation.passed_over:
        change = f"Training with {temperature_text(option.parameters)}"
        if option.plan_name is not None:
            change = f"Training at {baseline} and evaluating at {plan_text(option.plan_name)}"
        text += f" {change} gains as well, but {not_kept(option.guards)}."
    return text


def untested_parameters(spec: StudySpec, recommendation: Recommendation) -> dict[str, dict[str, Any]]:
    """Return ``value`` and ``spec`` value of each ordinary parameter that was tuned at τ = 1, by name.

    No run compares them; None: the spec leaves the parameter at its default. Empty where the temperatures of
    the training are to be changed, too: then ordinary parameters are part of what was compared.
    """
    if recommendation.action_without_training not in ("change_nothing", "inference_only"):
        return {}
    return {
        name: {"value": value, "spec": spec_value}
        for name, value in recommendation.parameters.items()
        if name not in CREDITED and (spec_value := _value_in(spec, name)) != value
    }


def untested_text(spec: StudySpec, recommendation: Recommendation) -> str:
    """Return :func:`untested_parameters` as the end of a sentence on training; empty without any."""
    texts = []
    for name, values in untested_parameters(spec, recommendation).items():
        value, spec_value = (parameters_text({name: value}).partition("=")[2] for value in values.values())
        basis = "at its default" if values["spec"] is None else spec_value
        reference = f"{basis} in the spec; not tested against it"
        if spec.program is not None:
            reference = "tuned; not tested against yours"
        texts.append(f"{name} = {value} ({reference})")
    return f", with {', '.join(texts)}" if texts else ""


def _value_in(spec: StudySpec, name: str) -> Any:
    if spec.program is not None:
        return spec.baselines.get(name)
    section, _, path = name.partition(".")
    target: Any = {"trainer": spec.trainer, "data": spec.data}.get(section) if path else None
    if target is None:
        # an init argument of the model, or of one of its parts
        target, path = spec.model, path if section == "model" and "." in path else name
    for key in path.split("."):
        target = target.get("init_args", target).get(key) if isinstance(target, Mapping) else None
    return NEUTRAL.get(name) if target is None else target


def _in_units(result: StudyData, recommendation: Recommendation) -> str:
    min_gain = result.spec.study.min_gain
    return f" = {recommendation.min_gain:.3g}" if isinstance(min_gain, str) else ""
