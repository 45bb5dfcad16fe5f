"""A projection whose rows are multiplied by a factor whenever they are read.

The parameters themselves stay what and where they are: in name, order, value, state and optimizer. Which
factor it is, and in which modules, is decided in ``tempopt.attention.attach.attachment``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tempopt.attention.attach.learning import HeadTemperatures, by_sums, require_gradients, taken_gradient
from tempopt.attention.attach.observers import Observe, fused_attention_observed
from tempopt.attention.attach.query_rows import AS_TEMPERED_MODULE, QueryRows, baked, is_packed
from tempopt.errors import AttachError
from tempopt.temperature import EntropyParameters, TemperaturePlan

ROWS = "query_rows"
"""Name of this way of attaching."""

BINDING = "_tempopt_binding"
"""Name under which a tempered module holds what it knows."""
_COMPARED = 16
"""Reads of a projection's parameters, from its attachment on, whose contents are compared at the next one."""
_INITIALISERS = ("reset_parameters", "_reset_parameters")

Placement = tuple[torch.device, torch.dtype]


class Factors:
    """What the rows of every projection are multiplied by: a factor for each layer's query, 1 for the rest.

    All lie in one tensor for each place, of which each layer reads views. To set them is one copy in place,
    so that views stay valid and compiled graphs go on.

    Args:
        layers: The projections, first layer first.

    Attributes:
        values: The factor of each layer, as set.
        final: The temperature of each layer at the end of the plan.
        layer_of: The number of the layer that each projection belongs to.
        shapes: As of :func:`_shapes`, of each projection.
    """

    def __init__(self, layers: Sequence[QueryRows]) -> None:
        self.values: tuple[float, ...] = (1.0,) * len(layers)
        self.final: tuple[float, ...] = (1.0,) * len(layers)
        self.attached = True
        self._learning = False
        numbered_projections = [
            (number, projection) for number, layer in enumerate(layers) for projection in layer.every
        ]
        self.layer_of = [number for number, _ in numbered_projections]
        self.shapes = [_shapes(projection) for _, projection in numbered_projections]
        self._places = [_factor_place(*place_of(projection)) for _, projection in numbered_projections]
        self._build()

    def set(self, values: Sequence[float]) -> None:
        """Set the factor of every layer, first layer first; gradients that are under way then refuse."""
        if self.values != tuple(values):
            self.values = tuple(values)
            self._write()

    def learn(self) -> None:
        """Have backward passes leave the gradient of every factor from now on."""
        self._learning = True
        require_gradients(view for views in self.views for view in views.values())

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each layer, and forget it; None: none was left."""
        layer_gradients: dict[int, list[Tensor]] = {number: [] for number in range(len(self.values))}
        for layer, views, shapes in zip(self.layer_of, self.views, self.shapes, strict=True):
            for name, (_, query) in shapes.items():
                gradient = taken_gradient(views[name])
                if gradient is not None:
                    # past the query's rows the factor is 1
                    layer_gradients[layer].append(gradient.flatten()[:query].double().sum())
        return by_sums(list(layer_gradients.values()), self.values)

    def move(self, index: int, placement: Placement) -> None:
        """Follow one projection, by its place among all, to another device or type."""
        placement = _factor_place(*placement)
        if self._places[index] != placement:
            self._places[index] = placement
            self._build()

    def _build(self) -> None:
        sizes = [max(shape.numel() for shape, _ in shapes.values()) for shapes in self.shapes]
        # Which value each row takes; past the last layer's comes a 1.
        value_indices = torch.full((sum(sizes),), len(self.values))
        for layer, shapes, rows in zip(self.layer_of, self.shapes, value_indices.split(sizes), strict=True):
            rows[: min(query for _, query in shapes.values())] = layer
        # A tensor that is made in inference mode could never be trained with.
        with torch.inference_mode(False), torch.no_grad():
            self._flat = {
                (device, dtype): (
                    torch.ones(len(value_indices), device=device, dtype=dtype),
                    value_indices.to(device),
                )
                for device, dtype in dict.fromkeys(self._places)
            }
            self.views = [
                {name: rows[: shape.numel()].view(shape) for name, (shape, _) in shapes.items()}
                for shapes, rows in zip(self.shapes, self._rows(sizes), strict=True)
            ]
        if self._learning:
            self.learn()
        self._write()

    def _rows(self, sizes: Sequence[int]) -> list[Tensor]:
        return [
            self._flat[placement][0].split(list(sizes))[index] for index, placement in enumerate(self._places)
        ]

    def _write(self) -> None:
        with torch.no_grad():
            values = torch.tensor((*self.values, 1.0), dtype=torch.float64)
            for flat, value_indices in self._flat.values():
                # Waiting for the device at each step would cost more than the copy.
                flat.copy_(values.to(flat.dtype).to(flat.device, non_blocking=True)[value_indices])

    def __getstate__(self) -> dict[str, Any]:
        names = ("named", "values", "final", "attached", "shapes", "layer_of")
        return {name: value for name, value in vars(self).items() if name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Where the projections are now is theirs to say, as soon as they are back themselves.
        self.__dict__.update(state)
        self._learning = False
        self._places = [(torch.device("cpu"), torch.float32)] * len(self.shapes)
        self._build()


def _shapes(layer: QueryRows) -> dict[str, tuple[torch.Size, int]]:
    """Return, by parameter, the shape of one factor for each row, and how many of those are the query's."""
    shapes = {}
    for rows, parameter in layer.parameters():
        shape = [1] * parameter.ndim
        shape[rows.axis] = parameter.shape[rows.axis]
        shapes[rows.parameter] = torch.Size(shape), parameter.shape[rows.axis] // rows.parts
    return shapes


def _factor_place(device: torch.device, dtype: torch.dtype) -> Placement:
    """Return where the factor lies: narrow types are multiplied in float32, as by a Python number."""
    return device, torch.float64 if dtype == torch.float64 else torch.float32


def factors_of(module: nn.Module) -> Factors | None:
    """Return what the rows of a module are multiplied by; None of one that no temperature is attached to."""
    binding: ProjectionBinding | None = module.__dict__.get(BINDING)
    return None if binding is None else binding.factors


def factors_in(model: nn.Module) -> list[Factors]:
    """Return what the rows of all tempered modules of a model are multiplied by, each once."""
    module_factors = (factors_of(module) for module in model.modules())
    return list({id(factors): factors for factors in module_factors if factors is not None}.values())


@contextmanager
def all_untempered(model: nn.Module) -> Iterator[None]:
    """Let all tempered modules of a model be of their own classes for a while."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, TemperedProjection):
                stack.enter_context(untempered(module))
        yield


def place_of(layer: QueryRows) -> Placement:
    """Return device and type of a layer's projection."""
    weight = layer.parameters()[0][1]
    return weight.device, weight.dtype


@dataclass(slots=True)
class ProjectionBinding:
    """What a tempered module knows: where it is in the model, and the factors of all projections."""

    name: str
    index: int
    factors: Factors
    overwritten: list[str] = field(default_factory=list)
    compared: int = 0
    cached_reads: _CachedReads = field(default_factory=lambda: _CachedReads())


@dataclass(slots=True)
class _Read:
    """What was read of a parameter, and what it was then."""

    product: Tensor
    twin: Tensor
    content: Tensor

    @property
    def is_changed(self) -> bool:
        """Whether it was written to, or given other values, by way of ``.data`` too."""
        try:
            if self.product.data_ptr() != self.twin.data_ptr():
                return True
        except RuntimeError:
            # it has no values, as on the device meta or under vmap
            return False
        return _differs(self.twin, self.content)


class _CachedReads(dict[str, _Read]):
    """The last read of each parameter; a copy of the module has had none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), ()


class TemperedProjection(nn.Module):
    """Base of the classes that attached modules have; never made by itself.

    A subclass is made for each class of projection, ``Linear`` to ``TemperedLinear``, in which weight and
    bias are properties. ``_parameters`` is not touched, and all of ``nn.Module`` that concerns parameters
    (names, states, conversion, ``torch.func.functional_call``) goes through it.
    """

    _untempered: type[nn.Module]
    _tempered_names: tuple[str, ...]

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Apply ``fn`` with weight and bias being the parameters, so that it can initialise them."""
        with untempered(self):
            return self.apply(fn)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._follow()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._follow()

    def _follow(self) -> None:
        """Have the factors where the weight is."""
        binding: ProjectionBinding = self.__dict__[BINDING]
        weight = self._parameters[self._tempered_names[0]]
        assert weight is not None
        binding.factors.move(binding.index, (weight.device, weight.dtype))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class exists only here: say how to make it again from one that can be imported.
        with untempered(self):
            make, arguments, *state = self.__reduce_ex__(protocol)
        return _remake, (make, arguments, self._tempered_names), *state


class QueryRowsMechanism:
    """Query rows scaled as they are read, from now on; a ``Mechanism``.

    Args:
        model: The model.
        rows: Its query projections, first layer first.
    """

    method: ClassVar[str] = ROWS
    # Not a power of two, so that arithmetic in another order would show.
    probe: ClassVar[float] = 3.0
    by_hand_is: ClassVar[str] = (
        "the same model with the temperature multiplied into its query weights. The forward may read a copy "
        "or a cache of the weights"
    )

    def __init__(self, model: nn.Module, rows: Sequence[QueryRows]) -> None:
        self._model = model
        self._rows = list(rows)
        self._factors = Factors(rows)
        self.names = [layer.name for layer in rows]
        self.attentions = [
            layer.name if is_packed(layer.module) else layer.name.rpartition(".")[0] for layer in rows
        ]
        for index, layer in enumerate(self._projections):
            binding = ProjectionBinding(name=layer.name, index=index, factors=self._factors)
            layer.module.__dict__[BINDING] = binding
            kind: Any = type(layer.module)
            _become(layer.module, _tempered_class(kind, tuple(rows.parameter for rows in layer.rows)))

    @property
    def _projections(self) -> list[QueryRows]:
        return [projection for layer in self._rows for projection in layer.every]

    @property
    def attached(self) -> bool:
        """Whether the model still has the temperatures."""
        return self._factors.attached

    @property
    def values(self) -> tuple[float, ...]:
        """1 / temperature of each layer, as set."""
        return self._factors.values

    def set_values(self, values: Sequence[float], entropy_weight: float | None = None) -> None:
        """Set 1 / temperature of each layer."""
        self._factors.set(values)

    def set_final(self, temperatures: Sequence[float]) -> None:
        """Take the temperatures at the end of the plan, which a model is evaluated with."""
        self._factors.final = tuple(temperatures)

    def require_in_place(self) -> None:
        """Do nothing: a module that is put in place of another is another model."""

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Do nothing: what there is beside the temperatures was refused."""

    def set_loss_scale(self, loss_scale: float) -> None:
        """Do nothing: nothing is added to the loss."""

    def learn(self) -> None:
        """Have backward passes leave the gradient of the temperatures."""
        self._factors.learn()

    def learn_heads(self, base: Sequence[float]) -> HeadTemperatures:
        """Refuse: rows are not known by heads.

        Raises:
            AttachError: in any case.
        """
        raise AttachError(
            "Temperatures of heads cannot be attached by query rows: which row is of which head is not known "
            f'there. Attach a model of transformers with method="attention_interface", or '
            f"{AS_TEMPERED_MODULE}. Of a study write study: {{learned: true}}, so that each layer has one."
        )

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each layer, and forget it."""
        return self._factors.log_gradients()

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Show queries and keys for a while."""
        return fused_attention_observed(self._model, self.names, observe)

    def devices(self) -> set[torch.device]:
        """Return where the projections are."""
        return {place_of(layer)[0] for layer in self._rows}

    def by_temperature_alone(self) -> AbstractContextManager[None]:
        """Do nothing: there is nothing else."""
        return nullcontext()

    @contextmanager
    def by_hand(self, temperatures: Mapping[int, float]) -> Iterator[None]:
        """Give the projections their own classes, and some the temperature in their weights."""
        with ExitStack() as stack:
            for layer, temperature in temperatures.items():
                stack.enter_context(baked(self._rows[layer], 1.0 / temperature))
            for projection in self._projections:
                assert isinstance(projection.module, TemperedProjection)
                stack.enter_context(untempered(projection.module))
            yield

    def cancelled(self, layer: int) -> AbstractContextManager[None] | None:
        """Double the query and halve the key of a fused projection."""
        return _doubled_and_halved(self._rows[layer]) if self._rows[layer].fused else None


@contextmanager
def _doubled_and_halved(layer: QueryRows) -> Iterator[None]:
    with baked(layer, 2.0), baked(layer, 0.5, part=1):
        yield


def restore(module: TemperedProjection) -> None:
    """Make the module what it was before :func:`temper`."""
    binding = module.__dict__.pop(BINDING)
    binding.factors.attached = False
    _become(module, module._untempered)


@contextmanager
def untempered(module: TemperedProjection) -> Iterator[None]:
    """Let the module be of its own class for a while: what is read is what is kept."""
    tempered_class = type(module)
    _become(module, tempered_class._untempered)
    try:
        yield
    finally:
        _become(module, tempered_class)


def _become(module: nn.Module, kind: type[nn.Module]) -> None:
    object.__setattr__(module, "__class__", kind)


@functools.cache
def _tempered_class(untempered_class: Any, names: tuple[str, ...]) -> type[TemperedProjection]:
    """Return the one tempered class for a class of projection; one, since compiled graphs depend on it."""
    members: dict[str, Any] = {name: _reading(name) for name in names}
    members |= {
        name: _initialising(getattr(untempered_class, name))
        for name in _INITIALISERS
        if name in dir(untempered_class)
    }
    members |= {
        "_untempered": untempered_class,
        "_tempered_names": names,
        "__module__": untempered_class.__module__,
    }
    members["__doc__"] = f"{untempered_class.__qualname__} whose rows are divided by a temperature."
    return type(f"Tempered{untempered_class.__name__}", (TemperedProjection, untempered_class), members)


def _remake(make: Callable[..., nn.Module], arguments: tuple[Any, ...], names: tuple[str, ...]) -> nn.Module:
    module = make(*arguments)
    kind: Any = type(module)
    _become(module, _tempered_class(kind, names))
    return module


def _reading(name: str) -> property:
    def read(self: TemperedProjection) -> Tensor | None:
        if name not in self._parameters:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        parameter = self._parameters[name]
        if parameter is None:
            return None
        binding: ProjectionBinding = self.__dict__[BINDING]
        if not torch.compiler.is_compiling():
            _compare(name, binding)
        if binding.overwritten:
            raise AttachError(_lost_change(binding, binding.overwritten.pop()))
        factor = binding.factors.views[binding.index][name]
        if torch.compiler.is_compiling():
            return _multiply(parameter, factor)
        # Like the parameter, the product requires gradients also where none are taken: matrix products
        # choose their way by that, and round differently.
        needs_inference_off = parameter.requires_grad and not torch.is_grad_enabled()
        with torch.inference_mode(False) if needs_inference_off else nullcontext():
            product = _multiply(parameter, factor)
        _watch(product, name, binding)
        return product

    return property(read)


def _multiply(parameter: Tensor, factor: Tensor) -> Tensor:
    """Return the product in the parameter's type; exact where the factor is 1."""
    product = parameter * factor
    return product if product.dtype == parameter.dtype else product.to(parameter.dtype)


def _initialising(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def initialise(self: TemperedProjection, *args: Any, **kwargs: Any) -> Any:
        with untempered(self):
            return method(self, *args, **kwargs)

    return initialise


def _watch(product: Tensor, name: str, binding: ProjectionBinding) -> None:
    """Notice when the product is changed in place, as by ``nn.init``: that change reaches no parameter."""
    if product.is_inference():
        return
    # Shares storage and version with the product, without its graph, and is released with it.
    twin = product.detach()
    if binding.compared < _COMPARED:
        # what is written to .data has no version, and is written once the product itself is released
        binding.compared += 1
        binding.cached_reads[name] = _Read(product, twin, twin.clone())
    weakref.finalize(product, _note_change, twin, twin._version, name, binding).atexit = False


def _compare(name: str, binding: ProjectionBinding) -> None:
    """Notice whether what was read last has been changed since."""
    last_read = binding.cached_reads.pop(name, None)
    if last_read is not None and last_read.is_changed:
        binding.overwritten.append(name)


def _note_change(twin: Tensor, version: int, name: str, binding: ProjectionBinding) -> None:
    if twin._version != version:
        binding.overwritten.append(name)


def _differs(tensor: Tensor, other_tensor: Tensor) -> bool:
    try:
        return not bool(((tensor == other_tensor) | tensor.isnan()).all())
    except (RuntimeError, NotImplementedError):
        # these have no values, as on the device meta or under vmap
        return False


def _lost_change(binding: ProjectionBinding, parameter: str) -> str:
    full_name = f"{binding.name}.{parameter}".lstrip(".")
    return (
        f'"{full_name}" was changed in place, but what is read there is the parameter divided by the '
        "temperature, a new tensor each time, so the change is lost, also by way of .data. Change the "
        f'parameter itself: dict(model.named_parameters())["{full_name}"], or initialise the model '
        "before a temperature is attached."
    )
