"""Programs to search: a script without libraries, as a command and as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# A query finds its key among eight by softmax, whose logits the training scales; argparse, no library.
PLAIN_SCRIPT = """\
import argparse
import math
import random

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--gain", type=float, default=1.0)
parser.add_argument("--steps", type=int, default=20)
arguments = parser.parse_args()

generator = random.Random(arguments.seed)
noise = 0.02 * generator.random()


def loss_of(scale):
    logits = [scale * arguments.gain * overlap for overlap in (1.0, 0.4, 0.3, 0.2, 0.1, 0.0, -0.1, -0.2)]
    sharpness = -logits[0] + math.log(sum(map(math.exp, logits)))
    # too sharp is as bad as too soft
    return sharpness + 0.02 * (scale * arguments.gain) ** 2 + noise


scale = 1.0
for step in range(1, arguments.steps + 1):
    gradient = (loss_of(scale + 1e-4) - loss_of(scale - 1e-4)) / 2e-4
    scale -= 0.02 * gradient
    print(f"step {step}: train_loss 0.001 val_loss {loss_of(scale):.6f}", flush=True)
"""

# The same of a function, and of a script that reports.
FUNCTION = """\
import math
import tempopt


def train(run: tempopt.Run) -> float:
    # the digits of the seed, so that no generator is needed
    noise = (run.seed % 97) / 4850
    loss = math.nan
    for step in range(20):
        temperature = run.temperature(step, 20)
        loss = 1.0 + math.log(temperature * run.params.get("gain", 1.0) / 1.7) ** 2 + noise + 1 / (step + 1)
        run.report(loss, step=step + 1)
        if run.should_stop:
            break
    return loss
"""
REPORTING_SCRIPT = f"{FUNCTION}\n\ntrain(tempopt.current_run())\n"

COMMAND = "python train.py --seed {seed} --gain {gain}"
GAIN = {"low": 0.5, "high": 4.0, "log": True, "baseline": 1.0}
SHORT = {"trials": 6, "parallel": 2, "seeds": {"choose": 1, "confirm": {"min": 4, "max": 8}}}


def program_spec(
    program: dict[str, Any], search: dict[str, Any] | None = None, **study: Any
) -> dict[str, Any]:
    """Return the spec of a small study of a program; keyword arguments go to its ``study:`` section."""
    settings = {"name": "plain", "metric": "val_loss", "direction": "minimize", **SHORT, **study}
    return {"study": settings, "program": program, "search": search or {"gain": GAIN}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with the script as train.py and the function in plain.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PLAIN_SCRIPT)
    (tmp_path / "plain.py").write_text(FUNCTION)
    (tmp_path / "reporting.py").write_text(REPORTING_SCRIPT)
    return tmp_path


Write = Callable[[str], str]


@pytest.fixture
def script(folder: Path) -> Write:
    """Return what writes a script, and returns the command that runs it with a seed."""

    def write(text: str) -> str:
        (folder / "script.py").write_text(text)
        return "python script.py {seed} {gain}"

    return write
