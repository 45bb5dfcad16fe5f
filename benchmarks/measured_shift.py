"""Does it pay to measure by how much ln τ moves from a proxy to full size (``temperature: measured``)?

Worlds in closed form (benchmarks/simulated/over_sizes.py): the best course of ln τ at full size has a given
agreement with that of the proxy, and is moved by a shift besides. Search, choosing, naming and race are
tempopt's own; the search of a proxy is carried out once, and its finalists go to several full sizes, by three
rules: *same*, *measured*, and *right*, the shift itself as a number. *Five* is *same* with two candidates and
two finalists more, since *measured* compares two more configurations. Regret is what the race has chosen,
behind the best, in units of the known gain. Results are lines of a file below build/.

    python -m benchmarks.measured_shift --draws 8
    python -m benchmarks.measured_shift --table
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.over_sizes import CLASSES, Came, Proxy, Record, paired, trained
from benchmarks.simulated.answers import asking, keep, known, ways
from benchmarks.simulated.over_sizes import Larger
from tempopt.confirmation.transfer import transfer_tickets
from tempopt.records.racing import best_parameters
from tempopt.records.tickets import of_kind
from tempopt.sampling.arms import Arms
from tempopt.spec.size_race import with_measured_shift
from tempopt.spec.study_spec import StudySpec

LINES = Path("build/measured_shift.jsonl")
AGREEMENTS = (0.9, 0.6)
SHIFTS = (0.0, 0.2, 0.4, 0.7)
RULES = ("same", "measured", "right")
USES = (*RULES, "five")


def changed(spec: StudySpec, candidates: int | None = None, **proxy: Any) -> StudySpec:
    """Return a study's spec with other keys of its proxy, and another number of candidates if it is given."""
    data = spec.to_json()
    data["study"]["proxy"] |= proxy
    data["study"]["candidates"] = candidates or data["study"]["candidates"]
    return StudySpec.from_json(data)


def raced(study: Proxy, spec: StudySpec, world: Larger) -> tuple[Came, float]:
    """Return what the race at full size comes to with its runs, and the shift that it has measured."""
    rows = list(study.rows)

    def recommend(arm: Any, count: int) -> list[dict[str, Any]]:
        return Arms(spec, rows, study.reports).recommend(arm, count)

    while new := transfer_tickets(rows, with_measured_shift(rows, spec), recommend):
        rows += trained(new, len(rows), world)
    tried = of_kind(rows, "transfer")
    proxy = with_measured_shift(rows, spec).study.proxy
    assert proxy is not None and proxy.shifts is not None and not proxy.is_unmeasured
    return (world.worth(best_parameters(tried, "maximize")), len(tried)), proxy.shifts[0]


def one(name: str, draw: int) -> Iterator[Record]:
    """Yield what came of a proxy of a class at each full size, by each rule."""
    small = Larger(name, draw, 1.0, 0.0)
    spec = asking(small.spec, ways()["proxy"], seed=draw)
    study = Proxy(small, spec)
    of = {"class": name, "draw": draw}
    five = Proxy(small, changed(spec, 5, finalists=5))
    if not study.searched_and_chosen() or not five.searched_and_chosen():
        yield {**of, "agreement": None, "shift": None, "came": {}}
        return
    side = 1.0 if draw // 2 % 2 else -1.0
    for agreement, shift in itertools.product(AGREEMENTS, SHIFTS):
        world = Larger(name, draw, agreement, shift)
        came, measured = {}, 0.0
        for rule in RULES:
            given = side * shift if rule == "right" else rule
            came[rule], found = raced(study, changed(spec, temperature=given), world)
            measured = found if rule == "measured" else measured
        came["five"], _ = raced(five, changed(spec, 5, finalists=5), world)
        yield {**of, "agreement": agreement, "shift": shift, "measured": side * measured, "came": came}


def table(records: Sequence[Record]) -> Iterator[str]:
    """Yield regret and runs by rule, for each agreement and shift, and how often which shift was measured."""
    differences = [f"{use} less same" for use in USES[1:]]
    yield f"| agreement | moved by | {' | '.join((*USES, *differences))} |"
    yield "|---|---|" + "---|" * (len(USES) + len(differences))
    parts: list[tuple[Any, Any]] = [*itertools.product(AGREEMENTS, SHIFTS), ("all", "all")]
    for agreement, shift in parts:
        own = [each for each in records if agreement == "all" or _at(each) == (agreement, shift)]
        cells = [f"{1.0 - np.mean([each['came'][rule][0] for each in own]):.3f}" for rule in USES]
        for rule in USES[1:]:
            mean, half, _ = paired(own, rule, "same")
            cells.append(f"{-mean:+.3f} ± {half:.3f}")
        yield f"| {agreement} | {shift} | {' | '.join(cells)} |"
    runs = [np.mean([each["came"][rule][1] for each in records]) for rule in USES]
    yield "\nRuns at full size: " + ", ".join(
        f"{rule} {each:.1f}" for rule, each in zip(USES, runs, strict=True)
    )
    yield "\n| agreement | moved by | measured against it | 0 | measured that way |\n|---|---|---|---|---|"
    for agreement, shift in itertools.product(AGREEMENTS, SHIFTS):
        signs = [np.sign(each["measured"]) for each in records if _at(each) == (agreement, shift)]
        shares = " | ".join(f"{np.mean(np.equal(signs, sign)):.0%}" for sign in (-1, 0, 1))
        yield f"| {agreement} | {shift} | {shares} |"


def _at(record: Record) -> tuple[float, float]:
    return record["agreement"], record["shift"]


def main() -> None:
    """Simulate what is missing, or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=8, help="proxies of each class")
    parser.add_argument("--even", action="store_true", help="those on which the shifts were chosen")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no more after so long")
    parser.add_argument("--table", action="store_true", help="print what there is")
    given = parser.parse_args()
    first = 0 if given.even else 1
    done = {(each["class"], each["draw"]) for each in known(LINES)}
    end = time.monotonic() + 60 * given.minutes
    for draw, name in itertools.product(range(first, 2 * given.draws, 2), CLASSES):
        if given.table or time.monotonic() > end or (name, draw) in done:
            continue
        for each in list(one(name, draw)):
            keep(each, LINES)
    there = [each for each in known(LINES) if each["came"] and each["draw"] % 2 == first]
    print("\n".join(table(there)))


if __name__ == "__main__":
    main()
