"""Proves on a loss that the temperature of projections acts in training, and divides what they return.

Leaves the model as it was. What is attached, and how, is decided in ``tempopt.attention.attach.rows``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tempopt.attention.attach.named import Trained, equal, not_the_same, trained, trained_twice
from tempopt.attention.attach.outputs import close, nested_tensors
from tempopt.attention.attach.projection import Factors
from tempopt.attention.attach.query_rows import QueryRows, output_axis, some_names
from tempopt.attention.attach.self_check import TemperedRows
from tempopt.attention.attach.unchanged import same_randomness
from tempopt.errors import AttachError

Loss = Callable[[], Any]

# The weights are made larger as well: that makes less of the epsilon of a normalisation behind them.
_PERTURBED = (1.5, 1 / 1.5, 1 / 16.0)
_BY_HAND = 1.5
_HALVING = 2.0
# So much of itself a loss or a gradient has to move: rounding and such an epsilon make less of it.
_LOSS_MOVES, _GRADIENT_MOVES = 1e-2, 5e-2
# A gradient that is rounding alone is another one at the next temperature, too.
_NEXT, _SAME_THERE = 1.001, 0.3
_SAME_TWICE = 1e-3
_OFF_HALF = 1e-2


def prove_rows(model: nn.Module, rows: Sequence[QueryRows], factors: Factors, loss: Loss) -> None:
    """Test all projections as :meth:`tempopt.RowsAttachment.self_test` says.

    Args:
        model: The model.
        rows: Its tempered projections.
        factors: Their 1/temperature, which is not what it was afterwards.
        loss: Computes the training loss of a fixed batch.

    Raises:
        AttachError: A projection does not pass, or the loss is not fit for the test.
    """
    with _all_learned(rows):
        _Test(model, rows, factors, loss).run()


class _Test:
    def __init__(self, model: nn.Module, rows: Sequence[QueryRows], factors: Factors, loss: Loss) -> None:
        self._model, self._rows, self._factors, self._loss = model, rows, factors, loss
        self._own = [[value for _, value in each.parameters()] for each in rows]
        self._learned = [each for each in model.parameters() if each.requires_grad]
        self._inputs: dict[int, tuple[Any, Any]] = {}
        self._called = f'"{some_names([each.name for each in rows])}"'

    def run(self) -> None:
        with self._recorded():
            plain, again = trained_twice(lambda: self._trained({}))
        if not _distance(plain.losses, again.losses) <= _SAME_TWICE * _size(plain.losses):
            raise not_the_same(self._called)
        moved = [index for index in range(len(self._rows)) if self._moves(index, plain)]
        unmoved = [self._rows[index].name for index in sorted(self._inputs.keys() - set(moved))]
        if unmoved:
            raise AttachError(_undone(unmoved))
        if not moved:
            raise AttachError(
                f"The loss of this batch uses none of {self._called}: no module of these is run, and the "
                "loss does not move with their temperature. Give patterns of projections that training runs."
            )
        self._compare_with_hand(exact=equal(plain, again))
        self._require_divided()

    def _moves(self, index: int, plain: Trained) -> bool:
        """Return whether the loss or its gradient moves with the temperature of one projection."""
        for tau in _PERTURBED:
            other = self._trained({index: tau})
            if _distance(plain.losses, other.losses) > _LOSS_MOVES * _size(plain.losses):
                return True
            near = self._trained({index: tau * _NEXT})
            for before, after, beside in zip(
                *(self._gradients(index, each) for each in (plain, other, near)), strict=True
            ):
                way = _distance(before, after)
                there = _distance(after, beside) < _SAME_THERE * way
                if way > _GRADIENT_MOVES * _size(before) and there:
                    return True
        return False

    def _gradients(self, index: int, found: Trained) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradient of the parameters of one projection, and that of all others."""
        own = {id(each) for each in self._own[index]}
        pairs = [
            (id(parameter) in own, torch.zeros(()) if gradient is None else gradient)
            for parameter, gradient in zip(self._learned, found.gradients, strict=True)
        ]
        return [each for is_own, each in pairs if is_own], [each for is_own, each in pairs if not is_own]

    def _trained(self, temperatures: dict[int, float]) -> Trained:
        """Return the loss and its gradients with some projections at other temperatures than 1."""
        self._set(temperatures)
        return trained(self._model, self._loss, self._learned)

    def _set(self, temperatures: dict[int, float]) -> None:
        self._factors.set([1.0 / temperatures.get(index, 1.0) for index in range(len(self._rows))])

    def _compare_with_hand(self, *, exact: bool) -> None:
        """Refuse what is not as with weights that are divided by hand."""
        every = dict.fromkeys(range(len(self._rows)), _BY_HAND)
        by_hand = TemperedRows(self._rows, self._factors).by_hand
        tempered = self._trained(every)
        outputs = self._outputs()
        with by_hand(every):
            losses = trained(self._model, self._loss, []).losses
            expected = self._outputs()
        off = _distance(tempered.losses, losses)
        if not off <= (0.0 if exact else _SAME_TWICE * _size(losses)):
            raise AttachError(_BYPASSED.format(self._called))
        for index, each in outputs.items():
            if not close(each, expected[index]):
                raise AttachError(_BYPASSED.format(f'"{self._rows[index].name}"'))

    def _require_divided(self) -> None:
        """Refuse what returns nothing that is divided by the temperature."""
        self._set({})
        whole = self._outputs()
        self._set(dict.fromkeys(range(len(self._rows)), _HALVING))
        for index, each in self._outputs().items():
            found = [_is_half(one, other) for one, other in zip(each, whole[index], strict=True)]
            # of a projection it is all that it returns, a router returns its choice as well
            projection = output_axis(self._rows[index].module) is not None
            if not (all(found) if projection else any(found)):
                raise AttachError(_NOT_DIVIDED.format(self._rows[index].name))

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Keep what each projection is given first, as long as the loss is computed."""

        def keeping(index: int) -> Callable[..., None]:
            def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
                if index not in self._inputs:
                    self._inputs[index] = tree_map(_kept, (args, kwargs))

            return keep

        with ExitStack() as stack:
            for index, each in enumerate(self._rows):
                handle = each.module.register_forward_pre_hook(keeping(index), with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def _outputs(self) -> dict[int, list[Tensor]]:
        """Return what each projection makes of what it was given, as it is tempered now."""
        found = {}
        for index, (args, kwargs) in self._inputs.items():
            module = self._rows[index].module
            devices = {each.device for each in self._own[index]}
            with same_randomness(devices), torch.no_grad():
                given = tree_map(_kept, (args, kwargs))
                outputs = nested_tensors(module(*given[0], **given[1]))
                found[index] = [each.detach() for each in outputs if each.is_floating_point()]
        return found


@contextmanager
def _all_learned(rows: Sequence[QueryRows]) -> Iterator[None]:
    """Have frozen projections learned for a while: it is their gradient that tells the most."""
    frozen = [value for each in rows for _, value in each.parameters() if not value.requires_grad]
    for each in frozen:
        each.requires_grad_(True)
    try:
        yield
    finally:
        for each in frozen:
            each.requires_grad_(False)


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _is_half(one: Tensor, whole: Tensor) -> bool:
    if one.shape != whole.shape:
        return False
    off = (2.0 * one.double() - whole.double()).norm()
    return bool(off <= _OFF_HALF * whole.double().norm())


def _size(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in tensors))


def _distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    pairs = zip(some, others, strict=True)
    return _size([one.double() - other.double() for one, other in pairs])


def _undone(names: Sequence[str]) -> str:
    return (
        f"The training loss and its gradient do not move with the temperature of {some_names(names)}: what "
        "it returns is normalised behind it, or its weights are where they are read, so that a factor is "
        "undone; or nothing in training depends on it. Leave it out of rows. Where a number multiplies what "
        "is normalised, as the scale of a cosine classifier, that is the temperature: give its path as value."
    )


_BYPASSED = (
    "What {} returns, or the loss, is not what it is with weight and bias divided by the temperature by "
    "hand. The model may read a copy or a cache of the weights. Have it read weight and bias of the module "
    "in each forward."
)
_NOT_DIVIDED = (
    'At temperature 2 "{}" returns nothing that is half of what it was: something is added to its logits, or '
    "they stay inside. Make the logits by an nn.Linear of their own, or have the module return them."
)
