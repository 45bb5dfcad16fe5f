"""How many runs a study takes, by kind, and how long they take on so many workers.

Numbers in, numbers out: what the parts of a run take is measured elsewhere (``tempopt.agent.dry_run``), and
which runs there are comes from studies in memory (``outcomes.py``).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from tempopt.confirmation.evaluations import evaluations
from tempopt.confirmation.pairs import winner_of
from tempopt.forecast.outcomes import Made, fewest, likely, most
from tempopt.records.rows import KINDS, SAMPLED, Kind, TicketRow
from tempopt.records.tickets import arms_of
from tempopt.spec.study_spec import StudySpec
from tempopt.workers.messages import Times

STUDIES = 8
"""Drawn studies that what is expected is the mean of; every other one has a gain."""

TRAINED = 0.82
"""Share of their steps that runs of a sampled arm train, where the pruner has enough runs to learn from.

The mean over 24 studies in the recorded worlds (benchmarks/README.md, "What pruning leaves").
"""

_ENOUGH = 20
_NEVER = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A number that depends on what is found.

    Args:
        least: It is at least that.
        expected: Its mean over drawn studies, of which one half has a gain.
        most: It is at most that.
        without_gain: Its mean over those that have none.
        with_gain: Its mean over those that have one.
    """

    least: float
    expected: float
    most: float
    without_gain: float
    with_gain: float


class Forecast:
    """The runs of a study to its first verdict, as its own decisions plan them.

    Runs that fail, and limits that end the search, are left out: with them there are fewer.

    Args:
        spec: The study's spec.
        studies: Drawn studies, at least 2.
    """

    def __init__(self, spec: StudySpec, *, studies: int = STUDIES) -> None:
        self._spec = spec
        self._studies = studies

    @cached_property
    def _fewest(self) -> list[Made]:
        return list(fewest(self._spec))

    @cached_property
    def _most(self) -> list[Made]:
        return list(most(self._spec))

    @cached_property
    def _likely(self) -> list[tuple[bool, Made]]:
        return list(likely(self._spec, self._studies))

    def _span(self, of: Callable[[Made], float], of_most: Callable[[Made], float] | None = None) -> Span:
        drawn = [(gains, of(made)) for gains, made in self._likely]
        without, having = ([value for gains, value in drawn if gains is wanted] for wanted in (False, True))
        known = [value for _, value in drawn]
        return Span(
            least=min([*map(of, self._fewest), *known]),
            expected=fmean(known),
            most=max([*map(of_most or of, self._most), *known]),
            without_gain=fmean(without),
            with_gain=fmean(having),
        )

    def runs(self) -> Span:
        """Return the number of runs."""
        return self._span(lambda made: len(made.rows))

    def runs_of(self, kind: Kind) -> Span:
        """Return the number of runs of a kind."""
        return self._span(lambda made: sum(row.kind == kind for row in made.rows))

    @cached_property
    def by_kind(self) -> dict[Kind, Span]:
        """The number of runs of each kind that there may be, in the order of the stages."""
        spans = {kind: self.runs_of(kind) for kind in KINDS}
        return {kind: span for kind, span in spans.items() if span.most}

    def expected_runs(self) -> tuple[float, float]:
        """Return the numbers of runs that are expected, and that there are at most."""
        known = [len(made.rows) for _, made in self._likely]
        return fmean(known), max([*known, *(len(made.rows) for made in self._most)])

    def seconds(self, times: Times) -> Span:
        """Return the seconds of training, summed over workers.

        Args:
            times: What the parts of a run take.
        """
        return self._span(
            lambda made: sum(map(sum, self._costs(made, times))),
            lambda made: sum(map(sum, self._costs(made, times, pruned=False))),
        )

    def elapsed(self, times: Times, workers: int) -> Span:
        """Return the seconds until the verdict, with so many workers; ``times`` as for :meth:`seconds`."""
        return self._span(
            lambda made: _elapsed(self._costs(made, times), workers),
            lambda made: _elapsed(self._costs(made, times, pruned=False), workers),
        )

    def costs_of(self, times: Times) -> dict[Kind, float]:
        """Return the mean seconds of a run of each kind that is trained to its end."""
        costs: dict[Kind, list[float]] = {}
        for _, made in self._likely[-1:]:
            for row in made.rows:
                costs.setdefault(row.kind, []).append(run_seconds(row, self._spec, made.rows, times))
        return {kind: fmean(seconds) for kind, seconds in costs.items()}

    def prunes(self, times: Times) -> bool:
        """Return whether runs are expected to be ended by the pruner."""
        return any(pruning_share(self._spec, times, made.rows) for _, made in self._likely)

    def _costs(self, made: Made, times: Times, *, pruned: bool = True) -> list[list[float]]:
        # it is the search that is pruned
        share = pruning_share(self._spec, times, made.rows) if pruned else {}
        return [
            [run_seconds(row, self._spec, made.rows, times, share.get(row.arm, 1.0)) for row in batch]
            for batch in made.batches
        ]


def pruning_share(spec: StudySpec, times: Times, rows: Iterable[TicketRow]) -> dict[str, float]:
    """Return by arm the share of their steps that its sampled runs are expected to train."""
    # a run that is validated at its end alone is over by then
    if spec.study.pruner.name == _NEVER or times.validations - times.ends_validated < 1:
        return {}
    runs = Counter(row.arm for row in rows if row.kind in SAMPLED)
    return {
        arm: TRAINED
        for arm, count in runs.items()
        if count >= _ENOUGH and spec.space(arm)  # type: ignore[arg-type]
    }


def run_seconds(
    row: TicketRow, spec: StudySpec, rows: Sequence[TicketRow], times: Times, share: float = 1.0
) -> float:
    """Return the seconds that a run takes.

    Args:
        row: The run's ticket.
        spec: The study's spec.
        rows: All tickets of its study.
        times: What the parts of a run take.
        share: Share of its steps that it trains, if it is one whose arm is sampled.
    """
    share = share if row.kind in SAMPLED else 1.0
    trained = times.steps * times.step + times.validations * times.validate
    return times.start + share * trained + _end_seconds(row, spec, rows, times)


def _end_seconds(row: TicketRow, spec: StudySpec, rows: Sequence[TicketRow], times: Times) -> float:
    """Return the seconds of the evaluations at the end of a run."""
    winner = winner_of(rows, spec, of_round=row.round) or {} if row.kind == "confirm" else {}
    asked = evaluations(row.kind, arms_of(row), spec, winner, row.parameters or {})
    # at the end of a training the current temperature is the final one: one evaluation is both
    measured = {("validate", "None"), *((each.on, repr(each.temperature)) for each in asked)}
    tested = {key for key in measured if key[0] == "test"}
    again = len(measured) - len(tested) - times.ends_validated
    return again * times.validate + len(tested) * times.test


def _elapsed(batches: Iterable[Sequence[float]], workers: int) -> float:
    """Return the seconds that batches take one after the other, each shared out among workers."""
    passed = 0.0
    for batch in batches:
        free = [0.0] * workers
        for seconds in batch:
            heapq.heapreplace(free, free[0] + seconds)
        passed += max(free)
    return passed
