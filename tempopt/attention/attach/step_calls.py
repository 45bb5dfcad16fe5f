"""Counts the calls of a layer in each step of training, so that its entropy is the mean over them."""

from __future__ import annotations

import functools
import weakref

from torch import Tensor


class _Call:
    """A call; the graph of its entropy holds it."""


class _Step:
    """The calls of a layer until a backward pass reaches one of them."""

    def __init__(self) -> None:
        self.calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        self.num_calls = 0

    def divide(self, call: _Call, min_calls: int, gradient: Tensor) -> Tensor:
        """Return the gradient of the term of one call, divided by the number of calls."""
        # calls whose graph is gone are no part of the loss, as those that a checkpoint makes again
        self.num_calls = self.num_calls or max(len(self.calls), min_calls)
        return gradient / self.num_calls


class StepCalls:
    """The calls of one layer in the present step.

    Attributes:
        may_recompute: Whether calls in training were without gradients. Behind a reentrant checkpoint they
            are made again one by one, each in a backward pass of its own.
    """

    def __init__(self) -> None:
        self.may_recompute = False
        self._step = _Step()

    def average(self, term: Tensor, num_example_calls: int) -> Tensor:
        """Return the term of a call, whose gradient will be divided by the number of calls in this step.

        Args:
            term: The entropy term of the call.
            num_example_calls: The number of calls in the example, which counts where calls are made again.
        """
        if term.requires_grad:
            if self._step.num_calls:
                self._step = _Step()
            call = _Call()
            self._step.calls.add(call)
            min_calls = num_example_calls if self.may_recompute else 1
            term.register_hook(functools.partial(self._step.divide, call, min_calls))
        return term
