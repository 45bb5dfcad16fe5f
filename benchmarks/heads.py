"""Names of heads: false alarms on untrained models, and planted heads that are found.

    python -m benchmarks.heads

Untrained are tiny BERT, GPT-2 and Llama models of transformers and AssociativeRecall of lightning_modules,
each with 1 to 4 layers of 2 to 8 heads, on random tokens of 16 to 64 positions. Beside the initialisation of
the libraries (times 1) all matrices are multiplied by up to 40, which makes attention as sharp as that of a
trained model, and of random content. Then there are bilinear heads with random weights whose logits have this
standard deviation and follow the position by a share, with and without causality and padding; and planted
heads, whose logits are normal with a constant added on the keys of a pattern.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from lightning_modules import AssociativeRecall
from lightning_modules.associative_recall import Recall, draw_recall
from tempopt.attention import HeadSpecialisation, Specialisations, specialisations
from tests.attention.planted import PLANTED, Heads, planted_heads, random_heads

VOCABULARY = 128
INPUTS = 8
SCALES = (1.0, 5.0, 15.0, 40.0)
SIZES = (2.0, 3.0, 4.0, 6.0)
Look = Callable[[Generator, float], Specialisations]


def _shape(draw: Generator) -> tuple[int, int, int]:
    """Return layers, heads and tokens."""
    return int(draw.integers(1, 5)), int(draw.choice([2, 4, 8])), int(draw.integers(16, 65))


def _by_weights(model: nn.Module, tokens: Tensor, **masking: Any) -> Specialisations:
    return specialisations(
        model,
        tokens.split(INPUTS),
        weights=lambda batch: model(batch, output_attentions=True).attentions,
        masking=lambda batch: masking,
        tokens=lambda batch: batch,
    )


def bert(draw: Generator, scale: float) -> Specialisations:
    layers, heads, length = _shape(draw)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=128,
        max_position_embeddings=64,
        initializer_range=0.02 * scale,
        attn_implementation="eager",
    )
    return _by_weights(BertModel(config), torch.randint(VOCABULARY, (INPUTS, length)))


def gpt2(draw: Generator, scale: float) -> Specialisations:
    layers, heads, length = _shape(draw)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=layers,
        n_head=heads,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.02 * scale,
        attn_implementation="eager",
    )
    return _by_weights(GPT2Model(config), torch.randint(VOCABULARY, (INPUTS, length)), is_causal=True)


def llama(draw: Generator, scale: float) -> Specialisations:
    layers, heads, length = _shape(draw)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        intermediate_size=128,
        initializer_range=0.02 * scale,
        attn_implementation="eager",
    )
    return _by_weights(LlamaModel(config), torch.randint(VOCABULARY, (INPUTS, length)), is_causal=True)


def recall(draw: Generator, scale: float) -> Specialisations:
    layers, heads, length = _shape(draw)
    model = AssociativeRecall(num_layers=layers, num_heads=heads)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= scale
    return look_at(model, draw_recall(INPUTS, length // 3, vocabulary=VOCABULARY))


def bilinear(draw: Generator, scale: float) -> Specialisations:
    """One layer of random bilinear heads, whose logits have this standard deviation."""
    _, heads, length = _shape(draw)
    return looked_at(
        random_heads(
            heads=heads,
            length=length,
            inputs=INPUTS,
            spread=scale,
            position=float(draw.choice([0.0, 0.5, 1.0])),
            is_causal=bool(draw.integers(2)),
            padded=bool(draw.integers(2)),
            seed=int(draw.integers(2**31)),
        )
    )


UNTRAINED: tuple[Look, ...] = (bert, gpt2, llama, recall, bilinear)


def look_at(model: AssociativeRecall, batch: Recall) -> Specialisations:
    return specialisations(model, [batch], tokens=lambda inputs: inputs.tokens_BN)


def looked_at(heads: Heads) -> Specialisations:
    measure = HeadSpecialisation()
    measure.update_weights(0, heads.weights_BHQK, tokens_BK=heads.tokens_BK, **heads.masking)
    return measure.report()


def false_alarms(models: int) -> None:
    print(f"untrained models of {models} with a named head, and the names; 1 % is stated")
    for look in UNTRAINED:
        for scale in SCALES:
            draw = np.random.default_rng(1)
            alarms, kinds, flat = 0, Counter[str](), []
            for seed in range(models):
                torch.manual_seed(seed)
                report = look(draw, scale)
                alarms += bool(report.names)
                kinds.update({name for names in report.names.values() for name in names})
                flat.append(
                    np.mean(
                        [
                            measurement.value
                            for measurement in report.measures
                            if measurement.measure == "uniform"
                        ]
                    )
                )
            summary = f"{look.__name__:9} times {scale:4.0f}: {alarms:4}   mean H / ln n {np.mean(flat):.2f}"
            print(summary, dict(kinds) or "", flush=True)


def _planted_heads(models: int, length: int, size: float) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield what each head does, what it is called, and whether it could be."""
    for seed in range(models):
        is_causal = bool(seed % 2)
        padded = bool(seed // 2 % 2)
        heads = planted_heads(length=length, size=size, is_causal=is_causal, padded=padded, seed=seed)
        names = looked_at(heads).names
        for head, pattern in enumerate(PLANTED):
            yield pattern, names.get((0, head), ()), not (pattern == "next_token" and is_causal)


def power(models: int) -> None:
    print("\nplanted heads: named rightly / named otherwise, in percent; by tokens and logits added")
    print("tokens  added " + "".join(f"{pattern:>16}" for pattern in PLANTED))
    for length in (16, 24, 64):
        for size in SIZES:
            right, num_wrong, can_be, heads = (Counter[str]() for _ in range(4))
            for pattern, names, can in _planted_heads(models, length, size):
                heads[pattern] += 1
                can_be[pattern] += can
                right[pattern] += can and names == (pattern,)
                num_wrong[pattern] += bool(set(names) - {pattern})
            cells = (
                f"{100 * right[pattern] / can_be[pattern]:.0f} / "
                f"{100 * num_wrong[pattern] / heads[pattern]:.0f}"
                for pattern in PLANTED
            )
            print(f"{length:6}  {size:5.0f} " + "".join(f"{cell:>16}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    false_alarms(args.models)
    power(args.models // 10)


if __name__ == "__main__":
    main()
