"""What a size between a proxy and full size is worth to a budget, by the model that splits budgets.

Trains nothing: it prints, for budgets and prices, the split with a proxy alone and with a size in between,
and how much more that is worth (``tempopt.forecast.worth``).

    python -m benchmarks.between
"""

from __future__ import annotations

from typing import Any

from benchmarks.budget import WORLDS, open_spec
from tempopt.confirmation.costs import MeanCosts
from tempopt.forecast.split import Split, split
from tempopt.spec.study_spec import StudySpec

PRICES = ((0.05, 0.2), (0.1, 0.3))
"""GPU-hours of a run of the proxy and of the size in between, where one at full size takes 1."""
BUDGETS = (20.0, 30.0, 60.0, 120.0)


def of(hours: float, *sizes: float) -> Split:
    """Return how a budget is split where a run of each size costs so much, full size last.

    Args:
        hours: The budget in GPU-hours.
        sizes: GPU-hours of a run.
    """
    data: dict[str, Any] = open_spec(WORLDS[0], hours, sizes[-1], sizes[0]).to_json()
    sets = [{"model.width": size} for size in range(1, len(sizes))]
    data["study"]["proxy"]["set"] = sets if len(sets) > 1 else sets[0]
    data["study"]["limits"]["proxy_gpu_hours"] = [*sizes[:-1]]
    found = split(StudySpec.from_json(data), MeanCosts(sizes=sizes, basis="stated"), hours)
    assert found is not None, "a budget that proves nothing"
    return found


def row(hours: float, small: float, middle: float) -> str:
    """Return a row of the table: a budget and its prices, and both splits."""
    alone, between = of(hours, small, 1.0), of(hours, small, middle, 1.0)
    cells = [
        f"{each.numbers['trials']}, {each.numbers['proxy.finalists']}, {each.numbers['seeds.confirm'].max}, "
        f"{each.gain:.2f}, {100 * each.shown:.0f} %"
        for each in (alone, between)
    ]
    more = between.worth / alone.worth - 1
    return f"| {hours:g} | {small:g}, {middle:g} | {' | '.join(cells)} | {more:+.1%} |"


def main() -> None:
    """Print the table."""
    print("| GPU-hours | proxy, between | proxy alone | with a size between | worth |")
    print("|---|---|---|---|---|")
    for small, middle in PRICES:
        for hours in BUDGETS:
            print(row(hours, small, middle), flush=True)


if __name__ == "__main__":
    main()
