"""What do looks on the way save, and do level and coverage hold? Looks at 4, 8, 12, 16 pairs beside fixed.

Differences are normal with standard deviation 1. A sequence of looks ends where its boundary is crossed, at
16 pairs, or where the gain is not above zero (which no boundary counts on). The second table goes through
tempopt's own test of a study's pairs: all three tests, and pairs that were added because no gain was shown.

    python -m benchmarks.sequential
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.special import stdtrit
from scipy.stats import binomtest

from tempopt.statistics.alpha_ledger import level
from tempopt.statistics.group_sequential import Look, boundaries, nominal, spent
from tempopt.statistics.paired_tests import TESTS, PairedTest, Stage, Test, paired

_EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.5)
_LOOKS = (4, 8, 12, 16)
_ALPHA = 0.05


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=200_000, help="for each line of the first table")
    parser.add_argument("--whole", type=int, default=4_000, help="for each line of the second")
    given = parser.parse_args()
    most = _LOOKS[-1]
    plans: dict[str, tuple[Look, ...]] = {
        "fixed 8": ((8, 1.0),),
        "fixed 16": ((16, 1.0),),
        "4, 8, 12, 16": tuple((n, spent(n, most)) for n in _LOOKS),
    }
    print("| effect, sd | pairs | gain shown | loss shown | pairs, mean | interval at the end holds |")
    print("|---|---|---|---|---|---|")
    for effect in _EFFECTS:
        for name, looks in plans.items():
            up, down, pairs, held = _simulate(looks, effect, given.studies)
            print(f"| {effect:g} | {name} | {up:.1%} | {down:.1%} | {pairs:.1f} | {held:.1%} |", flush=True)
    crossed = ", ".join(f"{p:.4f}" for p in boundaries(plans["4, 8, 12, 16"], _ALPHA))
    print(f"\np of the plain t test at the four looks: {crossed}\n")
    print("| effect, sd | test | what | gain shown | interval holds | CPU ms a verdict |")
    print("|---|---|---|---|---|---|")
    for effect in (0.0, 1.0):
        for test in TESTS:
            for what, study in (("looks", _with_looks), ("4 added to 8", _with_more)):
                print(_line(effect, test, what, study, given.whole), flush=True)


def _simulate(looks: tuple[Look, ...], effect: float, studies: int) -> tuple[float, float, float, float]:
    """Return how often a gain and a loss is shown, the mean number of pairs, and the interval's coverage."""
    d = np.random.default_rng(0).standard_normal((studies, looks[-1][0])) + effect
    alive = np.ones(studies, dtype=bool)
    up = down = pairs = held = 0
    for place in range(len(looks)):
        n = looks[place][0]
        mean, error = d[:, :n].mean(axis=1), d[:, :n].std(axis=1, ddof=1) / n**0.5
        reach = -stdtrit(n - 1, nominal(looks[: place + 1], _ALPHA) / 2) * error
        ends = alive & ((abs(mean) > reach) | ((mean <= 0) & (len(looks) > 1)) | (place == len(looks) - 1))
        up += np.sum(ends & (mean > reach))
        down += np.sum(ends & (mean < -reach))
        held += np.sum(ends & (abs(mean - effect) <= reach))
        pairs += n * np.sum(ends)
        alive &= ~ends
    return up / studies, down / studies, pairs / studies, held / studies


def _with_looks(d: np.ndarray, test: Test) -> PairedTest:
    """Return the verdict of a study that is looked at on the way."""
    looks: list[Look] = []
    for n in _LOOKS:
        looks.append((n, spent(n, _LOOKS[-1])))
        found = paired(d[:n].tolist(), test=test, direction="maximize", looks=looks)
        if found.p_value < _ALPHA or found.gain <= 0:
            break
    return found


def _with_more(d: np.ndarray, test: Test) -> PairedTest:
    """Return the verdict of a study that had eight pairs and got four more if they showed no gain."""
    first = paired(d[:8].tolist(), test=test, direction="maximize", alpha=level(1))
    if first.significant:
        return first
    before = Stage(differences=tuple(d[:8].tolist()))
    return paired(d[8:12].tolist(), test=test, direction="maximize", alpha=level(2), earlier=[before])


def _line(effect: float, test: Test, what: str, study: object, studies: int) -> str:
    assert callable(study)
    table = np.random.default_rng(1).standard_normal((studies, _LOOKS[-1])) + effect
    began = time.process_time()
    found = [study(d, test) for d in table]
    cost = 1e3 * (time.process_time() - began) / studies
    shown = sum(one.significant for one in found)
    held = sum(one.ci_low <= effect <= one.ci_high for one in found)
    low, high = binomtest(shown, studies).proportion_ci()
    return (
        f"| {effect:g} | {test} | {what} | {shown / studies:.1%} ({low:.1%} to {high:.1%}) "
        f"| {held / studies:.1%} | {cost:.1f} |"
    )


if __name__ == "__main__":
    main()
