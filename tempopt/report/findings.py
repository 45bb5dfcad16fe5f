"""The findings of a study; computes nothing, and never calls the best value of a search a gain."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tempopt.errors import one_line
from tempopt.report.alpha_spending import earlier_seeds, ledger_lines, rounds_combined
from tempopt.report.comparison_text import (
    comparison_findings,
    cost_line,
    failure_verb,
    noise_text,
    pair_caveats,
)
from tempopt.report.decision import WORDS, decide, deciding_answer, outcome_of
from tempopt.report.finding import DATA, MODELS, PAIRED_TEST, Finding, comparison_finding, facts
from tempopt.report.formatting import (
    baseline_name,
    baseline_values,
    confidence,
    describe_temperature_change,
    duration,
    format_ci_and_p,
    format_comparison,
    format_signed,
    parameters_text,
    plan_text,
    share_text,
    temperature_text,
    unsigned_text,
)
from tempopt.report.guard_text import guard_findings
from tempopt.report.heads_text import head_lines
from tempopt.report.recommendation_text import HEAD, recommendation_text, use_text
from tempopt.temperature import PER_HEAD, is_controlled
from tempopt.verdict.inference import AS_TRAINED, InferenceOnly, TunedInference
from tempopt.verdict.learned import Ends
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.recommendation import INFERENCE_ALPHA_SHARE
from tempopt.verdict.run_evaluations import WINNER, InferenceConstant
from tempopt.verdict.stages import failed_runs_to_requeue
from tempopt.verdict.statistics.failure_rates import Rate
from tempopt.verdict.verdict import Verdict
from tempopt.verdict.widening import find_params_at_range_ends

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData
    from tempopt.spec.study_spec import StudySpec
    from tempopt.storage.rows import TicketRow

PARTS = {
    "schedule": "the schedule",
    "level": "the level",
    "layers": "the layer pattern",
    "heads": "the head pattern",
    "length_scaling": "the length scaling",
    "entropy": "the entropy term",
    "output_temperature": "the output temperature",
    "control": "the control of the entropy",
    "generation": "the parameters of generation",
}
"""Part of a plan to what people call it."""
_PARTS_PER_TEMPERATURE = ("schedule", "level")
"""Parts that each temperature has of its own."""
_MAX_LISTED_REASONS = 3
_MAX_NAMED_LAYERS = 4
_MAX_REASON_CHARS = 100


def find(result: StudyData, storage: str = "") -> list[Finding]:
    """Return the findings of a study, the decision first.

    Args:
        result: The study.
        storage: Option for its database, `` --storage URL``, in commands; empty for none.
    """
    if result.spec.compare is not None:
        findings, cost = comparison_findings(result), cost_line(result)
    else:
        verdict = result.verdict
        findings = (
            _findings_without_verdict(result)
            if verdict is None
            else list(_verdict_findings(result, verdict, storage))
        )
        findings += facts("rounds", ledger_lines(result))
        cost = _cost_text(result)
    findings += facts("lost", _lost_runs_lines(result, storage))
    findings += facts("damaged", filter(None, [result.damaged]))
    return [*findings, Finding(kind="cost", text=cost)]


def _verdict_findings(result: StudyData, verdict: Verdict, storage: str) -> Iterator[Finding]:
    """Yield the findings of a study with a verdict, the decision first."""
    decision, deciding_verdict, baseline = decide(result), result.deciding_verdict, baseline_name(result.spec)
    assert decision is not None and deciding_verdict is not None
    answer, is_more_stable = deciding_answer(deciding_verdict), decision.outcome == "more_stable"
    finding = comparison_finding("decision", decision.headline, answer, deciding_verdict.params)
    yield replace(finding, state="shown", answer=None) if is_more_stable else finding
    text = f"{HEAD}{recommendation_text(result, storage)}"
    yield Finding(kind="recommendation", text=text, params=decision.params)
    if answer != verdict.primary or is_more_stable:
        text = f"the winner of the search over {baseline}: {format_comparison(verdict.primary)}."
        yield comparison_finding("total", text, verdict.primary, verdict.params)
    source = "" if result.has_trial(verdict.params) else f" ({MODELS})"
    winner = f"winner of the search{source}: {temperature_text(verdict.params)}{_ends_text(result, verdict)}"
    yield Finding(kind="winner", text=winner, params=verdict.params)
    yield from facts("rounds", round_lines(result))
    data = f"{DATA[verdict.confirmed_on]} data, {PAIRED_TEST}"
    yield from facts("basis", [f"compared with {baseline}{baseline_values(result.spec)} on the {data}."])
    yield from facts("caveat", _caveat_lines(verdict, result.spec))
    if not verdict.at_one:
        yield from _baseline_findings(result, verdict)
    yield from _constant_findings(result, verdict)
    if result.spec.evaluated:
        yield from _inference_findings(verdict, baseline)
    elif result.spec.program is None:
        reason = "no temperature that an evaluation is known to read is searched"
        yield Finding(kind="inference", text=f"inference only: not applicable; {reason}.")
    if verdict.controlled:
        text = f"under control of the entropy: {final_temperatures_text(verdict.controlled)}."
        yield Finding(kind="control", text=text)
    yield from _learned_temperatures(verdict, result.spec)
    yield from _part_findings(verdict, result.spec)
    yield from _failure_findings(verdict, result)
    yield from facts("heads", head_lines(result))
    blocked = "the winner is not recommended" if verdict.primary.significant else ""
    yield from guard_findings(verdict.guards, blocked=blocked)


def render_lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as lines of text: the first, and the others indented below it."""
    first_finding, *other_findings = findings
    lines = [first_finding.text, *(f"  {detail}" for detail in first_finding.details)]
    for finding in other_findings:
        lines += [f"  {finding.text}", *(f"    {detail}" for detail in finding.details)]
    return lines


def _earlier_line(result: StudyData, verdict: Verdict) -> str:
    """Return the result and the recommendation of one of several verdicts."""
    test = verdict.primary.paired
    # a winner at the baseline cannot gain over it
    num_earlier = earlier_seeds(result, verdict.round, counts_failures=result.spec.counts_failures)
    combined_note = "; rounds combined" if num_earlier else ""
    gain = "" if verdict.at_one else f", {format_signed(test)} ({format_ci_and_p(test)}{combined_note})"
    outcome = WORDS[outcome_of(verdict)].lower()
    summary = f"verdict {verdict.verdict_number} (round {verdict.round}): {outcome}{gain}"
    return f"{summary}; it recommended: {use_text(result.spec, verdict)}."


def _baseline_findings(result: StudyData, verdict: Verdict) -> Iterator[Finding]:
    """Yield the references of the winner at the baseline, and the excluded gain."""
    total, over_baseline, over_twin = verdict.primary, verdict.over_baseline, verdict.over_twin
    baseline = baseline_name(result.spec)
    if result.direction == "minimize":
        text = f"a gain or difference with + is better: a lower {result.metric}."
        yield Finding(kind="sign", text=text)
    advice = verdict.recommendation
    if advice is not None and advice.excluded is not None and not total.worse:
        upper_bound = unsigned_text(advice.excluded, total.paired)
        text = f"a gain of the winner above {upper_bound} is excluded ({confidence(total.paired)})."
        yield Finding(kind="excluded", text=text)
    if total.lost:
        text = f"all runs of one of the two that it has to beat at {baseline} were lost, so nothing is shown."
        yield Finding(kind="lost", text=text)
    if over_baseline is None or over_twin is None or not total.component_results:
        return
    text = f"against the best that is known at {baseline}: {format_comparison(over_baseline)}."
    yield comparison_finding("over_baseline", text, over_baseline, verdict.baseline_params)
    twin_params = {n: v for n, v in verdict.twin_params.items() if verdict.baseline_params.get(n) != v}
    text = f"against its own other parameters at {baseline} ({parameters_text(twin_params)})"
    text += f": {format_comparison(over_twin)}; the more cautious of the two counts, at each end."
    yield comparison_finding("over_twin", text, over_twin, verdict.twin_params)


def _constant_findings(result: StudyData, verdict: Verdict) -> Iterator[Finding]:
    """Yield the winner against constant temperatures, and the result for its schedule."""
    moving_text, params = describe_temperature_change(verdict.params), verdict.constant_params
    if verdict.over_constant is not None and params is not None:
        source = "of the search" if result.has_trial(params) else MODELS
        text = f"against the best constant temperature {source} ({temperature_text(params)})"
        text += f": {format_comparison(verdict.over_constant)}."
        yield comparison_finding("over_constant", text, verdict.over_constant, params)
    params = verdict.constant_twin_params
    if verdict.over_constant_twin is not None and params is not None:
        is_begun = is_controlled(verdict.params)
        level = "the temperature that it begins with" if is_begun else "its geometric mean"
        text = f"against itself with {level} in place of its {moving_text} ({temperature_text(params)})"
        text += f": {format_comparison(verdict.over_constant_twin)}."
        yield comparison_finding("over_constant_twin", text, verdict.over_constant_twin, params)
    if (constants := verdict.against_constant) is None:
        return
    if verdict.schedule_shown:
        text = f"the {moving_text} is worth more than one constant temperature."
        yield Finding(kind="schedule", text=text, state="shown")
    elif constants.worse:
        yield Finding(kind="schedule", text="a constant temperature is better.", state="worse")
    else:
        text = f"the {moving_text} is not shown to be worth more than one constant temperature."
        yield Finding(kind="schedule", text=text, state="not_shown")


def _findings_without_verdict(result: StudyData) -> list[Finding]:
    """Return why there is no verdict, and the best trial so far."""
    best = result.best
    if best is None and result.state == "done":
        text = f"No verdict: {result.name} is over, and no search trial is complete."
    elif best is None:
        text = f"No search trial of {result.name} is complete yet."
    elif result.state != "done":
        text = "No verdict yet: the confirmation on fresh seeds is not over."
    elif not result.tickets["confirm"].requested:
        reason = f"no run with {baseline_name(result.spec)} was begun"
        text = f"No verdict: {reason}, so there is nothing to compare with."
    else:
        text = "No verdict: no pair of runs could be compared in the confirmation."
    findings = [Finding(kind="decision", text=text)]
    if best is not None:
        text = f"best trial: {result.metric} {best.value:.4g} with {temperature_text(best.params)}"
        text += "; that is not the gain."
        findings.append(Finding(kind="best", text=text, params=best.params))
    return findings


def round_lines(result: StudyData) -> list[str]:
    """Return notes on a verdict that is not a study's first, or does not cover all of its trials."""
    verdict = result.verdict
    if verdict is None:
        return []
    lines = []
    if result.round > verdict.round:
        lines.append("this is from before the newest search trials were added: those are not confirmed.")
    if verdict.verdict_number > 1:
        lines.append(
            f"verdict {verdict.verdict_number} of this study: its level is {100 * verdict.alpha:.3g} %."
        )
    lines += rounds_combined(result, verdict.round)
    verdicts = [*result.earlier_verdicts, verdict] if result.earlier_verdicts else []
    return [*lines, *(_earlier_line(result, past_verdict) for past_verdict in verdicts)]


def _lost_runs_lines(result: StudyData, storage: str) -> Iterator[str]:
    """Yield the runs that did not complete, or only at a later attempt."""
    failed = [ticket for ticket in result.lost if ticket.state == "failed"]
    if failed:
        yield f"failed on every attempt: {len(failed)} ({_failures_text(failed)})."
        log_name = f"{shlex.quote(result.name)} {failed[0].name}{storage}"
        yield f"the whole output of the first: tempopt logs {log_name}"
        if any(failed_runs_to_requeue(result.runs, result.spec)):
            command = f"tempopt resume {shlex.quote(result.name)}{storage} --retry-failed"
            yield f"to have what counts of them, once the cause is gone: {command}"
    retrying_tickets = [ticket for ticket in result.lost if ticket.state != "failed"]
    if retrying_tickets:
        attempts = sum(ticket.failures for ticket in retrying_tickets)
        yield f"retried after failures: {attempts} ({_failures_text(retrying_tickets)})."
    if result.alone:
        names = ", ".join(ticket.name for ticket in result.alone)
        yield f"ran out of GPU memory and needed a GPU of their own: {names}."
    withdrawn = [f"{count.withdrawn} {kind}" for kind, count in result.tickets.items() if count.withdrawn]
    if withdrawn:
        yield f"withdrawn, the study having been stopped before: {', '.join(withdrawn)} tickets."


def _failures_text(tickets: list[TicketRow]) -> str:
    """Return each reason of failures with the first ticket that has it."""
    tickets_by_reason: dict[str, list[TicketRow]] = {}
    for ticket in tickets:
        tickets_by_reason.setdefault(_shorten(ticket.error or "no reason is known"), []).append(ticket)
    reasons = list(tickets_by_reason.items())[:_MAX_LISTED_REASONS]
    texts = [
        f"{first.kind} {first.number}{f' and {len(others)} more' if others else ''}: {reason}"
        for reason, (first, *others) in reasons
    ]
    num_more = len(tickets_by_reason) - _MAX_LISTED_REASONS
    return "; ".join([*texts, *([f"and {num_more} more"] if num_more > 0 else [])])


def _shorten(text: str) -> str:
    text = one_line(text)
    is_short = len(text) <= _MAX_REASON_CHARS
    return text.rstrip(".") if is_short else f"{text[:_MAX_REASON_CHARS].rstrip('.')} ..."


def _caveat_lines(verdict: Verdict, spec: StudySpec) -> Iterator[str]:
    total = verdict.primary
    if verdict.confirmed_on == "validate":
        yield "confirmed on the validation data that the search has seen: only the seeds are fresh."
    if verdict.confirmed_on == "program":
        yield "confirmed on the data that the program measures its value on: only the seeds are fresh."
    yield from pair_caveats(total, "the winner", baseline_name(spec), failure_verb(spec))
    if (text := noise_text(total, "the winner")) and not verdict.at_one:
        yield f"{text} (study.seeds.confirm)."
    if total.is_skewed:
        yield (
            "the differences are skewed, and the test takes them to spread alike to both sides: the error "
            "rate may be higher than stated. More pairs do not mend that; look at the runs that stand out."
        )


def part_text(part: str, spec: StudySpec) -> str:
    """Return the name of a part of the winner: ``the schedule``, ``the schedule of contrast``.

    Attention's parts are named as such if there are named temperatures: ``the level of attention``.
    """
    temperature, _, group = part.rpartition(".")
    if group not in PARTS:
        return part
    if not temperature and spec.temperatures and group in _PARTS_PER_TEMPERATURE:
        temperature = "attention"
    return f"{PARTS[group]} of {temperature}" if temperature else PARTS[group]


def _ends_text(result: StudyData, verdict: Verdict) -> str:
    """Return which of the winner's values lie at the end of their range and are not to be widened."""
    assert verdict.recommendation is not None
    widened_names = {widening.name for widening in verdict.recommendation.widen}
    at_ends = (widening.name for widening in find_params_at_range_ends(verdict.params, result.spec))
    names = ", ".join(name for name in at_ends if name not in widened_names)
    return f"; at the end of the searched range: {names}" if names else ""


def _why_not_inference(verdict: Verdict) -> str:
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
        elif not verdict.primary.significant:
            level = f"{INFERENCE_ALPHA_SHARE * test.alpha:.4g}"
            reason = f"where no gain of the winner is shown, p has to be below {level} for that"
        elif inference.keep_share_result is None or not inference.keep_share_result.significant:
            reason = "it is not shown to keep enough of the winner's gain"
    return f", but not recommended: {reason}" if reason else ""


def _choice_text(tuned: TunedInference, confirmed_on: str) -> str:
    """Return the grid that a temperature at inference was chosen from, and the seeds that chose it."""
    constants = [plan for plan in map(InferenceConstant.of, tuned.curve) if plan is not None]
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


def _inference_findings(verdict: Verdict, baseline: str) -> Iterator[Finding]:
    inference = verdict.inference_only
    if inference is None:
        return
    twin = inference.twin or inference.baseline
    is_twin_different = twin.answer != inference.answer
    twin_share = share_text(inference.share, twin.answer.paired)
    if inference.plan_name == AS_TRAINED:
        text = f"inference only: models trained at {baseline} are evaluated best at {baseline}."
        yield Finding(kind="inference", text=text)
    else:
        share = "." if is_twin_different else twin_share
        if inference.answer.significant:
            level = f": shown at its level, {100 * inference.answer.paired.alpha:.3g} %"
            share = f"{level}{_why_not_inference(verdict)}{share.replace(':', ';', 1)}"
        elif share == ".":
            share = ": no gain shown."
        text = (
            f"inference only (models trained at {baseline} and evaluated at "
            f"{plan_text(inference.plan_name)}, against the same models evaluated at {baseline}): "
            f"{format_comparison(inference.answer)}{share}"
        )
        choice = _choice_text(inference.baseline, verdict.confirmed_on)
        yield comparison_finding("inference", text, inference.answer, details=[choice])
    if is_twin_different and inference.share is not None:
        models = f"models trained at {baseline} with the winner's other parameters"
        text = (
            f"the same of {models}, {plan_text(twin.plan_name)}: {format_comparison(twin.answer)}{twin_share}"
        )
        yield comparison_finding("inference_twin", text, twin.answer)
    if inference.difference is not None and not verdict.at_one:
        yield _training_over_inference(verdict, inference, inference.difference, baseline)


def _training_over_inference(
    verdict: Verdict, inference: InferenceOnly, difference: PairedResult, baseline: str
) -> Finding:
    """Return the gain of training at another temperature over evaluating at one."""
    of_winner, of_baseline = (
        ""
        if tuned is None or tuned.plan_name == AS_TRAINED
        else f", evaluated at {plan_text(tuned.plan_name)}"
        for tuned in (inference.winner, inference.baseline)
    )
    winner = f"the winner{of_winner}{',' if of_winner else ''}"
    text = f"{winner} against models trained at {baseline}{of_baseline}: {format_comparison(difference)}"
    if difference.significant and verdict.primary.significant:
        end = "training at another temperature is worth that much more than inference alone."
    elif difference.worse:
        end = f"{baseline if inference.plan_name == AS_TRAINED else 'inference alone'} is better."
    elif difference.significant:
        end = f"this does not count, since the winner is not shown to gain over {baseline}."
    else:
        end = "training at another temperature is not shown to be worth more than inference alone."
    return comparison_finding("over_inference", f"{text}: {end}", difference)


def _learned_temperatures(verdict: Verdict, spec: StudySpec) -> Iterator[Finding]:
    """Yield the gain of learned temperatures over the baseline, and the winner's over them."""
    learned = verdict.learned
    if learned is None:
        if spec.study.explain and spec.study.not_learned is not None:
            reason = spec.study.not_learned.rstrip(".")
            text = f"learned temperatures: not applicable; they cannot be learned here: {reason}."
            yield Finding(kind="learned", text=text)
        return
    share = share_text(learned.share, learned.answer.paired).rstrip(".")
    if learned.share is None and not learned.answer.significant:
        share = ": no gain shown"
    factor = "the" if learned.lr_ratio == 1 else f"{learned.lr_ratio:.4g} times the"
    rate = f"with {factor} learning rate of the weights"
    rate = f"one for each head, {rate}" if learned.params.get(PER_HEAD) else rate
    text = (
        f"learned temperatures (from {baseline_name(spec)}, {rate}), at the price of one "
        f"training: {format_comparison(learned.answer)}{share}; {final_temperatures_text(learned.ends)}."
    )
    yield comparison_finding("learned", text, learned.answer, learned.params)
    if (winner_answer := learned.winner_over_it) is not None:
        no_gain_text = "; the winner is worse" if winner_answer.worse else "; no difference is shown"
        end = "" if winner_answer.significant else no_gain_text
        text = f"the winner against them: {format_comparison(winner_answer)}{end}."
        yield comparison_finding("over_learned", text, winner_answer)


def final_temperatures_text(ends: Ends) -> str:
    """Return the final temperatures: geometric mean over the runs, and range."""
    layer_ends = {layer: end for name, end in ends.items() if (layer := attention_position(name))}
    named_ends = {name: end for name, end in ends.items() if not attention_position(name)}
    summary: list[str] = []
    if len(layer_ends) <= _MAX_NAMED_LAYERS:
        named_ends |= {f"τ of {layer}": end for layer, end in layer_ends.items()}
    else:
        low, high = (pick(layer_ends, key=lambda layer: layer_ends[layer][0]) for pick in (min, max))
        extremes = (f"{layer_ends[layer][0]:.3g} in {layer}" for layer in (low, high))
        summary = [f"τ from {' to '.join(extremes)}"]
    texts = [
        f"{name} = {mean:.3g} ({first:.3g} to {last:.3g})" for name, (mean, first, last) in named_ends.items()
    ]
    return f"at the end of training {', '.join([*texts, *summary]) or 'not measured'}"


def attention_position(name: str) -> str:
    """Return the position in attention of a learned temperature, from its name; empty if it has none."""
    layer, _, head = name.partition(".")
    if not layer.isdecimal():
        return ""
    return f"layer {layer}, head {head}" if head else f"layer {layer}"


def _part_findings(verdict: Verdict, spec: StudySpec) -> Iterator[Finding]:
    """Yield the loss of the winner without each of its parts, and the tested simpler plan."""
    for part in verdict.parts:
        title = part_text(part.name, spec)
        if part.name == "level":
            title += (
                " (the temperatures begin at 1)"
                if is_controlled(verdict.params)
                else " (the schedule divided by its mean, so that it averages 1)"
            )
        end = "" if part.answer.significant or part.answer.worse else ": no difference shown"
        text = f"the winner against itself without {title}: {format_comparison(part.answer)}{end}."
        yield comparison_finding("part", text, part.answer, part.params)
    if (simplest := verdict.simplest) is not None:
        part_names = " and ".join(part_text(part, spec) for part in simplest.parts)
        outcome = "shown" if simplest.holds else "not shown"
        text = (
            f"the winner with {part_names} alone ({temperature_text(simplest.params)}) is {outcome} to "
            f"keep {100 * spec.study.keep_share:.3g} % of the gain or more; the winner against that: "
            f"{format_comparison(simplest.lost)}."
        )
        finding = comparison_finding("simplest", text, simplest.gain, simplest.params)
        yield replace(finding, state="shown" if simplest.holds else "not_shown")


def _failure_findings(verdict: Verdict, result: StudyData) -> Iterator[Finding]:
    rates = verdict.failures
    if rates is None:
        return
    limit, worse_side = result.spec.study.failure, "below" if result.direction == "maximize" else "above"
    failure = failure_verb(result.spec)
    if limit is not None:
        failure = f"{result.metric} {worse_side} {limit:g}, or {failure}"
    at_baseline = f"at {baseline_name(result.spec)} {_rate_text(rates.reference)}"
    end = ""
    if verdict.is_more_stable:
        end = " The winner is shown to fail less often."
    elif not verdict.has_all_pairs:
        end = " That is not tested, since not all pairs were trained."
    text = (
        f"failed runs ({failure}): the winner {_rate_text(rates.arm)}, {at_baseline}; "
        f"p = {rates.p_value:.2g} (exact McNemar test).{end}"
    )
    yield Finding(kind="stability", text=text, state="shown" if verdict.is_more_stable else "not_shown")


def _rate_text(rate: Rate) -> str:
    return f"{rate.failed} of {rate.runs} ({100 * rate.low:.0f} to {100 * rate.high:.0f} %)"


def _cost_text(result: StudyData) -> str:
    trial_counts_text = ", ".join(f"{n} {name}" for name, n in result.trials.items() if n)
    cost, writing_text, gpu_text = result.cost, "", ""
    if cost.checkpoint_seconds >= 1:
        writing_text = f", {duration(cost.checkpoint_seconds)} of it to write checkpoints"
    if cost.gpu_seconds is not None:
        gpu_text = f"; {duration(cost.gpu_seconds)} of GPUs"
        if cost.peak_memory is not None:
            gpu_text += f", at most {cost.peak_memory / 1e9:.2g} GB of one in use"
    training_text = f"{duration(cost.train_seconds)} of training in {result.num_ended} runs{writing_text}"
    return f"cost: {training_text} (search trials: {trial_counts_text or 'none'}){gpu_text}."
