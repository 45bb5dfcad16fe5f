"""Puts a temperature plan on the attention of any module, without editing it.

There are two ways. The weight and bias rows of query projections are scaled where they are read
(``projection``), which works on any module; ``query_rows`` finds those rows. What depends on the keys too is
delivered by models of Hugging Face transformers, through their attention interface (``hf_interface``). What
neither can deliver is refused. ``self_check`` proves that it works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Self

from torch import nn

from tempopt.attention.attach.baked_marker import refuse_baked
from tempopt.attention.attach.hf_interface import (
    BINDING,
    INTERFACE,
    RECIPE,
    Interface,
    InterfaceLayer,
    check_deliverable,
    interface_layers,
)
from tempopt.attention.attach.learning import HeadTemperatures
from tempopt.attention.attach.observers import Observe, check_temperatures
from tempopt.attention.attach.projection import (
    ROWS,
    QueryRowsMechanism,
    TemperedProjection,
    factors_of,
    restore,
)
from tempopt.attention.attach.proof import UnfitError
from tempopt.attention.attach.query_rows import AS_TEMPERED_MODULE, Layers, query_norm, query_rows
from tempopt.attention.attach.self_check import Forward, Mechanism, infer_example_inputs, self_test
from tempopt.class_loading import load_schedule
from tempopt.errors import AttachError, unknown
from tempopt.temperature import (
    CONTROL,
    ENTROPY_PARAMETERS,
    GENERATION,
    NEUTRAL,
    TEMPERATURE_PARAMETERS,
    EntropyParameters,
    TemperatureParameters,
    TemperaturePlan,
    has_target,
    is_custom_schedule,
)

Parameters = TemperatureParameters | Mapping[str, object]
AttachMethod = Literal["auto", "query_rows", "attention_interface"]

_NO_EXAMPLE = "No example was given, and the model names no inputs of its own. Call self_test."
_ATTACH_METHODS = ("auto", "query_rows", "attention_interface")

# What only the attention interface of transformers can deliver, and why query rows cannot.
_BESIDE_THE_QUERY = {
    "head_pattern": "which of the query rows are of which head is not known there",
    "length_scaling": "the query rows are the same for every token, however many keys it sees",
    "local_share": "which keys a head sees is decided behind the query",
    "normaliser": "what makes weights of the logits is decided behind the query",
    **dict.fromkeys(ENTROPY_PARAMETERS, "the entropy of attention is not known where the query is made"),
}
_UNDELIVERABLE = {
    "output_temperature": "the logits of the loss are computed by the module itself",
    **dict.fromkeys(GENERATION, "the tokens are drawn by the module itself"),
}


class Attachment:
    """A temperature plan on a model; :func:`attach` makes it.

    It may be pickled and copied together with its model. A copy of the model alone keeps the temperatures
    that were set when it was copied, until :func:`detach`. As a context manager it detaches at the end.

    Attributes:
        layers: Names of the modules whose query is tempered, in depth order.
        plan: The temperatures over progress and layers, and what comes beside them.
        progress: The training progress, in [0, 1], whose temperatures are set.
        entropy: The entropy term of the loss.
        method: How the temperatures are attached, ``query_rows`` or ``attention_interface``.
        tested: Whether :meth:`self_test` has proven of every layer that its temperature acts as it should, on
            the example or on inputs that the model names itself.
        not_tested: Why not, for a person; empty if it has.
    """

    tested: bool
    not_tested: str
    layers: list[str]
    plan: TemperaturePlan
    progress: float
    entropy: EntropyParameters
    method: str

    def __init__(self, model: nn.Module, mechanism: Mechanism, *, is_whole_model: bool) -> None:
        self._is_whole_model = is_whole_model
        self.tested = False
        self.not_tested = _NO_EXAMPLE
        self.layers = mechanism.names
        self.progress = 0.0
        self.entropy = EntropyParameters()
        self._override_temperatures: tuple[float, ...] | None = None
        self.method = mechanism.method
        self._model = model
        self._mechanism = mechanism

    @property
    def attached(self) -> bool:
        """Whether the temperatures are still on the model."""
        return self._mechanism.attached

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature of each layer in force, without the factors of heads and length."""
        return self._override_temperatures or self.plan.temperatures(self.progress)

    def use(self, parameters: Parameters) -> None:
        """Change to another plan, at the same progress.

        Args:
            parameters: The plan. A mapping says what becomes of the entropy term, too, which
                ``TemperatureParameters`` know nothing of.

        Raises:
            AttachError: if the parameters ask for what this way of attaching cannot deliver.
        """
        _refuse_undeliverable(_named(parameters), self.method, self._model)
        temperature_parameters, entropy = _read(parameters, self.entropy)
        plan = temperature_parameters.plan(len(self.layers))
        self._require_attached()
        self._mechanism.use(plan, entropy)
        self._mechanism.set_final(plan.temperatures(1.0))
        self.plan, self.entropy, self._override_temperatures = plan, entropy, None
        self.set_progress(self.progress)

    def set_progress(self, progress: float) -> None:
        """Set the temperature of every layer, and the weight of the entropy, to those at ``progress``.

        Costs one small copy. While temperatures are held (:meth:`set_temperatures`) only the weight of the
        entropy follows. Call it before a forward, not between a forward and its backward.

        Args:
            progress: In [0, 1].

        Raises:
            AttachError: if the model was detached meanwhile.
        """
        self._require_attached()
        self.progress = progress
        inverse = [1.0 / temperature for temperature in self.temperatures]
        self._mechanism.set_values(inverse, self.entropy.weight(progress))

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Hold each layer at a temperature of its own, whatever the plan says, until :meth:`use`.

        Raises:
            AttachError: if the model was detached meanwhile.
            SpecError: if it is not one number a layer, each from 1e-6 to 1e6.
        """
        self._require_attached()
        self._override_temperatures = check_temperatures(temperatures, len(self.layers))
        self._mechanism.set_final(self._override_temperatures)
        self.set_progress(self.progress)

    def learn(self) -> None:
        """Have backward passes leave the gradient of the temperatures from now on.

        A temperature is then learned by what reads :meth:`log_gradients` after a backward pass and calls
        :meth:`set_temperatures`.
        """
        self._require_attached()
        self._mechanism.learn()

    def learn_heads(self) -> HeadTemperatures:
        """Give each head of attention a temperature of its own, from that in force, and return them.

        Backward passes leave their gradients.

        Raises:
            AttachError: if the temperatures are attached by query rows.
        """
        self._require_attached()
        return self._mechanism.learn_heads(self.temperatures)

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each layer, and forget it.

        Summed over the backward passes since it was asked last; None if they left none.
        """
        return self._mechanism.log_gradients()

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

        In eval mode: what comes out of each attention, and of the modules around it, must be that of the
        untouched model with the temperatures multiplied into its weights, or through the attention interface
        its scales divided by them, with gradients and without (which may take other ways through PyTorch).
        It must move with the temperature; the first, the middle and the last layer are tried one by one.
        What ``forward`` returns may be a loss, in which the effect of one layer averages out. Then, all at
        once and with the weights of attention held: what goes into each softmax must be divided by the
        temperature but for masks and biases of positions, as the model's own scale would have it where it has
        one, and nothing else may move. Where logits cannot be seen (kernels of others), a doubled query must
        cancel against a halved key in fused projections instead. Branches that are closed at
        initialisation (zero matrices, tiny gains) are opened for the test. Head pattern, local heads,
        length scaling, entropy term and normaliser are left out. Weights, buffers, gradients, modes,
        temperatures and random generators are afterwards as they were.

        Args:
            forward: Runs the model on some fixed batch, with more than one token, and returns tensors, in
                any nesting of sequences, mappings and dataclasses.

        Raises:
            AttachError: if a layer does not move the output, moves it otherwise than by hand, is tempered in
                part, or, all layers being meant, another attention is not at all; if ``forward`` returns
                nothing to compare or not the same twice; or if the model was detached.
        """
        self._test(forward, thorough=True)

    def _test(self, forward: Forward, *, thorough: bool) -> None:
        self._require_attached()
        unused = self_test(
            self._model,
            self._mechanism,
            forward,
            is_whole_model=self._is_whole_model,
            thorough=thorough,
        )
        self.tested = not unused
        self.not_tested = f"The inputs that were tried do not use {', '.join(unused)}." if unused else ""

    def _require_attached(self) -> None:
        if not self._mechanism.attached:
            raise AttachError("The model was detached, so no temperature can be set. Attach it again.")
        self._mechanism.require_in_place()


def attach(
    model: nn.Module,
    parameters: Parameters,
    *,
    layers: Layers = "auto",
    method: AttachMethod = "auto",
    example: Forward | Literal["auto"] | None = "auto",
    allow_baked: bool = False,
) -> Attachment:
    """Put temperatures on the attention of a model, without editing it.

    By ``query_rows``, weight and bias rows of each query projection are multiplied by 1/temperature as they
    are read, so that query times key, on top of the model's own scale, is divided by the temperature; what
    is added to that (masks, position biases) is not. Parameters stay as they are in name, order, value and
    optimizer.

    By ``attention_interface``, a model of Hugging Face transformers is given an attention function that
    multiplies the query and then does what its own would. Only there can a temperature differ from head to
    head (``head_pattern``, by heads of the query where keys are shared) or follow the number of keys
    (``length_scaling``), and can ``entropy_lambda``, ``normaliser`` and ``local_share`` be had. A query
    that is normalised after its projection (QK-norm) is multiplied after that.

    At temperature 1 training is bit for bit that of the model alone.

    Args:
        model: Any module. By query rows its query projections get another class until :func:`detach`: write
            to parameters only through ``named_parameters`` then, for ``module.weight`` reads the product.
            By the attention interface its configuration names another attention implementation.
        parameters: The plan; also as a mapping of temperature parameters by name.
        layers: Which projections, as in :func:`~tempopt.attention.attach.query_rows.query_rows`, or which
            attention modules, by patterns of their names or of what is around or inside of them.
        method: ``auto`` is query rows. It is the interface where the model has it and what is asked for needs
            it, a query is normalised after its projection, or query rows are refused (by the self-test too).
        example: A forward to run :meth:`Attachment.self_test` on. ``auto`` tries the inputs that the model
            names itself (``example_input_array`` of Lightning, ``dummy_inputs`` of transformers, images of
            the size in its configuration) with a quicker test of some ten forwards, if it runs on them:
            ``tested`` and ``not_tested`` of what is returned say what came of it. Where it is not tested,
            call :meth:`Attachment.self_test` before the attachment is relied upon. None tests nothing.
        allow_baked: Whether to attach to weights that have a temperature in them already, by
            :func:`~tempopt.attention.attach.scalings.bake`. What is attached then comes on top of it.

    Raises:
        AttachError: if there is no attention to be found, or a projection or parameter that cannot be
            tempered from outside, or the self-test fails, or the weights are baked; the model is then as it
            was.
    """
    values = _named(parameters)
    _refuse_unknown(values)
    _refuse_attached(model)
    if not allow_baked:
        refuse_baked(model)
    if method not in _ATTACH_METHODS:
        raise AttachError(unknown("way of attaching", method, _ATTACH_METHODS))
    methods = _choose(model, layers, values) if method == "auto" else [method]
    refusals: list[AttachError] = []
    for candidate in methods:
        try:
            return _attached(model, parameters, layers, candidate, example)
        except AttachError as error:
            refusals.append(error)
    if len(refusals) == 1:
        is_advised = method == ROWS and interface_layers(model, layers)
        advice = f' Or attach with method="{INTERFACE}".' if is_advised else ""
        raise AttachError(f"{refusals[0]}{advice}") from refusals[0]
    raise AttachError(f"{refusals[0]} By the attention interface: {refusals[1]}") from refusals[0]


def _attached(
    model: nn.Module,
    parameters: Parameters,
    layers: Layers,
    method: str,
    example: Forward | Literal["auto"] | None,
) -> Attachment:
    is_whole_model = layers == "auto"
    _refuse_undeliverable(_named(parameters), method, model)
    mechanism: Mechanism
    if method == INTERFACE:
        attention_layers = _require_interface_layers(model, layers)
        if is_whole_model:
            _refuse_partial(model, attention_layers)
        temperature_parameters, entropy = _read(parameters, EntropyParameters())
        check_deliverable(attention_layers, temperature_parameters.plan(len(attention_layers)), entropy)
        mechanism = Interface(model, attention_layers)
    else:
        mechanism = QueryRowsMechanism(model, query_rows(model, layers))
    attachment = Attachment(model, mechanism, is_whole_model=is_whole_model)
    try:
        attachment.use(parameters)
        if example == "auto":
            _test_on_own_inputs(model, attachment)
        elif example is not None:
            attachment.self_test(example)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def _test_on_own_inputs(model: nn.Module, attachment: Attachment) -> None:
    forward = infer_example_inputs(model)
    if forward is None:
        return
    try:
        attachment._test(forward, thorough=False)
    except UnfitError as error:
        attachment.not_tested = f"On inputs that the model names itself nothing can be told: {error}"
    except AttachError:
        raise
    except Exception as error:
        attachment.not_tested = (
            "No example was given, and on inputs that the model names itself it does not run "
            f"({type(error).__name__}: {error}). Call self_test."
        )


def detach(model: nn.Module) -> None:
    """Take all temperatures off a model, as off one that was unpickled with them; its attachments end.

    Numbers that :func:`tempopt.attach_value` has written stay.
    """
    for module in model.modules():
        if isinstance(module, TemperedProjection) and factors_of(module) is not None:
            restore(module)
        binding: Any = module.__dict__.pop(BINDING, None)
        if binding is not None and binding.interface.attached:
            binding.interface.detach()


def _choose(model: nn.Module, layers: Layers, values: Mapping[str, object]) -> list[str]:
    """Return the ways to try: the interface where it alone can do what is wanted, else rows before it."""
    attention_layers = interface_layers(model, layers)
    if not attention_layers:
        return [ROWS]
    needs_interface = any(values.get(name, NEUTRAL[name]) != NEUTRAL[name] for name in _BESIDE_THE_QUERY)
    # a norm behind the projection (QK-norm) undoes a factor on its rows
    is_normalised = any(query_norm(layer.module) is not None for layer in attention_layers)
    return [INTERFACE] if needs_interface or is_normalised else [ROWS, INTERFACE]


def _refuse_partial(model: nn.Module, attention_layers: Sequence[InterfaceLayer]) -> None:
    """Refuse to temper all attention of a model of which a part asks for no function, as pooling heads do."""
    layer_names = [layer.name for layer in attention_layers]
    for name, module in model.named_modules():
        is_inside = any(name == layer_name or name.startswith(f"{layer_name}.") for layer_name in layer_names)
        if isinstance(module, nn.MultiheadAttention) and not is_inside:
            raise AttachError(
                f'"{name}" is an nn.MultiheadAttention, which asks for no attention function and would stay '
                f'at temperature 1 while the rest is tempered. Attach with method="{ROWS}", or, if that is '
                f"meant, name the layers that are to have a temperature, as in layers={layer_names[:1]}."
            )


def _require_interface_layers(model: nn.Module, layers: Layers) -> list[InterfaceLayer]:
    attention_layers = interface_layers(model, layers)
    if attention_layers:
        return attention_layers
    layer_names = [layer.name for layer in interface_layers(model)]
    if layer_names:
        raise AttachError(
            f"layers={layers!r} matches none of the modules that ask for their attention function: "
            f"{', '.join(layer_names[:12])}. Give patterns of those."
        )
    raise AttachError(
        f"No module of {type(model).__name__} asks for its attention function, as models of transformers 5 "
        f'do, so none can be put there. Attach with method="query_rows", or {AS_TEMPERED_MODULE}. To a model '
        f"of transformers with a softmax of its own write instead of that:\n{RECIPE}"
    )


def _refuse_attached(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if factors_of(module) is not None or BINDING in module.__dict__:
            raise AttachError(
                f'The model has a temperature attached already, on "{name}". Change it with use() of the '
                "attachment that was returned, or take it off first: "
                "tempopt.attention.attach.detach(model)."
            )


def _named(parameters: Parameters) -> Mapping[str, object]:
    return parameters if isinstance(parameters, Mapping) else dataclasses.asdict(parameters)


def _refuse_unknown(values: Mapping[str, object]) -> None:
    for name in values:
        if name not in TEMPERATURE_PARAMETERS:
            raise AttachError(unknown("temperature parameter", name, TEMPERATURE_PARAMETERS))


def _refuse_undeliverable(values: Mapping[str, object], method: str, model: nn.Module) -> None:
    """Refuse what this way of attaching cannot do."""
    _refuse_unknown(values)
    if has_target(values):
        raise AttachError(
            f"{CONTROL}={values[CONTROL]!r} cannot be attached: its temperatures follow what training "
            "measures. Give it to tempopt.AttachCallback."
        )
    undeliverable = _UNDELIVERABLE if method == INTERFACE else _UNDELIVERABLE | _BESIDE_THE_QUERY
    for name, value in values.items():
        if name in undeliverable and value != NEUTRAL[name]:
            has_interface = name in _BESIDE_THE_QUERY and interface_layers(model)
            scope, remedy = (
                ("by query rows", f'attach with method="{INTERFACE}"')
                if has_interface
                else ("from outside", AS_TEMPERED_MODULE)
            )
            raise AttachError(
                f"{name}={value!r} cannot be attached {scope}, only {name}={NEUTRAL[name]!r}: "
                f"{undeliverable[name]}. For that, {remedy}."
            )


def _read(
    parameters: Parameters, entropy: EntropyParameters
) -> tuple[TemperatureParameters, EntropyParameters]:
    """Return the plan's parameters and those of the entropy term.

    A mapping without entropy parameters removes the term; ``TemperatureParameters`` keep it.
    """
    if isinstance(parameters, TemperatureParameters):
        return parameters, entropy
    if is_custom_schedule(schedule := parameters.get("schedule")):
        load_schedule(str(schedule), where="schedule")
    return TemperatureParameters.from_mapping(parameters), EntropyParameters.from_mapping(parameters)
