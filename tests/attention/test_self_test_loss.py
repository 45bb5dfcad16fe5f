"""A self-test looks at what comes out of attention, for in a loss the effects of temperature average out."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tempopt.attention.attach.attachment import attach
from tempopt.errors import AttachError
from tests.attention.test_self_test import WIDTH, SelfTestBlock

HOT = {"temperature_init": 2.0}


def prove(*blocks: nn.Module, tokens: int = 7) -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(*blocks), torch.randn(3, tokens, WIDTH)
    attach(model, HOT, example=None).self_test(lambda: model(batch).square().mean())


def test_attention_that_acts_passes() -> None:
    prove(*(SelfTestBlock() for _ in range(5)))


class UnusedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfTestBlock()

    def forward(self, x: Tensor) -> Tensor:
        self.attention(x)
        return x


def test_attention_whose_output_goes_nowhere_is_refused_with_that_reason() -> None:
    with pytest.raises(
        AttachError, match=r'"1.attention.*Nothing behind it depends on what it attends to\. Leave'
    ):
        prove(SelfTestBlock(), UnusedBlock())


def test_a_single_key_is_named_as_the_reason() -> None:
    with pytest.raises(
        AttachError, match=r"No query of this forward has more than one key.*try a longer batch"
    ):
        prove(SelfTestBlock(), tokens=1)


class Language(L.LightningModule):
    """A model of transformers as it is initialised, and its loss."""

    def __init__(self, family: str, **sizes: Any) -> None:
        super().__init__()
        transformers = pytest.importorskip(
            "transformers", reason="NOT TESTED: models of transformers. Install tempopt[transformers]."
        )
        tokens = {f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep")}
        if family == "ModernBert":
            config = transformers.ModernBertConfig(**sizes, pad_token_id=0, **tokens)
            self.model: Any = transformers.ModernBertForMaskedLM(config)
        else:
            self.model = transformers.GPT2LMHeadModel(
                transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
            )

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        logits = self.model(input_ids=batch).logits
        return F.cross_entropy(logits.flatten(0, 1), batch.flatten())


MODERN = dict(
    vocab_size=256, num_hidden_layers=2, hidden_size=64, num_attention_heads=2, intermediate_size=128
)
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "ModernBert": ("ModernBert", MODERN),
    "GPT-2": ("GPT2", dict(vocab_size=5000, n_embd=64, n_layer=2, n_head=4)),
}
FULL_SIZE_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ModernBert base": ("ModernBert", {}),
    "GPT-2 small": ("GPT2", {}),
}


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        *(pytest.param(*shape, id=name) for name, shape in SHAPES.items()),
        *(
            pytest.param(*shape, id=name, marks=[pytest.mark.long, pytest.mark.nightly])
            for name, shape in FULL_SIZE_MODELS.items()
        ),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_language_model_at_its_own_initialisation_passes_by_its_loss(
    family: str, sizes: dict[str, Any], seed: int
) -> None:
    torch.manual_seed(seed)
    model = Language(family, **sizes)
    batch = torch.randint(3, 256, (2, 32))
    attachment = attach(model, HOT, example=None)
    attachment.self_test(lambda: model.training_step(batch, 0))
    assert attachment.tested
