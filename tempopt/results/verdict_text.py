"""The verdict in plain words; computes nothing, and never calls the best value of a search a gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.confirmation.comparisons import Answer
from tempopt.confirmation.inference import AS_TRAINED, InferenceOnly
from tempopt.confirmation.verdict import Verdict
from tempopt.results.guard_text import guard_lines
from tempopt.statistics.failure_rates import Rate
from tempopt.statistics.fieller import Ratio
from tempopt.statistics.paired_tests import ALPHA, PairedTest
from tempopt.temperature import CREDITED

if TYPE_CHECKING:
    from tempopt.records.rows import TicketRow
    from tempopt.results.study_result import StudyResult

_TESTS = {
    "t": "paired t-test",
    "sign_flip": "sign-flip permutation test",
    "wilcoxon": "Wilcoxon signed-rank test",
}
PARTS = {
    "schedule": "the schedule",
    "level": "the level",
    "layers": "the layer pattern",
    "length_scaling": "the length scaling",
    "entropy": "the entropy term",
    "output_temperature": "the output temperature",
}
"""Part of a plan to what people call it."""
_DATA = {"test": "test", "validate": "validation"}
_NAMED = 3
_LONGEST = 100


def verdict_lines(result: StudyResult) -> list[str]:
    """Return what the study found, one statement a line, for the end of a search and ``tempopt show``."""
    verdict = result.verdict
    if verdict is None:
        lines = _open_lines(result)
    else:
        lines = [headline(result), f"  winner: {parameters_text(verdict.params)}"]
        lines += [f"  {line}" for line in round_lines(result)]
        lines += [f"  {line}" for line in compared_lines(result)]
        lines += _caveats(verdict)
        lines += _constant_lines(verdict, result)
        lines += _inference_lines(verdict)
        lines += _init_lines(verdict)
        lines += [f"  {line}" for line in part_lines(verdict, result.spec.study.keep_share)]
        lines += _failure_lines(verdict, result)
        lines += [f"  {line}" for line in guard_lines(verdict)]
    return [*lines, *_missing_lines(result), _cost(result)]


def headline(result: StudyResult) -> str:
    """Return the verdict in one line: gain or no gain, interval, p, and on what."""
    verdict = result.verdict
    if verdict is None:
        return f"{result.metric}: nothing is confirmed yet."
    test = verdict.total.paired
    where = f"{test.n_pairs} fresh seeds, {_DATA[verdict.confirmed_on]} data, {_TESTS[verdict.test]}"
    if verdict.total.significant:
        change = f"{_better(result)} by {_size(test)} than with τ = 1"
        return f"Gain shown: {result.metric} is {change} ({_numbers(test)}; {where})."
    if verdict.at_one:
        return (
            f"No gain shown: the best that the search has found in {result.metric} is τ = 1 itself ({where})."
        )
    if verdict.total.worse:
        # the more cautious is the smaller loss
        least = max((each.paired for each in verdict.total.each or (verdict.total,)), key=lambda t: t.gain)
        change = f"the winner of the search is worse than τ = 1 by {_size(least)} or more"
        return f"No gain shown: in {result.metric} {change} ({_numbers(test)}; {where})."
    change = f"the winner of the search gains {_signed(test)} in {result.metric} over τ = 1"
    return f"No gain shown: {change} ({_numbers(test)}; {where})."


def compared_lines(result: StudyResult) -> list[str]:
    """Return what τ = 1 was in the comparison, and what is excluded where no gain is shown."""
    verdict = result.verdict
    if verdict is None or verdict.at_one:
        return []
    lines = []
    total, baseline, twin = verdict.total, verdict.over_baseline, verdict.over_twin
    # where τ = 1 has diverged the gain is a lower bound, which excludes nothing above
    bounded = not any(answer.reference_diverged for answer in total.each or (total,))
    if not total.significant and bounded and math.isfinite(total.paired.ci_high):
        above = rounded(max(total.paired.ci_high, 0.0), total.paired).lstrip("+")
        lines.append(f"no gain above {above} is compatible with this ({_confidence(total.paired)}).")
    if total.lost:
        lines.append(
            "all runs of one of the two that it has to beat at τ = 1 were lost, so nothing is shown."
        )
    if baseline is None or twin is None or not total.each:
        return lines
    others = {n: v for n, v in verdict.twin_params.items() if verdict.baseline_params.get(n) != v}
    lines += [
        f"against the best at τ = 1, tuned again after choosing: {_signed(baseline.paired)} "
        f"({_numbers(baseline.paired)}).",
        f"against its own other parameters at τ = 1 ({parameters_text(others)}): {_signed(twin.paired)} "
        f"({_numbers(twin.paired)}); the more cautious of the two counts, at each end.",
    ]
    if verdict.interacts:
        names = ", ".join(n for n in others if n not in CREDITED) or "the other parameters"
        lines.append(
            f"a gain is shown over one of these two and not over the other: τ and {names} interact. What one "
            "of them gains the other gains as well, in part or whole."
        )
    return lines


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Return the parameters as people read them: ``temperature_init=1.52, schedule=cosine``."""
    texts = (f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in parameters.items())
    return ", ".join(texts) or "nothing was searched"


def _open_lines(result: StudyResult) -> list[str]:
    best = result.best
    if best is None and result.state == "done":
        return [f"No verdict: {result.name} is over, and no search trial is complete."]
    if best is None:
        return [f"No search trial of {result.name} is complete yet."]
    found = f"best trial: {result.metric} {best.value:.4g} with {parameters_text(best.params)}"
    if not result.spec.confirms:
        return [
            f"Evaluation of a trained model, {found}.",
            "  Nothing was trained, so there is no gain to confirm.",
        ]
    if result.state == "done" and not result.tickets["confirm"].requested:
        return ["No verdict: no run with τ = 1 was begun, so there is nothing to compare with.", f"  {found}"]
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
    return lines


def _missing_lines(result: StudyResult) -> list[str]:
    """Return which runs did not complete, or only at a later attempt."""
    lines = []
    failed = [ticket for ticket in result.lost if ticket.state == "failed"]
    if failed:
        lines.append(f"  failed on every attempt: {len(failed)} ({_named(failed)}).")
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


def _caveats(verdict: Verdict) -> list[str]:
    lines = []
    total = verdict.total
    if verdict.confirmed_on == "validate":
        lines.append("  confirmed on the validation data that the search has seen: only the seeds are fresh.")
    for answer in total.each or (total,):
        if answer.diverged or answer.reference_diverged:
            counts = (
                f"{answer.diverged} of {answer.paired.n_pairs} seeds, τ = 1 on {answer.reference_diverged}"
            )
            more = answer.diverged > answer.reference_diverged
            end = "; so the gain does not count" if more and answer.paired.significant else ""
            lines.append(f"  the winner diverged on {counts} (counted with the worst value reached){end}.")
    if total.dropped:
        lines.append(f"  pairs left out, a run of theirs having failed on every attempt: {total.dropped}.")
    if math.isinf(total.paired.ci_low):
        lines.append("  too few pairs for a finite interval; give study.seeds.confirm more.")
    return lines


def _constant_lines(verdict: Verdict, result: StudyResult) -> list[str]:
    answer = verdict.against_constant
    if verdict.at_one:
        return []
    if answer is None:
        return ["  no constant temperature could be compared."]
    constants = result.tickets["constant"]
    said = []
    if verdict.constant_params is not None and verdict.over_constant is not None:
        tried = constants.done + constants.failed
        name = f"the best constant after {tried} runs ({parameters_text(verdict.constant_params)})"
        said.append(f"{name}: {_compared(verdict.over_constant)}")
    own = verdict.constant_twin_params
    if own is not None and verdict.over_constant_twin is not None and not verdict.is_constant:
        name = f"the winner with constant τ = {own['temperature_init']:.4g} in place of its schedule"
        said.append(f"{name}: {_compared(verdict.over_constant_twin)}")
    if not said:
        return (
            ["  the winner is a constant."] if verdict.is_constant else ["  no constant could be compared."]
        )
    lines = [f"  against {text}." for text in said[:-1]]
    if verdict.schedule_shown:
        end = "the schedule is worth more than one constant."
    elif verdict.is_constant:
        end = "the winner is a constant."
    elif answer.worse:
        end = "the constant is better."
    else:
        end = "the schedule is not shown to be worth more than one constant."
    return [*lines, f"  against {said[-1]}: {end}"]


def _compared(answer: Answer) -> str:
    return f"{_signed(answer.paired)} ({_numbers(answer.paired)})"


def plan_text(plan: str) -> str:
    """Return what a plan of inference is called in a sentence."""
    if plan == AS_TRAINED:
        return "the temperature of the training"
    if plan == "winner":
        return "the winner's final temperature"
    return "τ = " + plan.removeprefix("constant=").replace(",length_scaling=", " with length scaling ")


def _inference_lines(verdict: Verdict) -> list[str]:
    found = verdict.inference_only
    if found is None:
        return []
    lines = []
    twin = found.twin or found.baseline
    apart = twin.answer != found.answer
    if found.plan == AS_TRAINED:
        lines.append("  inference only: models trained at τ = 1 are evaluated best at τ = 1.")
    else:
        text = f"trained at τ = 1, evaluated at {plan_text(found.plan)}"
        share = "." if apart else _share(found.share, twin.answer.paired)
        lines.append(f"  inference only ({text}): {_compared(found.answer)}{share}")
    if apart and found.share is not None:
        text = f"the winner's twin, evaluated at {plan_text(twin.plan)}"
        lines.append(
            f"  of the gain ({text}): {_compared(twin.answer)}{_share(found.share, twin.answer.paired)}"
        )
    lines += _difference_lines(verdict, found)
    return lines


def _difference_lines(verdict: Verdict, found: InferenceOnly) -> list[str]:
    if found.difference is None or verdict.at_one:
        return []
    test = found.difference.paired
    winner = ""
    if found.winner is not None and found.winner.plan != AS_TRAINED:
        winner = f" evaluated at {plan_text(found.winner.plan)}"
    text = f"  the winner{winner} against τ = 1 so evaluated: {_signed(test)} ({_numbers(test)})"
    if found.difference.significant and verdict.total.significant:
        return [f"{text}: training with it is worth that much more than inference alone."]
    if found.difference.worse:
        return [f"{text}: inference alone is better."]
    return [f"{text}: training with it is not shown to be worth more than inference alone."]


def _init_lines(verdict: Verdict) -> list[str]:
    init = verdict.init_only
    if init is None:
        return []
    test = init.answer.paired
    how = "the winner's first temperature baked into the initial weights"
    share = _share(init.share, test)
    return [f"  initialisation only ({how}, trained at τ = 1): {_signed(test)} ({_numbers(test)}){share}"]


def _share(share: Ratio | None, test: PairedTest) -> str:
    """Return the end of a sentence on a gain and the share that it is of the winner's."""
    if share is None or math.isnan(share.ratio):
        return "."
    if not math.isfinite(share.low) or not math.isfinite(share.high):
        return f": {_percent(share.ratio)} % of the gain, which is too uncertain to bound that share."
    bounds = f"({_percent(share.low)} to {_percent(share.high)} %)"
    if test.p_value >= ALPHA:
        return f": by itself not shown to be any of the gain {bounds}."
    return f": {_percent(share.ratio)} % of the gain {bounds}."


def _percent(value: float) -> str:
    return f"{100 * value:.0f}".replace("-", "−")


def part_lines(verdict: Verdict, keep_share: float) -> list[str]:
    """Return what the winner loses without each of its parts, and the simpler plan that would do."""
    lines = []
    if verdict.parts:
        lines.append("the winner against itself without one of its parts:")
    for part in verdict.parts:
        test = part.answer.paired
        shown = "" if part.answer.significant or part.answer.worse else ": no difference shown"
        what = (
            "the level (its mean over training)" if part.name == "level" else PARTS.get(part.name, part.name)
        )
        lines.append(f"  {what}: {_signed(test)} ({_numbers(test)}){shown}")
    if verdict.simplest is not None:
        found = verdict.simplest
        kept = " and ".join(PARTS[part] for part in found.parts)
        lost = found.lost.paired
        does = "shown" if found.holds else "not shown"
        lines.append(
            f"the simplest plan, {kept} alone ({parameters_text(found.parameters)}): {does} to keep "
            f"{100 * keep_share:.3g} % of the gain or more; the winner against it: {_signed(lost)} "
            f"({_numbers(lost)})."
        )
    return lines


def _failure_lines(verdict: Verdict, result: StudyResult) -> list[str]:
    rates = verdict.failures
    if rates is None:
        return []
    limit, worse = result.spec.study.failure, "below" if result.direction == "maximize" else "above"
    return [
        f"  failed runs ({result.metric} {worse} {limit:g}, or diverged): the winner {_rate(rates.arm)}, "
        f"at τ = 1 {_rate(rates.reference)}; p = {rates.p_value:.2g} (exact McNemar test)."
    ]


def _rate(rate: Rate) -> str:
    return f"{rate.failed} of {rate.runs} ({100 * rate.low:.0f} to {100 * rate.high:.0f} %)"


def _cost(result: StudyResult) -> str:
    counts = ", ".join(f"{n} {name}" for name, n in result.trials.items() if n)
    runs = sum(count.done + count.failed for count in result.tickets.values())
    saved = result.cost.pruned_saving
    pruning = f"; pruning saved about {duration(saved)}" if saved > 0 else ""
    kept = result.cost.checkpoint_seconds
    writing = f", {duration(kept)} of it to write checkpoints" if kept >= 1 else ""
    trained = f"{duration(result.cost.train_seconds)} of training in {runs} runs{writing}"
    return f"  cost: {trained} (search trials: {counts or 'none'}){pruning}{_cards(result)}."


def _cards(result: StudyResult) -> str:
    cost = result.cost
    peak = "" if cost.peak_memory is None else f", at most {cost.peak_memory / 1e9:.2g} GB of one in use"
    return "" if cost.gpu_seconds is None else f"; {duration(cost.gpu_seconds)} of GPUs{peak}"


def _better(result: StudyResult) -> str:
    return "higher" if result.direction == "maximize" else "lower"


def _numbers(test: PairedTest) -> str:
    interval = f"{_confidence(test)} interval {rounded(test.ci_low, test)} to {rounded(test.ci_high, test)}"
    return f"{interval}, p = {test.p_value:.2g}"


def _confidence(test: PairedTest) -> str:
    return f"{100 * test.confidence:.4g} %"


def _size(test: PairedTest) -> str:
    return rounded(abs(test.gain), test).lstrip("+")


def _signed(test: PairedTest) -> str:
    return rounded(test.gain, test)


def rounded(value: float, test: PairedTest) -> str:
    """Return the value with two digits of the interval's half-width, more if an end would round to 0."""
    if math.isinf(value):
        return "−∞" if value < 0 else "+∞"
    width = (test.ci_high - test.ci_low) / 2
    digits = _decimals(width if 0 < width < math.inf else test.gain) + 1
    nearest = min(abs(test.ci_low), abs(test.ci_high))
    if 0 < nearest < math.inf:
        digits = max(digits, min(_decimals(nearest), digits + 2))
    return f"{value:+.{max(0, digits)}f}".replace("-", "−")


def _decimals(value: float) -> int:
    """Return how many decimals show the first digit that is not 0; 3 for 0 itself."""
    return -math.floor(math.log10(abs(value))) if value else 3


def duration(seconds: float) -> str:
    """Return seconds as people say them: ``1 h 12 min``, ``3 min 20 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
