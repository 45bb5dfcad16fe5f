"""What the attention calls of a model read: temperatures, and what comes beside them.

The modules of one attachment share one state. It knows nothing of modules, so that a copy of a module copies
no other one. What the numbers are is decided in ``tempopt.attention.attach.attachment``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tempopt.attention.attach.learning import (
    HeadFactors,
    HeadTemperatures,
    pop_gradient,
    require_gradients,
    sum_log_gradients,
)
from tempopt.attention.attach.observers import Observers
from tempopt.attention.attach.step_calls import StepCalls
from tempopt.attention.functional.attention import is_counting
from tempopt.attention.functional.logits import wide_type
from tempopt.temperature import (
    EntropyParameters,
    LengthScaling,
    LocalHeads,
    NoLengthScaling,
    SoftmaxNormaliser,
    TemperaturePlan,
    UniformHeads,
)

Placement = tuple[torch.device, torch.dtype]

_NO_LOCAL_HEADS = LocalHeads(window=1, local_share=0.0)


class Numbers(NamedTuple):
    """What one layer reads, as views of one tensor, so that a compiled graph serves all values."""

    inverse_temperature: Tensor
    entropy_weight: Tensor
    entropy_target: Tensor
    length_constant: Tensor
    limit: Tensor
    window: Tensor


class LayerNumbers:
    """Numbers of one layer by device and type; a copy has none until its module creates them.

    Attributes:
        at: The numbers.
        calls: The calls of the layer in this step.
    """

    def __init__(self) -> None:
        # compiled graphs read them: tensors in a dictionary, and nothing around them
        self.at: dict[Placement, Numbers] = {}
        self.calls = StepCalls()

    def __reduce__(self) -> Any:
        return LayerNumbers, ()


class CallState:
    """Temperatures of layers, entropy term, normaliser, head pattern, local heads and observers.

    Args:
        num_layers: Number of layers.

    Attributes:
        attached: Whether the modules of these layers still have their temperatures.
        values: 1 / temperature of each layer.
        final: Temperature of each layer at the end of the plan, which a model is evaluated with.
        layers: What each layer reads.
        originals: For each layer that whose temperatures it has: its own number, but for a copy.
        active: Names of the layers that have attended since it was cleared; None records none.
        mode: The function mode that computes the calls; None for the one that tempers them.
        operands: What a mode has recorded: layers, with the queries and keys of each call.
    """

    def __init__(self, num_layers: int) -> None:
        self.attached = True
        self.values: tuple[float, ...] = (1.0,) * num_layers
        self.final: tuple[float, ...] = (1.0,) * num_layers
        self.originals: Sequence[int] = range(num_layers)
        self.length_scaling: LengthScaling = NoLengthScaling()
        self.normaliser = SoftmaxNormaliser.name
        self.local = _NO_LOCAL_HEADS
        self.entropy = EntropyParameters()
        self.observers = Observers()
        self.heads: HeadTemperatures | None = None
        self.head_factors = HeadFactors()
        self.loss_scale = 1.0
        self.active: set[str] | None = None
        self.mode: Any = None
        self.operands: list[tuple[int, Tensor, Tensor]] = []
        self._entropy_weight = 0.0
        self._limit = 0.0
        self._learning = False
        self.layers = [LayerNumbers() for _ in range(num_layers)]
        self._flat: dict[Placement, Tensor] = {}

    @property
    def has_head_factors(self) -> bool:
        """Whether temperatures differ between heads."""
        return self.heads is not None or self.head_factors.present

    @property
    def has_length_scaling(self) -> bool:
        """Whether the temperature depends on the number of keys."""
        return not isinstance(self.length_scaling, NoLengthScaling)

    @property
    def has_local_heads(self) -> bool:
        """Whether heads see near keys only."""
        return bool(self.local.local_share)

    @property
    def is_softmax(self) -> bool:
        """Whether the weights are those of softmax."""
        return self.normaliser == SoftmaxNormaliser.name

    @property
    def has_more(self) -> bool:
        """Whether an attention call needs more than its query divided by one temperature."""
        return self.acts_at_softmax or self.has_head_factors or self.observers.present or is_counting()

    @property
    def acts_at_softmax(self) -> bool:
        """Whether something acts where softmax is written out, and not on the operands of its logits."""
        return self.has_length_scaling or self.has_local_heads or not self.is_softmax or self.entropy.has_term

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Set all that a plan has beside the temperatures, and the entropy term."""
        self.heads = None
        self.head_factors.use(plan.heads)
        self.length_scaling = plan.length_scaling
        self.normaliser = plan.normaliser.name
        self.local = plan.local
        self.entropy = entropy
        self._limit = sum(plan.normaliser.limits.values())
        self._write()

    def set_values(self, values: Sequence[float], entropy_weight: float | None = None) -> None:
        """Set 1 / temperature of every layer, first layer first.

        Args:
            values: A number for each layer.
            entropy_weight: Weight of the entropy term over all layers; None: as it is.
        """
        weight = self._entropy_weight if entropy_weight is None else entropy_weight
        # what is written again stops a backward pass that is under way
        if (self.values, self._entropy_weight) != (tuple(values), weight):
            self.values, self._entropy_weight = tuple(values), weight
            self._write()

    def set_loss_scale(self, loss_scale: float) -> None:
        """Set the factor by which the loss is multiplied before its gradient is taken."""
        self.loss_scale = loss_scale
        self._write()

    def note_active(self, name: str) -> None:
        """Record that a layer has attended, if layers are recorded."""
        if self.active is not None:
            self.active.add(name)

    def learn(self) -> None:
        """Make backward passes leave the gradient of every temperature."""
        self._learning = True
        require_gradients(self._inverses())

    def learn_heads(self, base: Sequence[float]) -> HeadTemperatures:
        """Give each head a temperature of its own, from those of the layers and the head pattern."""
        self.heads = HeadTemperatures(base, self.head_factors.pattern)
        return self.heads

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each layer, and forget it; None: none was left."""
        gradients_by_layer = [
            [pop_gradient(n.inverse_temperature) for n in layer.at.values()] for layer in self.layers
        ]
        return sum_log_gradients(
            [[g for g in gradients if g is not None] for gradients in gradients_by_layer], self.values
        )

    def _inverses(self) -> Iterator[Tensor]:
        return (numbers.inverse_temperature for layer in self.layers for numbers in layer.at.values())

    @contextmanager
    def by_temperature_alone(self) -> Iterator[None]:
        """Leave out, for a while, whatever else is attached; temperatures are afterwards as before."""
        names = ("length_scaling", "normaliser", "entropy", "local", "heads", "active")
        values = self.values
        pattern, settings = self.head_factors.pattern, {name: getattr(self, name) for name in names}
        self.length_scaling, self.normaliser = NoLengthScaling(), SoftmaxNormaliser.name
        self.entropy, self.local, self.heads = EntropyParameters(), _NO_LOCAL_HEADS, None
        self.head_factors.use(UniformHeads())
        try:
            yield
        finally:
            vars(self).update(settings)
            self.head_factors.use(pattern)
            self.set_values(values)

    def numbers(self, layer: LayerNumbers, q: Tensor) -> Numbers:
        """Return the numbers of one layer on the device of its query, in its wide type."""
        placement = q.device, wide_type(q)
        if placement not in layer.at:
            self._create_late(placement)
        return layer.at[placement]

    def inverse(self, numbers: LayerNumbers, layer: int, q_BHQD: Tensor) -> Tensor:
        """Return 1/τ of a layer as its queries take it: one number, or one for each head."""
        inverse = self.numbers(numbers, q_BHQD).inverse_temperature
        if self.heads is not None:
            return inverse * self.heads.factor(self.originals[layer], q_BHQD)
        return inverse * self.head_factors.factor(q_BHQD) if self.head_factors.present else inverse

    def create(self, placement: Placement) -> None:
        """Create the numbers of all layers for one device and type, if there are none."""
        if placement in self._flat:
            return
        count = len(self.values)
        # A tensor that is made in inference mode could never be trained with.
        with torch.inference_mode(False), torch.no_grad():
            flat = torch.ones(count + 6, device=placement[0], dtype=placement[1])
            self._flat[placement] = flat
            for index, layer in enumerate(self.layers):
                layer.at[placement] = Numbers(
                    inverse_temperature=flat[index],
                    entropy_weight=flat[count],
                    entropy_target=flat[count + 1],
                    length_constant=flat[count + 2 : count + 4],
                    limit=flat[count + 4],
                    window=flat[count + 5],
                )
        if self._learning:
            self.learn()
        self._write_to([flat])

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _create_late(self, placement: Placement) -> None:
        self.create(placement)

    def _write(self) -> None:
        self._write_to(self._flat.values())

    def _write_to(self, flats: Any) -> None:
        weight = self.loss_scale * self._entropy_weight / len(self.values)
        target = self.entropy.entropy_target or 0.0
        values = (*self.values, weight, target, *self.length_scaling.constant, self._limit, self.local.window)
        with torch.no_grad():
            numbers = torch.tensor(values, dtype=torch.float64)
            for flat in flats:
                # Waiting for the device at each step would cost more than the copy.
                flat.copy_(numbers.to(flat.dtype).to(flat.device, non_blocking=True))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_flat"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Where the modules are now is theirs to say, as soon as they are back themselves.
        self.__dict__.update(state, _flat={}, _learning=False)
