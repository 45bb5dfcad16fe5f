"""Importance of each attention head for the loss, and pruning of heads by masks.

Importance is that of Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?",
arXiv:1905.10650: I_h = E |dL / d xi_h|, where xi_h = 1 multiplies the output of head h.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from tempopt.attention.modules.learned import check_count
from tempopt.errors import AttachError, UsageError

Batch = TypeVar("Batch")


class HeadGates(ABC):
    """Gates on the heads of a model, all open until :meth:`prune`.

    Attributes:
        model: The model with the gates.
        num_heads: Heads of each layer, in depth order.
        pruned: By layer, the heads whose gate is closed, ascending; without layers that have none.
    """

    num_heads: tuple[int, ...]
    pruned: dict[int, tuple[int, ...]]

    def __init__(self, model: nn.Module, num_heads: Sequence[int]) -> None:
        self.model = model
        self.num_heads = tuple(num_heads)
        self.pruned = {}

    def importance(
        self, loss: Callable[[Batch], Tensor], batches: Iterable[Batch], *, normalise: bool = True
    ) -> list[Tensor]:
        """Return the importance of each head, E |dL / d xi_h|, in eval mode.

        Args:
            loss: Runs the model on a batch and returns its loss, the mean over examples.
            batches: Data for the expectation; each batch is used once.
            normalise: Whether to divide by the l2 norm over the heads of each layer, as Michel et al. do
                before they compare heads of different layers.

        Returns:
            For each layer (heads,), in float64 on the CPU, >= 0; 0 for a pruned head. Existing gradients of
            parameters, modes and parameters are not changed.

        Raises:
            UsageError: There is no batch, or a loss is not a finite scalar.
        """
        totals = [torch.zeros(heads, dtype=torch.float64) for heads in self.num_heads]
        examples = 0
        for count, sums in self.importance_sums(loss, batches):
            examples += count
            for total, layer_sums in zip(totals, sums, strict=True):
                total += layer_sums
        if not examples:
            raise UsageError("Given no batch to measure head importance on. Give at least one.")
        importances = [total / examples for total in totals]
        return [normalise_importance(importance) for importance in importances] if normalise else importances

    def importance_sums(
        self, loss: Callable[[Batch], Tensor], batches: Iterable[Batch]
    ) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield for each batch its number of examples, and by layer the sums (heads,) of |dL / d xi_h|.

        Args:
            loss: As for :meth:`importance`.
            batches: As for :meth:`importance`; gradients are summed over each batch, see the class.
        """
        for batch in batches:
            with evaluating(self.model), torch.enable_grad():
                sums = self._absolute_gradients(functools.partial(compute_finite_loss, loss, batch))
            yield sums

    @contextmanager
    def prune_temporarily(self, heads: Mapping[int, Iterable[int]]) -> Iterator[None]:
        """Return a context in which the gates of further heads are closed.

        Args:
            heads: By layer the heads, as for :meth:`prune`.
        """
        pruned = dict(self.pruned)
        self.prune(heads)
        try:
            yield
        finally:
            self.restore()
            self.prune(pruned)

    def prune(self, heads: Mapping[int, Iterable[int]]) -> None:
        """Close the gates of some heads, in addition to closed ones.

        Args:
            heads: By layer the heads to prune, as from :func:`least_important`.

        Raises:
            UsageError: A layer or head does not exist.
        """
        heads_by_layer = {layer: sorted(set(numbers)) for layer, numbers in heads.items()}
        for layer, numbers in heads_by_layer.items():
            num_heads = self.num_heads[layer] if 0 <= layer < len(self.num_heads) else 0
            if not num_heads or any(not 0 <= head < num_heads for head in numbers):
                raise UsageError(
                    f"Given heads {numbers} of layer {layer}. Layers 0 to {len(self.num_heads) - 1} have "
                    f"{', '.join(map(str, self.num_heads))} heads, counted from 0."
                )
        for layer, numbers in heads_by_layer.items():
            closed_heads = self.pruned.get(layer, ())
            self._close(layer, [head for head in numbers if head not in closed_heads])
            if closed_heads or numbers:
                self.pruned[layer] = tuple(sorted({*closed_heads, *numbers}))

    def restore(self) -> None:
        """Open all gates: the model computes the same as before :meth:`prune`, bit for bit."""
        for layer in self.pruned:
            self._open(layer)
        self.pruned = {}

    @abstractmethod
    def _absolute_gradients(self, loss: Callable[[], Tensor]) -> tuple[int, list[Tensor]]:
        """Return the number of examples, and for each layer the sum of |dL / d xi| over them."""

    @abstractmethod
    def _close(self, layer: int, heads: Sequence[int]) -> None: ...

    @abstractmethod
    def _open(self, layer: int) -> None: ...


class AttendGates(HeadGates):
    """Gates on the heads of a model that attends by its own method ``attend``, such as a TemperedModule.

    Each example has its own gates, so the importance is exact for any batch size. Until :meth:`detach` the
    ``attend`` of the model is replaced; do not copy or compile the model before.

    Args:
        model: A module with ``num_layers`` and ``attend(q_BHQD, k_BHKD, v_BHKD, *, layer, ...)``, which
            returns (B, H, Q, D).
        num_heads: Heads of each layer, >= 1.

    Raises:
        AttachError: The model has no such method, or already has gates.
    """

    def __init__(self, model: nn.Module, *, num_heads: int) -> None:
        attend: Any = getattr(model, "attend", None)
        num_layers: Any = getattr(model, "num_layers", None)
        if not callable(attend) or not isinstance(num_layers, int):
            raise AttachError(
                f"{type(model).__name__} has no attend method and number of layers, as a TemperedModule has. "
                "For other models give the projections behind the attention: ProjectionGates(model, ...)."
            )
        if "attend" in vars(model):
            raise AttachError("The model already has gates. Detach them first, or use them.")
        check_count("num_heads", num_heads)
        super().__init__(model, [num_heads] * num_layers)
        self._recorded: list[tuple[int, Tensor]] | None = None

        def attend_gated(*args: Any, layer: int, **kwargs: Any) -> Tensor:
            return self._gate(attend(*args, layer=layer, **kwargs), layer)

        vars(model)["attend"] = attend_gated

    def detach(self) -> None:
        """Open all gates and restore the model's own ``attend``."""
        self.restore()
        vars(self.model).pop("attend", None)

    def _gate(self, out_BHQD: Tensor, layer: int) -> Tensor:
        if out_BHQD.shape[1] != self.num_heads[layer]:
            raise UsageError(
                f"Layer {layer} has {out_BHQD.shape[1]} heads, but the gates were made with num_heads="
                f"{self.num_heads[layer]}. Give the model's number of heads."
            )
        if self._recorded is not None:
            gate_BH11 = out_BHQD.new_ones(*out_BHQD.shape[:2], 1, 1).requires_grad_()
            self._recorded.append((layer, gate_BH11))
            out_BHQD = out_BHQD * gate_BH11
        closed_heads = self.pruned.get(layer)
        if not closed_heads:
            return out_BHQD
        hidden_H11 = torch.zeros(out_BHQD.shape[1], 1, 1, dtype=torch.bool, device=out_BHQD.device)
        hidden_H11[list(closed_heads)] = True
        return out_BHQD.masked_fill(hidden_H11, 0.0)

    def _absolute_gradients(self, loss: Callable[[], Tensor]) -> tuple[int, list[Tensor]]:
        self._recorded = []
        try:
            value = loss()
            # Activation checkpointing runs attention again in backward; those gates do not belong to the
            # loss.
            gates = list(self._recorded)
            if not gates:
                raise UsageError("The loss did not attend. Compute it with the model that the gates are on.")
            gradients = torch.autograd.grad(value, [gate for _, gate in gates], allow_unused=True)
        finally:
            self._recorded = None
        by_layer: dict[int, Tensor] = {}
        for (layer, gate), gradient in zip(gates, gradients, strict=True):
            gradient = torch.zeros_like(gate) if gradient is None else gradient
            # A layer that is used more than once has one gate.
            by_layer[layer] = by_layer[layer] + gradient if layer in by_layer else gradient
        examples = len(gates[0][1])
        sums = [torch.zeros(heads, dtype=torch.float64) for heads in self.num_heads]
        for layer, gradient in by_layer.items():
            # The loss is a mean over examples; the loss of one example has the gradient times their number.
            sums[layer] = examples * gradient.flatten(1).double().abs().sum(dim=0).cpu()
        return examples, sums

    def _close(self, layer: int, heads: Sequence[int]) -> None:
        pass

    def _open(self, layer: int) -> None:
        pass


class ProjectionGates(HeadGates):
    """Gates on the inputs of output projections, where the heads lie side by side.

    A gate on a head is a factor on its columns of the weight, so no hook is needed, and it works however the
    projection is called, as in the fast path of ``nn.MultiheadAttention``. Importance follows from the
    gradient of the weight, dL / d xi_h = sum over the head's columns of W dL/dW, which is summed over
    examples: **give batches of one example**, since gradients of opposite signs cancel within a batch.

    Pruning sets columns to zero in place. It is meant for evaluation: further training would change them
    again.

    Args:
        model: Any module.
        projections: Names of the output projections in depth order, or patterns of them as in ``fnmatch``;
            ``auto`` for those of every ``nn.MultiheadAttention``.
        num_heads: Heads of each layer, >= 1; may be left out for ``auto``.

    Raises:
        AttachError: There is no such projection, its input is not a multiple of the number of heads, or its
            weight is shared or not a parameter.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        projections: Sequence[str] | Literal["auto"] = "auto",
        num_heads: int | None = None,
    ) -> None:
        out_projections = _find_projections(model, projections, num_heads)
        super().__init__(model, [heads for _, _, heads in out_projections])
        self._weights = [_projection_weight(name, module) for name, module, _ in out_projections]
        self._axes = [_input_axis(module) for _, module, _ in out_projections]
        for (name, _, heads), weight, axis in zip(out_projections, self._weights, self._axes, strict=True):
            if heads < 1 or weight.shape[axis] % heads:
                raise AttachError(
                    f'"{name}" has {weight.shape[axis]} inputs, which {heads} heads do not divide. Give the '
                    "number of heads of the queries."
                )
        if len({id(weight) for weight in self._weights}) < len(self._weights):
            raise AttachError(
                "Two of the projections share one weight, so their heads cannot be gated separately."
            )
        self._original_columns: dict[tuple[int, int], Tensor] = {}

    def _columns(self, layer: int, head: int) -> Tensor:
        weight, axis = self._weights[layer].detach(), self._axes[layer]
        size = weight.shape[axis] // self.num_heads[layer]
        return weight.narrow(axis, head * size, size)

    def _absolute_gradients(self, loss: Callable[[], Tensor]) -> tuple[int, list[Tensor]]:
        frozen = [weight for weight in self._weights if not weight.requires_grad]
        for weight in frozen:
            weight.requires_grad_()
        try:
            gradients: Sequence[Tensor | None] = torch.autograd.grad(loss(), self._weights, allow_unused=True)
        finally:
            for weight in frozen:
                weight.requires_grad_(False)
        sums = []
        for weight, axis, heads, gradient in zip(
            self._weights, self._axes, self.num_heads, gradients, strict=True
        ):
            if gradient is None:
                sums.append(torch.zeros(heads, dtype=torch.float64))
                continue
            products = (weight.detach().double() * gradient.double()).sum(dim=1 - axis)
            sums.append(products.unflatten(0, (heads, -1)).sum(dim=-1).abs().cpu())
        return 1, sums

    def _close(self, layer: int, heads: Sequence[int]) -> None:
        for head in heads:
            columns = self._columns(layer, head)
            self._original_columns[layer, head] = columns.clone()
            columns.zero_()

    def _open(self, layer: int) -> None:
        for head in self.pruned[layer]:
            self._columns(layer, head).copy_(self._original_columns.pop((layer, head)))


def least_important(importance: Sequence[Tensor], count: int) -> dict[int, tuple[int, ...]]:
    """Return the least important heads of the whole model, leaving at least one in each layer.

    Args:
        importance: For each layer (heads,), as from :meth:`HeadGates.importance`.
        count: Number of heads to return, >= 0.

    Raises:
        UsageError: There are fewer heads that can be spared.
    """
    num_spare = sum(len(heads) - 1 for heads in importance)
    if not 0 <= count <= num_spare:
        raise UsageError(
            f"Given count={count}, but {num_spare} heads can be spared: one stays in each layer. "
            f"Give 0 to {num_spare}."
        )
    ranked_heads = sorted(
        (value, layer, head)
        for layer, heads in enumerate(importance)
        for head, value in enumerate(heads.tolist())
    )
    heads_by_layer: dict[int, list[int]] = {}
    for _, layer, head in ranked_heads:
        if sum(map(len, heads_by_layer.values())) == count:
            break
        if len(heads_by_layer.get(layer, ())) < len(importance[layer]) - 1:
            heads_by_layer.setdefault(layer, []).append(head)
    return {layer: tuple(sorted(heads)) for layer, heads in sorted(heads_by_layer.items())}


def normalise_importance(importance: Tensor) -> Tensor:
    """Return the importance of a layer's heads scaled to l2 norm 1; 0 if all are 0."""
    norm: Tensor = importance.norm().clamp(min=torch.finfo(importance.dtype).tiny)
    return importance / norm


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Return a context in which a model is in eval mode; afterwards each module has its previous mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def compute_finite_loss(loss_of: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    """Return the loss of a batch; raises UsageError if it is not a finite scalar."""
    loss = loss_of(batch)
    if loss.numel() != 1 or not math.isfinite(loss.item()):
        description = f"shape {tuple(loss.shape)}" if loss.numel() != 1 else f"the value {loss.item()}"
        raise UsageError(f"Given a loss of {description}. Give a finite scalar, the mean over the examples.")
    return loss.reshape(())


def _find_projections(
    model: nn.Module, projections: Sequence[str] | Literal["auto"], num_heads: int | None
) -> list[tuple[str, nn.Module, int]]:
    """Return name, module and number of heads of each output projection, in depth order."""
    if projections == "auto":
        out_projections: list[tuple[str, nn.Module, int]] = [
            (f"{name}.out_proj".lstrip("."), module.out_proj, num_heads or module.num_heads)
            for name, module in model.named_modules()
            if isinstance(module, nn.MultiheadAttention)
        ]
        if not out_projections:
            raise AttachError(
                f"{type(model).__name__} has no nn.MultiheadAttention. Give names or patterns of the "
                "projections behind its attention, and num_heads: "
                'projections=["*.out_proj"], num_heads=8.'
            )
        return out_projections
    if isinstance(projections, str) or num_heads is None:
        raise AttachError(
            f"projections={projections!r} and num_heads={num_heads!r}. Give a list of names or patterns, and "
            "num_heads, which does not follow from the shape of a projection."
        )
    names = [name for name, _ in model.named_modules()]
    for pattern in projections:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise AttachError(
                f'"{pattern}" in projections matches no module. There are: {_list_some(names)}.'
            )
    return [
        (name, module, num_heads)
        for name, module in model.named_modules()
        if any(fnmatchcase(name, pattern) for pattern in projections)
    ]


def _projection_weight(name: str, module: nn.Module) -> nn.Parameter:
    weight = module._parameters.get("weight")
    if weight is None or weight.ndim != 2 or not weight.is_floating_point():
        raise AttachError(
            f'"{name}" ({type(module).__name__}) has no matrix of floating numbers as its weight parameter. '
            "Give the linear maps behind the attention; take parametrizations off and merge adapters first."
        )
    return weight


def _input_axis(module: nn.Module) -> int:
    """Return the axis of input features of the weight: Conv1D of transformers stores (input, output)."""
    return 0 if any(kind.__name__ == "Conv1D" for kind in type(module).__mro__) else 1


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(name for name in names[:12] if name) + (", ..." if len(names) > 12 else "")
