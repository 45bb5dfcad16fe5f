"""Did the simulation tell the truth? Searches with real trainings, by tempopt's default and by Optuna's.

Each search is a study of tempopt that is interrupted when its trials have trained so many steps; the two
differ in `study.sampler`, `study.pruner` and `study.seeds.search` alone. What each would name then is trained
on fresh seeds. Results are lines of a file; a search that is there is not run again.

    python -m benchmarks.live max_retrieval associative_recall --seeds 5 --budget 12
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tempopt.confirmation.selection import candidates
from tempopt.errors import StorageError
from tempopt.records.rows import TicketRow
from tempopt.sampling.arms import Arms
from tempopt.seeds import derive
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.workers.messages import Evaluation, Finished, RunRequest
from tempopt.workers.placement import Placement
from tempopt.workers.process import WorkerProcess

RESULTS = Path("build/live.jsonl")
SEARCHES = {
    "tempopt": [],
    "Optuna TPE, Median": ["study.sampler=tpe", "study.pruner=median", "study.seeds.search=null"],
}
# enough for any budget: a search is interrupted, and ends at no number of trials
_COMMON = ["study.trials=400", "study.arms.baseline=1", "study.arms.constant=1"]
_POLL_SECONDS = 1.0


def search(task: str, name: str, seed: int, *, budget: int, folder: Path) -> dict[str, Any]:
    """Return what one search would name after so many full trainings, and what it took."""
    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{folder}/{task}-{name.split()[0]}-{seed}.db"
    sets = [f"--set={each}" for each in (*_COMMON, *SEARCHES[name], f"study.seed={seed}")]
    command = [
        sys.executable,
        "-m",
        "tempopt",
        "search",
        task,
        f"--storage={url}",
        "--workers=2",
        "--no-report",
    ]
    process = subprocess.Popen(
        [*command, f"--checkpoints={folder}/runs", *sets],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            if (folder / url.rsplit("/", 1)[1]).exists() and _spent(_tickets(url, task)) >= budget:
                process.send_signal(signal.SIGINT)
                process.wait()
    finally:
        process.kill()
    with Store.open(url) as store:
        study = store.load_study(task)
        spec = StudySpec.from_json(study.spec)
        # what was over by the step that was allowed, in the order in which it ended
        tickets = [t for t in store.tickets(study.id) if _counts(t)]
        over = sorted(tickets, key=lambda t: t.finished or study.created)
        within = [t for place, t in enumerate(over) if _spent(over[: place + 1]) <= budget + 1]
        arms = Arms(spec, within, store.measurements(study.id, names=["report"]))
    runs = [t for t in within if t.kind == "search"]
    named = arms.recommend("search", 1) or candidates(runs, 1, spec.study.direction)
    return {
        "task": task,
        "search": name,
        "seed": seed,
        "budget": budget,
        "trials": len(runs),
        "trainings": _spent(runs),
        "seconds": sum(t.seconds for t in runs),
        "named": named[0],
    }


def _tickets(url: str, task: str) -> list[TicketRow]:
    # the search may be making its tables, or the study, just now
    with contextlib.suppress(StorageError), Store.open(url, create=False) as store:
        return store.tickets(store.load_study(task).id)
    return []


def _counts(ticket: TicketRow) -> bool:
    return ticket.kind == "search" and ticket.outcome in ("complete", "pruned")


def _spent(tickets: list[TicketRow]) -> float:
    """Return the search trials' steps in full trainings."""
    return sum((t.steps or 0) / t.total_steps for t in tickets if t.kind == "search" and t.total_steps)


def tested(task: str, spec: StudySpec, parameters: dict[str, Any], *, seeds: int) -> list[float]:
    """Return what parameters come to on the test data, on each of some fresh seeds."""
    worker = WorkerProcess(slot=0, place=Placement())
    found = []
    try:
        for number in range(seeds):
            worker.send(
                RunRequest(
                    ticket=number,
                    attempt=1,
                    program=spec.program(),
                    parameters=parameters,
                    seed=derive("live", task, number),
                    evaluations=[Evaluation(name="test", on="test")],
                )
            )
            while not isinstance(message := worker.receive(), Finished):
                if message is None:
                    raise RuntimeError(worker.obituary())
            found.append(message.measurements["test"])
    finally:
        worker.kill()
    return found


def main() -> None:
    """Search, test, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=["max_retrieval", "associative_recall"])
    parser.add_argument("--seeds", type=int, default=5, help="searches of each kind")
    parser.add_argument("--budget", type=int, default=12, help="full trainings of a search")
    parser.add_argument("--test-seeds", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path("build/live"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given.results.parent.mkdir(parents=True, exist_ok=True)
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    done = {(e["task"], e["search"], e["seed"], e["budget"]) for e in map(json.loads, lines)}
    for seed in range(given.seeds):
        for task in given.tasks:
            for name in SEARCHES:
                if (task, name, seed, given.budget) in done:
                    continue
                found = search(task, name, seed, budget=given.budget, folder=given.folder.resolve())
                found["test"] = tested(task, load_spec(task), found["named"], seeds=given.test_seeds)
                with given.results.open("a") as file:
                    file.write(json.dumps(found) + "\n")
    table([json.loads(line) for line in given.results.read_text().splitlines()])


def table(results: list[dict[str, Any]]) -> None:
    """Print what was named came to, search beside search."""
    print("| task | search | seeds | trials | full trainings | test metric of what is named, mean (each) |")
    print("|---|---|---|---|---|---|")
    for task in dict.fromkeys(each["task"] for each in results):
        for name in SEARCHES:
            own = [each for each in results if (each["task"], each["search"]) == (task, name)]
            means = [float(np.mean(each["test"])) for each in own]
            print(
                f"| {task} | {name} | {len(own)} | {np.mean([e['trials'] for e in own]):.0f} "
                f"| {np.mean([e['trainings'] for e in own]):.1f} "
                f"| {np.mean(means):.4f} ({', '.join(f'{mean:.3f}' for mean in means)}) |"
            )


if __name__ == "__main__":
    main()
