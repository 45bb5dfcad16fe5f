"""Whether one more verdict of a study could show anything at its level."""

from __future__ import annotations

from collections.abc import Sequence

from tempopt.errors import UsageError
from tempopt.spec.alpha_ledger import alpha_for_verdict
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import verdicts


def check_alpha_left(rows: Sequence[TicketRow], of_round: int, spec: StudySpec) -> None:
    """Refuse a round whose verdict could show nothing, whatever is found in it."""
    test, pairs = spec.study.test, spec.study.seeds.confirm.max
    alpha = alpha_for_verdict(verdicts(rows, of_round))
    if pairs < (min_pairs := spec.study.seeds.confirm.enough(test, alpha)):
        raise UsageError(
            f"More trials would have a verdict of their own, whose level is {100 * alpha:.3g} %. With "
            f"study.test: {test} that takes {min_pairs} pairs, and "
            f"study.seeds.confirm is {pairs}: nothing could be shown. Add pairs to the verdict that there is "
            f"(tempopt resume {spec.study.name} --pairs +N), or begin a study with more of them that learns "
            "from this one (study.warm_start)."
        )
