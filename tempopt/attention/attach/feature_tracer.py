"""Finds which dimension of queries and of logits is that of heads, by following the features of projections.

Beside each output of a projection goes a copy in which every feature has a number, the same for all tokens.
What a forward does to the output is done to the copy. A dimension along which the copy of a query differs is
one of heads: those of sequences and tokens do not change it, but for rotations, which keep its length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from tempopt.attention.attach.call_mode import PRODUCTS, SOFTMAX, TERMS, operands_of
from tempopt.attention.attach.outputs import iter_nested_tensors

HeadDim = tuple[int | None, int]
"""The dimension of heads, counted from the last, -1, None if it cannot be told; and the number of heads."""

_UNKNOWN: HeadDim = (None, 0)
# Dimension of features in the output of a projection.
_PROJECTIONS = {"linear": -1, "addmm": -1, "conv1d": -2, "conv2d": -3, "conv3d": -4}
# The largest logit of a query is taken off all of its logits.
_SHIFTS = frozenset({"sub", "isub", "subtract"})
# Heads whose features have other numbers differ by more, and rounding makes less of it.
_MIN_DIFFERENCE = 1e-3


class FeatureTracer:
    """Follows the features of projections through a forward."""

    def __init__(self) -> None:
        self._copies: Any = WeakIdKeyDictionary()

    def follow(
        self, func: Any, args: Any, kwargs: Any, result: Any, *, weights: Collection[Tensor]
    ) -> HeadDim:
        """Follow one call, and return the heads of the logits of a softmax or of a tempered operand.

        Args:
            func: What is called.
            args: With what.
            kwargs: With what else.
            result: What it has returned.
            weights: Operands of a product that are parameters.
        """
        if func in SOFTMAX:
            logits = args[0] if args else kwargs["input"]
            return self.head_dim(logits, dims=range(logits.ndim - 1))
        name = getattr(func, "__name__", "")
        if name in _PROJECTIONS:
            shape = [1] * result.ndim
            shape[_PROJECTIONS[name]] = result.shape[_PROJECTIONS[name]]
            self._copies[result] = _numbers(result.new_empty(shape)).expand_as(result).clone()
        elif weights:
            weight_ids = set(map(id, weights))

            def numbers(x: Tensor) -> Tensor:
                return _numbers(x) if id(x) in weight_ids else torch.ones_like(x)

            self._copies[result] = func(*_replace(args, numbers), **_replace(kwargs, numbers))
        elif func in PRODUCTS:
            return self._product(func, args, kwargs, result)
        else:
            self._repeat(func, name, args, kwargs, result)
        return _UNKNOWN

    def head_dim(self, *tensors: Tensor, dims: Sequence[int]) -> HeadDim:
        """Return the heads of the first tensor, by its copy or by that of another one, in some dimensions."""
        x = tensors[0]
        copy = next((self._copies[tensor] for tensor in tensors if tensor in self._copies), None)
        if copy is None or x.ndim < 4 or copy.ndim != x.ndim:
            return _UNKNOWN
        varying = _varying_dims(_signature(copy, dims), dims)
        if not varying and x.shape[-3] == 1:
            return -3, 1
        return (varying[0] - x.ndim, x.shape[varying[0]]) if len(varying) == 1 else _UNKNOWN

    def _product(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> HeadDim:
        operands = operands_of(func, args, kwargs)
        if func is torch.einsum:
            return self._einsum(args[0], operands, result)
        copy = next((self._copies[operand] for operand in operands if operand in self._copies), None)
        if copy is None:
            return _UNKNOWN
        signature = _signature(copy, range(copy.ndim - 2))
        if signature.ndim == result.ndim:
            self._copies[result] = signature.expand_as(result)
        return self.head_dim(*operands, dims=range(operands[0].ndim - 2))

    def _einsum(self, equation: Any, operands: Sequence[Tensor], result: Tensor) -> HeadDim:
        inputs, _, output = str(equation).replace(" ", "").partition("->")
        terms = inputs.split(",")
        if "." in inputs or not output or len(terms) != 2 or len(operands) != 2:
            return _UNKNOWN
        shared = [letter for letter in output if all(letter in term for term in terms)]
        for term, operand in zip(terms, operands, strict=True):
            dim, count = self.head_dim(operand, dims=[term.index(letter) for letter in shared])
            if dim is not None:
                letter = term[dim]
                shape = [count if axis == letter else 1 for axis in output]
                self._copies[result] = _numbers(result.new_empty(shape)).expand_as(result)
                return terms[0].index(letter) - len(terms[0]), count
        return _UNKNOWN

    def _repeat(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Do to copies what was done to tensors."""
        copies = [self._copies[x] for x in iter_nested_tensors((args, kwargs)) if x in self._copies]
        # of what is written to, or has the shape of another one, the first argument is the content
        is_of_first = result is None or (bool(args) and result is args[0]) or name.endswith("_as")
        if not copies or kwargs.get("out") is not None or (is_of_first and args[0] not in self._copies):
            return
        try:
            if name.strip("_") in TERMS:
                # what is added may differ between sequences
                copied: Any = sum(copies[1:], start=copies[0]).expand_as(result)
            elif name.strip("_") in _SHIFTS:
                copied = copies[0].expand_as(result)
            else:
                copied = func(*_replace(args, self._copy_of), **_replace(kwargs, self._copy_of))
        except Exception:
            # indices and sizes may be computed of a tensor: then its copy is no input for what is called
            return
        for tensor, copy in zip(iter_nested_tensors(result), iter_nested_tensors(copied), strict=False):
            if tensor.shape == copy.shape and not isinstance(tensor, nn.Parameter):
                self._copies[tensor] = copy

    def _copy_of(self, tensor: Tensor) -> Tensor:
        copy: Tensor = self._copies.get(tensor, tensor)
        return copy


def _numbers(like: Tensor) -> Tensor:
    """Return random numbers, which are the same at each call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator).to(like)


def _replace(value: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    """Return arguments with other tensors."""
    if isinstance(value, Tensor):
        return replace(value)
    if isinstance(value, dict):
        return {name: _replace(entry, replace) for name, entry in value.items()}
    return type(value)(_replace(entry, replace) for entry in value) if type(value) in (list, tuple) else value


def _signature(copy: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the size of a copy by some dimensions; of one that is the same for all heads its mean."""
    other_dims = [dim for dim in range(copy.ndim) if dim not in dims]
    # of complex numbers, too
    sizes = copy.abs().to(torch.float64).square().mean(other_dims, keepdim=True).sqrt()
    if _varying_dims(sizes, dims):
        return sizes
    return copy.real.to(torch.float64).mean(other_dims, keepdim=True)


def _varying_dims(x: Tensor, dims: Iterable[int]) -> list[int]:
    tolerance = _MIN_DIFFERENCE * x.abs().max()
    return [dim for dim in dims if bool(((x - x.narrow(dim, 0, 1)).abs() > tolerance).any())]
