"""Trials on a card: that each is right, and how many an hour there are of them.

Real searches through tempopt's own agent and workers on one card; what a training saw of it, the module
itself wrote down (gpu_task.py). Asserted in the same run: a worker sees its own card and no other (by UUID),
bf16-mixed with a float32 temperature that acts unrounded, no graph compiled after the first run, a run that
wants more than its share fails for a card's memory, has the card to itself the second time and completes.
Measured: steps a second with torch.compile and without, trials an hour with 1, 2, 4 and 8 workers.

``--cpu`` goes the same ways without a card, as a dry run of this script: its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKED = (1, 2, 4, 8)
# More than a quarter of the card, and less than the whole.
BALLAST = 0.4
Fact = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is trained.

    Args:
        steps: Steps of a run.
        runs: Runs of each worker.
        packed: Numbers of workers on the card.
        model: Arguments of the model.
        data: Arguments of the data.
    """

    steps: int
    runs: int
    packed: tuple[int, ...]
    model: dict[str, Any]
    data: dict[str, Any]


FULL = Effort(steps=400, runs=4, packed=PACKED, model={}, data={})
QUICK = Effort(steps=150, runs=3, packed=(1, 4), model={}, data={})
DRY_RUN = Effort(
    steps=24,
    runs=2,
    packed=(1, 2),
    model={"width": 16, "depth": 2, "heads": 2},
    data={"batch_size": 2, "length": 8, "batches": 4},
)


class Bench:
    """The card, and the searches on it.

    Args:
        effort: How much is trained.
        cpu: Whether there is no card, and nothing is measured.
    """

    def __init__(self, effort: Effort, *, cpu: bool) -> None:
        self.effort = effort
        self.cpu = cpu
        self.card = "no card"

    def run_search(self, name: str, *, workers: int, trials: int, **study: Any) -> list[Fact]:
        """Run a search until its trials are done, and return the facts of all of its runs, in order."""
        from tempopt import search
        from tempopt.agent.observer import NullObserver, Snapshot

        class GpuStopObserver(NullObserver):
            def update(self, snapshot: Snapshot) -> None:
                if snapshot.done["search"] == snapshot.requested["search"]:
                    raise KeyboardInterrupt

        with _folder() as folder:
            facts = folder / "facts"
            facts.mkdir()
            spec = self.spec(name, str(facts), workers, trials, study)
            url = f"sqlite:///{folder / 'tempopt.db'}"
            try:
                search(spec, storage=url, workers=workers, checkpoints=folder, observer=GpuStopObserver())
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("the study went on to its end")
            lines = [line for file in facts.glob("*.jsonl") for line in file.read_text().splitlines()]
        sorted_facts = sorted(map(json.loads, lines), key=lambda fact: fact["begun"])
        for fact in sorted_facts:
            self.check(fact)
        return sorted_facts

    def spec(self, name: str, facts: str, workers: int, trials: int, study: dict[str, Any]) -> dict[str, Any]:
        """Return the spec of a search whose workers share one card."""
        search_space = {"temperature_init": {"low": 0.25, "high": 4.0, "log": True}}
        return {
            "study": {
                "name": name,
                "metric": "val_loss",
                "direction": "minimize",
                "pruner": "none",
                "trials": trials,
                "arms": {"baseline": 1, "constant": 1},
                "parallel": workers,
                "confirm_on": "validate",
                **study,
            },
            "model": {
                "class_path": "gpu_task.WatchedModule",
                "init_args": {"facts": facts, "pretend": self.cpu, **self.effort.model},
            },
            "data": {"class_path": "gpu_task.Bytes", "init_args": self.effort.data},
            # without CUDA "auto" is the CPU, and everything up to there is as with a card
            "trainer": {
                "max_steps": self.effort.steps,
                "val_check_interval": self.effort.steps,
                "check_val_every_n_epoch": None,
                "limit_val_batches": 1,
                "precision": "bf16-mixed",
                "accelerator": "auto",
            },
            "search": {**search_space, "ballast": [BALLAST, 0.0]} if "enqueue" in study else search_space,
            "resources": {"gpus": 1 if workers == 1 else 1 / workers, "cpus": 1},
        }

    def check(self, fact: Fact) -> None:
        """Assert what holds for every run."""
        if fact["end"] != "trained":
            return
        assert fact["precision"] == "bf16-mixed", fact
        assert fact["seen"] in ({"attention": "torch.bfloat16", "temperature": "torch.float32"}, {}), fact
        assert fact["exact"], "the temperature was rounded to half precision before it acted"
        if not self.cpu:
            assert fact["cards"] == 1, fact
            assert fact["mask"].removeprefix("GPU-") == fact["uuid"].removeprefix("GPU-"), fact
            self.card = fact["card"]

    def compiled(self) -> list[str]:
        """Return rows: steps a second without torch.compile and with it."""
        rows = ["| steps | steps/s | graphs in the dry run | in the first run | in all later runs |"]
        rows.append("|---|---|---|---|---|")
        for mode in (None, "default"):
            facts = self.run_search(f"compile-{mode}", workers=1, trials=3, compile=mode)
            first, *later_facts = facts
            graphs = sum(fact["graphs"] for fact in later_facts)
            assert graphs == 0, f"{graphs} graphs were compiled after the first run"
            rate = statistics.median(fact["rate"] for fact in later_facts)
            assert (mode is None) == (first["graphs before"] == 0), "nothing was compiled in the dry run"
            graph_counts = f"{first['graphs before']} | {first['graphs']} | {graphs}"
            rows.append(f"| {mode or 'eager'} | {rate:.1f} | {graph_counts} |")
        return rows

    def capped(self) -> list[str]:
        """Return a line: a run that wants more than its share of the card has all of it the second time."""
        enqueue = [{"ballast": BALLAST, "temperature_init": 1.0}]
        # the other arms draw a ballast too; every one that did not fit has to fit later
        facts = self.run_search("cap", workers=4, trials=4, enqueue=enqueue, parallel=4)
        heavy = [fact for fact in facts if fact["ballast"]]
        failed_facts = [fact for fact in heavy if fact["end"] == "out of memory"]
        completed_facts = [fact for fact in heavy if fact["end"] == "trained"]
        assert failed_facts, "no run failed for memory: there was no cap"
        assert len(completed_facts) == len(failed_facts) or self.cpu, (
            f"{len(failed_facts)} failed, {len(completed_facts)} completed alone"
        )
        for fact in () if self.cpu else completed_facts:
            overlapping_facts = [
                other_fact
                for other_fact in facts
                if other_fact is not fact
                and other_fact["begun"] < fact["ended"]
                and fact["begun"] < other_fact["ended"]
            ]
            assert not overlapping_facts, "another run was on the card that a run had to itself"
        return [
            f"A share of a quarter, and runs that take {BALLAST:.0%} of the card: {len(failed_facts)} of "
            f"{len(heavy)} attempts failed for memory, "
            f"{len(completed_facts)} completed with the card to themselves."
        ]

    def packed(self) -> list[str]:
        """Return rows: trials an hour by the number of workers on the card."""
        rows = ["| workers | trials an hour | in multiples of one | steps/s each | peak GiB each |"]
        rows.append("|---|---|---|---|---|")
        single_rate = None
        for workers in self.effort.packed:
            num_runs = workers * self.effort.runs
            facts = self.run_search(f"packed-{workers}", workers=workers, trials=max(1, num_runs - 2))
            # from when the last worker was at work, until the first one had nothing more to do
            window_start = max(
                min(fact["begun"] for fact in worker_facts) for worker_facts in _by_worker(facts)
            )
            window_end = min(
                max(fact["ended"] for fact in worker_facts) for worker_facts in _by_worker(facts)
            )
            window_facts = [
                fact for fact in facts if window_start <= fact["begun"] and fact["ended"] <= window_end
            ]
            seconds = statistics.mean(fact["ended"] - fact["begun"] for fact in (window_facts or facts))
            # a run and what lies between two runs of a worker
            pauses = [next_fact["begun"] - fact["ended"] for fact, next_fact in _pairs(facts)]
            hourly = 3600 * workers / (seconds + (statistics.median(pauses) if pauses else 0.0))
            single_rate = single_rate or hourly
            rate = statistics.median(fact["rate"] for fact in facts)
            peak = max(fact.get("peak", 0) for fact in facts) / 2**30
            rows.append(
                f"| {workers} | {hourly:.0f} | {hourly / single_rate:.2f} | {rate:.1f} | "
                f"{'-' if self.cpu else f'{peak:.2f}'} |"
            )
        return rows


def _by_worker(facts: list[Fact]) -> list[list[Fact]]:
    return [[fact for fact in facts if fact["pid"] == pid] for pid in {fact["pid"] for fact in facts}]


def _pairs(facts: list[Fact]) -> Iterator[tuple[Fact, Fact]]:
    for worker_facts in _by_worker(facts):
        yield from itertools.pairwise(worker_facts)


@contextmanager
def _folder() -> Iterator[Path]:
    previous_folder = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(previous_folder)


def carried_out(name: str, part: Callable[[], list[str]]) -> bool:
    """Print what a part has found, or why it could not; return whether it could."""
    clock = time.monotonic()
    try:
        rows = part()
    except Exception:
        traceback.print_exc()
        rows = [f"{name}: failed, see above."]
        return False
    finally:
        print("\n".join(["", *rows, "", f"({name}: {time.monotonic() - clock:.0f} s)"]), flush=True)
    return True


def main() -> None:
    """Print the tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--cpu", action="store_true", help="try this script without a card")
    parser.add_argument("--part", choices=["compiled", "capped", "packed"], action="append")
    arguments = parser.parse_args()
    import torch

    if arguments.cpu:
        # a card that torch cannot use: it is dealt out, and training falls back to the CPU
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        print("A DRY RUN WITHOUT A CARD: no number below is a measurement.")
    elif not torch.cuda.is_available():
        print("gpu.py needs a CUDA card, and torch sees none here (--cpu tries it without one).")
        raise SystemExit(2)
    benchmark_folder = Path(__file__).resolve().parent
    paths = [str(benchmark_folder), str(benchmark_folder.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    sys.path[:0] = paths[:2]
    effort = DRY_RUN if arguments.cpu else QUICK if arguments.quick else FULL
    bench = Bench(effort, cpu=arguments.cpu)
    parts = arguments.part or ["compiled", "capped", "packed"]
    outcomes = [carried_out(part, getattr(bench, part)) for part in parts]
    print(f"{bench.card}, torch {torch.__version__}, {os.cpu_count()} cores, bf16-mixed")
    raise SystemExit(0 if all(outcomes) else 1)


if __name__ == "__main__":
    main()
