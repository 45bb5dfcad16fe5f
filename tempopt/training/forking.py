"""Whether a run has the beginning of another one, as far as only its module can tell."""

from __future__ import annotations

import lightning as L
import torch
from lightning.pytorch.utilities.seed import isolate_rng

from tempopt.temperature import ENTROPY_PARAMETERS, GENERATION
from tempopt.training.build import build
from tempopt.training.callbacks import seed_generators
from tempopt.training.module import TemperedModule
from tempopt.workers.messages import Fork, RunRequest


def begins_alike(module: L.LightningModule, request: RunRequest, fork: Fork) -> bool:
    """Return whether a run of the fork's parameters has the very weights of this one before its first step.

    What is learned may begin at a value of the plan, which another plan does not have.

    Args:
        module: The run's, not trained yet.
        request: The run.
        fork: What it might begin from.
    """
    theirs, ours = fork.parameters, request.parameters
    if theirs == ours:
        return True
    if not isinstance(module, TemperedModule) and any(
        theirs.get(name) != ours.get(name) for name in (*ENTROPY_PARAMETERS, *GENERATION)
    ):
        # they may be arguments of the module's own, of which nothing is known
        return False
    seeds = {"data": request.program.data_seed, "model": request.seed}
    with isolate_rng():
        other = build(request.program, theirs, before=lambda part: seed_generators(seeds[part], part)).module
    there, here = other.state_dict(), module.state_dict()
    return there.keys() == here.keys() and all(torch.equal(there[name], here[name]) for name in here)
