"""What a study found as a list of findings; computes nothing, and calls no best value of a search a gain."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR
from typing import TYPE_CHECKING, Any

from tempopt.report.alpha_spending import earlier_seeds, ledger_lines, rounds_combined, seeds_text
from tempopt.report.comparison_text import comparison_findings, cost_line
from tempopt.report.constants_text import MODELS, constant_texts, constants_conclusion, is_trial
from tempopt.report.finding import DATA, TESTS, Finding, State, state_of
from tempopt.report.formatting import (
    baseline_name,
    baseline_values,
    confidence,
    duration,
    format_ci_and_p,
    format_comparison,
    format_effect,
    format_signed,
    limit,
    numbers_of_size,
    parameters_text,
    plan_text,
    share_text,
    temperature_text,
)
from tempopt.report.guard_text import guard_lines
from tempopt.report.heads_text import head_lines
from tempopt.report.learned_text import ends_text as ends_of
from tempopt.report.learned_text import rate_text
from tempopt.report.recommendation_text import (
    choice_text,
    earlier_advice,
    ends_text,
    recommendation_line,
    untested,
    why_not_inference,
)
from tempopt.temperature import is_controlled, training_key
from tempopt.verdict.inference import AS_TRAINED, InferenceOnly
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.requeue_failed import failed_runs_to_requeue
from tempopt.verdict.statistics.failure_rates import Rate
from tempopt.verdict.verdict import Verdict

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
_OF_EACH = ("schedule", "level")
"""Parts that each temperature has of its own."""
GAIN, NO_GAIN = "Gain shown", "No gain shown"
NO_GAIN_OF_TEMPERATURE = "No gain of temperature shown"
"""The same where ordinary parameters that were tuned at τ = 1 are to be trained with."""
GAIN_AT_INFERENCE = "Gain shown at inference"
_NAMED = 3
_LONGEST = 100


_NOT_READ = Finding(
    kind="inference",
    text="inference only: not applicable; no temperature that an evaluation is known to read is searched.",
)


def find(result: StudyData, storage: str = "") -> list[Finding]:
    """Return what a study found, the decision first.

    Args:
        result: The study.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
    """
    verdict = result.verdict
    if result.spec.compare is not None:
        findings = comparison_findings(result)
        return [*findings, *_missing(result, storage), Finding(kind="cost", text=cost_line(result))]
    if verdict is None:
        findings = _open(result)
    else:
        baseline = baseline_name(result.spec)
        total = verdict.total
        findings = [_of_answer("decision", headline(result), total, verdict.params)]
        if text := recommendation_line(result, storage):
            advice = verdict.recommendation
            assert advice is not None
            findings.append(Finding(kind="recommendation", text=text, params=advice.parameters))
        source = "" if is_trial(result, verdict.params) else f" ({MODELS})"
        winner = f"winner of the search{source}: {temperature_text(verdict.params)}"
        winner += ends_text(result, verdict)
        findings.append(Finding(kind="winner", text=winner, params=verdict.params))
        findings += [Finding(kind="rounds", text=line) for line in round_lines(result)]
        findings += _caveats(verdict, baseline)
        findings += _baselines(result, verdict)
        findings += _constants(result, verdict)
        findings += _inference(verdict, baseline) if result.spec.evaluated else [_NOT_READ]
        if verdict.controlled:
            text = f"under control of the entropy: {ends_of(verdict.controlled)}."
            findings.append(Finding(kind="control", text=text))
        findings += _learned(verdict, result.spec)
        findings += _parts(verdict, result.spec)
        findings += _failures(verdict, result)
        findings += [Finding(kind="heads", text=line) for line in head_lines(result)]
        findings += [Finding(kind="guard", text=line) for line in guard_lines(verdict)]
    return [
        *findings,
        *(Finding(kind="rounds", text=line) for line in ledger_lines(result)),
        *_missing(result, storage),
        Finding(kind="cost", text=_cost(result)),
    ]


def render_lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as lines of text: the first, and the others indented below it."""
    first_finding, *other_findings = findings
    lines = [first_finding.text, *(f"  {detail}" for detail in first_finding.details)]
    for finding in other_findings:
        lines += [f"  {finding.text}", *(f"    {detail}" for detail in finding.details)]
    return lines


def _of_answer(
    kind: str, text: str, answer: PairedResult, params: Mapping[str, Any] | None = None
) -> Finding:
    return Finding(kind=kind, text=text, state=state_of(answer), answer=answer, params=params)


def answer(result: StudyData, verdict: Verdict) -> str:
    """Return in a few words what a verdict of a study found."""
    if verdict.total.significant:
        return GAIN if verdict.guards_kept else f"{GAIN}, but a guard is not kept"
    recommendation = verdict.recommendation
    # what to do then tells of a gain, which "no gain shown" alone would contradict
    is_inference_only = (
        recommendation is not None and recommendation.action_without_training == "inference_only"
    )
    if is_inference_only:
        return f"{GAIN_AT_INFERENCE}, none by training"
    is_tuned = recommendation is not None and bool(untested(result.spec, recommendation))
    return NO_GAIN_OF_TEMPERATURE if is_tuned else NO_GAIN


def answer_of(result: StudyData, verdict: Verdict) -> str:
    """Return :func:`answer` of the latest verdict; one without a gain is named where an earlier has one."""
    answer_text = answer(result, verdict)
    is_later = answer_text in (NO_GAIN, NO_GAIN_OF_TEMPERATURE) and bool(_gained(result))
    return f"{answer_text} by verdict {verdict.looks}" if is_later else answer_text


def _gained(result: StudyData) -> list[Verdict]:
    """Return the earlier verdicts that showed a gain, oldest first."""
    return [verdict for verdict in result.earlier_verdicts if verdict.total.significant]


def headline(result: StudyData) -> str:
    """Return the verdict in one line: gain or no gain, interval, p, and on what."""
    verdict = result.verdict
    if verdict is None:
        return f"{result.metric}: nothing is confirmed yet."
    summary = f"{_verdict_sentence(result, verdict)}{_recommended(verdict)}{_still_holds(result, verdict)}"
    return f"{answer_of(result, verdict)}: {summary}"


def _recommended(verdict: Verdict) -> str:
    """Return a sentence on the gain of what is recommended in place of the winner; empty if it is not."""
    advice = verdict.recommendation
    if advice is None or advice.gain is None or advice.gain == verdict.total:
        return ""
    return f" That is the winner; what is recommended gains {format_comparison(advice.gain)}."


def _still_holds(result: StudyData, verdict: Verdict) -> str:
    """Return a sentence on the newest earlier verdict that showed a gain, where the latest shows none."""
    gain_verdicts = _gained(result)
    if verdict.total.significant or not gain_verdicts:
        return ""
    newest_verdict, test = gain_verdicts[-1], gain_verdicts[-1].total.paired
    is_same_training = training_key(newest_verdict.params) == training_key(verdict.params)
    validity_note = "" if is_same_training and verdict.total.worse else " It still holds."
    gain = f"{format_signed(test)} ({format_ci_and_p(test)})"
    return f" Verdict {newest_verdict.looks} showed a gain: {gain}.{validity_note}"


def _earlier_line(result: StudyData, verdict: Verdict) -> str:
    """Return what an earlier verdict showed, and what it recommended."""
    test = verdict.total.paired
    # a winner at the baseline has nothing to gain over it
    combined = "; rounds combined" if earlier_seeds(result, verdict.round) else ""
    gain = "" if verdict.at_one else f", {format_signed(test)} ({format_ci_and_p(test)}{combined})"
    summary = f"verdict {verdict.looks} (round {verdict.round}): {answer(result, verdict).lower()}{gain}"
    return f"{summary}; it recommended: {earlier_advice(result, verdict)}."


def _verdict_sentence(result: StudyData, verdict: Verdict) -> str:
    test = verdict.total.paired
    baseline = baseline_name(result.spec)
    in_full = f"{baseline}{baseline_values(result.spec)}"
    num_earlier = earlier_seeds(result, verdict.round)
    basis = f"{seeds_text(test.n_pairs, num_earlier)}, measured on the {DATA[verdict.confirmed_on]} data, "
    basis += f"{TESTS[verdict.test]}{', rounds combined' if num_earlier else ''}"
    if verdict.total.significant:
        min_gain_text = f", at least {limit(test.ci_low, test, ROUND_FLOOR)}," if test.ci_low > 0 else ""
        change = f"{_better(result)} by {format_effect(test)}{min_gain_text} with the winner of the search"
        change += f" than with {in_full}"
        return f"{result.metric} is {change} ({numbers_of_size(test)}; {basis})."
    if verdict.at_one:
        return f"the best that the search has found in {result.metric} is {baseline} itself ({basis})."
    if verdict.total.worse:
        # the more cautious is the smaller loss
        smallest_loss = max(
            (answer.paired for answer in verdict.total.component_results or (verdict.total,)),
            key=lambda t: t.gain,
        )
        change = f"the winner of the search is worse than {in_full}, by {format_effect(smallest_loss)}"
        return f"in {result.metric} {change} ({numbers_of_size(smallest_loss)}; {basis})."
    if verdict.untrained:
        return (
            f"{baseline} diverged on every seed, so what the winner of the search gains over it in "
            f"{result.metric} cannot be told ({basis})."
        )
    gain = f"the gain of the winner of the search over {in_full} in {result.metric} is {format_signed(test)}"
    return f"{gain} ({format_ci_and_p(test)}; {basis})."


def _baselines(result: StudyData, verdict: Verdict) -> list[Finding]:
    """Return what the winner is compared with at the baseline, and which gain is excluded."""
    if verdict.at_one:
        return []
    findings = []
    total, over_baseline, over_twin = verdict.total, verdict.over_baseline, verdict.over_twin
    baseline = baseline_name(result.spec)
    if result.direction == "minimize":
        findings.append(
            Finding(kind="sign", text=f"a gain or difference with + is better: a lower {result.metric}.")
        )
    advice = verdict.recommendation
    if advice is not None and advice.excluded is not None and not total.worse:
        upper_bound = limit(advice.excluded, total.paired)
        text = f"a gain of the winner above {upper_bound} is excluded ({confidence(total.paired)})."
        findings.append(Finding(kind="excluded", text=text))
    if total.lost:
        text = f"all runs of one of the two that it has to beat at {baseline} were lost, so nothing is shown."
        findings.append(Finding(kind="lost", text=text))
    if over_baseline is None or over_twin is None or not total.component_results:
        return findings
    twin_params = {n: v for n, v in verdict.twin_params.items() if verdict.baseline_params.get(n) != v}
    findings.append(
        _of_answer(
            "over_baseline",
            f"against the best that is known at {baseline}: {format_comparison(over_baseline)}.",
            over_baseline,
            verdict.baseline_params,
        )
    )
    twin = f"against its own other parameters at {baseline} ({parameters_text(twin_params)})"
    cautious = "the more cautious of the two counts, at each end"
    findings.append(
        _of_answer(
            "over_twin",
            f"{twin}: {format_comparison(over_twin)}; {cautious}.",
            over_twin,
            verdict.twin_params,
        )
    )
    return findings


def _constants(result: StudyData, verdict: Verdict) -> list[Finding]:
    """Return the winner against constant temperatures, and what that says of its schedule."""
    answers = {"constant": verdict.over_constant, "constant_twin": verdict.over_constant_twin}
    params = {"constant": verdict.constant_params, "constant_twin": verdict.constant_twin_params}
    findings = [
        _of_answer(f"over_{arm}", text, answer, params[arm])
        for arm, text in constant_texts(result, verdict).items()
        if (answer := answers[arm]) is not None
    ]
    if verdict.against_constant is not None:
        state: State = "shown" if verdict.schedule_shown else state_of(verdict.against_constant)
        state = "not_shown" if state == "shown" and not verdict.schedule_shown else state
        findings.append(Finding(kind="schedule", text=constants_conclusion(verdict), state=state))
    return findings


def _open(result: StudyData) -> list[Finding]:
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
        description = f"best trial: {result.metric} {best.value:.4g} with {temperature_text(best.params)}"
        findings.append(
            Finding(kind="best", text=f"{description}; that is not the gain.", params=best.params)
        )
    return findings


def round_lines(result: StudyData) -> list[str]:
    """Return what is to be said of a verdict that is not a study's first, or not on all of its trials."""
    verdict = result.verdict
    if verdict is None:
        return []
    lines = []
    if result.round > verdict.round:
        lines.append("this is from before the newest search trials were added: those are not confirmed.")
    if verdict.looks > 1:
        lines.append(f"verdict {verdict.looks} of this study: its level is {100 * verdict.alpha:.3g} %.")
    lines += rounds_combined(result, verdict.round)
    return [*lines, *(_earlier_line(result, earlier_verdict) for earlier_verdict in result.earlier_verdicts)]


def _missing(result: StudyData, storage: str) -> list[Finding]:
    """Return which runs did not complete, or only at a later attempt."""
    lines = []
    failed = [ticket for ticket in result.lost if ticket.state == "failed"]
    if failed:
        lines.append(f"failed on every attempt: {len(failed)} ({_named(failed)}).")
        if any(failed_runs_to_requeue(result.runs, result.spec)):
            command = f"tempopt resume {shlex.quote(result.name)}{storage} --retry-failed"
            lines.append(f"to have what counts of them, once the cause is gone: {command}")
    retrying_tickets = [ticket for ticket in result.lost if ticket.state != "failed"]
    if retrying_tickets:
        attempts = sum(ticket.failures for ticket in retrying_tickets)
        lines.append(f"retried after failures: {attempts} ({_named(retrying_tickets)}).")
    if result.alone:
        names = ", ".join(ticket.name for ticket in result.alone)
        lines.append(f"ran out of GPU memory and needed a GPU of their own: {names}.")
    withdrawn = [f"{count.withdrawn} {kind}" for kind, count in result.tickets.items() if count.withdrawn]
    if withdrawn:
        lines.append(f"withdrawn, the study having been stopped before: {', '.join(withdrawn)} tickets.")
    return [Finding(kind="lost", text=line) for line in lines]


def _named(tickets: list[TicketRow]) -> str:
    texts = [
        f"{ticket.kind} {ticket.number}: {_brief(ticket.error or 'no reason is known')}"
        for ticket in tickets[:_NAMED]
    ]
    num_more = len(tickets) - _NAMED
    return "; ".join([*texts, *([f"and {num_more} more"] if num_more > 0 else [])])


def _brief(text: str) -> str:
    lines = text.split("\n")
    is_short = len(lines) == 1 and len(text) <= _LONGEST
    return text.rstrip(".") if is_short else f"{lines[0][:_LONGEST].rstrip('.')} ..."


def _caveats(verdict: Verdict, baseline: str) -> list[Finding]:
    lines = []
    total = verdict.total
    if verdict.confirmed_on == "validate":
        lines.append("confirmed on the validation data that the search has seen: only the seeds are fresh.")
    for answer in total.component_results or (total,):
        if answer.diverged or answer.reference_diverged:
            seeds = f"{answer.diverged} of {answer.paired.n_pairs} seeds"
            counts = f"{seeds}, {baseline} on {answer.reference_diverged}"
            diverges_more = answer.diverged > answer.reference_diverged
            end = "; so the gain does not count" if diverges_more and answer.paired.significant else ""
            lines.append(f"the winner diverged on {counts} (counted with the worst value reached){end}.")
    if total.dropped:
        lines.append(f"seeds left out, a run of theirs having failed on every attempt: {total.dropped}.")
    if math.isinf(total.paired.ci_low) and not verdict.at_one:
        reason = "the differences are equal" if total.paired.is_equal else "too few seeds"
        lines.append(f"{reason}: no finite interval; give study.seeds.confirm more.")
    if total.is_skewed:
        lines.append(
            "the differences are skewed, and the test takes them to spread alike to both sides: the error "
            "rate may be higher than stated. More pairs do not mend that; look at the runs that stand out."
        )
    return [Finding(kind="caveat", text=line) for line in lines]


def part_text(part: str, spec: StudySpec) -> str:
    """Return what people call a part of the winner: ``the schedule``, ``the schedule of contrast``.

    Attention's own are told apart where there are named temperatures beside it: ``the level of attention``.
    """
    temperature, _, group = part.rpartition(".")
    if group not in PARTS:
        return part
    if not temperature and spec.temperatures and group in _OF_EACH:
        temperature = "attention"
    return f"{PARTS[group]} of {temperature}" if temperature else PARTS[group]


def _inference(verdict: Verdict, baseline: str) -> list[Finding]:
    inference = verdict.inference_only
    if inference is None:
        return []
    findings = []
    twin = inference.twin or inference.baseline
    is_twin_different = twin.answer != inference.answer
    if inference.plan == AS_TRAINED:
        text = f"inference only: models trained at {baseline} are evaluated best at {baseline}."
        findings.append(Finding(kind="inference", text=text))
    else:
        text = (
            f"models trained at {baseline} and evaluated at {plan_text(inference.plan)}, against the same "
            f"models evaluated at {baseline}"
        )
        share = "." if is_twin_different else share_text(inference.share, twin.answer.paired)
        if inference.answer.significant:
            level = f": shown at its level, {100 * inference.answer.paired.alpha:.3g} %"
            share = f"{level}{why_not_inference(verdict)}{share.replace(':', ';', 1)}"
        elif share == ".":
            share = ": no gain shown."
        findings.append(
            Finding(
                kind="inference",
                text=f"inference only ({text}): {format_comparison(inference.answer)}{share}",
                details=(choice_text(inference.baseline, verdict.confirmed_on),),
                state=state_of(inference.answer),
                answer=inference.answer,
            )
        )
    if is_twin_different and inference.share is not None:
        models = f"models trained at {baseline} with the winner's other parameters"
        text = f"the same of {models}, {plan_text(twin.plan)}"
        share = share_text(inference.share, twin.answer.paired)
        findings.append(
            _of_answer("inference_twin", f"{text}: {format_comparison(twin.answer)}{share}", twin.answer)
        )
    if inference.difference is not None and not verdict.at_one:
        findings.append(_over_inference(verdict, inference, inference.difference, baseline))
    return findings


def _over_inference(
    verdict: Verdict, inference: InferenceOnly, difference: PairedResult, baseline: str
) -> Finding:
    """Return what training at another temperature is worth beside evaluating at one."""
    plans = [AS_TRAINED if tuned is None else tuned.plan for tuned in (inference.winner, inference.baseline)]
    of_winner, of_baseline = (
        f", evaluated at {plan_text(plan)}," if plan != AS_TRAINED else "" for plan in plans
    )
    models = f"models trained at {baseline}{of_baseline.rstrip(',')}"
    text = f"the winner{of_winner} against {models}: {format_comparison(difference)}"
    if difference.significant and verdict.total.significant:
        end = "training at another temperature is worth that much more than inference alone."
    elif difference.worse:
        end = f"{baseline if inference.plan == AS_TRAINED else 'inference alone'} is better."
    elif difference.significant:
        end = f"this does not count, since the winner is not shown to gain over {baseline}."
    else:
        end = "training at another temperature is not shown to be worth more than inference alone."
    return _of_answer("over_inference", f"{text}: {end}", difference)


def _learned(verdict: Verdict, spec: StudySpec) -> list[Finding]:
    """Return what learned temperatures gain over the baseline, and the winner over them."""
    learned = verdict.learned
    if learned is None:
        if not spec.study.explain or spec.study.not_learned is None:
            return []
        reason = spec.study.not_learned.rstrip(".")
        text = f"learned temperatures: not applicable; they cannot be learned here: {reason}."
        return [Finding(kind="learned", text=text)]
    share = share_text(learned.share, learned.answer.paired).rstrip(".")
    if learned.share is None and not learned.answer.significant:
        share = ": no gain shown"
    text = (
        f"learned temperatures (from {baseline_name(spec)}, {rate_text(learned)}), at the price of one "
        f"training: {format_comparison(learned.answer)}{share}; {ends_of(learned.ends)}."
    )
    findings = [_of_answer("learned", text, learned.answer, learned.params)]
    if (winner_answer := learned.winner) is not None:
        no_gain_text = "; the winner is worse" if winner_answer.worse else "; no difference is shown"
        end = "" if winner_answer.significant else no_gain_text
        findings.append(
            _of_answer(
                "over_learned",
                f"the winner against them: {format_comparison(winner_answer)}{end}.",
                winner_answer,
            )
        )
    return findings


def _parts(verdict: Verdict, spec: StudySpec) -> list[Finding]:
    """Return what the winner loses without each of its parts, and the simpler plan that would do."""
    findings = []
    for part in verdict.parts:
        no_loss_text = "" if part.answer.significant or part.answer.worse else ": no difference shown"
        part_title = f"{part_text(part.name, spec)}{_level_note(verdict) if part.name == 'level' else ''}"
        text = (
            f"the winner against itself without {part_title}: {format_comparison(part.answer)}{no_loss_text}."
        )
        findings.append(_of_answer("part", text, part.answer, part.parameters))
    if (simplest := verdict.simplest) is not None:
        part_names = " and ".join(part_text(part, spec) for part in simplest.parts)
        outcome = "shown" if simplest.holds else "not shown"
        text = (
            f"the winner with {part_names} alone ({temperature_text(simplest.parameters)}) is {outcome} to "
            f"keep {100 * spec.study.keep_share:.3g} % of the gain or more; the winner against that: "
            f"{format_comparison(simplest.lost)}."
        )
        findings.append(_of_answer("simplest", text, simplest.gain, simplest.parameters))
    return findings


def _level_note(verdict: Verdict) -> str:
    """Return what attention is trained with without the level of the winner."""
    if is_controlled(verdict.params):
        return " (the temperatures begin at 1)"
    return " (the schedule divided by its mean, so that it averages 1)"


def _failures(verdict: Verdict, result: StudyData) -> list[Finding]:
    rates = verdict.failures
    if rates is None:
        return []
    limit, worse = result.spec.study.failure, "below" if result.direction == "maximize" else "above"
    failure = "diverged" if limit is None else f"{result.metric} {worse} {limit:g}, or diverged"
    at_baseline = f"at {baseline_name(result.spec)} {_rate(rates.reference)}"
    end = ""
    if verdict.is_more_stable:
        end = " The winner is shown to fail less often."
    elif not verdict.has_all_pairs:
        end = " That is not tested, since not all pairs were trained."
    text = (
        f"failed runs ({failure}): the winner {_rate(rates.arm)}, {at_baseline}; p = {rates.p_value:.2g} "
        f"(exact McNemar test).{end}"
    )
    return [Finding(kind="stability", text=text, state="shown" if verdict.is_more_stable else "not_shown")]


def _rate(rate: Rate) -> str:
    return f"{rate.failed} of {rate.runs} ({100 * rate.low:.0f} to {100 * rate.high:.0f} %)"


def _cost(result: StudyData) -> str:
    counts = ", ".join(f"{n} {name}" for name, n in result.trials.items() if n)
    runs = sum(count.done + count.failed for count in result.tickets.values())
    checkpoint_seconds = result.cost.checkpoint_seconds
    writing = (
        f", {duration(checkpoint_seconds)} of it to write checkpoints" if checkpoint_seconds >= 1 else ""
    )
    runs_text = f"training in {runs} runs"
    training_text = f"{duration(result.cost.train_seconds)} of {runs_text}{writing}"
    return f"cost: {training_text} (search trials: {counts or 'none'}){_cards(result)}."


def _cards(result: StudyData) -> str:
    cost = result.cost
    peak = "" if cost.peak_memory is None else f", at most {cost.peak_memory / 1e9:.2g} GB of one in use"
    return "" if cost.gpu_seconds is None else f"; {duration(cost.gpu_seconds)} of GPUs{peak}"


def _better(result: StudyData) -> str:
    return "higher" if result.direction == "maximize" else "lower"
