"""The attention of a run is looked at over its training, and the run is what it would have been."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tempopt.training.messages import decode, encode
from tempopt.training.run import LightningRun
from tests.training.shared_trainings import assert_same_state

HOT = {"temperature_init": 4.0, "temperature_final": 0.25, "schedule": "exponential"}


def entropy_by_definition(run: LightningRun, step: Callable[[Any, int], Any], batch: Any) -> list[float]:
    """Return H / ln n by head of the toy's one layer, averaged over all queries of a batch, in float64."""
    entropies: list[torch.Tensor] = []

    def see(layer: int, q_BHQD: Any, k_BHKD: Any, **masking: Any) -> None:
        logits = q_BHQD.double() @ k_BHKD.double().transpose(-2, -1) / math.sqrt(q_BHQD.shape[-1])
        weights = logits.softmax(-1)
        entropy = -(weights * weights.log()).sum(-1) / math.log(k_BHKD.shape[-2])
        entropies.append(entropy.mean(dim=(0, 2)))

    with torch.no_grad(), run.tempered.observed(see):
        step(batch, 0)
    (values,) = entropies
    return [float(value) for value in values]


@pytest.mark.parametrize(("module", "attach"), [("Toy", None), ("Stock", {"layers": "auto"})])
def test_observing_a_run_changes_nothing_of_it(
    request_for: Any, listener: Any, module: str, attach: Any
) -> None:
    runs = [
        LightningRun(request_for(module, attach=attach, parameters=HOT, observe=observe), listener())
        for observe in (False, True)
    ]
    alone, observed = (run.execute() for run in runs)
    assert alone.reports == observed.reports
    assert_same_state(runs[0].module, runs[1].module)
    assert alone.curves == {}
    layers, heads = {"Toy": (1, 1), "Stock": (2, 2)}[module]
    assert [*observed.curves] == [
        *(f"entropy/{layer}/{head}" for layer in range(layers) for head in range(heads)),
        *(f"max_logit/{layer}" for layer in range(layers)),
    ]
    for name, points in observed.curves.items():
        steps = [step for step, _ in points]
        assert (steps[0], steps[-1], len(steps)) == (0, 23, 24)
        assert name.startswith("max_logit") or all(0.0 <= value <= 1.0 for _, value in points)


def test_what_is_observed_is_the_entropy_of_the_attention_at_the_temperature_of_the_moment(
    request_for: Any, listener: Any
) -> None:
    run = LightningRun(request_for(parameters=HOT, observe=True, data={"batch_size": 3}), listener())
    by_hand: list[list[float]] = []
    step_of = run.module.training_step

    def recording_step(batch: Any, batch_idx: int) -> Any:
        state = torch.get_rng_state()
        by_hand.append(entropy_by_definition(run, step_of, batch))
        torch.set_rng_state(state)
        return step_of(batch, batch_idx)

    run.module.training_step = recording_step
    curves = run.execute().curves
    assert [value for _, value in curves["entropy/0/0"]] == pytest.approx(
        [value for (value,) in by_hand], abs=1e-5
    )


def test_the_largest_logit_is_that_of_all_queries_of_the_batch_at_the_temperature_of_the_step(
    request_for: Any, listener: Any
) -> None:
    # more examples and queries than the entropy is sampled from
    run = LightningRun(request_for(parameters=HOT, observe=True, data={"batch_size": 8}), listener())
    by_hand: list[float] = []
    step_of = run.module.training_step

    def recording_step(batch: Any, batch_idx: int) -> Any:
        module, x = run.module, batch[0].double()
        with torch.no_grad():
            q, k = (
                x @ proj.weight.double().T + proj.bias.double() for proj in (module.q_proj, module.k_proj)
            )
            logits = torch.einsum("bqd,bkd->bqk", q, k) / math.sqrt(8) / module.temperatures[0]
        by_hand.append(float(logits.max()))
        return step_of(batch, batch_idx)

    run.module.training_step = recording_step
    curves = run.execute().curves
    assert [value for _, value in curves["max_logit/0"]] == pytest.approx(by_hand, rel=1e-5)


def test_a_run_that_does_not_complete_has_no_curves_and_they_survive_the_way_to_the_agent(
    request_for: Any, listener: Any
) -> None:
    stopped_result = LightningRun(request_for(observe=True), listener(stop_at=5)).execute()
    assert (stopped_result.state, stopped_result.curves) == ("stopped", {})
    complete_result = LightningRun(request_for(observe=True), listener()).execute()
    assert decode(encode(complete_result)) == complete_result


@pytest.mark.parametrize(
    "method",
    [
        "tempopt.attention.analysis.monitor.AttentionMonitor.update",
        "tempopt.training.attention_maps.AttentionMaps.see",
        "tempopt.training.attention_maps.AttentionMaps.finish_step",
    ],
)
def test_attention_that_cannot_be_looked_at_ends_the_looking_and_not_the_run(
    request_for: Any, listener: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise IndexError("index 5 is out of bounds")

    monkeypatch.setattr(method, broken)
    observed = LightningRun(request_for(parameters=HOT, observe=True, maps=True), listener()).execute()
    alone = LightningRun(request_for(parameters=HOT), listener()).execute()
    assert (observed.state, observed.reports) == ("complete", alone.reports)
    (note,) = [note for note in observed.notes if "not observed" in note]
    assert "from step 0 on: IndexError: index 5 is out of bounds" in note


def test_attention_of_another_normaliser_is_not_taken_for_softmax(request_for: Any, listener: Any) -> None:
    sparse = LightningRun(
        request_for(parameters={"normaliser": "sparsemax"}, observe=True), listener()
    ).execute()
    assert sparse.curves == {}
    assert sparse.notes == []


def test_several_steps_in_a_batch_do_not_skip_what_is_to_be_seen(request_for: Any, listener: Any) -> None:
    curves = LightningRun(request_for("Manual", observe=True), listener()).execute().curves
    steps = [step for step, _ in curves["entropy/0/0"]]
    assert len(steps) >= 12 and steps == sorted(set(steps))
