"""Which routers and heads can be given a temperature by their outputs, on tiny models with random weights.

For each: by how much the loss of a fixed batch and its gradient move at temperature 1.5, or why it is
refused. Void unless the loss is that of a copy whose weights are divided by hand.

    python -m benchmarks.attach_rows
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.attach_models import SIZES, V
from tempopt import AttachError, attach_rows

TAU = 1.5
FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
GATE = "model.layers.*.mlp.gate"
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CAUSAL: Any = transformers.AutoModelForCausalLM
LABELLED: Any = transformers.AutoModelForSequenceClassification
DECODER = {name: size for name, size in SIZES.items() if name != "bos_token_id"} | {"num_key_value_heads": 2}
IDS = torch.randint(3, V, (2, 12), generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Case:
    """A model, the pattern of its projections, and how the loss of a batch is had from it."""

    name: str
    make: Callable[[], Any]
    pattern: str
    loss: Callable[[nn.Module], Tensor]


class Cosine(nn.Module):
    """A classifier whose logits are normalised behind its head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.head(x), dim=-1)


def config(kind: str, given: dict[str, Any]) -> Any:
    return getattr(transformers, f"{kind}Config")(**{**DECODER, **given})


def language(kind: str, pattern: str, given: dict[str, Any], note: str = "") -> Case:
    def loss(model: nn.Module) -> Tensor:
        found: Tensor = model(input_ids=IDS, labels=IDS).loss
        return found

    return Case(f"{kind}{note}", lambda: CAUSAL.from_config(config(kind, given)), pattern, loss)


def classifier(kind: str, pattern: str, **given: Any) -> Case:
    def loss(model: nn.Module) -> Tensor:
        found: Tensor = model(input_ids=IDS, labels=torch.tensor([0, 2])).loss
        return found

    def make() -> Any:
        own = {
            **SIZES,
            "num_labels": 3,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **given,
        }
        return LABELLED.from_config(getattr(transformers, f"{kind}Config")(**own))

    return Case(f"{kind} for classification", make, pattern, loss)


def plain(name: str, make: Callable[[], Any], pattern: str) -> Case:
    drawn = torch.Generator().manual_seed(2)
    x, labels = torch.randn(16, 8, generator=drawn), torch.randint(0, 5, (16,), generator=drawn)
    return Case(name, make, pattern, lambda model: F.cross_entropy(model(x), labels))


CASES = [
    plain("`nn.Linear` classifier", lambda: nn.Sequential(nn.Linear(8, 5)), "0"),
    plain("`nn.Linear` classifier, normalised behind", Cosine, "head"),
    classifier("Bert", "classifier"),
    classifier("Albert", "classifier", embedding_size=16),
    language("Qwen2", "lm_head", {"tie_word_embeddings": False}, " (untied)"),
    language("Qwen2", "lm_head", {"tie_word_embeddings": True}, " (tied)"),
    language("Mixtral", GATE, FOUR, ", top 2"),
    language("Mixtral", GATE, FOUR | {"num_experts_per_tok": 1}, ", top 1"),
    language("Qwen2Moe", GATE, EXPERTS | {"shared_expert_intermediate_size": 16}),
    language("Qwen3Moe", GATE, EXPERTS),
    language("GptOss", "model.layers.*.mlp.router", FOUR | {"head_dim": 8}),
]


def measured(case: Case, model: nn.Module) -> tuple[float, Tensor]:
    """Return the loss of the batch and its gradient with respect to all parameters."""
    loss = case.loss(model)
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return loss.item(), torch.cat([each.flatten() for each in grads if each is not None])


def divided(model: nn.Module, names: list[str]) -> nn.Module:
    """Return a copy whose projections have their weights and biases divided by hand."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name in names:
            for each in other.get_submodule(name).parameters(recurse=False):
                each.div_(TAU)
    return other


def row(case: Case) -> str:
    """Return a model's row of the table."""
    torch.manual_seed(0)
    model = case.make().eval()
    start, gradient = measured(case, model)
    try:
        attached = attach_rows(model, case.pattern, {"temperature_init": TAU}, loss=lambda: case.loss(model))
    except AttachError as error:
        reason = re.split(r"(?<=[a-z0-9\"])\. (?=[A-Z])", str(error))[0]
        return f"| {case.name} | `{case.pattern}` | refused: {reason} | |"
    loss, moved = measured(case, model)
    names = list(attached.layers)
    attached.detach()
    by_hand, _ = measured(case, divided(model, names))
    assert abs(loss - by_hand) <= 1e-6 * abs(by_hand), (case.name, loss, by_hand)
    turned = float((moved - gradient).norm() / gradient.norm())
    return f"| {case.name} | `{case.pattern}` | {loss - start:+.1e} of {start:.4f} | {100 * turned:.2g} % |"


def main() -> None:
    print("| model | rows | loss at 1.5, less that at 1 | gradient moves by |")
    print("|---|---|---|---|")
    for case in CASES:
        print(row(case), flush=True)


if __name__ == "__main__":
    main()
