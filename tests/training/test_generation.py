"""Parameters of generation reach a module's validation, and its training never."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tempopt import TemperedModule
from tempopt.attention.generation import sample
from tempopt.errors import SpecError, UsageError
from tempopt.spec.program import Program
from tempopt.temperature import GenerationParameters
from tempopt.training.build import build
from tempopt.training.dry_run import dry_run, refuse_unread_generation
from tempopt.training.messages import Evaluation
from tests.training.shared_trainings import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*num_workers.*")


class GenerationWriter(TemperedModule):
    """Draws a token for each position, in validation or in training."""

    def __init__(self, draws_in: str = "validation", **temperature: Any) -> None:
        super().__init__(num_layers=1, **temperature)
        self.draws_in = draws_in
        self.read = nn.Linear(4, 6)

    def logits(self, x_BNM: Tensor) -> Tensor:
        q_B1NM = x_BNM[:, None]
        out: Tensor = self.read(self.attend(q_B1NM, q_B1NM, q_B1NM, layer=0)[:, 0])
        return out

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        logits_BNV = self.logits(batch)
        if self.draws_in == "training":
            sample(logits_BNV, self.generation)
        return logits_BNV.square().mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        token_BN = self.logits(batch).argmax(-1)
        if self.draws_in == "validation":
            token_BN = sample(self.logits(batch), self.generation)
        self.log("val_first", (token_BN == 0).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module: GenerationWriter) -> L.Trainer:
    batches: Any = [torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    trainer = quiet_trainer(max_epochs=1)
    loader = DataLoader(batches, batch_size=None)
    trainer.fit(module, loader, loader)
    return trainer


def test_validation_reads_them_and_they_are_saved_with_the_module() -> None:
    generation_params = {"sampling_temperature": 0.5, "top_p": 0.9, "top_k_tokens": 3, "min_p": 0.1}
    module = GenerationWriter(**generation_params)
    assert dict(module.hparams) | generation_params == dict(module.hparams)
    fit(module)
    assert module.reads_generation and module.generation == GenerationParameters(**generation_params)
    refuse_unread_generation(module, list(generation_params))


def test_training_that_reads_them_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        UsageError, match="GenerationWriter reads self.generation in training.*register_temperature"
    ):
        fit(GenerationWriter(draws_in="training"))


def test_a_module_that_never_reads_them_is_refused() -> None:
    module = GenerationWriter(draws_in="never")
    fit(module)
    with pytest.raises(
        SpecError, match="search.top_p: GenerationWriter never reads self.generation.*take top_p out"
    ):
        refuse_unread_generation(module, ["temperature_init", "top_p"])
    # what is not searched, or is an argument of a module that is not ours, is not looked for
    refuse_unread_generation(module, ["temperature_init"])
    refuse_unread_generation(nn.Linear(2, 2), ["top_p"])


def test_the_dry_run_refuses_it_before_a_study_begins(request_for: Any, listener: Any) -> None:
    space = {"temperature_init": [0.5, 2.0], "min_p": [0.0, 0.2]}
    request = request_for(
        "Toy",
        task="dry_run",
        evaluations=[Evaluation(name="test", on="test")],
        space=space,
        parameters={"temperature_init": 2.0, "min_p": 0.2},
    )
    with pytest.raises(SpecError, match="search.min_p: Toy never reads self.generation in its evaluation"):
        dry_run(request, listener())


class GenerationStock(L.LightningModule):
    """A module that is not ours, and draws tokens by an argument of its own."""

    def __init__(self, top_p: float = 1.0) -> None:
        super().__init__()
        self.top_p = top_p


def test_they_are_arguments_of_a_module_that_is_attached_to() -> None:
    program = Program(
        model={"class_path": f"{__name__}.GenerationStock"},
        data=None,
        trainer={},
        attach={"layers": "auto"},
        metric="val_loss",
        validate_at="final",
        data_seed=0,
    )
    built = build(program, {"temperature_init": 2.0, "top_p": 0.5})
    assert getattr(built.module, "top_p", None) == 0.5 and built.temperature == {"temperature_init": 2.0}
    with pytest.raises(SpecError, match="min_p cannot be set from outside: drawing tokens is the module's"):
        build(program, {"min_p": 0.5})
