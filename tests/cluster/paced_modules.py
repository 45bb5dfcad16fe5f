"""Modules that tests train, slowed down, held and watched by way of files.

Violence needs something to strike whatever the speed of the machine; the numbers are the modules' own.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from toy_modules import Toy

from lightning_modules import AssociativeRecall
from tempopt import TemperedModule
from tempopt.training.callbacks import ReportCallback


class Paced(TemperedModule):
    """Sleeps before each training step as the file that PACE names says, if it is there (``set_pace``).

    Each step adds a line to the file that TRACE names, if one is named: first temperature and step. It is
    printed, too, so that there is a log to lose.
    """

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        print(f"step {self.global_step}", flush=True)
        time.sleep(_read_pace()["seconds"])
        self._wait_while_held()
        if trace := os.environ.get("TRACE"):
            with Path(trace).open("a") as lines:
                lines.write(f"{self.hparams['temperature_init']!r} {self.global_step}\n")
        return super().training_step(batch, batch_idx)

    def _wait_while_held(self) -> None:
        """Wait until this run is held no more or is asked to stop; its lease is renewed meanwhile."""
        callback = next(c for c in self.trainer.callbacks if isinstance(c, ReportCallback))
        run = callback._stop_signals._poll_stop.__self__
        kind, _, number = run.request.label.run.partition("-") if run.request.label else ("", "", "")
        while kind == "search" and run._poll_stop() is None:
            pace = _read_pace()
            if int(number) < pace["held_from"] or self.global_step < pace["held_at"]:
                return
            callback._beat(self.global_step)
            time.sleep(0.1)


def _read_pace() -> dict[str, float]:
    # the file may be removed at any time
    with contextlib.suppress(OSError):
        return json.loads(Path(os.environ.get("PACE", "")).read_text())
    return {"seconds": 0.0, "held_from": math.inf, "held_at": 0}


class PacedModule(Paced, Toy):
    """The toy of the tests of training."""


class PacedRecall(Paced, AssociativeRecall):
    """A transformer of two layers."""
