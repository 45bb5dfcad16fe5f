"""Puts a temperature plan on the attention of any module, without editing it.

``discovery`` finds the attention calls, ``call_mode`` tempers them, and ``self_check`` proves that it works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Self

from torch import nn

from tempopt.attention.attach.baked_marker import is_attached, refuse_baked
from tempopt.attention.attach.call_mode import CallBinding, bind, binding_of, bindings, unbind
from tempopt.attention.attach.call_state import CallState
from tempopt.attention.attach.discovery import (
    AS_TEMPERED_MODULE,
    AttentionLayer,
    Layers,
    NeedsExampleError,
    discover,
    refuse_missed,
)
from tempopt.attention.attach.example_inputs import Forward, infer_example_inputs, infer_partial_inputs
from tempopt.attention.attach.learning import HeadTemperatures
from tempopt.attention.attach.observers import Observe, check_temperatures
from tempopt.attention.attach.self_check import UnfitError, self_test
from tempopt.attention.attach.tower_copies import find_originals
from tempopt.class_loading import load_schedule
from tempopt.errors import AttachError, unknown
from tempopt.run_handle import RunParams
from tempopt.temperature import (
    CONTROL,
    GENERATION,
    NEUTRAL,
    TEMPERATURE_PARAMETERS,
    EntropyParameters,
    TemperatureParameters,
    TemperaturePlan,
    has_target,
    is_custom_schedule,
)
from tempopt.temperature.towers import layers_by_tower

Parameters = TemperatureParameters | Mapping[str, object]
Example = Forward | Literal["auto"] | None

_NO_EXAMPLE = "No example was given, and the model names no inputs of its own. Call self_test."
_UNDELIVERABLE = {
    "output_temperature": "the logits of the loss are computed by the module itself",
    **dict.fromkeys(GENERATION, "the tokens are drawn by the module itself"),
}


class Attachment:
    """A temperature plan on a model; :func:`attach` makes it.

    It may be pickled and copied together with its model. A copy of the model alone keeps the temperatures
    that were set when it was copied, until :func:`detach`. As a context manager it detaches at the end.

    Attributes:
        layers: Names of the modules whose attention is tempered, in depth order.
        plan: The temperatures over progress and layers, and what comes beside them.
        progress: The training progress, in [0, 1], whose temperatures are set.
        entropy: The entropy term of the loss.
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

    def __init__(self, model: nn.Module, layers: Sequence[str], state: CallState) -> None:
        self.tested = False
        self.not_tested = _NO_EXAMPLE
        self.layers = list(layers)
        self.progress = 0.0
        self.entropy = EntropyParameters()
        self._override_temperatures: tuple[float, ...] | None = None
        self._model = model
        self._state = state
        state.originals = find_originals(model, self.layers)

    @property
    def towers(self) -> list[list[str]]:
        """The layers by tower, a repeated structure of the model; layer patterns run over each by itself."""
        return list(layers_by_tower(self.layers).values())

    @property
    def attached(self) -> bool:
        """Whether the temperatures are still on the model."""
        return self._state.attached

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
        _refuse_undeliverable(_values_by_name(parameters))
        temperature_parameters, entropy = _read(parameters, self.entropy)
        plan = temperature_parameters.plan(self.layers)
        self._require_attached()
        _refuse_conflicts(plan, entropy)
        if _has_heads(temperature_parameters):
            self._refuse_unknown_heads()
        self._refuse_at_softmax(plan, entropy)
        self._state.use(plan, entropy)
        self._state.final = plan.temperatures(1.0)
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
        self._state.set_values(inverse, self.entropy.weight(progress))

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Hold each layer at a temperature of its own, whatever the plan says, until :meth:`use`.

        A tower that was a copy of another one when it was attached to, as a teacher is, has the temperatures
        of that one.

        Raises:
            AttachError: if the model was detached meanwhile.
            SpecError: if it is not one number a layer, each from 1e-6 to 1e6.
        """
        self._require_attached()
        values = check_temperatures(temperatures, len(self.layers))
        self._override_temperatures = tuple(values[original] for original in self._state.originals)
        self._state.final = self._override_temperatures
        self.set_progress(self.progress)

    def learn(self) -> None:
        """Have backward passes leave the gradient of the temperatures from now on.

        A temperature is then learned by what reads :meth:`log_gradients` after a backward pass and calls
        :meth:`set_temperatures`.
        """
        self._require_attached()
        self._state.learn()

    def learn_heads(self) -> HeadTemperatures:
        """Give each head of attention a temperature of its own, from that in force, and return them.

        Backward passes leave their gradients.
        """
        self._require_attached()
        self._refuse_unknown_heads()
        return self._state.learn_heads(self.temperatures)

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each layer, and forget it.

        Summed over the backward passes since it was asked last; None if they left none.
        """
        return self._state.log_gradients()

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Return a context in which the queries and keys of each tempered layer are shown to an observer.

        Where softmax is written out, its logits are shown as queries whose keys are the unit vectors. What is
        compiled is not seen.

        Raises:
            AttachError: if softmaxes do not show which keys their queries see.
        """
        for name, _, binding in bindings(self._model):
            if binding.pattern.obstacle:
                raise AttachError(
                    f'The entropy of "{name}" cannot be measured: {binding.pattern.obstacle}. Have it call '
                    "torch.nn.functional.scaled_dot_product_attention with the mask, or leave the layer out "
                    "(layers=[...] takes patterns)."
                )
        return self._state.observers.observer_added(observe)

    def set_loss_scale(self, loss_scale: float) -> None:
        """Say by what factor the loss is multiplied before its gradient is taken, so that the entropy is too.

        That is a gradient scaler's scale, divided by the number of batches over which gradients are summed.
        """
        self._state.set_loss_scale(loss_scale)

    def detach(self) -> None:
        """Take the temperatures off: the model is bit for bit what it was without."""
        if self._state.attached:
            detach(self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def self_test(self, forward: Forward) -> None:
        """Prove on the model itself that the temperature of each layer acts, and acts as it should.

        In eval mode, with gradients and without: what comes out of each attention, and of the modules around
        it, must be that of the same model with the temperature put in by other means: fused attention written
        out in double precision, scaled rows of ``nn.MultiheadAttention``, divided logits where softmax is
        written out. The first, the middle and the last layer must move the output by themselves. Branches
        that are closed at initialisation (zero matrices, tiny gains) are opened for the test. Head pattern,
        local heads, length scaling, entropy term and normaliser are left out. Weights, buffers, gradients,
        modes, temperatures and random generators are afterwards as they were.

        Args:
            forward: Runs the model on some fixed batch, with more than one token, and returns tensors, in
                any nesting of sequences, mappings and dataclasses. It may be a loss.

        Raises:
            AttachError: if a layer is not used, does not move the output or moves it otherwise than it
                should; if ``forward`` returns nothing to compare or not the same twice; or if the model was
                detached.
        """
        self._test(forward, thorough=True)

    def try_test(self, forward: Forward, *, is_whole: bool = False) -> None:
        """Prove by a quicker test that temperatures act as they should; ``not_tested`` says if it cannot.

        It runs without gradients, and does not look at layers one by one.

        Args:
            forward: As for :meth:`self_test`.
            is_whole: Whether all attention of the forward has to have a temperature.

        Raises:
            AttachError: if one acts otherwise than it should, attention has none, or the model was detached.
        """
        try:
            if is_whole:
                self.refuse_missed(forward)
            self._test(forward, thorough=False)
        except UnfitError as error:
            self.not_tested = str(error)
        except AttachError:
            raise
        except Exception as error:
            self.not_tested = f"The model does not run there ({type(error).__name__}: {error})."

    def refuse_missed(self, forward: Forward) -> None:
        """Refuse attention of a forward that has no temperature.

        Raises:
            AttachError: if there is some.
        """
        with self._state.by_temperature_alone():
            refuse_missed(self._model, self.layers, forward)

    def _test(self, forward: Forward, *, thorough: bool) -> None:
        self._require_attached()
        unused = self_test(self._model, self._state, self.layers, forward, thorough=thorough)
        self.tested = not unused
        self.not_tested = f"The inputs that were tried do not use {', '.join(unused)}." if unused else ""

    def _refuse_unknown_heads(self) -> None:
        for name, _, binding in bindings(self._model):
            if binding.state is self._state and not binding.pattern.has_heads:
                reason = (
                    "in the example it attends without one, in several calls, with heads and something else "
                    "in one dimension, or mixes heads before its softmax. Give"
                )
                if binding.pattern.num_fused is None:
                    reason = (
                        "it was attached to by its code, which does not show it. Attach with an example, as "
                        "in attach(model, parameters, example=lambda: model(batch)), give"
                    )
                raise AttachError(
                    f'The heads of "{name}" cannot differ: which dimension is that of heads cannot be told, '
                    f'for {reason} head_pattern="uniform" and local_share=0.0, or leave the layer out.'
                )

    def _refuse_at_softmax(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Refuse what depends on the keys that a query sees where its softmax does not show them."""
        bare_options = {
            "length_scaling": plan.length_scaling.name != NEUTRAL["length_scaling"],
            "local_share": bool(plan.local.local_share),
        }
        options = bare_options | {
            "normaliser": plan.normaliser.name != NEUTRAL["normaliser"],
            "entropy_lambda": entropy.has_term,
        }
        for name, _, binding in bindings(self._model):
            reason = binding.pattern.obstacle
            allowed = () if reason else options.keys() - bare_options.keys()
            if not all(softmax.is_bare for softmax in binding.pattern.softmaxes if softmax.is_attention):
                reason = (
                    reason or "it adds to its logits, or caps them: only then is known which keys are seen"
                )
            refused = [option for option, is_given in options.items() if is_given and option not in allowed]
            if reason and refused:
                neutral = ", ".join(f"{option}={NEUTRAL[option]!r}" for option in refused)
                raise AttachError(
                    f'{" and ".join(refused)} cannot be attached to "{name}": {reason}. Have it call '
                    f"torch.nn.functional.scaled_dot_product_attention with the mask, give {neutral}, or "
                    "leave the layer out (layers=[...] takes patterns)."
                )

    def _require_attached(self) -> None:
        if not self._state.attached:
            raise AttachError("The model was detached, so no temperature can be set. Attach it again.")


def attach(
    model: nn.Module,
    parameters: Parameters,
    *,
    layers: Layers = "auto",
    example: Example = "auto",
    allow_baked: bool = False,
) -> Attachment:
    """Put temperatures on the attention of a model, without editing it.

    The calls of attention that a model makes are tempered: the query of
    ``torch.nn.functional.scaled_dot_product_attention`` and of ``nn.MultiheadAttention``, and where softmax
    is written out an operand of the product that makes its logits, are multiplied by 1/temperature. So query
    times key, on top of the model's own scale, is divided by the temperature; what is added to that (masks,
    position biases) is not. Queries that are normalised or rotated are multiplied after that. A temperature
    may differ from head to head (``head_pattern``, by heads of the query where keys are shared) or follow the
    number of keys (``length_scaling``), and ``entropy_lambda``, ``normaliser`` and ``local_share`` may be
    given. Parameters stay as they are in name, order, value and optimizer.

    At temperature 1 training is bit for bit that of the model alone, but for PyTorch's fast paths of
    ``nn.TransformerEncoder`` in evaluation, which close.

    Args:
        model: Any module. The modules of it that attend get a subclass of their class until :func:`detach`.
        parameters: The plan; also as a mapping of temperature parameters by name.
        layers: ``"auto"`` for all modules that attend, or patterns as in ``fnmatch`` (``*`` matches dots
            too). A pattern takes a module that it matches, or one inside of which or around which it matches
            a module, as its query projection. A linear map before a softmax, as of a router, is taken by a
            pattern that matches no module around it.
        example: A forward that shows which calls are attention, and that :meth:`Attachment.self_test` is run
            on. ``auto`` takes the inputs that the model names itself (``example_input_array`` of Lightning,
            ``dummy_inputs`` of transformers, images of the size in its configuration) with a quicker test:
            ``tested`` and ``not_tested`` of what is returned say what came of it. None tests nothing.
            Without a forward ``nn.MultiheadAttention`` is found, and fused attention in modules that
            multiply no matrices.
        allow_baked: Whether to attach to weights that have a temperature in them already, by
            :func:`~tempopt.attention.attach.scalings.bake`. What is attached then comes on top of it.

    Raises:
        AttachError: if there is no attention to be found, or one that cannot be tempered from outside, or the
            self-test fails, or the weights are baked; the model is then as it was. A forward that attends
            otherwise than the example did raises it, too.
    """
    _refuse_before(model, parameters, allow_baked=allow_baked)
    forward = infer_example_inputs(model) if example == "auto" else example
    attachment = _put_on(model, _discover(model, layers, example, forward), parameters)
    try:
        if example == "auto":
            if forward is not None:
                attachment.try_test(forward)
                if not attachment.tested:
                    attachment.not_tested = f"On inputs that the model names itself: {attachment.not_tested}"
        elif example is not None:
            attachment.self_test(example)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def attach_untested(
    model: nn.Module, parameters: Parameters, *, layers: Layers, forward: Forward, learns_heads: bool = False
) -> Attachment:
    """Attach as :func:`attach` does, to what the code of modules shows, or else a forward; without a test.

    Args:
        model: As there, and so are the others.
        parameters: As there.
        layers: As there.
        forward: Runs the model, if that is needed. Where it fails, inputs that the model names are taken.
        learns_heads: Whether heads will have learned temperatures.

    Raises:
        AttachError: as there, and if the forward that is needed fails.
    """
    _refuse_before(model, parameters)
    temperature_parameters, entropy = _read(parameters, EntropyParameters())
    refusal = ""
    # which dimension is that of heads, and how often a layer runs, is seen in a forward alone
    if not (learns_heads or _has_heads(temperature_parameters) or entropy.has_term):
        try:
            return _put_on(model, discover(model, layers), parameters)
        except NeedsExampleError as error:
            refusal = f"{error} "
    try:
        attention_layers = discover(model, layers, forward)
    except AttachError:
        raise
    except Exception as error:
        try:
            attention_layers = _discover(model, layers, None, None)
        except NeedsExampleError:
            raise AttachError(
                f"{refusal}Of a LightningModule give example_input_array; its first training step does "
                f"not run by itself ({type(error).__name__}: {error})."
            ) from error
    return _put_on(model, attention_layers, parameters)


def attach_layers(
    model: nn.Module, parameters: Parameters, temperatures: Mapping[str, float], *, example: Example
) -> Attachment:
    """Hold layers at temperatures by name, those at least that an example uses, as a trained model is served.

    Args:
        model: As for :func:`attach`.
        parameters: As there; of the temperatures only the factors of heads and length act.
        temperatures: Temperature of each layer.
        example: As there. It may leave layers unused, as a forward of a student leaves its teacher. They are
            not tested, and where softmax is written out they are not attached to.

    Raises:
        AttachError: as there, and if the example uses none of the layers.
    """
    _refuse_before(model, parameters)
    forward = infer_example_inputs(model) if example == "auto" else example
    # a pattern that is a name also takes what is inside of it
    candidates = _discover(model, list(temperatures), example, forward, needs_all=False)
    attention_layers = [layer for layer in candidates if layer.name in temperatures]
    attachment = _put_on(model, attention_layers, parameters)
    try:
        attachment.set_temperatures([temperatures[name] for name in attachment.layers])
        if forward is not None:
            attachment._test(forward, thorough=False)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def _discover(
    model: nn.Module, layers: Layers, example: Example, forward: Forward | None, *, needs_all: bool = True
) -> list[AttentionLayer]:
    """Return the layers to temper, by an example or by inputs that the model or parts of it name."""
    if example is not None and example != "auto":
        return discover(model, layers, forward, needs_all=needs_all)
    for inferred in (forward or infer_example_inputs(model), infer_partial_inputs(model)):
        try:
            if inferred is not None:
                return discover(model, layers, inferred)
        except AttachError:
            raise
        except Exception:
            # on inputs that a model names, but does not run on, nothing is seen
            continue
    return discover(model, layers)


def _refuse_before(model: nn.Module, parameters: Parameters, *, allow_baked: bool = False) -> None:
    """Refuse parameters and models that nothing can be attached to."""
    _refuse_undeliverable(_values_by_name(parameters))
    _refuse_attached(model)
    if not allow_baked:
        refuse_baked(model)


def _put_on(
    model: nn.Module, attention_layers: Sequence[AttentionLayer], parameters: Parameters
) -> Attachment:
    state = CallState(len(attention_layers))
    for layer in attention_layers:
        _refuse_own_forward(layer)
    for index, layer in enumerate(attention_layers):
        nests = any(layer.is_inside(peer) or peer.is_inside(layer) for peer in attention_layers)
        bind(layer.module, CallBinding(layer.name, index, layer.pattern, state, nests))
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer) and is_attached(module):
            bind(module, None)
    attachment = Attachment(model, [layer.name for layer in attention_layers], state)
    try:
        attachment.use(parameters)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def _refuse_own_forward(layer: AttentionLayer) -> None:
    if "forward" in vars(layer.module):
        raise AttachError(
            f'"{layer.name}" has a forward of its own in the instance (compiled, or put there by a library), '
            "which passes by its class. Attach before it is put there."
        )


def detach(model: nn.Module) -> None:
    """Take all temperatures off a model, as off one that was unpickled with them; its attachments end.

    Numbers that :func:`tempopt.attach_value` has written stay.
    """
    for module in model.modules():
        binding = unbind(module)
        if binding is not None:
            binding.state.attached = False


def _refuse_attached(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if binding_of(module) is not None:
            raise AttachError(
                f'The model has a temperature attached already, on "{name}". Change it with use() of the '
                "attachment that was returned, or take it off first: "
                "tempopt.attention.attach.detach(model)."
            )


def _has_heads(parameters: TemperatureParameters) -> bool:
    """Return whether heads of a layer differ."""
    return parameters.head_pattern != NEUTRAL["head_pattern"] or bool(parameters.local_share)


def _refuse_conflicts(plan: TemperaturePlan, entropy: EntropyParameters) -> None:
    """Refuse an entropy term of other weights than those of softmax."""
    normaliser = plan.normaliser.name
    if entropy.has_term and normaliser != "softmax":
        raise AttachError(
            f'entropy_lambda={entropy.entropy_lambda!r} is not supported with normaliser="{normaliser}": the '
            "entropy term is that of softmax, whose weights these are not. Give entropy_lambda=0.0, or "
            'normaliser="softmax".'
        )


def _values_by_name(parameters: Parameters) -> Mapping[str, object]:
    if isinstance(parameters, RunParams):
        # what a run has besides is its program's affair
        return {name: value for name, value in parameters.items() if name in TEMPERATURE_PARAMETERS}
    return parameters if isinstance(parameters, Mapping) else dataclasses.asdict(parameters)


def _refuse_undeliverable(values: Mapping[str, object]) -> None:
    """Refuse what cannot be attached from outside."""
    for name in values:
        if name not in TEMPERATURE_PARAMETERS:
            raise AttachError(unknown("temperature parameter", name, TEMPERATURE_PARAMETERS))
    if has_target(values):
        raise AttachError(
            f"{CONTROL}={values[CONTROL]!r} cannot be attached: its temperatures follow what training "
            "measures. Give it to tempopt.AttachCallback."
        )
    for name, reason in _UNDELIVERABLE.items():
        if values.get(name, NEUTRAL[name]) != NEUTRAL[name]:
            raise AttachError(
                f"{name}={values[name]!r} cannot be attached from outside, only {name}={NEUTRAL[name]!r}: "
                f"{reason}. For that, {AS_TEMPERED_MODULE}."
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
