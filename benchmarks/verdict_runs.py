"""How many runs does a verdict take? Every bundled study in memory, with made-up trainings.

Stages, choosing and verdict are tempopt's own; a training comes to noise, and in the second column to a gain
of three standard deviations of a pair wherever τ is not 1 throughout, so that a gain is shown. The other
parameters are sampled at random, since nothing here depends on them. Learned temperatures gain nothing.

    python -m benchmarks.verdict_runs
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recorded.world import Training
from benchmarks.simulated.whole import Whole, sampled_by, with_study
from tempopt.records.rows import TicketRow
from tempopt.records.tickets import arms_of
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import is_neutral

STUDIES = sorted(path.stem for path in Path("studies").glob("*.yaml"))
_NOISE = 0.01
GAIN = 3.0 * math.sqrt(2.0) * _NOISE
"""A gain that every study shows."""


class Noise:
    """A world of noise.

    Args:
        gain: What a temperature other than 1 is worth.
    """

    rungs = (1, 2)
    total_steps = 2

    def __init__(self, gain: float, sign: int) -> None:
        self._gain, self._sign = gain, sign

    def train(self, parameters: Mapping[str, Any], seed: int) -> Training:
        """Return a training; the same for the same parameters and seed."""
        text = json.dumps([dict(parameters), seed], sort_keys=True, default=str)
        rng = np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))
        own = 0.0 if is_neutral(parameters) else self._gain
        curve = self._sign * (own + _NOISE * rng.standard_normal(2))
        return Training(final=curve, current=curve, test=float(curve[-1]))


def main() -> None:
    """Print a table."""
    print("| study | other parameters | without a gain | with a gain | of these with learned temperatures |")
    print("|---|---|---|---|---|")
    for name in STUDIES:
        spec = load_spec(name)
        told, learned = [], []
        for rows in (runs(spec, 0.0), runs(spec, GAIN)):
            counts = Counter(row.kind for row in rows)
            told.append(f"{len(rows)} ({', '.join(f'{n} {kind}' for kind, n in counts.items())})")
            learned.append(str(sum("learned" in arms_of(row) for row in rows)))
        cells = (name, len(spec.other_names), *told, ", ".join(learned))
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def runs(spec: StudySpec, gain: float) -> list[TicketRow]:
    """Return the runs of a study.

    Args:
        spec: The study's spec.
        gain: What a temperature other than that of the baseline is worth.
    """
    how: dict[str, Any] = sampled_by("random")
    if spec.study.limits.standard_errors is not None:
        how["limits"] = {}
    sign = 1 if spec.study.direction == "maximize" else -1
    whole = Whole(Noise(gain, sign), with_study(spec, **how))
    whole.run()
    return whole.rows


if __name__ == "__main__":
    main()
