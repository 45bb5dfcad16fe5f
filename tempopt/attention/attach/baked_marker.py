"""Marks modules whose weights have a temperature in them, so that none is attached on top of it unnoticed.

The mark goes with a state dict as metadata beside the version that PyTorch keeps there for each module, and
with a configuration of transformers as one more entry. Both are kept in files, and a process without tempopt
reads neither. A module does not remember what was loaded into it, so ``torch.nn.Module.load_state_dict`` is
wrapped when this is imported, to read those metadata. What is marked is decided in
``tempopt.attention.attach.scalings``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from tempopt.attention.attach.call_mode import binding_of
from tempopt.attention.attach.outputs import enclosing_modules
from tempopt.errors import AttachError

MARK = "tempopt_baked"
"""Name of the baked temperature, in metadata of state dicts and in configurations of transformers."""
BESIDE = (
    "tempopt: this model was trained with temperatures that are not in these weights; load them "
    "with tempopt.load_checkpoint(model, path)"
)
"""Key in a state dict that must not be loaded without its temperatures: a plain model refuses it by name."""

_BAKED_ATTRIBUTE = f"_{MARK}"
_ON_TOP = (
    "Load weights that were saved before they were baked, or, if one temperature is to come on top of the "
    "other, attach with allow_baked=True."
)


def is_attached(model: nn.Module) -> bool:
    """Whether a temperature is attached to a module of the model."""
    return any(binding_of(module) is not None for module in model.modules())


def config_of(module: nn.Module) -> Any:
    """Return the configuration of a module of transformers, None of another module."""
    config = module.__dict__.get("config")
    return config if hasattr(config, "_attn_implementation") else None


def mark(module: nn.Module, temperature: float) -> None:
    """Mark a module, on top of what it is marked with already.

    Args:
        module: Whose weights were scaled.
        temperature: The temperature that was written into them; 1 leaves it unmarked.
    """
    if temperature != 1.0:
        module.__dict__[_BAKED_ATTRIBUTE] = temperature * module.__dict__.get(_BAKED_ATTRIBUTE, 1.0)
        if _tell not in module._state_dict_hooks.values():
            module.register_state_dict_post_hook(_tell)


def mark_configurations(model: nn.Module, temperatures: Iterable[float]) -> None:
    """Mark the configurations of transformers in a model, which ``save_pretrained`` keeps."""
    marks = [temperature for temperature in temperatures if temperature != 1.0]
    configs = {id(config): config for config in map(config_of, model.modules()) if config}
    for config in configs.values() if marks else ():
        setattr(config, MARK, marks)


def mark_state(state_dict: Any, temperatures: Mapping[str, float]) -> None:
    """Mark modules by name in a state dict of their weights, as :func:`mark` has it done in one to come."""
    metadata: dict[str, dict[str, Any]] | None = getattr(state_dict, "_metadata", None)
    if metadata is not None:
        for name, temperature in temperatures.items():
            if temperature != 1.0:
                entry = metadata.get(name, {})
                metadata[name] = {**entry, MARK: temperature * entry.get(MARK, 1.0)}


def unmark_state(state_dict: Any) -> None:
    """Take all marks off a state dict."""
    for entry in _metadata(state_dict).values():
        entry.pop(MARK, None)


def marked_temperatures(state_dict: Any) -> dict[str, float]:
    """Return the temperatures that a state dict says are in weights of it, by the name of each module."""
    return {name: float(entry[MARK]) for name, entry in _metadata(state_dict).items() if MARK in entry}


def refuse_baked(model: nn.Module) -> None:
    """Refuse to attach to weights that have a temperature in them already.

    Raises:
        AttachError: if they have.
    """
    for name, temperature in _marks(model):
        raise AttachError(
            f'"{name}" has the temperature {temperature} in its weights already (tempopt.bake), and what is '
            f"attached would come on top of it. {_ON_TOP}"
        )


def _marks(model: nn.Module) -> Iterator[tuple[str, str]]:
    for name, module in model.named_modules():
        if _BAKED_ATTRIBUTE in module.__dict__:
            yield name, f"{module.__dict__[_BAKED_ATTRIBUTE]:.4g}"
    for name, module in model.named_modules():
        marks = getattr(config_of(module), MARK, None)
        if marks:
            yield (
                name or type(module).__name__,
                ", ".join(f"{temperature:.4g}" for temperature in dict.fromkeys(marks)),
            )


def _metadata(state_dict: Any) -> Mapping[str, dict[str, Any]]:
    metadata: Mapping[str, dict[str, Any]] = getattr(state_dict, "_metadata", None) or {}
    return metadata


def _tell(module: nn.Module, state_dict: Any, prefix: str, local_metadata: dict[str, Any]) -> None:
    if _BAKED_ATTRIBUTE in module.__dict__:
        local_metadata[MARK] = module.__dict__[_BAKED_ATTRIBUTE]


def _noticing(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_state_dict(self: nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(state_dict, Mapping) and BESIDE in state_dict:
            raise AttachError(
                "These weights were trained with temperatures that are not in them, so without tempopt the "
                "model would be at temperature 1. Load them with tempopt.load_checkpoint(model, path, "
                "example=lambda: model(batch)), which attaches the temperatures."
            )
        if any(_is_tempered(self, name) for name in marked_temperatures(state_dict)):
            raise AttachError(
                "These weights have a temperature in them already (tempopt.bake), and the model that they "
                "are loaded into has one attached, which would come on top of it. Detach it first: "
                f"tempopt.attention.attach.detach(model). {_ON_TOP}"
            )
        loaded = load(self, state_dict, *args, **kwargs)
        _take_over(self, _metadata(state_dict))
        return loaded

    return load_state_dict


def _is_tempered(model: nn.Module, name: str) -> bool:
    """Whether a temperature is attached to a module of that name, or to one that it is in."""
    modules = dict(model.named_modules(remove_duplicate=False))
    enclosing = enclosing_modules(name, modules) if name in modules else ()
    return any(binding_of(modules[enclosing_name]) is not None for enclosing_name in enclosing)


def _take_over(model: nn.Module, metadata: Mapping[str, Mapping[str, Any]]) -> None:
    """Mark modules as the state dict that was loaded is marked."""
    for name, module in model.named_modules(remove_duplicate=False) if metadata else ():
        entry = metadata.get(name)
        if entry is None:
            continue
        if MARK in entry:
            module.__dict__.pop(_BAKED_ATTRIBUTE, None)
            mark(module, float(entry[MARK]))
        elif module._parameters:
            module.__dict__.pop(_BAKED_ATTRIBUTE, None)


nn.Module.load_state_dict = _noticing(nn.Module.load_state_dict)  # type: ignore[method-assign]
