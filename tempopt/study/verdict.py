"""The verdict in plain words; computes nothing, and never calls the best value of a search a gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.study.answers import Share, Verdict
from tempopt.study.paired import ALPHA, PairedTest

if TYPE_CHECKING:
    from tempopt.store.rows import TicketRow
    from tempopt.study.results import StudyResult

_TESTS = {"t": "paired t-test", "wilcoxon": "Wilcoxon signed-rank test"}
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
        lines += _caveats(verdict)
        lines += _constant_lines(verdict, result)
        lines += _share_lines(verdict)
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
    if test.p_value < ALPHA and test.gain < 0:
        change = f"the winner of the search is worse than τ = 1 by {_size(test)}"
        return f"No gain shown: in {result.metric} {change} ({_numbers(test)}; {where})."
    change = f"the winner of the search gains {_signed(test)} in {result.metric} over τ = 1"
    return f"No gain shown: {change} ({_numbers(test)}; {where})."


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
            f"verdict {verdict.looks} of this study: to be right as often as with one look, every p is "
            f"multiplied by {verdict.looks} and the intervals are {_confidence(verdict.total.paired)}."
        )
    return lines


def _missing_lines(result: StudyResult) -> list[str]:
    """Return what was asked for and did not come to its end, or only at a later attempt."""
    lines = []
    failed = [ticket for ticket in result.lost if ticket.state == "failed"]
    if failed:
        lines.append(f"  failed on every attempt: {len(failed)} ({_named(failed)}).")
    again = [ticket for ticket in result.lost if ticket.state != "failed"]
    if again:
        attempts = sum(ticket.failures for ticket in again)
        lines.append(f"  attempts lost and made good: {attempts} ({_named(again)}).")
    if result.alone:
        names = ", ".join(ticket.name for ticket in result.alone)
        lines.append(f"  ran out of a card's memory and needed a card of their own: {names}.")
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
    if total.diverged or total.reference_diverged:
        counts = f"{total.diverged} of {total.paired.n_pairs} seeds, τ = 1 on {total.reference_diverged}"
        end = "" if total.significant or not total.paired.significant else "; so the gain does not count"
        lines.append(f"  the winner diverged on {counts} (counted with the worst value reached){end}.")
    if total.dropped:
        lines.append(f"  pairs left out, a run of theirs having failed on every attempt: {total.dropped}.")
    if math.isinf(total.paired.ci_low):
        lines.append("  so few pairs bound no interval; give study.seeds.confirm more.")
    return lines


def _constant_lines(verdict: Verdict, result: StudyResult) -> list[str]:
    answer = verdict.against_constant
    if answer is None:
        return ["  no constant temperature could be compared."]
    test = answer.paired
    constant = parameters_text(verdict.constant_params or {})
    constants = result.tickets["constant"]
    tried = constants.done + constants.failed
    text = f"  against the best of {tried} constants ({constant}): {_signed(test)} ({_numbers(test)})"
    if answer.significant:
        return [f"{text}: the plan is worth that much more than one constant."]
    if test.p_value < ALPHA and test.gain < 0:
        return [f"{text}: the constant is better."]
    return [f"{text}: the plan is not shown to be worth more than one constant."]


def _share_lines(verdict: Verdict) -> list[str]:
    lines = []
    inference, init = verdict.inference_only, verdict.init_only
    if inference is not None and inference.temperature == 1.0:
        lines.append("  inference only: models trained at τ = 1 are evaluated best at τ = 1.")
    elif inference is not None:
        how = "the winner's final temperature"
        if inference.temperature is not None:
            how = f"constant τ = {inference.temperature:g}"
        lines.append(f"  inference only (trained at τ = 1, evaluated at {how}): {_share(inference)}")
    if init is not None:
        how = "the winner's first temperature baked into the initial weights"
        lines.append(f"  initialisation only ({how}, trained at τ = 1): {_share(init)}")
    return lines


def _share(share: Share) -> str:
    test = share.answer.paired
    text = f"{_signed(test)} ({_numbers(test)})"
    if share.share is None:
        return f"{text}."
    if test.p_value >= ALPHA and share.share > 0:
        return f"{text}: by itself not shown to be any of the gain."
    if share.share >= 1:
        return f"{text}: all of the gain."
    return f"{text}: {'none' if share.share <= 0 else f'{100 * share.share:.0f} %'} of the gain."


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
