"""What would a surrogate over all sizes gain beside the race of the proxy's finalists at full size?

Worlds in closed form with a proxy of known agreement, and a shift of the best ln τ between the sizes besides
(benchmarks/simulated/over_sizes.py). Search, choosing, race and verdict are tempopt's own; the search of a
proxy is carried out once, and its finalists go to several full sizes. In use are the surrogate that has the
proxy's prediction as a trend (``trend``) and one of both sizes (``joint``):

- ``race``: the finalist is chosen after the race by its predicted mean instead of its own mean (*choose*),
  or the last finalists, one or two, are named by the surrogate after two seeds of the others (*name*).
- ``enlarged``: after a verdict that shows nothing there are 24 more trials on the proxy, and the surrogate of
  both sizes, which knows the first race, names what is chosen and compared then (*named*), or also what the
  trials try (*steered*): what raises most what is expected to be best at full size. *As built* is tempopt as
  it is: it names the candidates, and the last finalist of the race.

Uses were developed on even draws; the table is of odd ones. Results are lines of a file below build/.

    python -m benchmarks.over_sizes race --draws 12
    python -m benchmarks.over_sizes enlarged --draws 12
    python -m benchmarks.over_sizes race --table
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from benchmarks.simulated.answers import Priced, Way, asking, keep, known, ways
from benchmarks.simulated.over_sizes import MODELS, Joint, Larger, Model, Pool, posterior
from benchmarks.simulated.whole import Whole, row
from tempopt.confirmation.stages import first_tickets, more_tickets, next_tickets
from tempopt.confirmation.transfer import transfer_tickets, transferred
from tempopt.confirmation.verdict import Verdict, conclude
from tempopt.records.racing import best_parameters
from tempopt.records.rows import NewTicket, TicketRow
from tempopt.records.tickets import of_kind
from tempopt.sampling.arms import Arms
from tempopt.sampling.surrogate import knowledge_gradient, select_batch
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import training_key

Record = dict[str, Any]
Parameters = Mapping[str, Any]
Came = tuple[float, int]
"""What was chosen comes to in truth, and how many runs at full size it took."""

LINES = Path("build/over_sizes.jsonl")
CLASSES = ("constant", "line", "two bends", "two bends, noise 1")
AGREEMENTS = (0.9, 0.7, 0.5)
SHIFTS = (0.0, 0.5)
NAMED: dict[str, dict[tuple[int, ...], str]] = {
    "trend": {(1,): "1"},
    "joint": {(1,): "1", (1, 1): "2", (2,): "2 at once"},
}
"""How many finalists are named by each surrogate, and what that is called."""
STEERED = 2
"""Below this draw the search is steered, too: that takes longer than all else."""
_WAY: Way = ways()["proxy"]
_NOTHING = 1e-6


class Proxy(Whole):
    """A study up to where full size begins."""

    def searched_and_chosen(self) -> bool:
        """Search and choose on the proxy; return whether finalists are compared at full size."""
        new = first_tickets(self._spec)
        while new and new[0].kind not in ("transfer", "confirm"):
            for ticket in self._enter(new):
                self._do(ticket)
            new = next_tickets(self.rows, self._spec, self._arms.recommend)
        return bool(new) and new[0].kind == "transfer"


def trained(new: Sequence[NewTicket], first: int, world: Larger) -> list[TicketRow]:
    """Return new tickets as they are when their runs are over."""
    return [
        row(each, first + n, state="done", outcome="complete", value=_value(world, each))
        for n, each in enumerate(new)
    ]


def _value(world: Larger, ticket: NewTicket | TicketRow) -> float:
    assert ticket.parameters is not None
    return float(world.train(ticket.parameters, ticket.seed).final[-1])


def raced(
    rows: Sequence[TicketRow],
    spec: StudySpec,
    world: Larger,
    changed: Callable[[list[TicketRow]], list[TicketRow]] = lambda rows: rows,
) -> list[TicketRow]:
    """Return all tickets of a study when the race at full size is over.

    Args:
        rows: Those of the proxy.
        spec: The study's spec.
        world: Full size.
        changed: Returns what there is to be after the first two seeds.
    """
    found = list(rows)
    found = changed(found + trained(transfer_tickets(found, spec), len(found), world))
    while new := transfer_tickets(found, spec):
        found += trained(new, len(found), world)
    return found


def named_last(
    rows: list[TicketRow],
    model: Callable[[list[TicketRow]], Model],
    sets: Sequence[Parameters],
    world: Larger,
    batches: Sequence[int],
) -> list[TicketRow]:
    """Return tickets after two seeds in which the last finalists were named by a model.

    Args:
        rows: All tickets; those of the finalists that are replaced count as not trained.
        model: Returns what is believed after some tickets.
        sets: What may be named.
        world: Full size.
        batches: How many finalists are named at once, before the next are: the best of the first is the one
            that is expected to be best, and each other adds most to the expected best of them.
    """
    baseline = max(each.candidate or 0 for each in of_kind(rows, "transfer"))
    place = baseline - sum(batches)
    told = [each for each in rows if each.kind != "transfer" or not place <= (each.candidate or 0) < baseline]
    for count in batches:
        taken = {training_key(each.parameters or {}) for each in of_kind(told, "transfer")}
        left = [each for each in sets if training_key(each) not in taken]
        beliefs, rng = posterior(model(told), left), np.random.default_rng(0)
        for best in select_batch(beliefs, count=count, rng=rng):
            own = [each for each in of_kind(rows, "transfer") if each.candidate == place]
            new = [dataclasses.replace(each, parameters=dict(left[best])) for each in own]
            told += [dataclasses.replace(each, value=_value(world, each)) for each in new]
            place += 1
    return sorted(told, key=lambda each: each.id)


def in_race(
    study: Proxy, spec: StudySpec, world: Larger, sets: Sequence[Parameters]
) -> Iterator[tuple[str, Came]]:
    """Yield what each use of a surrogate in the race comes to."""
    rows = raced(study.rows, spec, world)
    yield "race", _came(rows, world)
    yield "best finalist", (max(map(world.worth, _finalists(rows).values())), len(of_kind(rows, "transfer")))
    for name, made in MODELS.items():

        def model(told: list[TicketRow], made: Any = made) -> Model:
            return made(told, study.reports, spec)  # type: ignore[no-any-return]

        yield f"choose, {name}", _came(rows, world, model(rows))
        for batches, called in NAMED[name].items():

            def changed(
                told: list[TicketRow], batches: Sequence[int] = batches, model: Any = model
            ) -> list[TicketRow]:
                return named_last(told, model, sets, world, batches)

            if len(_finalists(rows)) > sum(batches) + 1:
                renamed = raced(study.rows, spec, world, changed)
                yield f"name {called}, {name}", _came(renamed, world)


def _finalists(rows: Sequence[TicketRow]) -> dict[int, Parameters]:
    found: dict[int, Parameters] = {}
    for each in of_kind(rows, "transfer"):
        found.setdefault(each.candidate or 0, each.parameters or {})
    return found


def _came(rows: Sequence[TicketRow], world: Larger, model: Model | None = None) -> Came:
    """Return what a race came to, chosen by the means of the finalists or by what a model says of them."""
    tried = of_kind(rows, "transfer")
    best: Parameters = best_parameters(tried, "maximize")
    if model is not None:
        sets = list(_finalists(rows).values())
        best = sets[int(np.argmax(posterior(model, sets).mean_M))]
    return world.worth(best), len(tried)


class Untold(Arms):
    """The arms of a study whose search learns from the smallest proxy alone."""

    def _recommend_at_full(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return []


class Told:
    """The arms of a study whose search is told what full size said.

    Args:
        arms: As they are without.
        study: The study, of which it is the search.
        pool: What is considered.
        steers: Whether it says what trials try, too.
    """

    def __init__(self, arms: Arms, study: Enlarged, pool: Pool, *, steers: bool) -> None:
        self._study, self._steers, self._arms, self._pool = study, steers, arms, pool
        self.asked, self.told, self.prune = arms.asked, arms.told, arms.prune

    def recommend(self, arm: str, count: int) -> list[dict[str, Any]]:
        """Return the sets of which one is expected to be best at full size."""
        if arm != "search":
            return self._arms.recommend(arm, count)
        study = self._study
        sets = self._pool.of(study.rows)
        beliefs = posterior(Joint(study.rows, study.reports, study.spec), sets)
        rng = np.random.default_rng(study.spec.study.seed)
        return [dict(sets[each]) for each in select_batch(beliefs, count=count, rng=rng)]

    def ask(self, ticket: TicketRow) -> dict[str, Any]:
        """Return what a trial on the proxy tries."""
        if ticket.kind != "search" or not self._steers:
            return self._arms.ask(ticket)
        study = self._study
        own = [each for each in study.rows if each.kind == "search" and each.state == "done"]
        window = ticket.number - study.spec.study.parallel

        def may_know(each: TicketRow) -> bool:
            return each.kind != "search" or each.number <= window

        model = Joint(study.rows, study.reports, study.spec, may_know)
        pending = [each.parameters or {} for each in own if not may_know(each)]
        streams = np.array([model.stream_of(each.seed) for each in own if not may_know(each)], dtype=np.int64)
        surrogate = (
            model.surrogate.expecting(model.described(pending, full=False), streams)
            if pending
            else model.surrogate
        )
        sets = self._pool.of(study.rows, ticket.number)
        beliefs = surrogate.posterior(model.described(sets))
        _, variance_M, together_MM = beliefs.of_runs(
            model.described(sets, full=False), model.stream_of(ticket.seed)
        )
        gain_M = knowledge_gradient(beliefs.mean_M, variance_M, together_MM)
        taken = {training_key(each.parameters or {}) for each in own if each.seed == ticket.seed}
        nothing = _NOTHING * float(np.ptp(beliefs.mean_M))
        order = np.lexsort((-beliefs.mean_M, -np.where(gain_M > nothing, gain_M, 0.0)))
        best = next(sets[each] for each in order if training_key(sets[each]) not in taken)
        return {name: best[name] for name in study.spec.space("search") if name in best}


class Enlarged(Priced):
    """A study that goes on from where one in memory has come to.

    Args:
        world: Full size.
        spec: The study's spec.
        small: The proxy.
        past: The study that it goes on from.
    """

    def __init__(self, world: Larger, spec: StudySpec, small: Any, past: Whole) -> None:
        super().__init__(world, spec, small)
        self.rows, self.reports, self.measurements = [*past.rows], [*past.reports], [*past.measurements]
        self._arms = Untold(spec, self.rows, self.reports)

    def gone_on(self, more: int = 0, how: str = "", pool: Pool | None = None) -> Verdict | None:
        """Go on to the next verdict and return it; None: there is nothing to compare.

        Args:
            more: Trials that are added.
            how: ``named``, ``steered``, ``as built``, or as it is.
            pool: What is considered where the search is told of full size.
        """
        if how == "as built":
            self._arms = Arms(self.spec, self.rows, self.reports)
        elif pool is not None and how:
            self._arms = Told(self._arms, self, pool, steers=how == "steered")  # type: ignore[assignment]
        new = more_tickets(self.rows, self.spec, more) if more else self._next()
        while new:
            for ticket in self._enter(new):
                self._do(ticket)
            new = self._next()
        return conclude(self.rows, self.measurements, self.spec)

    def _next(self) -> list[NewTicket]:
        return next_tickets(self.rows, self.spec, self._arms.recommend)


def in_enlarged(
    study: Proxy, spec: StudySpec, world: Larger, small: Any, pool: Pool, *, steers: bool
) -> Iterator[tuple[str, Came]]:
    """Yield what a study comes to in its second round, by what its search is told; nothing if it has none.

    What it comes to is the truth of what is confirmed, and of what is shown, 0 where nothing is.
    """
    first = Enlarged(world, spec, small, study)
    verdict = first.gone_on()
    if verdict is not None and verdict.total.significant:
        return
    before = _at_full(first)
    for how in ("", "named", "as built", *(["steered"] if steers else [])):
        again = Enlarged(world, spec, small, first)
        verdict = again.gone_on(_WAY.more, how, pool)
        worth = world.worth(transferred(again.rows, spec) or {})
        shown = verdict is not None and verdict.round == 1 and verdict.total.significant
        runs = _at_full(again) - before
        yield how or "as it is", (worth, runs)
        yield f"shown, {how or 'as it is'}", (float(shown), runs)


def _at_full(study: Whole) -> int:
    return sum(each.kind in ("transfer", "confirm") for each in study.rows)


def one(part: str, name: str, draw: int, spread: float = 1.0) -> Iterator[Record]:
    """Yield what came of a proxy of a class at each full size of a spread."""
    small = Larger(name, draw, 1.0, 0.0)
    spec = asking(small.spec, _WAY, seed=draw)
    study = Proxy(small, spec)
    of = {"part": part, "class": name, "draw": draw, "spread": spread}
    if not study.searched_and_chosen():
        yield {**of, "agreement": None, "shift": None, "came": {}}
        return
    pool = Pool(spec, draw)
    for agreement, shift in itertools.product(AGREEMENTS, SHIFTS):
        world = Larger(name, draw, agreement, shift, spread)
        came = (
            in_race(study, spec, world, pool.of(study.rows))
            if part == "race"
            else in_enlarged(study, spec, world, small, pool, steers=draw < STEERED)
        )
        yield {**of, "agreement": agreement, "shift": shift, "came": dict(came)}


def paired(records: Sequence[Record], use: str, beside: str, which: int = 0) -> tuple[float, float, int]:
    """Return the mean difference of two uses, half of its 95 % interval, and the number of proxies.

    Full sizes of one proxy have its search in common: a proxy counts once, with the mean of its own.

    Args:
        records: What came of them.
        use: One use.
        beside: The other.
        which: 0: the truth of what was chosen; 1: the runs at full size.
    """
    own: dict[Any, list[float]] = {}
    for each in records:
        if use in each["came"] and beside in each["came"]:
            difference = each["came"][use][which] - each["came"][beside][which]
            own.setdefault((each["class"], each["draw"]), []).append(difference)
    means = [float(np.mean(each)) for each in own.values()]
    if len(means) < 2:
        return float(np.mean(means)) if means else math.nan, math.inf, len(means)
    half = float(t.ppf(0.975, len(means) - 1)) * float(np.std(means, ddof=1)) / math.sqrt(len(means))
    return float(np.mean(means)), half, len(means)


def rows_of(records: Sequence[Record], beside: str) -> Iterator[str]:
    """Yield a line for each use, with its differences to another one, and what that comes to."""
    uses = list(dict.fromkeys(use for each in records for use in each["came"]))
    for use in uses:
        is_share = use.startswith("shown")
        base = f"shown, {beside}" if is_share else beside
        own = [each["came"][use] for each in records if use in each["came"]]
        came, runs = np.mean([each[0] for each in own]), np.mean([each[1] for each in own])
        cells = [f"{came:.0%}" if is_share else f"{1.0 - came:.3f}", "", f"{runs:.2f}", ""]
        if use != base:
            for place, which in ((1, 0), (3, 1)):
                mean, half, _ = paired(records, use, base, which)
                # less regret is a larger truth
                sign = 1 if which or is_share else -1
                cells[place] = f"{sign * mean:+.3f} ± {half:.3f}"
        yield f"| {use} | {' | '.join(cells)} |"


def table(records: Sequence[Record], beside: str) -> Iterator[str]:
    """Yield a table of all full sizes, and one of each part of them."""
    parts = {"all": records}
    for key in ("agreement", "shift", "class"):
        for value in dict.fromkeys(each[key] for each in records):
            parts[f"{key} {value}"] = [each for each in records if each[key] == value]
    for name, part in parts.items():
        proxies = len({(each["class"], each["draw"]) for each in part})
        yield f"\n{name}: {proxies} proxies, {len(part)} full sizes\n"
        yield "| use | regret, or share | less the first | runs at full size | less the first |"
        yield "|---|---|---|---|---|"
        yield from rows_of(part, beside)


def main() -> None:
    """Simulate what is missing, or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["race", "enlarged"])
    parser.add_argument("--draws", type=int, default=12, help="proxies of each class")
    parser.add_argument("--even", action="store_true", help="those on which the uses were developed")
    parser.add_argument(
        "--spread", type=float, default=1.0, help="how many times as far values lie apart at full size"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no more after so long")
    parser.add_argument("--table", action="store_true", help="print what there is")
    given = parser.parse_args()
    first = 0 if given.even else 1
    there = [each for each in known(LINES) if each["part"] == given.part and each["spread"] == given.spread]
    done = {(each["class"], each["draw"]) for each in there}
    end = time.monotonic() + 60 * given.minutes
    for draw, name in itertools.product(range(first, 2 * given.draws, 2), CLASSES):
        if given.table or time.monotonic() > end or (name, draw) in done:
            continue
        for each in list(one(given.part, name, draw, given.spread)):
            keep(each, LINES)
    records = [
        each
        for each in known(LINES)
        if (each["part"], each["spread"]) == (given.part, given.spread)
        and each["came"]
        and each["draw"] % 2 == first
    ]
    print("\n".join(table(records, "race" if given.part == "race" else "as it is")))


if __name__ == "__main__":
    main()
