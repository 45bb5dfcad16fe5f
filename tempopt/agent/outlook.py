"""What is said of a study that is under way: how many runs and hours it will take, and what it can show.

Once where it begins, and once where its first runs tell of the noise. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tempopt.agent.observer import Observer, Snapshot, Unobserved
from tempopt.confirmation.costs import mean_cost
from tempopt.forecast.power import detectable, known_of
from tempopt.forecast.runs import planned_runs
from tempopt.forecast.words import begun_text, gain_text, lasting, on
from tempopt.records.rows import TicketRow
from tempopt.results.wording import baseline_name
from tempopt.spec.study_spec import StudySpec


class Outlook:
    """Tells an observer what is to be expected of a study, each thing once.

    Args:
        spec: The study's spec.
        observer: Who is told.
        new: Whether the study begins now.
    """

    def __init__(self, spec: StudySpec, observer: Observer, *, new: bool) -> None:
        self._spec = spec
        self._observer = observer
        self._new = new
        self._silent = type(observer) is Unobserved
        self._runs = planned_runs(spec).all()
        self._settled: bool | None = None
        self._told = False

    def look(self, snapshot: Snapshot, rows: Callable[[], Sequence[TicketRow]]) -> None:
        """Say what there is to say, after a snapshot was shown.

        Args:
            snapshot: The study as it stands.
            rows: Returns its tickets.
        """
        if self._silent:
            return
        baseline, choose = (
            snapshot.asked[kind] > 0 and snapshot.done[kind] >= snapshot.asked[kind]
            for kind in ("baseline", "choose")
        )
        # a race asks for more runs as long as it is open: with the first pair it is over
        chosen = choose and snapshot.asked["confirm"] > 0
        if self._settled is None:
            # whoever begins a study says so, whoever joins one does not repeat what was said
            if self._new:
                self._observer.note(begun_text(self._runs))
            self._settled = baseline
            # an earlier agent has said it
            self._told = chosen
            return
        if baseline and not self._settled:
            self._settled = True
            self._tell(snapshot, rows(), with_time=True)
        elif chosen and not self._told:
            self._tell(snapshot, rows(), with_time=False)
            self._told = True

    def _tell(self, snapshot: Snapshot, rows: Sequence[TicketRow], *, with_time: bool) -> None:
        parts = []
        able, known = detectable(self._spec), known_of(rows, self._spec)
        if known is not None:
            self._told = True
            parts.append(gain_text(able, known, self._spec.study.metric, baseline_name(self._spec)))
        workers = sum(not each.silent for each in snapshot.workers)
        cost = mean_cost(rows)
        if with_time and workers and cost is not None:
            seconds = cost * self._runs.typical / workers
            parts.append(f"about {lasting(seconds)} to the verdict on {on(workers, 0.0)}")
        if parts:
            text = "; ".join(parts)
            self._observer.note(f"{text[0].upper()}{text[1:]}.")
