"""Puts a temperature plan on the attention of any module, without editing it.

The query rows are scaled where they are read (``tempopt.attention.projection``); which rows those are is
found in ``query_rows``, and that it works is proven in ``self_test``. Temperatures that need to know more
than the query are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torch import nn

from tempopt.attention.projection import Factors, TemperedProjection, restore, temper
from tempopt.attention.query_rows import AS_TEMPERED_MODULE, Layers, QueryRows, query_rows
from tempopt.attention.self_test import Forward, self_test
from tempopt.errors import AttachError, unknown
from tempopt.temperature import NEUTRAL, TEMPERATURE_PARAMETERS, TemperatureParameters, TemperaturePlan

Parameters = TemperatureParameters | Mapping[str, object]

_UNDELIVERABLE = {
    "length_scaling": "the query rows are the same for every token, however many keys it sees",
    "entropy_lambda": "the entropy of attention is not known where the query is made",
    "output_temperature": "the logits of the loss are computed by the module itself",
}


class Attachment:
    """A temperature plan on a model; :func:`attach` makes it.

    It may be pickled and copied together with its model. A copy of the model alone keeps the temperatures
    that were set when it was copied, until :func:`detach`.

    Attributes:
        layers: Names of the modules whose query is tempered, in depth order.
        plan: The temperatures over progress and layers.
        progress: The training progress, in [0, 1], whose temperatures are set.
    """

    layers: list[str]
    plan: TemperaturePlan
    progress: float

    def __init__(
        self, model: nn.Module, rows: Sequence[QueryRows], parameters: TemperatureParameters
    ) -> None:
        self.layers = [layer.name for layer in rows]
        self.plan = parameters.plan(len(rows))
        self._model = model
        self._rows = list(rows)
        self._factors = Factors(rows)
        self.set_progress(0.0)
        for index, layer in enumerate(rows):
            temper(layer, index, self._factors)

    def use(self, parameters: Parameters) -> None:
        """Change to another plan, at the same progress.

        Raises:
            AttachError: if the parameters ask for what attaching cannot deliver.
        """
        self.plan = _deliverable(parameters).plan(len(self._rows))
        self.set_progress(self.progress)

    def set_progress(self, progress: float) -> None:
        """Set the temperature of every layer to that at ``progress``, in [0, 1]: one small copy in place.

        To be called before a forward, not between a forward and its backward.

        Raises:
            AttachError: if the model was detached meanwhile.
        """
        if not self._factors.attached:
            raise AttachError("The model was detached, so no temperature can be set. Attach it again.")
        temperatures = self.plan.temperatures(progress)
        self._factors.set([1.0 / temperature for temperature in temperatures])
        self.progress = progress

    def detach(self) -> None:
        """Give the modules their own classes back: the model is bit for bit what it was without."""
        if self._factors.attached:
            detach(self._model)

    def self_test(self, forward: Forward) -> None:
        """Prove on the model itself that the temperature of each layer acts, and acts as it should.

        In eval mode, layer by layer: the output must move, and be that of the untouched model with the
        temperature multiplied into its weights, with gradients and without (which may take other ways
        through PyTorch). In fused projections a doubled query must cancel against a halved key. Branches
        that are closed at initialisation (zero matrices, tiny gains) are opened for the test. Weights,
        buffers, gradients, modes, temperatures and random generators are afterwards as they were.

        Args:
            forward: Runs the model on some fixed batch, with more than one token, and returns tensors, in
                any nesting of sequences, mappings and dataclasses.

        Raises:
            AttachError: if a layer does not move the output, moves it otherwise than the baked weights do,
                or ``forward`` returns nothing to compare or not the same twice.
        """
        self_test(self._model, self._rows, self._factors, forward)


def attach(
    model: nn.Module, parameters: Parameters, *, layers: Layers = "auto", example: Forward | None = None
) -> Attachment:
    """Put temperatures on the attention of a model, without editing it.

    Weight and bias rows of each query projection are multiplied by 1/temperature as they are read, so that
    query times key, on top of the model's own scale, is divided by the temperature; what is added to that
    (masks, position biases) is not. Parameters stay as they are in name, order, value and optimizer. At
    temperature 1 training is bit for bit that of the model alone.

    Args:
        model: Any module; its query projections get another class until :func:`detach`. While attached,
            write to parameters only through ``named_parameters``: ``module.weight`` reads the product.
        parameters: The plan; also as a mapping of temperature parameters by name.
        layers: Which projections, as in :func:`~tempopt.attention.query_rows.query_rows`.
        example: A forward to run :meth:`Attachment.self_test` on. Without one, call it before the
            attachment is relied upon.

    Raises:
        AttachError: if there is no attention to be found, or a projection or parameter that cannot be
            tempered from outside, or the self-test fails; the model is then as it was.
    """
    wanted = _deliverable(parameters)
    already = [name for name, module in model.named_modules() if isinstance(module, TemperedProjection)]
    if already:
        raise AttachError(
            f'The model has a temperature attached already, on "{already[0]}". Change it with use() of the '
            "attachment that was returned, or take it off first: tempopt.attention.attach.detach(model)."
        )
    attachment = Attachment(model, query_rows(model, layers), wanted)
    if example is not None:
        try:
            attachment.self_test(example)
        except BaseException:
            attachment.detach()
            raise
    return attachment


def detach(model: nn.Module) -> None:
    """Take all temperatures off a model, as off one that was unpickled with them; its attachments end."""
    for module in model.modules():
        if isinstance(module, TemperedProjection):
            restore(module)


def _deliverable(parameters: Parameters) -> TemperatureParameters:
    """Return the plan's parameters, refusing what scaled query rows cannot do."""
    given = parameters if isinstance(parameters, Mapping) else dataclasses.asdict(parameters)
    for name, value in given.items():
        if name not in NEUTRAL:
            raise AttachError(unknown("temperature parameter", name, TEMPERATURE_PARAMETERS))
        if name in _UNDELIVERABLE and value != NEUTRAL[name]:
            raise AttachError(
                f"{name}={value!r} cannot be attached from outside, only {name}={NEUTRAL[name]!r}: "
                f"{_UNDELIVERABLE[name]}. For that, {AS_TEMPERED_MODULE}."
            )
    return TemperatureParameters.from_mapping(given)
