"""A module that runs out of a card's memory as often as asked, and writes down where it trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from toy_modules import Toy


class HungryModule(Toy):
    """Fails in its third step, in as many runs as ``failures`` says; ``folder`` outlives its processes."""

    def __init__(self, folder: str = ".", failures: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = Path(folder)
        self.failures = failures

    def on_train_start(self) -> None:
        env_values = [os.environ.get("CUDA_VISIBLE_DEVICES", "none"), os.environ["OMP_NUM_THREADS"]]
        with (self.folder / "runs").open("a") as file:
            file.write(f"{os.getpid()} {' '.join(env_values)}\n")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        # the dry run does not come so far
        if self.global_step == 3 and self._fails():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
        return super().training_step(batch, batch_idx)

    def _fails(self) -> bool:
        for number in range(self.failures):
            try:
                (self.folder / f"failure-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False
