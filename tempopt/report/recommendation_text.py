"""What a study recommends: what to use, and what is to be known beside it; decides nothing."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tempopt.report.comparison_text import failure_verb, unvaried_text
from tempopt.report.finding import MODELS
from tempopt.report.formatting import (
    baseline_name,
    confidence,
    duration,
    format_gain,
    format_signed,
    p_text,
    parameters_text,
    plan_text,
    temperature_text,
    unsigned_text,
)
from tempopt.report.guard_text import not_kept
from tempopt.spec.domains import RangeDomain
from tempopt.spec.sections import KNOWLEDGE_GRADIENT
from tempopt.temperature import CREDITED, NEUTRAL, TEMPERATURE_PARAMETERS
from tempopt.verdict.recommendation import Recommendation
from tempopt.verdict.set_comparison import ABSENT, value_in_spec
from tempopt.verdict.widening import Widening

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData
    from tempopt.spec.study_spec import StudySpec
    from tempopt.verdict.verdict import Verdict

_END_DISTANCE = 0.96
"""Smallest distance from the middle of a range, as a share of its half width, of a value at its end."""
HEAD = "What to do: "
"""What the recommendation begins with wherever it is printed."""


def recommendation_text(result: StudyData, storage: str = "", *, as_code: bool = True) -> str:
    """Return the recommendation and its reason, for a study that has a verdict.

    Args:
        result: The study.
        storage: Option for its database, `` --storage URL``, in commands; empty for none.
        as_code: Whether to name the command that exports it as code.
    """
    verdict = result.deciding_verdict
    assert verdict is not None
    sentences = [f"use {use_text(result.spec, verdict)}", *map(sentence, remarks(result, verdict, storage))]
    if as_code:
        sentences.append(f"As code: `tempopt export {shlex.quote(result.name)}{storage}`")
    return f"{'. '.join(sentences)}."


def sentence(text: str) -> str:
    """Return a text that begins with a capital; τ stays small, its capital is a T."""
    return text if text.startswith("τ") else text[0].upper() + text[1:]


def use_text(spec: StudySpec, verdict: Verdict) -> str:
    """Return what a verdict recommends to use."""
    advice, baseline = verdict.recommendation, baseline_name(spec)
    assert advice is not None
    plan_phrase = "" if advice.plan_name is None else f", evaluated at {plan_text(advice.plan_name)}"
    if advice.action_without_training == "change_nothing":
        return f"{baseline}, as now{untested_text(spec, advice)}"
    if advice.action_without_training == "inference_only":
        return f"{baseline}{untested_text(spec, advice)}{plan_phrase}"
    return f"{temperature_text(advice.params)}{plan_phrase}"


def remarks(result: StudyData, verdict: Verdict, storage: str) -> Iterator[str]:
    """Yield remarks on the recommendation of a verdict, most important first."""
    advice, total, baseline = verdict.recommendation, verdict.primary, baseline_name(result.spec)
    assert advice is not None and result.verdict is not None
    if verdict is not result.verdict:
        latest = result.verdict.verdict_number
        yield f"this is what verdict {verdict.verdict_number} recommends; verdict {latest} takes nothing back"
    if total.significant and not verdict.guards_kept:
        yield f"the winner gains, but {not_kept(verdict.guards)}"
    if verdict.unvaried:
        names = {"winner": "the winner", "baseline": baseline}
        yield unvaried_text([names[name] for name in verdict.unvaried]).rstrip(".")
    rates = verdict.failures
    if rates is not None and verdict.is_more_stable:
        yield (
            f"{rates.reference.failed} of {rates.reference.runs} trainings failed at {baseline}, "
            f"{rates.arm.failed} with this ({p_text(rates.p_value)})"
        )
    elif rates is not None and result.spec.counts_failures:
        counts = f"{rates.arm.failed} of {rates.arm.runs} seeds, {baseline} on {rates.reference.failed}"
        yield f"the winner {failure_verb(result.spec)} on {counts}"
    if total.significant:
        yield from _beside_constants(verdict)
        if advice.action_without_training == "change_nothing" and verdict.guards_kept:
            yield (
                f"the gain is shown, and smaller than is worth a change ({advice.min_gain:.3g}, "
                "study.min_gain)"
            )
    elif not verdict.at_one:
        source = "the best of the search" if result.has_trial(verdict.params) else MODELS
        yield f"the winner was {temperature_text(verdict.params)}, {source}"
        if total.worse:
            yield "it is shown to be worse"
        elif advice.excluded is not None:
            upper_bound = unsigned_text(advice.excluded, total.paired)
            yield f"a gain above {upper_bound} is excluded ({confidence(total.paired)})"
    if verdict.has_reference_diverged and not total.significant:
        yield f"let {baseline} train to its end (a smaller learning rate, clipped gradients) and search again"
    yield from _next_steps(result, verdict, advice, storage)
    if total.is_skewed:
        yield "the differences are skewed: the error rate may be higher than stated"


def _beside_constants(verdict: Verdict) -> Iterator[str]:
    """Yield the winner's gain over a constant temperature, and over the recommended parameters."""
    advice, subject = verdict.recommendation, ""
    assert advice is not None
    if advice.action_without_training == "inference_only":
        yield "training at another temperature is not shown to be worth more"
        return
    best = (verdict.constant_params, verdict.over_constant)
    twin = (verdict.constant_twin_params, verdict.over_constant_twin)
    constants = [(params, answer) for params, answer in (best, twin) if params is not None and answer]
    is_replaced = advice.params != verdict.params
    if constants and advice.action_without_training != "train_at_constant":
        # the one over which the winner's gain is least shown
        params, answer = max(constants, key=lambda pair: pair[1].paired.p_value)
        subject = "the winner is " if is_replaced else ""
        worth = "worth" if verdict.schedule_shown else "not shown to be worth"
        gain = f"{format_signed(answer.paired)} over {temperature_text(params)}"
        yield f"{subject}{worth} more than a constant: {gain} ({p_text(answer.paired.p_value)})"
    if is_replaced and advice.winner_over_it is not None:
        relation = "is worse than" if advice.winner_over_it.worse else "is not shown to be better than"
        gain = "" if advice.gain is None else f", whose gain is {format_signed(advice.gain.paired)}"
        yield f"the winner ({temperature_text(verdict.params)}) {relation} this{gain}"


def _next_steps(result: StudyData, verdict: Verdict, advice: Recommendation, storage: str) -> Iterator[str]:
    """Yield steps that could add to the recommended gain, with their commands."""
    inference = verdict.inference_only
    if advice.plan_name is not None and advice.action_without_training != "inference_only":
        assert inference is not None and inference.winner is not None
        yield f"the temperature at inference gains another {format_gain(inference.winner.answer)}"
    for option in advice.passed_over:
        change = f"training with {temperature_text(option.params)}"
        if option.plan_name is not None:
            change = f"evaluating at {plan_text(option.plan_name)}"
        yield f"{change} gains as well, but {not_kept(option.blocking_guards)}"
    if advice.widen:
        can_learn = result.spec.study.sampler.name == KNOWLEDGE_GRADIENT
        command = widen_command(result.name, advice.widen, storage, can_learn=can_learn)
        names = " and ".join(
            f"{widening.name} ({widening.low:g} to {widening.high:g})" for widening in advice.widen
        )
        yield f"it lies at the end of the range of {names}; to search a wider one: `{command}`"
    for name, domain in _tuned_at_range_ends(advice.params, result.spec):
        range_text = f"{name} ({domain.low:g} to {domain.high:g})"
        yield f"the value is at the end of the range of {range_text}; a new study can search a wider one"
    if (more_pairs := advice.more_pairs) is not None:
        cost = f"{more_pairs.runs} runs, about {duration(more_pairs.seconds)} of training"
        if more_pairs.gpu_seconds is not None:
            cost += f", {duration(more_pairs.gpu_seconds)} of GPUs"
        command = f"tempopt resume {shlex.quote(result.name)}{storage} --pairs +{more_pairs.pairs}"
        yield (
            f"{more_pairs.pairs} more pairs ({cost}) show a gain of {advice.min_gain:.3g}, study.min_gain, "
            f"with a chance of 80 %, if there is one: `{command}`"
        )


def _tuned_at_range_ends(params: Mapping[str, Any], spec: StudySpec) -> Iterator[tuple[str, RangeDomain]]:
    """Yield the ordinary parameters that the search has brought to an end of their range."""
    for name, domain in spec.search.items():
        value = params.get(name)
        if name in TEMPERATURE_PARAMETERS or not isinstance(domain, RangeDomain) or value is None:
            continue
        low, high, position = (math.log(x) if domain.log else x for x in (domain.low, domain.high, value))
        if value != domain.baseline and abs(2 * position - low - high) >= _END_DISTANCE * (high - low):
            yield name, domain


def widen_command(
    name: str, widen: tuple[Widening, ...], storage: str = "", *, can_learn: bool = True
) -> str:
    """Return the command that searches wider ranges in a new study; SPEC stands for the file of the spec.

    Args:
        name: The study that searched the ranges.
        widen: The ranges.
        storage: Option for its database, `` --storage URL``; empty for none.
        can_learn: Whether the sampler can learn from the study (``warm_start``).
    """
    # only the end, so that log, step, baseline and when: stay
    ends = (
        f"low={widening.to_low:g}" if widening.to_low < widening.low else f"high={widening.to_high:g}"
        for widening in widen
    )
    settings = [f"--set search.{w.name}.{end}" for w, end in zip(widen, ends, strict=True)]
    if can_learn:
        settings.append(f"--set {shlex.quote(f'study.warm_start=[{name}]')}")
    return f"tempopt search SPEC --name {shlex.quote(f'{name}_wider')} {' '.join(settings)}{storage}"


def untested_parameters(spec: StudySpec, recommendation: Recommendation) -> dict[str, dict[str, Any]]:
    """Return ``value`` and ``spec`` value of each ordinary parameter that was tuned at τ = 1, by name.

    No run compares them; ``spec`` is None if the spec leaves the parameter at its default. Empty if the
    temperatures of training are changed too: then ordinary parameters are part of the comparison.
    """
    if recommendation.action_without_training not in ("change_nothing", "inference_only"):
        return {}
    parameters: dict[str, dict[str, Any]] = {}
    for name, value in recommendation.params.items():
        spec_value = value_in_spec(spec, name)
        spec_value = NEUTRAL.get(name) if spec_value is ABSENT else spec_value
        if name not in CREDITED and spec_value != value:
            parameters[name] = {"value": value, "spec": spec_value}
    return parameters


def untested_text(spec: StudySpec, recommendation: Recommendation) -> str:
    """Return :func:`untested_parameters` as the end of a sentence on training; empty if there are none."""
    texts = []
    for name, values in untested_parameters(spec, recommendation).items():
        value, spec_value = (parameters_text({name: value}).partition("=")[2] for value in values.values())
        basis = "at its default" if values["spec"] is None else spec_value
        reference = f"{basis} in the spec; not tested against it"
        if spec.program is not None:
            reference = "tuned; not tested against yours"
        texts.append(f"{name} = {value} ({reference})")
    return f", with {', '.join(texts)}" if texts else ""
