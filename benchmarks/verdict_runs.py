"""How many runs does a verdict take? Every bundled study in memory, with made-up trainings.

Stages, choosing and verdict are tempopt's own; a training comes to noise, and in the second column to a gain
of three standard deviations of a pair wherever τ is not 1 throughout, so that a gain is shown. The other
parameters are sampled at random, since nothing here depends on them.

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
from benchmarks.simulated.whole import Whole, with_study
from tempopt.spec.study_spec import load_spec
from tempopt.temperature import is_neutral

STUDIES = sorted(path.stem for path in Path("studies").glob("*.yaml"))
_NOISE = 0.01


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
    print("| study | other parameters | without a gain | with a gain |")
    print("|---|---|---|---|")
    for name in STUDIES:
        spec = load_spec(name)
        how = {"sampler": "random", "pruner": "none"}
        if spec.study.limits.standard_errors is not None:
            how["limits"] = {}
        told = []
        for gain in (0.0, 3.0 * math.sqrt(2.0) * _NOISE):
            sign = 1 if spec.study.direction == "maximize" else -1
            whole = Whole(Noise(gain, sign), with_study(spec, **how))
            whole.run()
            counts = Counter(row.kind for row in whole.rows)
            told.append(f"{len(whole.rows)} ({', '.join(f'{n} {kind}' for kind, n in counts.items())})")
        print(f"| {name} | {len(spec.other_names)} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
