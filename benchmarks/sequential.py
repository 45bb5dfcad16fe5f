"""What do interim looks save, and do level and coverage hold? Looks at 4, 8, 12, 16 pairs beside fixed.

Differences are normal with standard deviation 1. A sequence of looks ends where its boundary is crossed, at
16 pairs, or where the gain is not above zero (which no boundary counts on). The second table goes through
tempopt's own test of a study's pairs, and of pairs that were added because no gain was shown.

    python -m benchmarks.sequential
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.special import stdtrit
from scipy.stats import binomtest

from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.verdict.statistics.group_sequential import Look, alpha_spending, boundaries, nominal_p
from tempopt.verdict.statistics.paired_tests import PairedTest, StageDifferences, paired_test

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
    args = parser.parse_args()
    max_pairs = _LOOKS[-1]
    plans: dict[str, tuple[Look, ...]] = {
        "fixed 8": ((8, 1.0),),
        "fixed 16": ((16, 1.0),),
        "4, 8, 12, 16": tuple((n, alpha_spending(n, max_pairs)) for n in _LOOKS),
    }
    print("| effect, sd | pairs | gain shown | loss shown | pairs, mean | interval at the end holds |")
    print("|---|---|---|---|---|---|")
    for effect in _EFFECTS:
        for name, looks in plans.items():
            num_upper, num_lower, pairs, num_covered = _simulate(looks, effect, args.studies)
            print(
                f"| {effect:g} | {name} | {num_upper:.1%} | {num_lower:.1%} "
                f"| {pairs:.1f} | {num_covered:.1%} |",
                flush=True,
            )
    boundary_text = ", ".join(f"{p:.4f}" for p in boundaries(plans["4, 8, 12, 16"], _ALPHA))
    print(f"\np of the plain t test at the four looks: {boundary_text}\n")
    print("| effect, sd | what | gain shown | interval holds | CPU ms a verdict |")
    print("|---|---|---|---|---|")
    for effect in (0.0, 1.0):
        for plan_name, study in (("looks", _with_looks), ("4 added to 8", _with_more)):
            print(_line(effect, plan_name, study, args.whole), flush=True)


def _simulate(looks: tuple[Look, ...], effect: float, studies: int) -> tuple[float, float, float, float]:
    """Return how often a gain and a loss is shown, the mean number of pairs, and the interval's coverage."""
    d = np.random.default_rng(0).standard_normal((studies, looks[-1][0])) + effect
    alive = np.ones(studies, dtype=bool)
    num_upper = num_lower = pairs = num_covered = 0
    for index in range(len(looks)):
        n = looks[index][0]
        mean, error = d[:, :n].mean(axis=1), d[:, :n].std(axis=1, ddof=1) / n**0.5
        reach = -stdtrit(n - 1, nominal_p(looks[: index + 1], _ALPHA) / 2) * error
        ends = alive & ((abs(mean) > reach) | ((mean <= 0) & (len(looks) > 1)) | (index == len(looks) - 1))
        num_upper += np.sum(ends & (mean > reach))
        num_lower += np.sum(ends & (mean < -reach))
        num_covered += np.sum(ends & (abs(mean - effect) <= reach))
        pairs += n * np.sum(ends)
        alive &= ~ends
    return num_upper / studies, num_lower / studies, pairs / studies, num_covered / studies


def _with_looks(d: np.ndarray) -> PairedTest:
    """Return the verdict of a study that is looked at on the way."""
    looks: list[Look] = []
    for n in _LOOKS:
        looks.append((n, alpha_spending(n, _LOOKS[-1])))
        result = paired_test(d[:n].tolist(), direction="maximize", looks=looks)
        if result.p_value < _ALPHA or result.gain <= 0:
            break
    return result


def _with_more(d: np.ndarray) -> PairedTest:
    """Return the verdict of a study that had eight pairs and got four more if they showed no gain."""
    first = paired_test(d[:8].tolist(), direction="maximize", alpha=alpha_for_verdict(1))
    if first.significant:
        return first
    first_stage = StageDifferences(differences=tuple(d[:8].tolist()))
    return paired_test(
        d[8:12].tolist(), direction="maximize", alpha=alpha_for_verdict(2), earlier=[first_stage]
    )


def _line(effect: float, plan_name: str, study: object, studies: int) -> str:
    assert callable(study)
    table = np.random.default_rng(1).standard_normal((studies, _LOOKS[-1])) + effect
    start_time = time.process_time()
    paired_tests = [study(d) for d in table]
    cost = 1e3 * (time.process_time() - start_time) / studies
    num_significant = sum(paired_test.significant for paired_test in paired_tests)
    num_covered = sum(paired_test.ci_low <= effect <= paired_test.ci_high for paired_test in paired_tests)
    low, high = binomtest(num_significant, studies).proportion_ci()
    return (
        f"| {effect:g} | {plan_name} | {num_significant / studies:.1%} ({low:.1%} to {high:.1%}) "
        f"| {num_covered / studies:.1%} | {cost:.1f} |"
    )


if __name__ == "__main__":
    main()
