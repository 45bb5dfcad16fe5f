"""State of modules and callbacks that no ``state_dict`` holds: attributes, generators, buffers, copies."""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tempopt.attention.attach.preserve_state import generator_state
from tempopt.training.plain_data import is_data

AttributeValues = dict[str, dict[str, Any]]
"""Name of an object to its attributes by name: a value, and whether tensors of it are on a GPU."""

_LIBRARIES = ("lightning", "pytorch_lightning", "tempopt")
_NAMES_OF_LIGHTNING = vars(L.LightningModule()).keys()


class AttributeState:
    """The attributes of objects that are state: those that have changed since training began.

    What has not may belong to the process, as a folder, and is left as it is. Of modules that an attribute
    holds, as an average of weights, parameters and buffers count.

    Args:
        module: The module, with its parts.
        callbacks: The callbacks. Those of Lightning have all in ``state_dict``.
    """

    def __init__(self, module: nn.Module, callbacks: Iterable[L.Callback] = ()) -> None:
        self._parts = set(module.modules())
        self._owners: dict[str, object] = {
            f"module.{name}": part
            for name, part in module.named_modules()
            if not isinstance(part, torch.jit.ScriptModule)
        }
        self._saved_names = {f"module.{name}" for name in module.state_dict(keep_vars=True)}
        self._owners |= {
            f"callback {index}": callback
            for index, callback in enumerate(callbacks)
            if type(callback).__module__.partition(".")[0] not in _LIBRARIES
        }
        for owner_name, owner in list(self._owners.items()):
            for name, value in vars(owner).items():
                if self._is_copy(value):
                    copied_parts = value.named_modules()
                    self._owners |= {f"{owner_name}.{name}.{path}": part for path, part in copied_parts}
        self._owner_ids = {id(owner) for owner in self._owners.values()}
        self._digests: dict[tuple[str, str], bytes] | None = None
        self._digests = {
            (owner_name, name): _digest(value)
            for owner_name in self._owners
            for name, value in self._attributes(owner_name)
        }

    def changes(self) -> AttributeValues:
        """Return copies of the attributes that have changed since this object was made.

        Of an object with a state that has come in since they hold the class, which no checkpoint may hold.
        """
        assert self._digests is not None
        changes: AttributeValues = {}
        for owner_name in self._owners:
            for name, value in self._attributes(owner_name):
                if self._digests.get((owner_name, name)) != _digest(value):
                    changes.setdefault(owner_name, {})[name] = _copy(value), _is_on_gpu(value)
        return changes

    def write(self, values: AttributeValues, device: torch.device | None = None) -> None:
        """Set attributes to what :meth:`changes` has returned.

        Args:
            values: The values.
            device: Where tensors belong that were on a GPU when they were read; None: where they are.
        """
        for owner_name, attributes in values.items():
            owner: Any = self._owners[owner_name]
            tensors = _tensors(owner)
            for name, (value, is_on_gpu) in attributes.items():
                attribute: Any = getattr(owner, name, None)
                set_state = _stateful(attribute)[1]
                if set_state is not None and value is not None:
                    set_state(attribute, value)
                elif _is_shared(attribute, value, is_registered=name in tensors):
                    attribute.data.copy_(value)
                else:
                    setattr(owner, name, _copy(value, device if is_on_gpu else None))

    def _attributes(self, owner_name: str) -> Iterator[tuple[str, Any]]:
        owner = self._owners[owner_name]
        prefix = owner_name.removesuffix(".") + "."
        tensors = {
            name: value
            for name, value in _tensors(owner, has_parameters=owner not in self._parts).items()
            if prefix + name not in self._saved_names
        }
        for name, value in {**vars(owner), **tensors}.items():
            if isinstance(owner, nn.Module) and name in _NAMES_OF_LIGHTNING:
                continue
            get_state = _stateful(value)[0]
            is_new = self._digests is not None and (owner_name, name) not in self._digests
            if self._is_copy(value):
                if id(value) not in self._owner_ids:
                    yield name, nn.Module
            elif get_state is not None:
                yield name, type(value) if is_new else get_state(value)
            elif is_data(value):
                yield name, value

    def _is_copy(self, value: object) -> bool:
        """Return whether a value is a module that has no part in common with the one that is trained."""
        return isinstance(value, nn.Module) and self._parts.isdisjoint(value.modules())


def _stateful(value: object) -> tuple[Any, Any]:
    """Return the functions that read and write the state of an object which others may hold, so it stays."""
    if isinstance(value, deque):
        return list, lambda queue, items: (queue.clear(), queue.extend(items))
    return generator_state(value)


def _tensors(owner: object, *, has_parameters: bool = True) -> dict[str, Tensor]:
    if not isinstance(owner, nn.Module):
        return {}
    named_parameters: Iterable[tuple[str, Tensor]] = ()
    if has_parameters:
        named_parameters = owner.named_parameters(recurse=False)
    # writing to these is no in-place operation that autograd would refuse
    return {name: value.data for name, value in (*owner.named_buffers(recurse=False), *named_parameters)}


def _is_shared(attribute: Any, value: Any, *, is_registered: bool) -> bool:
    """Return whether others may hold the tensor of an attribute, as an optimizer."""
    return (
        isinstance(attribute, Tensor)
        and isinstance(value, Tensor)
        and (is_registered or attribute.requires_grad)
        and attribute.shape == value.shape
    )


def _is_on_gpu(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.device.type != "cpu" for leaf in tree_leaves(value))


def _copy(value: Any, device: torch.device | None = None) -> Any:
    return tree_map(
        lambda leaf: leaf.detach().clone().to(device) if isinstance(leaf, Tensor) else copy.copy(leaf), value
    )


def _digest(value: Any) -> bytes:
    def as_bytes(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        numbers = leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return str(leaf.dtype), tuple(leaf.shape), numbers

    return hashlib.blake2b(pickle.dumps(tree_map(as_bytes, value))).digest()
