"""Losses and samplers as other people publish them, each at another temperature from outside.

What a class computes that was made at a temperature shares nothing with tempopt.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn

from tempopt import attach_value
from tempopt.training.named_values import NamedValues
from tests.foreign_losses import FOREIGN, ITEMS, ForeignLoss

# These libraries warn of themselves.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept context:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning"),
]

STEPS = 4
FOR_EACH_LOSS = pytest.mark.parametrize("case", FOREIGN, ids=str)
STORED = {
    "identity": lambda tau: tau,
    "inverse": lambda tau: 1 / tau,
    "log_inverse": lambda tau: -torch.tensor(tau, dtype=torch.float64).log().item(),
}


class LossModule(L.LightningModule):
    """An encoder, and on its embeddings a loss of another library."""

    def __init__(self, case: ForeignLoss, temperature: float | None = None) -> None:
        super().__init__()
        self.case = case
        self.criterion = case.make(temperature)
        torch.manual_seed(3)
        self.encoder = nn.Linear(6, 8)
        self.batch = torch.randn(ITEMS, 6, generator=torch.Generator().manual_seed(5))
        self.step_temperatures: list[float] = []

    @property
    def path(self) -> str:
        """Where the temperature is."""
        return f"criterion.{self.case.path}"

    def loss(self) -> Tensor:
        """Return the loss of the one batch there is."""
        return self.case.step(self.criterion, self.encoder(self.batch))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        value = operator.attrgetter(self.path)(self)
        self.step_temperatures.append(value.item() if isinstance(value, Tensor) else value)
        return self.loss()

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.zeros(STEPS, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loss_and_gradients(model: LossModule) -> list[Tensor]:
    """Return the loss and all gradients but that of the temperature."""
    loss = model.loss()
    params = [param for name, param in model.named_parameters() if name != model.path]
    gradients = torch.autograd.grad(loss, params, allow_unused=True)
    return [loss.detach(), *(gradient for gradient in gradients if gradient is not None)]


def scheduled(model: LossModule, **parameters: Any) -> Sequence[L.Callback]:
    """Put a schedule on a module as a study does."""
    section = {"value": model.path, "transform": model.case.transform, "as_found": None}
    return NamedValues(model, {"named": section}, parameters, validate_at="final").callbacks


def train_module(model: LossModule, callbacks: Sequence[L.Callback] = ()) -> None:
    """Train by Lightning."""
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(7)
    trainer.fit(model)


@FOR_EACH_LOSS
def test_the_self_test_finds_the_temperature_and_it_is_what_the_class_has(case: ForeignLoss) -> None:
    model = LossModule(case)
    attachment = attach_value(model, model.path, {}, transform=case.transform, loss=model.loss)
    assert attachment.initial_temperature == pytest.approx(case.default_temperature, rel=1e-4)


@FOR_EACH_LOSS
@pytest.mark.parametrize("factor", [0.5, 16.0])
def test_at_a_temperature_it_computes_what_one_does_that_was_made_at_it(
    case: ForeignLoss, factor: float
) -> None:
    model, plain = LossModule(case), LossModule(case)
    tau = factor * attach_value(plain, plain.path, {}, transform=case.transform).initial_temperature
    attach_value(model, model.path, {"temperature_init": tau}, transform=case.transform)
    results, expected = loss_and_gradients(model), loss_and_gradients(LossModule(case, tau))
    for actual, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-6)
    changes = (
        float((actual - reference).norm() / reference.norm())
        for actual, reference in zip(results, loss_and_gradients(plain), strict=True)
        if float(reference.norm())
    )
    assert max(changes) > 1e-3


@FOR_EACH_LOSS
def test_training_follows_the_schedule_and_as_found_it_is_what_it_was(case: ForeignLoss) -> None:
    plain, as_found, model = (LossModule(case) for _ in range(3))
    train_module(plain)
    train_module(as_found, scheduled(as_found))
    for plain_param, found_param in zip(plain.parameters(), as_found.parameters(), strict=True):
        assert torch.equal(plain_param, found_param)
    schedule = {"named.schedule": "exponential", "named.temperature_final": case.default_temperature / 4}
    train_module(model, scheduled(model, **schedule))
    expected = [case.default_temperature * 0.25 ** (step / (STEPS - 1)) for step in range(STEPS)]
    stored_values = [STORED[case.transform](tau) for tau in expected]
    assert model.step_temperatures == pytest.approx(stored_values, rel=1e-3, abs=1e-6)
    param_pairs = zip(model.named_parameters(), plain.parameters(), strict=True)
    assert any(
        not torch.equal(param, plain_param)
        for (name, param), plain_param in param_pairs
        if name != model.path
    )


def test_the_page_lists_each_class_with_what_is_found() -> None:
    page = (Path(__file__).parents[1] / "docs" / "values.md").read_text(encoding="utf-8")
    table = page.partition("## Classes that were tried")[2]
    rows = set()
    names: list[str] = []
    for line in table.splitlines():
        if not line.startswith("|") or line.startswith(("| class", "|---")):
            continue
        classes, _, path, transform, tau_text, _ = (cell.strip() for cell in line.strip("|").split("|"))
        names = [
            class_text.partition("(")[0] for class_text in re.findall(r"`([^`]+)`,? ?", classes)
        ] or names
        tau = round(float(Fraction(tau_text)), 6)
        rows |= {(name, path.strip("`"), transform.strip("`"), tau) for name in names}
    losses = {"ClipLoss", "SigLipLoss"}
    assert {row for row in rows if row[0] not in losses} == {
        (case.name.rpartition(".")[2], case.path, case.transform, round(case.default_temperature, 6))
        for case in FOREIGN
    }
