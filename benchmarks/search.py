"""How many training steps does a search take to the right answer? Tuners compared on recorded trainings.

A simulated clock, several asynchronous workers, the same budget for all (benchmarks/simulated); what
trainings are worth is recorded (benchmarks/recorded). Each search is judged by what the configuration it
would name is worth in truth, not by the best value that it has seen. Results are kept as lines of a file,
so that tuners of another environment can be added, and a search that is there is not run again.

    python -m benchmarks.search --repetitions 30 --budget 40        # whatever can be imported here
    python -m benchmarks.search --tuners tempopt --repetitions 60   # ours, from repetition 30 on
    python -m benchmarks.search --table
    python -m benchmarks.search --pack                              # put the results into the repository
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.recorded.make import recorded_rows
from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import RecordedWorld
from benchmarks.simulated.clock import simulate
from benchmarks.simulated.others import OTHERS
from benchmarks.simulated.table import (
    CHOSEN_BY,
    LINES,
    is_peer,
    keep,
    of_worlds,
    pack,
    result_key,
    show,
)
from benchmarks.simulated.tuners import TUNERS

_MIN_ROWS = 30


def run_search(
    world: RecordedWorld, name: str, *, repetition: int, budget: int, workers: int, see: Any
) -> dict[str, Any]:
    """Return what one simulated search came to."""
    make = {**TUNERS, **OTHERS}[name]
    start_time = time.process_time()
    trace = simulate(
        world,
        lambda: make(world, repetition),
        budget=budget * world.total_steps,
        workers=workers,
        seed=repetition,
        see=see,
    )
    seconds = time.process_time() - start_time
    headroom = world.best - world.floor
    selected_keys = [_key(params) for params in trace.selected]
    # the selection, where it changes
    places = [k for k in range(len(selected_keys)) if k == 0 or selected_keys[k] != selected_keys[k - 1]]
    truth = dict.fromkeys(selected_keys, 0.0)
    if truth:
        truth = dict(zip(truth, world.truth([json.loads(key) for key in truth]), strict=True))
    return {
        "task": world.task,
        "tuner": name,
        "repetition": repetition,
        "budget": budget,
        "workers": workers,
        "see": see,
        "world": world.mark,
        "steps": [trace.steps[k] / world.total_steps for k in places],
        "share": [float(truth[selected_keys[k]] - world.floor) / headroom for k in places],
        "asked": len(trace.parameter_sets),
        "seconds": seconds,
    }


def _key(parameters: Any) -> str:
    return json.dumps(parameters, sort_keys=True)


def main() -> None:
    """Simulate, or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--tuners", nargs="*", default=None, help="all that can be imported by default")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--first", type=int, default=CHOSEN_BY, help="tempopt's first repetition that counts")
    parser.add_argument("--budget", type=int, default=40, help="full trainings")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--see", choices=["final", "current"], default="final")
    parser.add_argument("--results", type=Path, default=LINES)
    parser.add_argument("--again", action="store_true", help="run what there is once more")
    parser.add_argument("--table", action="store_true", help="print what there is")
    parser.add_argument("--pack", action="store_true", help="put what there is into the repository")
    args = parser.parse_args()
    worlds = {task: RecordedWorld(task) for task in args.tasks if len(recorded_rows(task)) >= _MIN_ROWS}
    if args.pack:
        pack({task: RecordedWorld(task) for task in TASKS}, args.results)
    elif args.table:
        setting = args.see, args.budget
        counted_results = of_worlds(worlds, args.results, first=args.first)
        results = [result for result in counted_results if (result["see"], result["budget"]) == setting]
        show([result for result in results if not args.tuners or result["tuner"] in args.tuners], worlds)
    else:
        _run(worlds, args)


def _run(worlds: dict[str, RecordedWorld], args: argparse.Namespace) -> None:
    tuner_names = [name for name in {**TUNERS, **OTHERS} if _importable(name)]
    done_keys = (
        set() if args.again else {result_key(result) for result in of_worlds(worlds, args.results, first=0)}
    )
    settings = {"budget": args.budget, "workers": args.workers, "see": args.see}
    for task, world in worlds.items():
        print(task, {name: round(value, 4) for name, value in world.fit_quality().items()})
        print(
            f"τ = 1: {world.baseline:.4f}, best: {world.best:.4f}, shares from {world.floor:.4f}", flush=True
        )
        for name in args.tuners or tuner_names:
            first = 0 if is_peer(name) else args.first
            for repetition in range(first, first + args.repetitions):
                study_key = {
                    "task": task,
                    "tuner": name,
                    "repetition": repetition,
                    "world": world.mark,
                    **settings,
                }
                if result_key(study_key) not in done_keys:
                    keep(run_search(world, name, repetition=repetition, **settings), args.results)
            print(f"{task}: {name}", flush=True)


def _importable(name: str) -> bool:
    if name == "Optuna CMA-ES":
        return find_spec("cmaes") is not None
    needs = {"Ray": "ray.tune", "Syne": "syne_tune"}.get(name.split()[0])
    if needs is None:
        return True
    package = needs.partition(".")[0]
    needs_bayesopt = name.endswith(("MOBSTER", "DyHPO"))
    return find_spec(package) is not None and (
        not needs_bayesopt or find_spec("syne_tune.optimizer.schedulers.searchers.bayesopt") is not None
    )


if __name__ == "__main__":
    main()
