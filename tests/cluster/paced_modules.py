"""The toy that the tests of training train, slowed down and watched by way of files.

Violence needs something to strike whatever the speed of the machine; the numbers are the toy's own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from toy_modules import Toy


class PacedModule(Toy):
    """Sleeps before each training step as many seconds as the file that PACE names holds, if it is there.

    Each step adds a line to the file that TRACE names, if one is named: first temperature and step. It is
    printed, too, so that there is a log to lose.
    """

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        print(f"step {self.global_step}", flush=True)
        pace = Path(os.environ.get("PACE", ""))
        if pace.is_file():
            time.sleep(float(pace.read_text() or 0))
        if trace := os.environ.get("TRACE"):
            with Path(trace).open("a") as lines:
                lines.write(f"{self.hparams['temperature_init']!r} {self.global_step}\n")
        return super().training_step(batch, batch_idx)
