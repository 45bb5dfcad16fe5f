"""TemperedModule, the LightningModule whose attention temperature is a set of init arguments.

It holds the plan and the training progress; callbacks.py updates the progress while a Trainer runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import lightning as L
import torch
from torch import Tensor

from tempopt.attention.attach.learning import (
    HeadFactors,
    HeadTemperatures,
    pop_gradient,
    require_gradients,
    restore_precision,
)
from tempopt.attention.attach.observers import Observe, Observers, check_temperatures
from tempopt.attention.functional.attention import temper_query, tempered_attention
from tempopt.attention.functional.entropy import regularised_attention
from tempopt.attention.functional.local_heads import local_attention, local_mask, near_keys
from tempopt.attention.functional.logits import AttentionOptions
from tempopt.class_loading import load_schedule
from tempopt.errors import SpecError, UsageError, unknown
from tempopt.temperature import (
    Constant,
    ControlParameters,
    EntropyParameters,
    GenerationParameters,
    SoftmaxNormaliser,
    TemperatureParameters,
    TemperaturePlan,
    is_custom_schedule,
    name_problem,
    registered_path,
)
from tempopt.temperature.ranges import check_number
from tempopt.training.callbacks import LossScaleCallback, TemperatureCallback, check_validate_at
from tempopt.training.entropy_control import PlannedControl

# A Python number that attend reads would be compiled into the graph, so these are tensors.
_BUFFER_NAMES = (
    "inverse_temperature",
    "auxiliary_weight",
    "_entropy_weight",
    "_entropy_target",
    "_length_constant",
    "_limit",
    "_window",
)


class TemperedModule(L.LightningModule):
    """A LightningModule with the temperature of its attention as searchable init arguments.

    A subclass passes on the arguments that it does not define, calls :meth:`attend` wherever it attends, and
    is used with a plain ``lightning.Trainer``:

    .. code-block:: python

        class MyModule(TemperedModule):
            def __init__(self, d_model: int = 64, lr: float = 1e-3, **temperature: Any) -> None:
                super().__init__(num_layers=2, **temperature)

    A temperature of its own code outside attention, such as that of a loss, is declared by
    :meth:`register_temperature` and read by :meth:`temperature`.

    All arguments, including the subclass's, are saved as hyperparameters, so that
    ``MyModule.load_from_checkpoint(path)`` and ``MyModule(**best)`` need no tempopt service.

    Args:
        num_layers: Number of attention layers, >= 0; 0 for a module that registers temperatures alone.
        temperature_init: tau at the start of training, dimensionless, > 0.
        temperature_final: tau at the end; None for ``temperature_init``.
        schedule: Name of a schedule in :data:`tempopt.temperature.SCHEDULES`, or ``package.module:Class``.
        layer_pattern: Name of a pattern in :data:`tempopt.temperature.LAYER_PATTERNS`.
        layer_ratio: Ratio between the pattern's ends, > 0.
        head_pattern: Name of a factor over the heads of a layer, in
            :data:`tempopt.temperature.HEAD_PATTERNS`.
        head_ratio: Ratio between its ends, > 0.
        length_scaling: Name of a factor on 1/tau by the number of keys a query sees, in
            :data:`tempopt.temperature.LENGTH_SCALINGS`.
        n0: Number of keys up to, or at, which it has no effect, > 1; of ``llama4`` the distance of its steps.
        entropy_lambda: Weight of the attention entropy in the loss: > 0 rewards entropy, < 0 penalises it; at
            the start of training if ``entropy_lambda_final`` is set.
        entropy_lambda_final: That weight at the end; None for ``entropy_lambda``.
        entropy_schedule: Name of the course between them, in :data:`tempopt.temperature.SCHEDULES`.
        entropy_target: Share of ln n, in [0, 1], to which a weight > 0 moves the entropy; None for no target.
        entropy_control: Target of the entropy of each layer, a name in :data:`tempopt.temperature.CONTROLS`.
            The temperature of a layer then begins at ``temperature_init`` and follows the measured entropy;
            no ``schedule`` acts.
        control_level: Target share of ln n, in (0, 1); at the end of ``curriculum``.
        control_start: Share of ln n, in (0, 1), at the start of ``curriculum``.
        control_spread: Odds h / (1 - h) of the first layer over the last at the end of ``contrast``, > 0.
        warmup_start: tau at step 0 of ``warmup_anneal``, > 0.
        warmup_fraction: Share of training in its warm-up, in (0, 1).
        cycles: Number of cycles of ``cyclic`` and ``triangular``, half-integer.
        power: Exponent of ``polynomial``, > 0.
        num_steps: Number of plateaus of ``step``, >= 2.
        length_power: Exponent of ``log_n_power``, in [0, 4].
        length_slope: Growth of ``yarn`` and ``llama4`` with ln n, >= 0.
        curvature: Deviation of ``inv_sqrt``, ``logarithmic`` and ``sigmoid`` from a straight line, > 0.
        hold_fraction: Share of training, in [0, 1), after which ``hold_anneal`` (None: 0.5) and ``piecewise``
            (None: 0) leave ``temperature_init``.
        num_knots: Number of inner knots of ``piecewise``, 1 to 4; None: up to the last with a temperature.
        temperature_knot_1: tau at the first inner knot, > 0; None omits the knot.
        temperature_knot_2: tau at the second inner knot.
        temperature_knot_3: tau at the third inner knot.
        temperature_knot_4: tau at the fourth inner knot.
        temperature_knots: The complete ``piecewise`` schedule as 2 to 16 pairs ``[progress, tau]``.
        normaliser: Map from logits to weights, a name in :data:`tempopt.temperature.NORMALISERS`. ``linear``
            allows only temperature 1, and all but ``softmax`` no ``entropy_lambda``.
        top_k: Number of keys that the normaliser ``top_k`` keeps, >= 1.
        min_weight: Weight below which the normaliser ``threshold`` sets weights to 0, between 0 and 1.
        window: Distance, >= 1, below which a local head sees keys.
        local_share: Share of the heads of each layer, the first ones, that are local, in [0, 1].
        schedule_args: Numbers by name of a schedule that is a ``package.module:Class``.
        sampling_temperature: Divisor of the logits of generated tokens, >= 0; 0 for greedy decoding.
        top_p: Total probability, in (0, 1], of the most likely tokens that are drawn from.
        top_k_tokens: Number of the most likely tokens that are drawn from, >= 0; 0 for all.
        min_p: Smallest probability of a drawn token, as a share in [0, 1) of the most likely token's. These
            four are in :attr:`generation`, with which the module draws tokens.
        validate_at: Temperature under which validation and testing run: the plan's ``final``
            one (what is exported) or the ``current`` one.

    Under ``torch.compile`` one graph serves every temperature, schedule, layer pattern, ``head_ratio``,
    ``n0``, ``top_k``, ``min_weight``, ``window``, weight and target of the entropy, of this module and of
    others of its class: :meth:`attend` reads them from tensors, in float32 or better for any type of the
    weights. Compiled separately are the entropy term (on or off, with or without a target), the kinds of head
    pattern and length scaling, the normalisers and the numbers of local heads.

    Raises:
        SpecError: A name is unknown, or a value is out of its range.
    """

    inverse_temperature: Tensor
    auxiliary_weight: Tensor
    _entropy_weight: Tensor
    _entropy_target: Tensor
    _length_constant: Tensor
    _limit: Tensor
    _window: Tensor
    _heads: HeadTemperatures | None

    def __init__(
        self,
        *,
        num_layers: int,
        temperature_init: float = 1.0,
        temperature_final: float | None = None,
        schedule: str = "constant",
        layer_pattern: str = "uniform",
        layer_ratio: float = 1.0,
        head_pattern: str = "uniform",
        head_ratio: float = 1.0,
        length_scaling: str = "none",
        n0: float = 16.0,
        entropy_lambda: float = 0.0,
        entropy_lambda_final: float | None = None,
        entropy_schedule: str = "constant",
        entropy_target: float | None = None,
        entropy_control: str = "none",
        control_level: float = 0.6,
        control_start: float = 0.9,
        control_spread: float = 4.0,
        warmup_start: float = 1.0,
        warmup_fraction: float = 0.1,
        cycles: float = 1.5,
        power: float = 2.0,
        num_steps: int = 4,
        length_power: float = 1.0,
        length_slope: float = 0.1,
        curvature: float = 10.0,
        hold_fraction: float | None = None,
        num_knots: int | None = None,
        temperature_knot_1: float | None = None,
        temperature_knot_2: float | None = None,
        temperature_knot_3: float | None = None,
        temperature_knot_4: float | None = None,
        temperature_knots: Sequence[Sequence[float]] | None = None,
        normaliser: str = "softmax",
        top_k: int = 8,
        min_weight: float = 0.01,
        window: int = 64,
        local_share: float = 0.0,
        schedule_args: dict[str, Any] | None = None,
        sampling_temperature: float = 1.0,
        top_p: float = 1.0,
        top_k_tokens: int = 0,
        min_p: float = 0.0,
        validate_at: str = "final",
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=[] if _takes_num_layers(type(self)) else ["num_layers"])
        check_validate_at(validate_at)
        # parameters are arguments of the same names
        arguments = locals()
        if is_custom_schedule(schedule):
            load_schedule(schedule, where="schedule")
        self.entropy = EntropyParameters.from_mapping(arguments)
        self.control = ControlParameters.from_mapping(arguments)
        self._generation, self.reads_generation = GenerationParameters.from_mapping(arguments), False
        self.num_layers, self.validate_at = num_layers, validate_at
        self._begin()
        check_controllable(self.control, arguments)
        self.use(TemperatureParameters.from_mapping(arguments))

    def _begin(self) -> None:
        self.progress = 0.0
        self._override_temperatures: tuple[float, ...] | None = None
        self._learning = False
        self._registered: dict[str, float] = {}
        self._observers = Observers()
        self._head_factors = HeadFactors()
        for name in _BUFFER_NAMES:
            shape = {"inverse_temperature": (self.num_layers,), "_length_constant": (2,)}.get(name, ())
            self.register_buffer(name, torch.ones(shape, dtype=torch.float32), persistent=False)

    @property
    def plan(self) -> TemperaturePlan:
        """The temperature plan in force."""
        return self._plan

    @property
    def layers(self) -> Sequence[str]:
        """Names of the tempered layers in depth order."""
        return [f"layer {number}" for number in range(self.num_layers)]

    @property
    def generation(self) -> GenerationParameters:
        """Parameters for drawing tokens in validation and testing, as in ``sample(logits, generation)``.

        Raises:
            UsageError: It is read while a Trainer trains.
        """
        try:
            is_training = self.trainer.training
        except RuntimeError:
            # no Trainer is attached
            is_training = False
        if is_training:
            raise UsageError(
                f"{type(self).__name__} reads self.generation in training. Its parameters act in validation "
                "and testing alone: trainings that differ in nothing else are taken for the same. Declare a "
                "temperature that training samples with by register_temperature."
            )
        self.reads_generation = True
        return self._generation

    def use(self, parameters: TemperatureParameters) -> None:
        """Put another plan in force, at the progress that training has reached.

        Raises:
            SpecError: Its normaliser is not ``softmax``, and the module has an entropy term.
        """
        _check_entropy_known(self.entropy, parameters)
        # a plan needs a layer; without attention it has no effect
        self._plan = parameters.plan(self.num_layers or 1)
        self._override_temperatures, self._heads = None, None
        self._head_factors.use(self._plan.heads)
        self._write_buffers()

    def _write_buffers(self) -> None:
        if self.entropy.entropy_target is not None:
            self._entropy_target.fill_(self.entropy.entropy_target)
        for index, constant in enumerate(self._plan.length_scaling.constant):
            self._length_constant[index] = constant
        for limit in self._plan.normaliser.limits.values():
            self._limit.fill_(limit)
        self._window.fill_(self._plan.local.window)
        self.set_progress(self.progress)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        temperatures = {name: self.temperature(name) for name in self._registered}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tau in temperatures.items():
            exact_value = torch.full((), self._registered[name]) if tau.is_meta else tau
            self._buffers[registered_path(name)] = restore_precision(self.temperature(name), exact_value)
        for name in _BUFFER_NAMES:
            buffer = self._buffers[name]
            assert buffer is not None
            # converting the weights must not round the temperature
            self._buffers[name] = buffer.detach().to(torch.promote_types(buffer.dtype, torch.float32))
        if self._learning:
            self.learn()
        self._write_buffers()
        return self

    def set_progress(self, progress: float) -> None:
        """Set every layer's temperature and the weight of the entropy to those at ``progress`` in [0, 1]."""
        self.progress = progress
        self._entropy_weight.fill_(self.entropy.weight(progress) / max(self.num_layers, 1))
        inverses = [1.0 / tau for tau in self.temperatures]
        with torch.no_grad():
            self.inverse_temperature.copy_(torch.tensor(inverses, dtype=self.inverse_temperature.dtype))

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature of each layer in force, without the factors of heads and length."""
        own_temperatures = self._override_temperatures
        return (
            self._plan.temperatures(self.progress)[: self.num_layers]
            if own_temperatures is None
            else own_temperatures
        )

    def register_temperature(self, name: str, initial_temperature: float) -> None:
        """Declare a temperature that the module's own code reads by :meth:`temperature`, as a loss does.

        It is stored in a buffer of the module, ``NAME_temperature``, and therefore in its checkpoints. A
        study with the name under ``temperatures:`` searches its schedule; a :class:`tempopt.ValueCallback`
        for ``NAME_temperature`` trains one. Call it in ``__init__``, after ``super().__init__``.

        Args:
            name: Lower-case letters, digits and underscores, as in ``contrast``.
            initial_temperature: The temperature τ of the module without a study, from 1e-6 to 1e6; the
                baseline of a study trains at it.

        Raises:
            SpecError: The name or the number is not allowed, or the module already has such a buffer.
        """
        path = registered_path(name)
        if problem := name_problem(name):
            raise SpecError(f"register_temperature: {problem}")
        if hasattr(self, path):
            raise SpecError(
                f'register_temperature: "{name}" is kept at self.{path}, and {type(self).__name__} has that '
                "already. Register each temperature once, and under a name of its own."
            )
        check_number("temperature", initial_temperature)
        self.register_buffer(path, torch.tensor(initial_temperature, dtype=torch.float32))
        self._registered[name] = initial_temperature

    @property
    def registered_temperatures(self) -> tuple[str, ...]:
        """Names of the temperatures that :meth:`register_temperature` has declared."""
        return tuple(self._registered)

    def temperature(self, name: str) -> Tensor:
        """Return a registered temperature at the present training step, shape (), to divide by.

        Call it in every step. Under ``torch.compile`` one graph serves all of its values.

        Raises:
            SpecError: No temperature is registered under this name.
        """
        if name not in self._registered:
            remedy = f'Declare it in __init__: self.register_temperature("{name}", 0.5).'
            kind = f"temperature of {type(self).__name__}"
            raise SpecError(unknown(kind, name, self._registered, remedy))
        return self._buffers[registered_path(name)]  # type: ignore[return-value]

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Hold each layer at its own temperature, regardless of the plan, until :meth:`use`.

        They are stored in checkpoints, and validation uses them too.

        Raises:
            SpecError: There is not one number per layer, each from 1e-6 to 1e6.
        """
        self._override_temperatures = check_temperatures(temperatures, self.num_layers)
        self.set_progress(self.progress)

    def learn_heads(self) -> HeadTemperatures:
        """Give each head of attention its own temperature, starting at the present one, and return them.

        Backward passes compute their gradients. They also apply in validation, until :meth:`use`.
        """
        self._heads = HeadTemperatures(self.temperatures, self._plan.heads)
        return self._heads

    def learn(self) -> None:
        """Let backward passes compute the gradient of the temperatures from now on.

        A caller then learns a temperature by reading :meth:`log_gradients` after a backward pass and calling
        :meth:`set_temperatures`.
        """
        self._learning = True
        require_gradients([self.inverse_temperature])

    def log_gradients(self) -> list[float] | None:
        """Return and clear the gradient with respect to ln τ of each layer.

        It is summed over the backward passes since the last call; None if there were none.
        """
        gradient = pop_gradient(self.inverse_temperature)
        if gradient is None:
            return None
        return [
            -layer_gradient / tau
            for layer_gradient, tau in zip(gradient.tolist(), self.temperatures, strict=True)
        ]

    def set_loss_scale(self, loss_scale: float) -> None:
        """Set the factor by which the loss and the entropy term are multiplied before the backward pass."""
        self.auxiliary_weight.fill_(loss_scale)

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Return a context in which an observer receives the queries and keys of each :meth:`attend`.

        Only softmax attention is observed, and no compiled code.
        """
        return self._observers.observer_added(observe)

    def attend(
        self,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        v_BHKD: Tensor,
        *,
        layer: int,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        scale: float | None = None,
        inverse_temperature: Tensor | None = None,
        valid_BQ: Tensor | None = None,
    ) -> Tensor:
        """Return attention at this layer's temperature, by the plan's normaliser.

        Args:
            q_BHQD: Queries, shape (batch, heads, queries, head dimension).
            k_BHKD: Keys, shape (batch, heads, keys, head dimension).
            v_BHKD: Values, shape (batch, heads, keys, head dimension).
            layer: Depth of the layer, 0 <= layer < num_layers.
            attn_mask: Boolean (True: may attend) or additive mask, broadcastable to
                (batch, heads, queries, keys).
            is_causal: Whether a query sees only keys up to its own position. With local heads and without it,
                the last query is the last key, as with a key/value cache.
            dropout_p: Dropout probability of the weights; 0 outside training.
            scale: The model's factor on the logits; None is 1 / sqrt(head dimension).
            inverse_temperature: A factor on the plan's 1/tau, broadcasting to (batch, heads, queries, 1), as
                from :mod:`tempopt.attention.modules.learned`; None for the plan only.
            valid_BQ: True where a query is not padding, which the entropy term ignores; None if there is
                no padding.

        Returns:
            Shape (batch, heads, queries, head dimension); not to be changed in place. With
            ``entropy_lambda`` in training, the gradient of the entropy term flows through it, and its value
            is that of plain attention up to rounding.
        """
        tempering = self._tempering(layer, q_BHQD, inverse_temperature)
        masking: dict[str, Any] = {"attn_mask": attn_mask, "is_causal": is_causal}
        options: dict[str, Any] = {"dropout_p": dropout_p if self.training else 0.0, "scale": scale}
        is_observed = self._observers.present and self._plan.normaliser.name == SoftmaxNormaliser.name
        near = near_keys(self._plan.local, q_BHQD, k_BHKD, window=self._window, **masking)
        full_masking = masking
        if near is not None and (is_observed or self._regularises):
            mask = local_mask(q_BHQD.shape[1], k_BHKD.shape[-2], near=near, **masking)
            full_masking = {"attn_mask": mask, "is_causal": False}
        if is_observed:
            tempered_BHQD = temper_query(q_BHQD, k_BHKD.shape[-2], **tempering, **full_masking)
            self._observers.show(layer, tempered_BHQD, k_BHKD, scale=scale, valid_BQ=valid_BQ, **full_masking)
        if self._regularises:
            tempered_BHQD = temper_query(q_BHQD, k_BHKD.shape[-2], **tempering, **full_masking)
            return regularised_attention(
                tempered_BHQD,
                k_BHKD,
                v_BHKD,
                AttentionOptions(**full_masking, **options),
                weight=self.auxiliary_weight * self._entropy_weight,
                target=self._entropy_target if self.entropy.has_target else None,
                valid_BQ=valid_BQ,
            )
        arguments = {**self._normaliser(), **tempering, **masking, **options}
        if near is None:
            return tempered_attention(q_BHQD, k_BHKD, v_BHKD, **arguments)
        return local_attention(q_BHQD, k_BHKD, v_BHKD, near=near, **arguments)

    def _tempering(self, layer: int, q_BHQD: Tensor, inverse_temperature: Tensor | None) -> dict[str, Any]:
        factor = self.inverse_temperature[layer]
        if self._heads is not None:
            factor = factor * self._heads.factor(layer, q_BHQD)
        elif self._head_factors.present:
            factor = factor * self._head_factors.factor(q_BHQD)
        return {
            "inverse_temperature": factor if inverse_temperature is None else factor * inverse_temperature,
            "length_scaling": self._plan.length_scaling,
            "length_constant": self._length_constant,
        }

    @property
    def _regularises(self) -> bool:
        return self.entropy.has_term and self.training and torch.is_grad_enabled()

    def _normaliser(self) -> dict[str, Any]:
        limits = self._plan.normaliser.limits
        if torch.compiler.is_compiling():
            limits = dict.fromkeys(limits, self._limit)
        return {"normaliser": self._plan.normaliser.name, **limits}

    def configure_callbacks(self) -> list[L.Callback]:
        """Add the callbacks that set the temperature, weigh the entropy term and control the entropy."""
        callbacks: list[L.Callback] = [TemperatureCallback(validate_at=self.validate_at)]
        callbacks += [LossScaleCallback()] if self.entropy.has_term else []
        return [*callbacks, PlannedControl(self.control)] if self.control.controls else callbacks

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the progress, so that a reloaded module has the temperature with which it was saved."""
        checkpoint["tempopt_progress"] = self.progress
        if self._override_temperatures is not None:
            checkpoint["tempopt_temperatures"] = list(self._override_temperatures)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the progress and the temperatures that :meth:`on_save_checkpoint` saved."""
        temperatures = checkpoint.get("tempopt_temperatures")
        self._override_temperatures = (
            None if temperatures is None else check_temperatures(temperatures, self.num_layers)
        )
        self.set_progress(checkpoint.get("tempopt_progress", 1.0))


def _check_entropy_known(entropy: EntropyParameters, temperature_parameters: TemperatureParameters) -> None:
    """Refuse an entropy term beside a normaliser that is not softmax.

    Raises:
        SpecError: There is a term, and the weights are not those of softmax.
    """
    if entropy.has_term and temperature_parameters.normaliser != SoftmaxNormaliser.name:
        raise SpecError(
            f"entropy_lambda={entropy.entropy_lambda!r} is not supported with normaliser="
            f'"{temperature_parameters.normaliser}": the entropy term is defined for softmax '
            'only. Give entropy_lambda=0.0, or normaliser="softmax".'
        )


def check_controllable(control: ControlParameters, params: Mapping[str, Any]) -> None:
    """Refuse entropy control beside a plan that it would replace.

    Raises:
        SpecError: There is a target, and a schedule that changes or a normaliser that is not softmax.
    """
    if not control.controls:
        return
    normaliser = params.get("normaliser", SoftmaxNormaliser.name)
    if normaliser != SoftmaxNormaliser.name:
        raise SpecError(
            f'entropy_control="{control.entropy_control}" is not supported with normaliser='
            f'"{normaliser}": control is defined for the entropy of softmax '
            'only. Give entropy_control="none", or normaliser="softmax".'
        )
    schedule = params.get("schedule", Constant.name)
    if schedule != Constant.name:
        raise SpecError(
            f'schedule="{schedule}" has no effect with entropy_control='
            f'"{control.entropy_control}": the temperatures begin at temperature_init and follow the '
            'entropy. Give schedule="constant", or entropy_control="none".'
        )


def _takes_num_layers(cls: type) -> bool:
    """Return whether a subclass takes ``num_layers`` as an argument, instead of setting it itself."""
    subclasses = cls.__mro__[: cls.__mro__.index(TemperedModule)]
    return any("num_layers" in inspect.signature(subclass).parameters for subclass in subclasses)
