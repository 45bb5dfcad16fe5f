"""How many runs does a verdict take? Every bundled study in memory, with made-up trainings.

Stages, choosing and verdict are tempopt's own; a training's value is noise, and in the second column a
gain of three standard deviations of a pair wherever τ is not 1 throughout, so that a gain is shown. The other
parameters are sampled at random, since nothing here depends on them. Learned temperatures gain nothing. The
last column has what `tempopt explain` adds to a study with a gain.

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
from benchmarks.simulated.whole import StudySimulation, sampled_by, with_study
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
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
        gain = 0.0 if is_neutral(parameters) else self._gain
        curve = self._sign * (gain + _NOISE * rng.standard_normal(2))
        return Training(final=curve, current=curve, test=float(curve[-1]))


def main() -> None:
    """Print a table."""
    print("| study | other parameters | without a gain | with a gain | explained, in addition |")
    print("|---|---|---|---|---|")
    for name in STUDIES:
        spec = load_spec(name)
        print(f"| {' | '.join((name, *table_cells(spec)))} |", flush=True)


def table_cells(spec: StudySpec) -> list[str]:
    """Return the cells of a study: its other parameters, and its runs without and with a gain."""
    cells = [str(len(spec.ordinary_names))]
    for gain in (0.0, GAIN):
        counts = Counter(run.kind for run in runs(spec, gain))
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        cells.append(f"{counts.total()} ({kinds})")
    extra_runs = len(runs(spec, GAIN, explain=True)) - len(runs(spec, GAIN))
    return [*cells, str(extra_runs)]


def runs(spec: StudySpec, gain: float, *, explain: bool = False) -> list[TicketRow]:
    """Return the runs of a study.

    Args:
        spec: The study's spec.
        gain: What a temperature other than that of the baseline is worth.
        explain: Whether the verdict is explained, too.
    """
    settings: dict[str, Any] = {"explain": explain, **sampled_by("random")}
    if spec.study.limits.standard_errors is not None:
        settings["limits"] = {}
    sign = 1 if spec.study.direction == "maximize" else -1
    simulation = StudySimulation(Noise(gain, sign), with_study(spec, **settings))
    simulation.run()
    return simulation.rows


if __name__ == "__main__":
    main()
