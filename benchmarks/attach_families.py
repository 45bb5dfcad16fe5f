"""What attach makes of the model families of transformers, tiny and random, beside an oracle of their own.

Each family is built from a configuration, with random weights, biases and norms. What it is at temperature 2
is computed without tempopt: by the family's own attention with its scale halved, or, where it has no scale
that can be set, with everything halved that its queries are made of. Beside that stands what is attached with
the same batch as example: right, refused, or wrong in silence, of which there must be none.

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

# What float32 makes of sums in another order, of the way that temperature 2 takes an output.
RIGHT = 1e-3
# An oracle that moves an output by less says nothing.
BITES = 1e-4


@dataclass(frozen=True)
class Outcome:
    """What came of attaching to a family."""

    result: str
    error: float | None = None

    @property
    def is_wrong(self) -> bool:
        return self.error is not None and self.error > RIGHT


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


def try_attach(family: Family, model: nn.Module, truth: Tensor, shift_size: float) -> Outcome:
    """Return the outcome of attaching to a copy of a model, with the self-test on the same batch."""
    model = copy.deepcopy(model)
    try:
        attach(model, {"temperature_init": 2.0}, example=lambda: family.run(model))
        error = distance(outputs(family, model), truth) / shift_size
    except AttachError as refusal:
        return Outcome(f"refused: {reason(refusal)}")
    return Outcome("right" if error <= RIGHT else "WRONG IN SILENCE", error=error)


def reason(error: Exception) -> str:
    """Return the first few words of a refusal that say why."""
    text = str(error)
    short_reasons = {
        "No attention was found": "no attention that is known",
        "whose logits cannot be reached": "other kernels",
        "may be attention or not": "a softmax that may be attention or not",
        "did not move": "does not move",
        "not that of": "not as by other means",
    }
    return next((short for words, short in short_reasons.items() if words in text), text[:90])


def attach_family(family: Family) -> Outcome:
    """Return what attach makes of a family."""
    model = randomise(family.make())
    plain = outputs(family, model)
    truth_model = copy.deepcopy(model)
    with family.oracle(truth_model):
        truth = outputs(family, truth_model)
    shift_size = distance(truth, plain)
    if not shift_size > BITES * float(plain.nan_to_num().abs().max()):
        raise AssertionError(f"{family.name}: its oracle does not bite, the output moves by {shift_size:.1e}")
    return try_attach(family, model, truth, shift_size)


def error_text(error: float | None) -> str:
    """Return an error to its order of magnitude, what rounding alone makes of it left out."""
    if error is None:
        return "–"
    return "0" if error < RIGHT / 10 else f"{error:.1g}"


def table(only_names: Sequence[str] | None = None) -> tuple[list[str], list[Outcome]]:
    """Return the lines of the table, with the families of equal outcomes in one, and all outcomes."""
    names_by_outcome: dict[str, list[str]] = {}
    outcomes = []
    for family in FAMILIES:
        if only_names and family.name not in only_names:
            continue
        outcome = attach_family(family)
        names_by_outcome.setdefault(f"{outcome.result} | {error_text(outcome.error)}", []).append(family.name)
        outcomes.append(outcome)
    return [f"| {result} | {', '.join(names)} |" for result, names in names_by_outcome.items()], outcomes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", help="names of families, as in the table")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines, outcomes = table(parser.parse_args().only)
    print("\n".join(["| attach | error | families |", "|---|---|---|", *lines]))
    num_right = sum(outcome.result == "right" for outcome in outcomes)
    num_wrong = sum(outcome.is_wrong for outcome in outcomes)
    print(
        f"\n{len(outcomes)} families: attach is right in {num_right} and refuses "
        f"{len(outcomes) - num_right - num_wrong}; wrong in silence: {num_wrong}."
    )
    sys.exit(1 if num_wrong else 0)


if __name__ == "__main__":
    main()
