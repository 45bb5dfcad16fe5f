"""False alarms of the diagnosis of attention on simulated healthy models, and planted heads that it finds.

    python -m benchmarks.diagnose

A model has 1 to 12 layers of 1 to 16 heads, each with a history of H / ln n and of |q||k| over 10 to 40
observations. The entropy falls by halves from broad attention to a level of its own, with noise that hangs
together in time. The levels of a layer's heads scatter by the law of their row; none of these laws has heads
apart from the others, so that each finding about a head is a false alarm. In the second table one head of a
model whose levels are normal is set to a value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tempopt.attention.analysis.diagnose import Anomaly, anomalies
from tempopt.attention.analysis.histories import QUERY_KEY_MAGNITUDE, HeadHistory, MonitorReport

Levels = NDArray[np.float64]

OBSERVATIONS, STEPS = 40, 50
WIDTHS = (1, 2, 4, 6, 8, 12, 16)
PLANTED = (0.003, 0.01, 0.02, 0.05, 0.98, 0.99, 0.997)
SIZES = ((2, 4), (4, 8), (12, 12))


def _share(logit: Levels) -> Levels:
    return 1.0 / (1.0 + np.exp(-logit))


def _logit(share: Levels) -> Levels:
    return np.log(share / (1.0 - share))


def normal(draw: Generator, middle: Levels, heads: int) -> Levels:
    return _share(middle + draw.uniform(0.3, 1.1) * draw.normal(size=(len(middle), heads)))


def student(draw: Generator, middle: Levels, heads: int) -> Levels:
    return _share(middle + draw.uniform(0.2, 0.85) * draw.standard_t(5, size=(len(middle), heads)))


def heavy(draw: Generator, middle: Levels, heads: int) -> Levels:
    """Student's t of three degrees of freedom: heavier tails than the diagnosis is made for."""
    return _share(middle + draw.uniform(0.2, 0.7) * draw.standard_t(3, size=(len(middle), heads)))


def uneven(draw: Generator, middle: Levels, heads: int) -> Levels:
    """Normal, with layers that scatter by unlike amounts."""
    spread = 0.6 * np.exp(0.5 * draw.normal(size=middle.shape))
    return _share(middle + spread * draw.normal(size=(len(middle), heads)))


def laplace(draw: Generator, middle: Levels, heads: int) -> Levels:
    return _share(middle + draw.uniform(0.2, 0.8) * draw.laplace(size=(len(middle), heads)))


def beta(draw: Generator, middle: Levels, heads: int) -> Levels:
    weight = draw.uniform(3.0, 20.0)
    size = (len(middle), heads)
    return draw.beta(_share(middle) * weight, (1.0 - _share(middle)) * weight, size=size)


def reflected(draw: Generator, middle: Levels, heads: int) -> Levels:
    """Normal in H / ln n itself, reflected at 0 and at 1."""
    positions = _share(middle) + draw.uniform(0.03, 0.2) * draw.normal(size=(len(middle), heads))
    return np.asarray(1.0 - np.abs(1.0 - np.abs(positions)))


def uniform(draw: Generator, middle: Levels, heads: int) -> Levels:
    return draw.uniform(size=(len(middle), heads))


WORLDS: tuple[Callable[[Generator, Levels, int], Levels], ...] = (
    normal,
    student,
    laplace,
    beta,
    reflected,
    uniform,
    uneven,
    heavy,
)


def report(draw: Generator, levels: Levels) -> MonitorReport:
    """Return what a monitor would have seen of a model whose heads end at these levels."""
    last = _logit(np.clip(levels, 1e-4, 1.0 - 1e-4))
    histories = []
    steps = tuple(range(0, OBSERVATIONS * STEPS, STEPS))
    num_observed = draw.integers(OBSERVATIONS // 4, OBSERVATIONS + 1)
    for (layer, head), end in np.ndenumerate(last):
        noise = np.zeros(OBSERVATIONS)
        for index in range(1, OBSERVATIONS):
            noise[index] = 0.7 * noise[index - 1] + 0.1 * draw.normal()
        # what is seen last is the level, so that it is of the law of the world
        decay = np.exp2(-np.arange(OBSERVATIONS) / draw.uniform(1.0, 8.0))
        logit = (
            end
            + np.where(end < 3.0, 3.0 - end, 0.0) * (decay - decay[num_observed - 1])
            + noise
            - noise[num_observed - 1]
        )
        size = np.exp(draw.uniform(0.0, 0.8) * (1.0 - decay) + noise)
        for name, values in (("entropy", _share(logit)), (QUERY_KEY_MAGNITUDE, size)):
            histories.append(
                HeadHistory(
                    statistic=name,
                    layer=int(layer),
                    head=int(head),
                    first=float(values[0]),
                    steps=steps[:num_observed],
                    values=tuple(map(float, values[:num_observed])),
                )
            )
    return MonitorReport(histories=tuple(histories))


def of_heads(draw: Generator, levels: Levels) -> list[Anomaly]:
    """Return the findings about heads."""
    return [anomaly for anomaly in anomalies(report(draw, levels)) if anomaly.head is not None]


def middles(draw: Generator, layers: int) -> Levels:
    """Return the logit of the middle of each layer."""
    return draw.normal(draw.normal(0.0, 0.7), 0.7, size=(layers, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=1000)
    models = parser.parse_args().models
    draw = np.random.default_rng(1)
    print(f"models of {models} with a finding about a head, and its kinds")
    for world in WORLDS:
        kinds: dict[str, int] = {}
        alarms = 0
        for _ in range(models):
            levels = world(draw, middles(draw, int(draw.integers(1, 13))), int(draw.choice(WIDTHS)))
            findings = of_heads(draw, levels)
            alarms += bool(findings)
            for kind in {finding.kind for finding in findings}:
                kinds[kind] = kinds.get(kind, 0) + 1
        print(f"{world.__name__:10} {alarms:4}  {kinds or ''}")
    print("\nshare of planted heads that are found, by H / ln n")
    print("layers x heads " + "".join(f"{value:8}" for value in PLANTED))
    for layers, heads in SIZES:
        shares = []
        for value in PLANTED:
            hits = 0
            for _ in range(models // 5):
                levels = _share(middles(draw, layers) + 0.6 * draw.normal(size=(layers, heads)))
                levels[layers // 2, 0] = value
                hits += any(
                    (finding.layer, finding.head) == (layers // 2, 0) for finding in of_heads(draw, levels)
                )
            shares.append(hits / (models // 5))
        print(f"{layers:6} x {heads:<6} " + "".join(f"{share:8.2f}" for share in shares))


if __name__ == "__main__":
    main()
