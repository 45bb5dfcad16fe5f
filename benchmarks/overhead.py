"""What a search costs beside its bare trainings: CPU and wall time of both, on the same work, in one run.

A search of 30 trainings with one agent and one trainer, then the same trainings (parameters, seeds, data,
steps, validations) one after another in a plain PyTorch loop in one process. The loop has to end with the
same values, bit for bit, or the benchmark is void.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TASKS: dict[str, dict[str, Any]] = {
    "max_retrieval": {},
    "a wider model": {"model.init_args.d_model": 112},
}
URL = "sqlite:///tempopt.db"


def spec(task: str, trainings: int) -> dict[str, Any]:
    """Return a study of max_retrieval's model with as many trainings before it would choose and confirm."""
    import yaml

    text = (Path(__file__).parents[1] / "studies" / "max_retrieval.yaml").read_text()
    data: dict[str, Any] = yaml.safe_load(text)
    data["study"] |= {"trials": trainings - 2, "arms": {"baseline": 1, "constant": 1}, "pruner": "none"}
    for path, value in TASKS[task].items():
        *sections, name = path.split(".")
        section = data
        for key in sections:
            section = section.setdefault(key, {})
        section[name] = value
    return data


def search() -> None:
    """Run the trainings of the study in spec.json as tempopt does, and end before it chooses."""
    from tempopt.agent.observer import NullObserver, Snapshot
    from tempopt.api.calls import search

    class OverheadStopObserver(NullObserver):
        def update(self, snapshot: Snapshot) -> None:
            if snapshot.done["search"] == snapshot.requested["search"]:
                raise KeyboardInterrupt

    try:
        search(
            json.loads(Path("spec.json").read_text()), storage=URL, workers=1, observer=OverheadStopObserver()
        )
    except KeyboardInterrupt:
        return
    raise AssertionError("the study went on to its end")


def tickets() -> list[dict[str, Any]]:
    """Return what was trained: parameters, seed and value of each training."""

    from tempopt.storage.opening import open_store

    with open_store(URL, create=False) as store:
        rows = store.tickets(store.load_study("max_retrieval").id, kinds=["baseline", "constant", "search"])
    assert all(row.outcome == "complete" for row in rows)
    return [{"parameters": row.parameters, "seed": row.seed, "value": row.value} for row in rows]


def run_bare() -> None:
    """Run the trainings of tickets.json in a plain loop and print their values and the CPU seconds."""
    import torch

    torch.manual_seed(0)
    cpu_start = time.process_time()
    from lightning_modules import MaxRetrieval, MaxRetrievalData
    from lightning_modules.optimisation import warmup_cosine
    from tempopt.temperature import progress
    from tempopt.training.callbacks import seed_generators

    # a plain loop would not have loaded Lightning: what that took is not counted
    imports = time.process_time() - cpu_start
    study = json.loads(Path("spec.json").read_text())
    data = MaxRetrievalData(**study["data"].get("init_args", {}))
    data.setup("fit")
    total, report_interval = study["trainer"]["max_steps"], study["trainer"]["val_check_interval"]
    clip = study["trainer"]["gradient_clip_val"]
    values = []
    for ticket in json.loads(Path("tickets.json").read_text()):
        seed = ticket["seed"]
        seed_generators(seed, "model")
        module = MaxRetrieval(**{**study["model"]["init_args"], **ticket["parameters"]})
        parameters = list(module.parameters())
        optimizer = torch.optim.AdamW(
            parameters, lr=module.lr, betas=(0.9, 0.98), weight_decay=module.weight_decay, fused=True
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, total_steps=total, warmup_fraction=0.1)
        )
        for step in range(total):
            seed_generators(seed, "items", 0, step)
            batch = data.draw(data.batch_size)
            module.set_progress(progress(step, total))
            loss = module.training_step(batch, step)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            schedule.step()
            if (step + 1) % report_interval == 0:
                value = validate(module, data)
        values.append(value)
    print(json.dumps({"values": values, "cpu": time.process_time() - imports}))


def validate(module: Any, data: Any) -> float:
    """Return the accuracy beyond the sizes of training, as the module's own validation has it."""
    import torch

    module.eval()
    module.set_progress(1.0)
    with torch.no_grad():
        for number, loader in enumerate(data.val_dataloader()):
            for index, batch in enumerate(loader):
                module.validation_step(batch, index, number)
    accuracy = module.accuracy.compute()
    module.train()
    return float(torch.stack([value for size, value in accuracy.items() if size != "id"]).mean())


def measure_part(part: str, folder: Path) -> tuple[float, float, str]:
    """Run a part of this script in a process of its own; return its CPU seconds, wall seconds and output."""
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    usage_before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.run(
        [sys.executable, __file__, "--part", part],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    )
    usage_after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - clock
    cpu = usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    return cpu, wall, process.stdout.decode()


def compare(task: str, trainings: int) -> dict[str, float]:
    """Return the times of one search and of its trainings in a bare loop."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spec.json").write_text(json.dumps(spec(task, trainings)))
        searched_cpu, searched_wall, _ = measure_part("search", folder)
        _, _, tickets_json = measure_part("tickets", folder)
        (folder / "tickets.json").write_text(tickets_json)
        _, bare_wall, output = measure_part("bare", folder)
    answer = json.loads(output)
    expected = [ticket["value"] for ticket in json.loads(tickets_json)]
    assert answer["values"] == expected, f"void: the loop found {answer['values']}, the search {expected}"
    steps = trainings * 500
    return {
        "step ms": 1000 * answer["cpu"] / steps,
        "bare CPU s": answer["cpu"],
        "search CPU s": searched_cpu,
        "CPU ratio": searched_cpu / answer["cpu"],
        "wall ratio": searched_wall / bare_wall,
        "extra CPU ms a step": 1000 * (searched_cpu - answer["cpu"]) / steps,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["search", "tickets", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("--trainings", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--task", choices=list(TASKS), action="append")
    arguments = parser.parse_args()
    if arguments.part == "tickets":
        print(json.dumps(tickets()))
    elif arguments.part is not None:
        {"search": search, "bare": run_bare}[arguments.part]()
    else:
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        for task in (arguments.task or list(TASKS)) * arguments.repeat:
            row = compare(task, arguments.trainings)
            print(f"{task:15}", "  ".join(f"{name} {value:.3f}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
