"""Puts a temperature schedule on the outputs of projections: router gates, classifier heads, any logits.

Weight and bias are multiplied by 1/temperature where they are read (``projection.py``), so that what the
projection returns is divided by the temperature. That it acts is proven in ``rows_proof.py``; attention is
attached to in ``attachment.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from tempopt.attention.attach.hf_interface import BINDING
from tempopt.attention.attach.marks import refuse_marked
from tempopt.attention.attach.named import NamedAttachment
from tempopt.attention.attach.projection import Factors, factors_of, restore, temper
from tempopt.attention.attach.query_rows import (
    QueryRows,
    Rows,
    check_own,
    output_axes,
    output_axis,
    some_names,
)
from tempopt.attention.attach.rows_proof import prove_rows
from tempopt.errors import AttachError
from tempopt.temperature import TemperatureParameters

_LEAVE_OUT = "leave it out of rows"
# Whose weights are logits' by their names.
_HINTS = ("gate", "router", "head", "classif", "score", "logit", "fc", "proto")


class RowsAttachment(NamedAttachment):
    """A temperature schedule on the outputs of projections; :func:`attach_rows` makes it.

    It has what :class:`tempopt.ValueAttachment` has: one callback moves either of them, and as a context
    manager it detaches at the end. It may be pickled and copied together with its model.

    Attributes:
        layers: Names of the projections, in the order of ``named_modules``. All have one temperature.
        found: 1, where the projections return what they do without it.
        plan: The temperature over progress.
        progress: The training progress, in [0, 1], whose temperature is set.
        entropy: No entropy term: there is no attention.
    """

    def __init__(self, model: nn.Module, rows: Sequence[QueryRows]) -> None:
        super().__init__(model, [each.name for each in rows], 1.0)
        self._rows = list(rows)
        self._factors = Factors(rows, named=True)
        temper(rows, self._factors)

    @property
    def attached(self) -> bool:
        """Whether the schedule is still on the projections."""
        return self._factors.attached

    @property
    def called(self) -> str:
        """What messages call the projections."""
        return f'"{some_names(self.layers)}"'

    def self_test(self, loss: Callable[[], Any]) -> None:
        """Prove that training reads the temperature of each projection, and that it divides its output.

        The loss of a batch, or its gradient, has to move with the temperature of each projection that the
        batch uses, by more than rounding and a usual epsilon (1e-5) of a normalisation make of it: they are
        computed at temperatures from a sixteenth to one and a half. The output of each has to be that of the
        projection with its weight and bias divided by hand, and half of it at temperature 2. Buffers,
        gradients and random generators are afterwards as they were.

        Args:
            loss: Computes the training loss of a fixed batch and returns it: a tensor, or tensors in any
                nesting of sequences and mappings.

        Raises:
            AttachError: A projection does not pass, the batch uses none of them, the loss is not the same
                twice, or there is no loss.
        """
        self._require_attached()
        before = self._factors.values
        try:
            prove_rows(self._model, self._rows, self._factors, loss)
        finally:
            self._factors.set(before)

    def learn(self) -> None:
        """Have backward passes leave the gradient of the temperature from now on."""
        own = self.temperatures[0]
        self._factors.learn()
        self.set_temperatures([own])

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ, as the only entry, and forget it; None: none was left."""
        found = self._factors.log_gradients()
        return None if found is None else [sum(found)]

    def detach(self) -> None:
        """Take the schedule off: the projections are bit for bit what they were without."""
        if self.attached:
            for each in self._rows:
                restore(each.module)  # type: ignore[arg-type]

    def _write(self, temperature: float) -> None:
        self._factors.set([1.0 / temperature] * len(self._rows))

    def _keep_unwritten(self) -> None:
        """Do nothing: parameters stay as they are."""

    def _hold(self) -> None:
        self._factors.final = (self.last,) * len(self._rows)

    def _restore(self) -> None:
        self._factors.final = (1.0,) * len(self._rows)
        self._write(1.0)


def attach_rows(
    model: nn.Module,
    patterns: str | Sequence[str],
    parameters: TemperatureParameters | Mapping[str, object],
    *,
    loss: Callable[[], Any] | None = None,
) -> RowsAttachment:
    """Divide the outputs of projections by a temperature that follows a schedule, without editing the model.

    Weight and bias of each projection are multiplied by 1/temperature as they are read, so its output, the
    logits of a softmax for instance, is divided by the temperature, in training and in evaluation. Parameters
    stay as they are in name, order, value and optimizer. At temperature 1 training is bit for bit that of the
    model alone.

    Args:
        model: Any module. The projections get another class until :meth:`RowsAttachment.detach`: write to
            parameters only through ``named_parameters`` then, for ``module.weight`` reads the product.
        patterns: Names of projections as in ``named_modules``, or patterns of them as in ``fnmatch`` (``*``
            matches dots too), one or several. A projection is an ``nn.Linear``, a convolution, a ``Conv1D``
            of transformers, or a router of a mixture of experts that keeps a weight, and at most a bias, of
            its own. Other modules that a pattern matches are passed over.
        parameters: The schedule, as temperature parameters by name. ``temperature_init`` and
            ``warmup_start`` that are left out are 1.
        loss: The training loss of a fixed batch, to run :meth:`RowsAttachment.self_test` on; None tests
            nothing.

    Raises:
        AttachError: A pattern matches no projection; a projection has a temperature already, or its
            parameters are shared, computed or quantised; the parameters are about layers, lengths or
            attention; or the self-test fails. The model is then as it was.
        SpecError: A parameter is out of range.
    """
    attachment = RowsAttachment(model, _matched(model, [patterns] if isinstance(patterns, str) else patterns))
    try:
        attachment.use(parameters)
        if loss is not None:
            attachment.self_test(loss)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def _matched(model: nn.Module, patterns: Sequence[str]) -> list[QueryRows]:
    """Return the projections that patterns match, each once."""
    if not patterns:
        raise AttachError(f"No pattern of projections is given. {_candidates(model)}")
    modules = {name: module for name, module in model.named_modules() if name}
    found: set[str] = set()
    for pattern in patterns:
        names = [name for name in modules if fnmatchcase(name, pattern)]
        if not names:
            raise AttachError(f'Pattern "{pattern}" in rows matches no module. {_candidates(model)}')
        projections = [name for name in names if _is_projection(modules[name])]
        if not projections:
            kind = type(modules[names[0]]).__name__
            raise AttachError(
                f'Pattern "{pattern}" in rows matches {some_names(names)} ({kind}), and none of it is a '
                "projection: an nn.Linear, an nn.Conv, a Conv1D as in transformers, or a router that keeps a "
                f"weight of its own. {_candidates(model)}"
            )
        found |= set(projections)
    return [_rows(model, name, module) for name, module in modules.items() if name in found]


def _rows(model: nn.Module, name: str, module: nn.Module) -> QueryRows:
    _refuse_tempered(model, name, module)
    refuse_marked(name, module)
    if output_axis(module) is not None:
        axes = output_axes(model, name, otherwise=_LEAVE_OUT)
    else:
        axes = {key: 0 for key, value in module._parameters.items() if value is not None}
        for parameter in axes:
            check_own(model, name, parameter, otherwise=_LEAVE_OUT)
    rows = tuple(Rows(parameter=key, parts=1, axis=axis) for key, axis in axes.items())
    return QueryRows(name=name, module=module, rows=rows)


def _refuse_tempered(model: nn.Module, name: str, module: nn.Module) -> None:
    factors = factors_of(module)
    if factors is not None and factors.named:
        raise AttachError(
            f'"{name}" has a temperature of attach_rows already. Change it with use() of the attachment that '
            "was returned, or take it off with detach(). In a study, give each projection to one temperature."
        )
    parts = name.split(".")
    around = (model.get_submodule(".".join(parts[:end])) for end in range(len(parts)))
    if factors is not None or any(BINDING in each.__dict__ and _is_layer(each) for each in around):
        raise AttachError(
            f'"{name}" is part of an attention that has a temperature attached already. Give patterns of '
            "projections that are no attention's, or take the temperature off attention."
        )


def _is_layer(module: nn.Module) -> bool:
    binding: Any = module.__dict__[BINDING]
    return binding.index is not None


def _is_projection(module: nn.Module) -> bool:
    return output_axis(module) is not None or _is_router(module)


def _is_router(module: nn.Module) -> bool:
    """Whether a module keeps a matrix, one row for each output, and at most a bias beside it.

    Modules of PyTorch itself that do are something else, as embeddings.
    """
    if type(module).__module__.startswith("torch.") or module._modules:
        return False
    own = {key: value for key, value in module._parameters.items() if value is not None}
    weight, bias = own.get("weight"), own.get("bias")
    if weight is None or weight.ndim != 2 or not own.keys() <= {"weight", "bias"}:
        return False
    return bias is None or bias.shape == weight.shape[:1]


def _candidates(model: nn.Module) -> str:
    """Return the advice on which patterns could be given, with the likeliest projections of this model."""
    names = [name for name, module in model.named_modules() if name and _is_projection(module)]
    if not names:
        return f"{type(model).__name__} has no projections at all: make the logits by an nn.Linear."
    last = {name: name.rpartition(".")[2].lower() for name in names}
    likely = [name for name in names if any(hint in last[name] for hint in _HINTS)] or names
    return f'Candidates: {some_names(likely)}. Give patterns of those, as in rows: ["{likely[0]}"].'
