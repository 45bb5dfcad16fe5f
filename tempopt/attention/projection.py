"""A projection whose query rows are multiplied by a factor as they are read, whoever reads them.

The parameters themselves stay what and where they are: in name, order, value, state and optimizer. Which
factor it is, and in which modules, is decided in ``tempopt.attention.attach``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from tempopt.attention.query_rows import QueryRows, Rows
from tempopt.errors import AttachError

_BINDING = "_tempopt_binding"
_INITIALISERS = ("reset_parameters", "_reset_parameters")

Place = tuple[torch.device, torch.dtype]


class Factors:
    """The factor of every layer, in one tensor for each place, of which each layer reads a view.

    To set all of them is one copy in place, so that compiled graphs go on and views stay valid.

    Args:
        places: Device and type of the projection of each layer.
    """

    # A row is (factor, 1, 1): query, key and value of a fused projection; a separate one reads the first.
    PARTS = 3

    def __init__(self, places: Sequence[Place]) -> None:
        self.values: tuple[float, ...] = (1.0,) * len(places)
        self.attached = True
        self._places = [_factor_place(place) for place in places]
        self._build()

    def set(self, values: Sequence[float]) -> None:
        """Set the factor of every layer, first layer first; gradients that are under way then refuse."""
        if self.values != tuple(values):
            self.values = tuple(values)
            self._write()

    def move(self, layer: int, place: Place) -> None:
        """Follow the projection of one layer to another device or type."""
        place = _factor_place(place)
        if self._places[layer] != place:
            self._places[layer] = place
            self._build()

    def _build(self) -> None:
        # A tensor that is born in inference mode could never take part in training.
        with torch.inference_mode(False), torch.no_grad():
            size = (len(self.values), self.PARTS)
            self._tables = {
                (device, dtype): torch.ones(size, device=device, dtype=dtype)
                for device, dtype in dict.fromkeys(self._places)
            }
            self._columns = [table[:, 0] for table in self._tables.values()]
            self.rows = [self._tables[place][layer] for layer, place in enumerate(self._places)]
        self._write()

    def _write(self) -> None:
        with torch.no_grad():
            values = torch.tensor(self.values, dtype=torch.float64)
            for column in self._columns:
                # Waiting for the device at each step would cost more than the copy.
                column.copy_(values.to(column.dtype), non_blocking=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "attached": self.attached, "_places": self._places}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._build()


def _factor_place(place: Place) -> Place:
    """Return where the factor lies: narrow types are multiplied in float32, as by a Python number."""
    device, dtype = place
    return device, torch.float64 if dtype == torch.float64 else torch.float32


def place_of(layer: QueryRows) -> Place:
    """Return device and type of a layer's projection."""
    weight = layer.parameters()[0][1]
    return weight.device, weight.dtype


@dataclass(slots=True)
class _Binding:
    """What a tempered module knows: its layer, the factors of all, and its rows by parameter name."""

    name: str
    layer: int
    factors: Factors
    rows: dict[str, Rows]
    overwritten: list[str] = field(default_factory=list)


class TemperedProjection(nn.Module):
    """Base of the classes that attached modules have; never made by itself.

    A subclass is made for each class of projection, ``Linear`` to ``TemperedLinear``, in which weight and
    bias are properties. ``_parameters`` is not touched, and all of ``nn.Module`` that concerns parameters
    (names, states, conversion, ``torch.func.functional_call``) goes through it.
    """

    _untempered: type[nn.Module]

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Apply ``fn`` with weight and bias being the parameters, so that it can initialise them."""
        with untempered(self):
            return self.apply(fn)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        binding = _binding(self)
        weight = self._parameters[next(iter(binding.rows))]
        assert weight is not None
        binding.factors.move(binding.layer, (weight.device, weight.dtype))
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class exists only here: say how to make it again from one that can be imported.
        with untempered(self):
            make, arguments, *state = self.__reduce_ex__(protocol)
        return _remake, (make, arguments, tuple(_binding(self).rows)), *state


def temper(layer: QueryRows, index: int, factors: Factors) -> None:
    """Make the module read its query rows times ``factors``' row ``index``, from now on."""
    rows = {each.parameter: each for each in layer.rows}
    layer.module.__dict__[_BINDING] = _Binding(name=layer.name, layer=index, factors=factors, rows=rows)
    kind: Any = type(layer.module)
    _become(layer.module, _tempered_class(kind, tuple(rows)))


def restore(module: TemperedProjection) -> None:
    """Make the module what it was before :func:`temper`."""
    binding = module.__dict__.pop(_BINDING)
    binding.factors.attached = False
    _become(module, module._untempered)


@contextmanager
def untempered(module: TemperedProjection) -> Iterator[None]:
    """Let the module be of its own class for a while: what is read is what is kept."""
    tempered = type(module)
    _become(module, tempered._untempered)
    try:
        yield
    finally:
        _become(module, tempered)


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
    members |= {"_untempered": untempered_class, "__module__": untempered_class.__module__}
    members["__doc__"] = f"{untempered_class.__qualname__} whose query rows are divided by a temperature."
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
        binding: _Binding = self.__dict__[_BINDING]
        if binding.overwritten:
            raise AttachError(_lost_change(binding, binding.overwritten.pop()))
        factor, rows = binding.factors.rows[binding.layer], binding.rows[name]
        if torch.compiler.is_compiling():
            return _multiply(parameter, factor, rows)
        # Like the parameter, the product requires gradients also where none are taken: matrix products
        # choose their way by that, and round differently.
        lost = parameter.requires_grad and not torch.is_grad_enabled()
        with torch.inference_mode(False) if lost else nullcontext():
            product = _multiply(parameter, factor, rows)
        _watch(product, name, binding)
        return product

    return property(read)


def _multiply(parameter: Tensor, factor: Tensor, rows: Rows) -> Tensor:
    """Return the parameter with its query rows times ``factor[0]``; exact where that is 1."""
    if rows.parts == 1:
        product = parameter * factor[:1]
    else:
        parts = torch.unflatten(parameter, rows.axis, (rows.parts, -1))
        behind = parts.ndim - rows.axis - 1
        product = (parts * factor.view(-1, *(1,) * behind)).flatten(rows.axis, rows.axis + 1)
    return product if product.dtype == parameter.dtype else product.to(parameter.dtype)


def _initialising(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def initialise(self: TemperedProjection, *args: Any, **kwargs: Any) -> Any:
        with untempered(self):
            return method(self, *args, **kwargs)

    return initialise


def _watch(product: Tensor, name: str, binding: _Binding) -> None:
    """Notice when the product is changed in place, as by ``nn.init``: that change reaches no parameter."""
    if product.is_inference():
        return
    # Shares storage and version with the product, without its graph, and is let go of with it.
    twin = product.detach()
    weakref.finalize(product, _note_change, twin, twin._version, name, binding).atexit = False


def _note_change(twin: Tensor, version: int, name: str, binding: _Binding) -> None:
    if twin._version != version:
        binding.overwritten.append(name)


def _lost_change(binding: _Binding, parameter: str) -> str:
    full = f"{binding.name}.{parameter}".lstrip(".")
    return (
        f'"{full}" was changed in place, but what is read there is the parameter divided by the temperature, '
        "a new tensor each time, so the change is lost. Change the parameter itself: "
        f'dict(model.named_parameters())["{full}"], or initialise the model before a temperature is attached.'
    )


def _binding(module: TemperedProjection) -> _Binding:
    binding: _Binding = module.__dict__[_BINDING]
    return binding
