"""What attach makes of the model families of transformers, tiny and random, beside an oracle of their own.

Each family is built from a configuration, with random weights, biases and norms. What it is at temperature 2
is computed without tempopt: by the family's own attention with its scale halved, or, where it has no scale
that can be set, with everything halved that its queries are made of. Beside that stand the ways of attaching,
each with the self-test on the same batch: right, refused, or wrong in silence, of which there must be none.

Run: .venv/bin/python -m benchmarks.attach_families (2 minutes on one core; --only Llama T5)
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.attach_models import FAMILIES, Family
from tempopt import AttachError, attach

WAYS = ("query_rows", "attention_interface", "auto")
# What float32 makes of sums in another order, of the way that temperature 2 takes an output.
RIGHT = 1e-3
# An oracle that moves an output by less says nothing.
BITES = 1e-4


@dataclass(frozen=True)
class Outcome:
    """The outcome of one way."""

    result: str
    method: str = ""
    error: float | None = None
    tested: bool = True

    @property
    def is_wrong(self) -> bool:
        return self.error is not None and self.error > RIGHT and self.tested


def randomise(model: nn.Module) -> nn.Module:
    """Give every parameter a random value of a size at which attention is far from uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if any(word in name for word in ("A_log", "dt_bias", "dt_proj", ".D", "decay")):
                continue
            if parameter.ndim >= 2:
                parameter.copy_(
                    noise * (0.3 if "bias" in name else 1.5 / max(parameter[0].numel(), 1) ** 0.5)
                )
            elif name.endswith("weight"):
                parameter.copy_(1.0 + 0.3 * noise)
            else:
                parameter.add_(0.3 * noise)
    return model.eval()


def outputs(family: Family, model: nn.Module) -> Tensor:
    """Return the outputs of a fixed batch, flat, in float64."""
    torch.manual_seed(1)
    with torch.no_grad():
        out = family.run(model)
    return out.double().flatten()


def distance(output: Tensor, other_output: Tensor) -> float:
    return float((output - other_output).nan_to_num(0.0, 0.0, 0.0).abs().max())


def try_method(family: Family, model: nn.Module, method: str, truth: Tensor, shift_size: float) -> Outcome:
    """Return the outcome of one way, with its self-test on the same batch."""
    model = copy.deepcopy(model)
    try:
        attachment = attach(model, {"temperature_init": 2.0}, method=method, example=None)
    except AttachError as error:
        return Outcome(f"refused: {reason(error)}")
    error = distance(outputs(family, model), truth) / shift_size
    attachment.detach()
    try:
        attachment = attach(
            model, {"temperature_init": 2.0}, method=method, example=lambda: family.run(model)
        )
    except AttachError as refusal:
        refusal_kind = "right, yet refused" if error <= RIGHT else "refused by the self-test"
        return Outcome(f"{refusal_kind}: {reason(refusal)}", error=error, tested=False)
    error = distance(outputs(family, model), truth) / shift_size
    verdict = "right" if error <= RIGHT else "WRONG IN SILENCE"
    return Outcome(verdict, method=attachment.method, error=error)


def reason(error: Exception) -> str:
    """Return the first few words of a refusal that say why."""
    text = str(error)
    short_reasons = {
        "mix tokens without": "no softmax",
        "is normalised": "normalised query",
        "head by head": "query head by head",
        "conv_kernel_layer": "the query makes a convolution as well",
        "is an nn.MultiheadAttention, which": "a part asks for no function",
        "No attention was found": "no attention that is known",
        "without a softmax": "not three equal blocks, or no softmax",
        "asks for its attention function": "asks for no function",
        "gets its bias from": "bias beside the query",
        "three times its input": "shape of the fused projection",
        "acts in part only": "acts in part",
        "acts in only a part": "acts in part",
        "has no temperature, though": "a part without",
        "did not move": "does not move",
        "not that of": "not as by hand",
    }
    return next((short for words, short in short_reasons.items() if words in text), text[:90])


def row(family: Family) -> tuple[str, dict[str, Outcome]]:
    """Return a family's line of the table, and what its ways came to."""
    model = randomise(family.make())
    plain = outputs(family, model)
    truth_model = copy.deepcopy(model)
    with family.oracle(truth_model):
        truth = outputs(family, truth_model)
    shift_size = distance(truth, plain)
    if not shift_size > BITES * float(plain.nan_to_num().abs().max()):
        raise AssertionError(f"{family.name}: its oracle does not bite, the output moves by {shift_size:.1e}")
    outcomes = {method: try_method(family, model, method, truth, shift_size) for method in WAYS}
    auto = outcomes["auto"]
    cells = [outcomes[method].result for method in WAYS[:2]] + [
        f"{auto.result} ({auto.method})" if auto.method else auto.result
    ]
    errors = [error_text(outcomes[method].error) for method in WAYS]
    return f"| {family.name} | {' | '.join(cells)} | {', '.join(errors)} |", outcomes


def error_text(error: float | None) -> str:
    """Return an error to its order of magnitude, what rounding alone makes of it left out."""
    if error is None:
        return "–"
    return "0" if error < RIGHT / 10 else f"{error:.1g}"


def table(only_names: Sequence[str] | None = None) -> tuple[list[str], list[dict[str, Outcome]]]:
    """Return the lines of all families, each printed as it comes, and what their ways came to."""
    lines, all_outcomes = [], []
    for family in FAMILIES:
        if only_names and family.name not in only_names:
            continue
        line, outcomes = row(family)
        print(line, flush=True)
        lines.append(line)
        all_outcomes.append(outcomes)
    return lines, all_outcomes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", help="names of families, as in the table")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| family | query_rows | attention_interface | auto | error of each |")
    print("|---|---|---|---|---|")
    _, all_outcomes = table(parser.parse_args().only)
    autos = [outcomes["auto"] for outcomes in all_outcomes]
    right = sum(outcome.result == "right" for outcome in autos)
    counts = {method: sum(outcome.method == method for outcome in autos) for method in WAYS[:2]}
    num_wrong = sum(outcome.is_wrong for outcomes in all_outcomes for outcome in outcomes.values())
    print(
        f"\n{len(autos)} families: auto is right in {right} ({counts['query_rows']} by query rows, "
        f"{counts['attention_interface']} by the interface) and refuses {len(autos) - right}; "
        f"wrong in silence, by any way: {num_wrong}."
    )
    sys.exit(1 if num_wrong else 0)


if __name__ == "__main__":
    main()
