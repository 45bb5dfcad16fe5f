"""Puts a temperature plan on the attention of any module, without editing it.

There are two ways. Query rows are scaled where they are read (``tempopt.attention.projection``), which works
on any module; which rows those are is found in ``query_rows``. What depends on the keys too is delivered by
models of Hugging Face transformers, through their attention interface (``tempopt.attention.interface``).
What neither can deliver is refused. That it works is proven in ``self_test``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, Self

from torch import nn

from tempopt.attention.interface import BINDING, Interface, check_deliverable
from tempopt.attention.interface_layers import RECIPE, InterfaceLayer, interface_layers, normalises_query
from tempopt.attention.observing import Observe, check_temperatures, fused_attention_observed
from tempopt.attention.projection import Factors, TemperedProjection, restore, temper
from tempopt.attention.query_rows import AS_TEMPERED_MODULE, Layers, QueryRows, query_rows
from tempopt.attention.self_test import Forward, Tempered, TemperedInterface, TemperedRows, self_test
from tempopt.errors import AttachError, unknown
from tempopt.temperature import (
    ENTROPY_PARAMETERS,
    NEUTRAL,
    TEMPERATURE_PARAMETERS,
    EntropyParameters,
    TemperatureParameters,
    TemperaturePlan,
)

Parameters = TemperatureParameters | Mapping[str, object]
Way = Literal["auto", "query_rows", "attention_interface"]

_WAYS = ("auto", "query_rows", "attention_interface")
_INTERFACE = "attention_interface"

# What only the attention interface of transformers can deliver, and why query rows cannot.
_BESIDE_THE_QUERY = {
    "length_scaling": "the query rows are the same for every token, however many keys it sees",
    "normaliser": "what makes weights of the logits is decided behind the query",
    **dict.fromkeys(ENTROPY_PARAMETERS, "the entropy of attention is not known where the query is made"),
}
_UNDELIVERABLE = {"output_temperature": "the logits of the loss are computed by the module itself"}


class _Mechanism(Protocol):
    """One of the ways, on one model."""

    way: str

    @property
    def attached(self) -> bool:
        """Whether the model still has the temperatures."""

    @property
    def tempered(self) -> Tempered:
        """The layers and their temperatures."""

    def require_in_place(self) -> None:
        """Raise AttachError if the model was given another attention meanwhile."""

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Take what the plan says beside the temperatures."""

    def set(self, temperatures: Sequence[float], entropy_weight: float) -> None:
        """Take the temperatures and the weight of the entropy term."""

    def set_loss_scale(self, loss_scale: float) -> None:
        """Take the factor on the loss."""

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Show queries and keys for a while."""


class _ByQueryRows:
    way = "query_rows"

    def __init__(self, model: nn.Module, rows: Sequence[QueryRows]) -> None:
        self._model = model
        factors = Factors(rows)
        self.tempered: Tempered = TemperedRows(list(rows), factors)
        self._factors = factors
        for index, layer in enumerate(rows):
            temper(layer, index, factors)

    @property
    def attached(self) -> bool:
        return self._factors.attached

    def require_in_place(self) -> None:
        """Do nothing: a module that is put in place of another is another model."""

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Do nothing: what there is beside the temperatures was refused."""

    def set(self, temperatures: Sequence[float], entropy_weight: float) -> None:
        self.tempered.set_values([1.0 / temperature for temperature in temperatures])

    def set_loss_scale(self, loss_scale: float) -> None:
        """Do nothing: nothing is added to the loss."""

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        return fused_attention_observed(self._model, self.tempered.names, observe)


class _ByInterface:
    way = _INTERFACE

    def __init__(self, model: nn.Module, layers: Sequence[InterfaceLayer]) -> None:
        self._layers = list(layers)
        self._interface = Interface(model, layers)
        self.tempered: Tempered = TemperedInterface(self._layers, self._interface)

    @property
    def attached(self) -> bool:
        return self._interface.attached

    def require_in_place(self) -> None:
        self._interface.require_in_place()

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        check_deliverable(self._layers, plan, entropy)
        self._interface.use(plan, entropy)

    def set(self, temperatures: Sequence[float], entropy_weight: float) -> None:
        self._interface.set_values([1.0 / temperature for temperature in temperatures], entropy_weight)

    def set_loss_scale(self, loss_scale: float) -> None:
        self._interface.set_loss_scale(loss_scale)

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        return self._interface.observers.joined(observe)


class Attachment:
    """A temperature plan on a model; :func:`attach` makes it.

    It may be pickled and copied together with its model. A copy of the model alone keeps the temperatures
    that were set when it was copied, until :func:`detach`. As a context manager it detaches at the end.

    Attributes:
        layers: Names of the modules whose query is tempered, in depth order.
        plan: The temperatures over progress and layers, and what comes beside them.
        progress: The training progress, in [0, 1], whose temperatures are set.
        entropy: The entropy term of the loss.
        way: How the temperatures are attached, ``query_rows`` or ``attention_interface``.
    """

    layers: list[str]
    plan: TemperaturePlan
    progress: float
    entropy: EntropyParameters
    way: str

    def __init__(self, model: nn.Module, mechanism: _Mechanism) -> None:
        self.layers = mechanism.tempered.names
        self.progress = 0.0
        self.entropy = EntropyParameters()
        self._own_temperatures: tuple[float, ...] | None = None
        self.way = mechanism.way
        self._model = model
        self._mechanism = mechanism

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature of each layer in force, without the length factor."""
        own = self._own_temperatures
        return self.plan.temperatures(self.progress) if own is None else own

    def use(self, parameters: Parameters) -> None:
        """Change to another plan, at the same progress.

        Args:
            parameters: The plan. A mapping says what becomes of the entropy term, too, which
                ``TemperatureParameters`` know nothing of.

        Raises:
            AttachError: if the parameters ask for what this way of attaching cannot deliver.
        """
        _refuse_undeliverable(_named(parameters), self.way, self._model)
        wanted, entropy = _read(parameters, self.entropy)
        plan = wanted.plan(len(self.layers))
        self._require_attached()
        self._mechanism.use(plan, entropy)
        self.plan, self.entropy, self._own_temperatures = plan, entropy, None
        self.set_progress(self.progress)

    def set_progress(self, progress: float) -> None:
        """Set the temperature of every layer, and the weight of the entropy, to those at ``progress``.

        It is in [0, 1], and one small copy in place.

        To be called before a forward, not between a forward and its backward.

        Raises:
            AttachError: if the model was detached meanwhile.
        """
        self._require_attached()
        self.progress = progress
        self._mechanism.set(self.temperatures, self.entropy.weight(progress))

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Hold each layer at a temperature of its own, whatever the plan says, until :meth:`use`.

        Raises:
            AttachError: if the model was detached meanwhile.
            SpecError: if it is not one number a layer, each from 1e-6 to 1e6.
        """
        self._require_attached()
        self._own_temperatures = check_temperatures(temperatures, len(self.layers))
        self.set_progress(self.progress)

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Return a context in which the queries and keys of each tempered layer are shown to an observer.

        By query rows only what goes through ``torch.nn.functional.scaled_dot_product_attention`` is seen, by
        the interface only softmax of logits to which the model adds nothing of its own (soft caps, sinks).
        What is compiled is not seen.
        """
        return self._mechanism.observed(observe)

    def set_loss_scale(self, loss_scale: float) -> None:
        """Say by what factor the loss is multiplied before its gradient is taken, so that the entropy is too.

        That is a gradient scaler's scale, divided by the number of batches over which gradients are summed.
        """
        self._mechanism.set_loss_scale(loss_scale)

    def detach(self) -> None:
        """Take the temperatures off: the model is bit for bit what it was without."""
        if self._mechanism.attached:
            detach(self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def self_test(self, forward: Forward) -> None:
        """Prove on the model itself that the temperature of each layer acts, and acts as it should.

        In eval mode, layer by layer: the output must move, and be that of the untouched model with the
        temperature multiplied into its weights, or through the attention interface its scale divided by the
        temperature, with gradients and without (which may take other ways through PyTorch). In fused
        projections a doubled query must cancel against a halved key. Branches that are closed at
        initialisation (zero matrices, tiny gains) are opened for the test. Length scaling, entropy term and
        normaliser are left out. Weights, buffers, gradients, modes, temperatures and random generators are
        afterwards as they were.

        Args:
            forward: Runs the model on some fixed batch, with more than one token, and returns tensors, in
                any nesting of sequences, mappings and dataclasses.

        Raises:
            AttachError: if a layer does not move the output, moves it otherwise than by hand, ``forward``
                returns nothing to compare or not the same twice, or the model was detached.
        """
        self._require_attached()
        self_test(self._model, self._mechanism.tempered, forward)

    def _require_attached(self) -> None:
        if not self._mechanism.attached:
            raise AttachError("The model was detached, so no temperature can be set. Attach it again.")
        self._mechanism.require_in_place()


def attach(
    model: nn.Module,
    parameters: Parameters,
    *,
    layers: Layers = "auto",
    way: Way = "auto",
    example: Forward | None = None,
) -> Attachment:
    """Put temperatures on the attention of a model, without editing it.

    By ``query_rows``, weight and bias rows of each query projection are multiplied by 1/temperature as they
    are read, so that query times key, on top of the model's own scale, is divided by the temperature; what
    is added to that (masks, position biases) is not. Parameters stay as they are in name, order, value and
    optimizer.

    By ``attention_interface``, a model of Hugging Face transformers is given an attention function that
    multiplies the query and then does what its own would. Only there can a temperature follow the number of
    keys (``length_scaling``), and can ``entropy_lambda`` and ``normaliser`` be had. A query that is
    normalised after its projection (QK-norm) is multiplied after that.

    At temperature 1 training is bit for bit that of the model alone.

    Args:
        model: Any module. By query rows its query projections get another class until :func:`detach`: write
            to parameters only through ``named_parameters`` then, for ``module.weight`` reads the product.
            By the attention interface its configuration names another attention implementation.
        parameters: The plan; also as a mapping of temperature parameters by name.
        layers: Which projections, as in :func:`~tempopt.attention.query_rows.query_rows`, or which attention
            modules, by patterns of their names or of what is around or inside of them.
        way: ``auto`` is query rows, unless what is asked for needs the interface and the model has it.
        example: A forward to run :meth:`Attachment.self_test` on. Without one, call it before the
            attachment is relied upon.

    Raises:
        AttachError: if there is no attention to be found, or a projection or parameter that cannot be
            tempered from outside, or the self-test fails; the model is then as it was.
    """
    given = _named(parameters)
    _refuse_unknown(given)
    _refuse_attached(model)
    if way not in _WAYS:
        raise AttachError(unknown("way of attaching", way, _WAYS))
    chosen = _choose(model, layers, given) if way == "auto" else way
    _refuse_undeliverable(given, chosen, model)
    wanted, entropy = _read(parameters, EntropyParameters())
    if chosen == _INTERFACE:
        found = _found(model, layers)
        check_deliverable(found, wanted.plan(len(found)), entropy)
        attachment = Attachment(model, _ByInterface(model, found))
    else:
        attachment = Attachment(model, _ByQueryRows(model, query_rows(model, layers)))
    try:
        attachment.use(parameters)
        if example is not None:
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
        binding: Any = module.__dict__.pop(BINDING, None)
        if binding is not None and binding.interface.attached:
            binding.interface.detach()


def _choose(model: nn.Module, layers: Layers, given: Mapping[str, object]) -> str:
    """Return the interface where it alone can do what is wanted, else query rows."""
    found = interface_layers(model, layers)
    beside = any(given.get(name, NEUTRAL[name]) != NEUTRAL[name] for name in _BESIDE_THE_QUERY)
    return _INTERFACE if found and (beside or any(map(normalises_query, found))) else "query_rows"


def _found(model: nn.Module, layers: Layers) -> list[InterfaceLayer]:
    found = interface_layers(model, layers)
    if found:
        return found
    every = [layer.name for layer in interface_layers(model)]
    if every:
        raise AttachError(
            f"layers={layers!r} matches none of the modules that ask for their attention function: "
            f"{', '.join(every[:12])}. Give patterns of those."
        )
    raise AttachError(
        f"No module of {type(model).__name__} asks for its attention function, as models of transformers 5 "
        f'do, so none can be put there. Attach with way="query_rows", or {AS_TEMPERED_MODULE}. To a model '
        f"of transformers with a softmax of its own write instead of that:\n{RECIPE}"
    )


def _refuse_attached(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, TemperedProjection) or BINDING in module.__dict__:
            raise AttachError(
                f'The model has a temperature attached already, on "{name}". Change it with use() of the '
                "attachment that was returned, or take it off first: tempopt.attention.attach.detach(model)."
            )


def _named(parameters: Parameters) -> Mapping[str, object]:
    return parameters if isinstance(parameters, Mapping) else dataclasses.asdict(parameters)


def _refuse_unknown(given: Mapping[str, object]) -> None:
    for name in given:
        if name not in NEUTRAL:
            raise AttachError(unknown("temperature parameter", name, TEMPERATURE_PARAMETERS))


def _refuse_undeliverable(given: Mapping[str, object], way: str, model: nn.Module) -> None:
    """Refuse what this way of attaching cannot do."""
    _refuse_unknown(given)
    undeliverable = _UNDELIVERABLE if way == _INTERFACE else _UNDELIVERABLE | _BESIDE_THE_QUERY
    for name, value in given.items():
        if name in undeliverable and value != NEUTRAL[name]:
            asks = name in _BESIDE_THE_QUERY and interface_layers(model)
            where, other = (
                ("by query rows", f'attach with way="{_INTERFACE}"')
                if asks
                else ("from outside", AS_TEMPERED_MODULE)
            )
            raise AttachError(
                f"{name}={value!r} cannot be attached {where}, only {name}={NEUTRAL[name]!r}: "
                f"{undeliverable[name]}. For that, {other}."
            )


def _read(
    parameters: Parameters, entropy: EntropyParameters
) -> tuple[TemperatureParameters, EntropyParameters]:
    """Return the plan's parameters and those of the entropy term, as it is where nothing is said of it."""
    if isinstance(parameters, TemperatureParameters):
        return parameters, entropy
    return TemperatureParameters.from_mapping(parameters), EntropyParameters.from_mapping(parameters)
