"""What setting the temperature costs beside a training step (goal: at most 2 %), in CPU time, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from lightning_modules import MaxRetrieval, MaxRetrievalData
from tempopt import attach
from tempopt.temperature import TemperatureParameters, progress

PARAMETERS = TemperatureParameters(temperature_init=4.0, temperature_final=1.0, schedule="cosine")


def microseconds(work: Callable[[int], object], rounds: int) -> float:
    """Return the CPU time of one round, the least of five tries."""
    best = float("inf")
    for _ in range(5):
        clock = time.process_time()
        for number in range(rounds):
            work(number)
        best = min(best, time.process_time() - clock)
    return 1e6 * best / rounds


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    module = MaxRetrieval(
        temperature_init=4.0, temperature_final=1.0, schedule="cosine", length_scaling="log_n"
    )
    data = MaxRetrievalData()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, fused=True)

    def step(number: int) -> None:
        loss = module.training_step(data.draw(64), number)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()

    step_time = microseconds(step, 100)
    print(f"a training step of MaxRetrieval      {step_time:8.1f} us")
    plan_time = microseconds(lambda number: module.set_progress(progress(number, 1000)), 1000)
    assert float(module.inverse_temperature[0]) == torch.tensor(1 / module.plan.temperatures(1.0)[0])
    print(
        f"setting tau, TemperedModule, 1 layer {plan_time:8.1f} us  {100 * plan_time / step_time:.2f} % of it"
    )
    for layers in (1, 12, 48):
        model = nn.Sequential(*(nn.MultiheadAttention(8, 2) for _ in range(layers)))
        attachment = attach(model, PARAMETERS)
        cost = microseconds(lambda number: attachment.set_progress(progress(number, 1000)), 1000)  # noqa: B023
        print(
            f"setting tau, attached, {layers:2} layers     {cost:8.1f} us  "
            f"{100 * cost / step_time:.2f} % of it"
        )


if __name__ == "__main__":
    main()
