"""What comes out of a forward and of the modules around its attention, and how far apart two outputs are.

What follows from that is decided in ``tempopt.attention.attach.self_check``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Numbers that are kept of one output of a module: enough to compare, few enough for a hundred layers.
_MAX_NUMBERS_PER_TENSOR = 2**16
# In fewer numbers than these the effects of a temperature may cancel, as in a loss.
_MIN_COMPARABLE_NUMBERS = 16


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of one forward.

    Args:
        result: The tensors that it returned.
        inside: By module name those that came out of the modules around each attention, in the order of
            their calls; of a large one some evenly spread numbers.
    """

    result: list[Tensor]
    inside: dict[str, list[Tensor]]

    def close(self, other_outputs: Outputs) -> bool:
        """Whether all of them are equal but for rounding."""
        return (
            outputs_close(self.result, other_outputs.result)
            and self.inside.keys() == other_outputs.inside.keys()
            and all(
                outputs_close(module_outputs, other_outputs.inside[name])
                for name, module_outputs in self.inside.items()
            )
        )


@contextmanager
def record_outputs(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Keep for a while what comes out of some modules and of those around them.

    Args:
        model: What runs.
        names: Names of the modules.

    Returns:
        Outputs by name of the module, of those that return more than a few numbers; filled as it runs.
    """
    module_outputs: dict[str, list[Tensor]] = {}
    ancestors = dict.fromkeys(ancestor for name in names for ancestor in around(name))
    with ExitStack() as stack:
        for name in ancestors:
            module = model.get_submodule(name)
            if not isinstance(module, torch.jit.ScriptModule):
                stack.callback(module.register_forward_hook(_keeping(name, module_outputs)).remove)
        yield module_outputs


def _keeping(name: str, module_outputs: dict[str, list[Tensor]]) -> Any:
    def keep(_: nn.Module, args: Any, output: Any) -> None:
        # What is compiled now would keep this hook.
        if not torch.compiler.is_compiling() and not few_numbers(
            output_tensors := list(tensors(output, _MAX_NUMBERS_PER_TENSOR))
        ):
            module_outputs.setdefault(name, []).extend(output_tensors)

    return keep


def enclosing_modules(name: str, modules: Mapping[str, object]) -> list[str]:
    """Return which of some modules are a module or around it, innermost first."""
    return [ancestor for ancestor in around(name) if ancestor in modules]


def around(name: str) -> list[str]:
    """Return the names of a module and of those around it, innermost first."""
    parts = name.split(".") if name else []
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


def few_numbers(outputs: Sequence[Tensor]) -> bool:
    """Whether effects may cancel in them, as in a loss."""
    return sum(output.numel() for output in outputs) < _MIN_COMPARABLE_NUMBERS


def tensors(output: Any, max_numbers: int | None = None) -> Iterator[Tensor]:
    """Yield the tensors in a nesting, without their graphs, on the CPU.

    Args:
        output: Tensors in sequences, mappings and dataclasses.
        max_numbers: Of larger tensors so many numbers are copied at most; None: all, and nothing has to be.
    """
    for tensor in iter_nested_tensors(output):
        values = tensor.detach()
        if max_numbers is None:
            yield values.cpu()
        elif values.layout == torch.strided and not values.is_nested:
            yield values.flatten()[:: math.ceil(max(values.numel(), 1) / max_numbers)].clone().cpu()


def iter_nested_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in sequences, mappings and dataclasses, as they are."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from iter_nested_tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from iter_nested_tensors(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from iter_nested_tensors(getattr(output, field.name))


def outputs_close(outputs: Sequence[Tensor], other_outputs: Sequence[Tensor]) -> bool:
    """Whether outputs are equal but for the order of sums, which some kernels do not keep."""
    return _alike(outputs, other_outputs) and all(map(_all_close, outputs, other_outputs))


def _alike(outputs: Sequence[Tensor], other_outputs: Sequence[Tensor]) -> bool:
    return [output.shape for output in outputs] == [output.shape for output in other_outputs]


def _all_close(output: Tensor, other_output: Tensor) -> bool:
    tolerance = 16 * torch.finfo(output.dtype).eps if output.is_floating_point() else 0.0
    output, other_output = output.double(), other_output.double()
    finite = output[output.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(output, other_output, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def distance(outputs: Sequence[Tensor], other_outputs: Sequence[Tensor]) -> float:
    """Return the Euclidean distance over all elements that are finite in both; infinite between shapes."""
    if not _alike(outputs, other_outputs):
        return math.inf
    differences = [(a.double() - b.double()).flatten() for a, b in zip(outputs, other_outputs, strict=True)]
    all_differences = torch.cat(differences)
    return float(all_differences[all_differences.isfinite()].norm())
