"""The verdict in plain words; computes nothing, and never calls the best value of a search a gain."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from tempopt.confirmation.inference import AS_TRAINED, InferenceOnly
from tempopt.confirmation.retrying import retried
from tempopt.confirmation.verdict import Verdict
from tempopt.results.constants_text import constant_lines
from tempopt.results.guard_text import guard_lines
from tempopt.results.heads_text import head_lines
from tempopt.results.learned_text import controlled_lines, learned_lines
from tempopt.results.recommendation_text import choice_text, earlier_advice, ends_text, recommendation_line
from tempopt.results.rounds import ledger_lines
from tempopt.results.wording import (
    baseline_name,
    baseline_values,
    compared,
    confidence,
    duration,
    numbers,
    numbers_of_size,
    parameters_text,
    plan_text,
    set_text,
    share_text,
    signed,
    size,
    unsigned,
)
from tempopt.statistics.failure_rates import Rate
from tempopt.statistics.paired_tests import ALPHA
from tempopt.temperature import CREDITED, is_controlled, training_key

if TYPE_CHECKING:
    from tempopt.records.rows import TicketRow
    from tempopt.results.study_result import StudyResult
    from tempopt.spec.study_spec import StudySpec

TESTS = {
    "t": "paired t-test",
    "sign_flip": "sign-flip permutation test",
}
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
DATA = {"test": "test", "validate": "validation"}
GAIN, NO_GAIN = "Gain shown", "No gain shown"
_NOT_READ = (
    "  inference only: not applicable; no temperature that an evaluation is known to read is searched."
)
_NAMED = 3
_LONGEST = 100


def verdict_lines(result: StudyResult, storage: str = "") -> list[str]:
    """Return what the study found, one statement a line, for the end of a search and ``tempopt show``.

    Args:
        result: The study.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
    """
    verdict = result.verdict
    if result.spec.compare is not None:
        # it builds on the words here
        from tempopt.results.comparison_text import comparison_lines, cost_line

        return [*comparison_lines(result), *_missing_lines(result, storage), cost_line(result)]
    if verdict is None:
        lines = _open_lines(result)
    else:
        lines = [headline(result)]
        if line := recommendation_line(result, storage):
            lines.append(f"  {line}")
        winner = _winner(verdict, result)
        lines += [f"  {line}" for line in (*([winner] if winner else []), *round_lines(result))]
        if result.direction == "minimize" and not verdict.at_one:
            lines.append(f"  a gain or difference with + is better: a lower {result.metric}.")
        lines += [f"  {line}" for line in compared_lines(result)]
        baseline = baseline_name(result.spec)
        lines += _caveats(verdict, baseline)
        lines += constant_lines(verdict, result)
        lines += _inference_lines(verdict, baseline) if result.spec.evaluated else [_NOT_READ]
        lines += [f"  {line}" for line in controlled_lines(verdict)]
        lines += [f"  {line}" for line in learned_lines(verdict, result.spec)]
        lines += [f"  {line}" for line in part_lines(verdict, result.spec)]
        lines += _failure_lines(verdict, result)
        lines += [f"  {line}" for line in head_lines(result)]
        lines += [f"  {line}" for line in guard_lines(verdict)]
    return [
        *lines,
        *(f"  {line}" for line in ledger_lines(result)),
        *_missing_lines(result, storage),
        _cost(result),
    ]


def answer(verdict: Verdict) -> str:
    """Return in a few words what a study found."""
    if verdict.total.significant:
        return GAIN if verdict.guards_kept else f"{GAIN}, but a guard is not kept"
    found = verdict.recommendation
    # what to do then tells of a gain, which "no gain shown" alone would contradict
    alone = found is not None and found.now == "inference_only"
    return f"{NO_GAIN} by training at another temperature" if alone else NO_GAIN


def answer_of(result: StudyResult, verdict: Verdict) -> str:
    """Return :func:`answer` of the latest verdict; one without a gain is named where an earlier has one."""
    said = answer(verdict)
    return f"{said} by verdict {verdict.looks}" if said == NO_GAIN and _gained(result) else said


def _gained(result: StudyResult) -> list[Verdict]:
    """Return the earlier verdicts that showed a gain, oldest first."""
    return [each for each in result.earlier_verdicts if each.total.significant]


def headline(result: StudyResult) -> str:
    """Return the verdict in one line: gain or no gain, interval, p, and on what."""
    verdict = result.verdict
    if verdict is None:
        return f"{result.metric}: nothing is confirmed yet."
    return f"{answer_of(result, verdict)}: {_told(result, verdict)}{_still_holds(result, verdict)}"


def _still_holds(result: StudyResult, verdict: Verdict) -> str:
    """Return a sentence on the newest earlier verdict that showed a gain, where the latest shows none."""
    shown = _gained(result)
    if verdict.total.significant or not shown:
        return ""
    before, test = shown[-1], shown[-1].total.paired
    same = training_key(before.params) == training_key(verdict.params)
    holds = "" if same and verdict.total.worse else " It still holds."
    return f" Verdict {before.looks} showed a gain: {signed(test)} ({numbers(test)}).{holds}"


def _earlier_line(result: StudyResult, verdict: Verdict) -> str:
    """Return what an earlier verdict showed, and what it recommended."""
    test = verdict.total.paired
    # a winner at the baseline has nothing to gain over it
    gain = "" if verdict.at_one else f", {signed(test)} ({numbers(test)})"
    shown = f"verdict {verdict.looks} (round {verdict.round}): {answer(verdict).lower()}{gain}"
    return f"{shown}; it recommended: {earlier_advice(result, verdict)}."


def _told(result: StudyResult, verdict: Verdict) -> str:
    test = verdict.total.paired
    baseline = baseline_name(result.spec)
    in_full = f"{baseline}{baseline_values(result.spec)}"
    where = f"{test.n_pairs} fresh seeds, measured on the {DATA[verdict.confirmed_on]} data, "
    where += TESTS[verdict.test]
    if verdict.total.significant:
        change = f"{_better(result)} by {size(test)} with the winner of the search than with {in_full}"
        return f"{result.metric} is {change} ({numbers_of_size(test)}; {where})."
    if verdict.at_one:
        return f"the best that the search has found in {result.metric} is {baseline} itself ({where})."
    if verdict.total.worse:
        # the more cautious is the smaller loss
        least = max((each.paired for each in verdict.total.each or (verdict.total,)), key=lambda t: t.gain)
        change = f"the winner of the search is worse than {in_full}, by {size(least)}"
        return f"in {result.metric} {change} ({numbers_of_size(least)}; {where})."
    if verdict.untrained:
        return (
            f"{baseline} diverged on every seed, so what the winner of the search gains over it in "
            f"{result.metric} cannot be told ({where})."
        )
    gain = f"the gain of the winner of the search over {in_full} in {result.metric} is {signed(test)}"
    return f"{gain} ({numbers(test)}; {where})."


def _winner(verdict: Verdict, result: StudyResult) -> str:
    return f"winner of the search: {set_text(verdict.params)}{ends_text(result, verdict)}"


def compared_lines(result: StudyResult) -> list[str]:
    """Return what the baseline was in the comparison, and what is excluded where no gain is shown."""
    verdict = result.verdict
    if verdict is None or verdict.at_one:
        return []
    lines = []
    total, tuned, twin = verdict.total, verdict.over_baseline, verdict.over_twin
    baseline = baseline_name(result.spec)
    found = verdict.recommendation
    # where nothing is to be changed the recommendation says it
    told = found is not None and found.action == "change_nothing" and result.standing is None
    if found is not None and found.excluded is not None and not told:
        above = unsigned(found.excluded, total.paired)
        lines.append(f"a gain of the winner above {above} is excluded ({confidence(total.paired)}).")
    if total.lost:
        lines.append(
            f"all runs of one of the two that it has to beat at {baseline} were lost, so nothing is shown."
        )
    if tuned is None or twin is None or not total.each:
        return lines
    others = {n: v for n, v in verdict.twin_params.items() if verdict.baseline_params.get(n) != v}
    lines += [
        f"against the best at {baseline}, tuned again after choosing: {signed(tuned.paired)} "
        f"({numbers(tuned.paired)}).",
        f"against its own other parameters at {baseline} ({parameters_text(others)}): {signed(twin.paired)} "
        f"({numbers(twin.paired)}); the more cautious of the two counts, at each end.",
    ]
    if verdict.interacts:
        names = ", ".join(n for n in others if n not in CREDITED) or "the other parameters"
        lines.append(
            f"a gain is shown over one of these two and not over the other: τ and {names} interact. What one "
            "of them gains the other gains as well, in part or whole."
        )
    return lines


def _open_lines(result: StudyResult) -> list[str]:
    best = result.best
    if best is None and result.state == "done":
        return [f"No verdict: {result.name} is over, and no search trial is complete."]
    if best is None:
        return [f"No search trial of {result.name} is complete yet."]
    found = f"best trial: {result.metric} {best.value:.4g} with {set_text(best.params)}"
    if result.state == "done" and not result.tickets["confirm"].requested:
        missing = f"no run with {baseline_name(result.spec)} was begun"
        return [f"No verdict: {missing}, so there is nothing to compare with.", f"  {found}"]
    if result.state == "done":
        return ["No verdict: no pair of runs could be compared in the confirmation.", f"  {found}"]
    return [
        "No verdict yet: the confirmation on fresh seeds is not over.",
        f"  {found}; that is not the gain.",
    ]


def round_lines(result: StudyResult) -> list[str]:
    """Return what is to be said of a verdict that is not a study's first, or not on all of its trials."""
    verdict = result.verdict
    if verdict is None:
        return []
    lines = []
    if result.round > verdict.round:
        lines.append("this is from before the newest search trials were added: those are not confirmed.")
    if verdict.looks > 1:
        lines.append(
            f"verdict {verdict.looks} of this study: of the 5 % that all its verdicts share, this one may "
            f"spend {100 * verdict.alpha:.2g} %, so p is multiplied by {ALPHA / verdict.alpha:.3g}."
        )
    return [*lines, *(_earlier_line(result, each) for each in result.earlier_verdicts)]


def _missing_lines(result: StudyResult, storage: str) -> list[str]:
    """Return which runs did not complete, or only at a later attempt."""
    lines = []
    failed = [ticket for ticket in result.lost if ticket.state == "failed"]
    if failed:
        lines.append(f"  failed on every attempt: {len(failed)} ({_named(failed)}).")
        if any(retried(result.runs, result.spec)):
            command = f"tempopt resume {shlex.quote(result.name)}{storage} --retry-failed"
            lines.append(f"  to have what counts of them, once the cause is gone: {command}")
    again = [ticket for ticket in result.lost if ticket.state != "failed"]
    if again:
        attempts = sum(ticket.failures for ticket in again)
        lines.append(f"  retried after failures: {attempts} ({_named(again)}).")
    if result.alone:
        names = ", ".join(ticket.name for ticket in result.alone)
        lines.append(f"  ran out of GPU memory and needed a GPU of their own: {names}.")
    withdrawn = [f"{count.withdrawn} {kind}" for kind, count in result.tickets.items() if count.withdrawn]
    if withdrawn:
        lines.append(f"  withdrawn, the study having been stopped before: {', '.join(withdrawn)} tickets.")
    return lines


def _named(tickets: list[TicketRow]) -> str:
    shown = [
        f"{ticket.kind} {ticket.number}: {_brief(ticket.error or 'no reason is known')}"
        for ticket in tickets[:_NAMED]
    ]
    more = len(tickets) - _NAMED
    return "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def _brief(text: str) -> str:
    lines = text.split("\n")
    whole = len(lines) == 1 and len(text) <= _LONGEST
    return text.rstrip(".") if whole else f"{lines[0][:_LONGEST].rstrip('.')} ..."


def _caveats(verdict: Verdict, baseline: str) -> list[str]:
    lines = []
    total = verdict.total
    if verdict.confirmed_on == "validate":
        lines.append("  confirmed on the validation data that the search has seen: only the seeds are fresh.")
    for answer in total.each or (total,):
        if answer.diverged or answer.reference_diverged:
            seeds = f"{answer.diverged} of {answer.paired.n_pairs} seeds"
            counts = f"{seeds}, {baseline} on {answer.reference_diverged}"
            more = answer.diverged > answer.reference_diverged
            end = "; so the gain does not count" if more and answer.paired.significant else ""
            lines.append(f"  the winner diverged on {counts} (counted with the worst value reached){end}.")
    if total.dropped:
        lines.append(f"  seeds left out, a run of theirs having failed on every attempt: {total.dropped}.")
    if math.isinf(total.paired.ci_low):
        why = "the differences are equal" if total.paired.is_equal else "too few seeds"
        lines.append(f"  {why}: no finite interval; give study.seeds.confirm more.")
    return lines


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


def _inference_lines(verdict: Verdict, baseline: str) -> list[str]:
    found = verdict.inference_only
    if found is None:
        return []
    lines = []
    twin = found.twin or found.baseline
    apart = twin.answer != found.answer
    if found.plan == AS_TRAINED:
        lines.append(f"  inference only: models trained at {baseline} are evaluated best at {baseline}.")
    else:
        text = (
            f"models trained at {baseline} and evaluated at {plan_text(found.plan)}, against the same models "
            f"evaluated at {baseline}"
        )
        share = "." if apart else share_text(found.share, twin.answer.paired)
        lines.append(f"  inference only ({text}): {compared(found.answer)}{share}")
        lines.append(f"    {choice_text(found.baseline, verdict.confirmed_on)}")
    if apart and found.share is not None:
        models = f"models trained at {baseline} with the winner's other parameters"
        text = f"the same of {models}, {plan_text(twin.plan)}"
        lines.append(f"  {text}: {compared(twin.answer)}{share_text(found.share, twin.answer.paired)}")
    lines += _difference_lines(verdict, found, baseline)
    return lines


def _difference_lines(verdict: Verdict, found: InferenceOnly, baseline: str) -> list[str]:
    if found.difference is None or verdict.at_one:
        return []
    winner = found.winner
    plans = [AS_TRAINED if each is None else each.plan for each in (winner, found.baseline)]
    own, ones = (f", evaluated at {plan_text(plan)}," if plan != AS_TRAINED else "" for plan in plans)
    against = f"models trained at {baseline}{ones.rstrip(',')}"
    text = f"  the winner{own} against {against}: {compared(found.difference)}"
    if found.difference.significant and verdict.total.significant:
        return [f"{text}: training at another temperature is worth that much more than inference alone."]
    if found.difference.worse:
        better = baseline if found.plan == AS_TRAINED else "inference alone"
        return [f"{text}: {better} is better."]
    if found.difference.significant:
        return [f"{text}: this does not count, since the winner is not shown to gain over {baseline}."]
    return [f"{text}: training at another temperature is not shown to be worth more than inference alone."]


def part_lines(verdict: Verdict, spec: StudySpec) -> list[str]:
    """Return what the winner loses without each of its parts, and the simpler plan that would do."""
    lines = []
    if verdict.parts:
        lines.append("the winner against itself without one of its parts:")
    for part in verdict.parts:
        test = part.answer.paired
        shown = "" if part.answer.significant or part.answer.worse else ": no difference shown"
        what = f"{part_text(part.name, spec)}{_told_of_level(verdict) if part.name == 'level' else ''}"
        lines.append(f"  {what}: {signed(test)} ({numbers(test)}){shown}")
    if verdict.simplest is not None:
        found = verdict.simplest
        kept = " and ".join(part_text(part, spec) for part in found.parts)
        lost = found.lost.paired
        does = "shown" if found.holds else "not shown"
        share = f"{100 * spec.study.keep_share:.3g} %"
        lines.append(
            f"the winner with {kept} alone ({set_text(found.parameters)}) is {does} to keep "
            f"{share} of the gain or more; the winner against that: {signed(lost)} ({numbers(lost)})."
        )
    return lines


def _told_of_level(verdict: Verdict) -> str:
    """Return what attention is trained with without the level of the winner."""
    if is_controlled(verdict.params):
        return " (the temperatures begin at 1)"
    return " (the schedule divided by its mean, so that it averages 1)"


def _failure_lines(verdict: Verdict, result: StudyResult) -> list[str]:
    rates = verdict.failures
    if rates is None:
        return []
    limit, worse = result.spec.study.failure, "below" if result.direction == "maximize" else "above"
    at_baseline = f"at {baseline_name(result.spec)} {_rate(rates.reference)}"
    return [
        f"  failed runs ({result.metric} {worse} {limit:g}, or diverged): the winner {_rate(rates.arm)}, "
        f"{at_baseline}; p = {rates.p_value:.2g} (exact McNemar test)."
    ]


def _rate(rate: Rate) -> str:
    return f"{rate.failed} of {rate.runs} ({100 * rate.low:.0f} to {100 * rate.high:.0f} %)"


def _cost(result: StudyResult) -> str:
    counts = ", ".join(f"{n} {name}" for name, n in result.trials.items() if n)
    runs = sum(count.done + count.failed for count in result.tickets.values())
    kept = result.cost.checkpoint_seconds
    writing = f", {duration(kept)} of it to write checkpoints" if kept >= 1 else ""
    what = f"training in {runs} runs"
    trained = f"{duration(result.cost.train_seconds)} of {what}{writing}"
    return f"  cost: {trained} (search trials: {counts or 'none'}){_cards(result)}."


def _cards(result: StudyResult) -> str:
    cost = result.cost
    peak = "" if cost.peak_memory is None else f", at most {cost.peak_memory / 1e9:.2g} GB of one in use"
    return "" if cost.gpu_seconds is None else f"; {duration(cost.gpu_seconds)} of GPUs{peak}"


def _better(result: StudyResult) -> str:
    return "higher" if result.direction == "maximize" else "lower"
