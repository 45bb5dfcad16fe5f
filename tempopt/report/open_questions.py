"""What a study has not shown, as short statements in the words of the verdict; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tempopt.report.findings import headline, part_text
from tempopt.report.formatting import baseline_name, describe_temperature_change, format_comparison, plan_text
from tempopt.temperature import training_key
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.verdict import Verdict

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData
    from tempopt.verdict.set_comparison import Comparison


def unproven_claims(result: StudyData) -> list[str]:
    """Return what is asked of a study and was not shown, each with its interval where there is one.

    An empty list says that everything that was asked is shown. A study without a verdict has shown nothing.
    """
    if result.spec.compare is not None:
        if result.comparison is None:
            return ["nothing is compared yet: no difference between the sets is shown."]
        return list(_of_sets(result.comparison))
    if result.verdict is None:
        nothing = "nothing is confirmed" + ("." if result.state == "done" else " yet.")
        return [f"gain over {baseline_name(result.spec)}: not shown: {nothing}"]
    return list(_of_verdict(result, result.verdict))


def _line(title: str, answer: PairedResult | None) -> Iterator[str]:
    """Yield that a difference is not shown, or is shown to be a loss; nothing where it is a gain."""
    if answer is not None and answer.worse:
        yield f"{title}: not shown, a loss is: {format_comparison(answer)}."
    elif answer is not None and not answer.significant:
        yield f"{title}: not shown: {format_comparison(answer)}."


def _of_sets(comparison: Comparison) -> Iterator[str]:
    if comparison.pairs:
        for pair in comparison.pairs:
            if pair.winner is None:
                numbers = (
                    "no pair of runs could be compared"
                    if pair.answer is None
                    else format_comparison(pair.answer)
                )
                yield f"difference of {pair.name} and {pair.reference}: not shown: {numbers}."
        return
    for variant in comparison.variants:
        title = f"gain of {variant.name} over {comparison.reference}"
        if variant.answer is None:
            yield f"{title}: not shown: no pair of runs could be compared."
        elif not variant.better and not variant.answer.worse and variant.answer.significant:
            yield f"{title}: not shown: it diverged on {variant.failed} of {variant.runs} seeds."
        else:
            yield from _line(title, variant.answer)
        if variant.better and not variant.keeps_guards:
            yield f"{variant.name} keeps every guard: not shown."


def _of_verdict(result: StudyData, verdict: Verdict) -> Iterator[str]:
    baseline = baseline_name(result.spec)
    if verdict.at_one or verdict.untrained or verdict.total.lost:
        yield f"gain over {baseline}: not shown: {headline(result)}"
    else:
        yield from _line(f"gain over {baseline}", verdict.total)
    for answer, title in (
        (verdict.over_baseline, f"gain over the best at {baseline}"),
        (verdict.over_twin, f"gain over the winner's other parameters at {baseline}"),
    ):
        if verdict.total.component_results and not verdict.at_one:
            yield from _line(title, answer)
    yield from _of_constants(verdict)
    inference = verdict.inference_only
    if inference is not None:
        yield from _line(
            f"gain of inference only at {plan_text(inference.plan)} over {baseline}", inference.answer
        )
        yield from _line("gain of training over inference only", inference.difference)
    if verdict.learned is not None:
        yield from _line(f"gain of learned temperatures over {baseline}", verdict.learned.answer)
        yield from _line("gain over learned temperatures", verdict.learned.winner)
    for part in verdict.parts:
        yield from _line(f"what {part_text(part.name, result.spec)} is worth", part.answer)
    if verdict.simplest is not None and not verdict.simplest.holds:
        share = 100 * result.spec.study.keep_share
        yield f"a simpler plan keeps {share:.3g} % of the gain or more: not shown."
    if verdict.total.significant and not verdict.guards_kept:
        yield "the winner keeps every guard: not shown."


def _of_constants(verdict: Verdict) -> Iterator[str]:
    best_params, twin_params = verdict.constant_params, verdict.constant_twin_params
    if best_params is not None and training_key(best_params) != training_key(verdict.params):
        yield from _line("gain over the best constant temperature", verdict.over_constant)
    if twin_params is not None and not verdict.is_constant:
        moving_text = describe_temperature_change(verdict.params)
        yield from _line(
            f"gain over the winner with a constant in place of its {moving_text}", verdict.over_constant_twin
        )
